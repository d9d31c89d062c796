#include <string>

#include "mapping/base/error.h"
#include "strategies/comm/communicator.h"
#include "strategies/comm/reduce.h"

namespace dckpt {
namespace {

class SingleRank final : public Communicator {
 public:
  int rank() const noexcept override { return 0; }
  int size() const noexcept override { return 1; }
  std::chrono::milliseconds timeout() const noexcept override { return std::chrono::minutes(10); }

  void barrier() override {}

  std::vector<Bytes> gather(ByteView mine, int root) override {
    check_root(*this, root);
    return all_gather(mine);
  }

  std::vector<Bytes> all_gather(ByteView mine) override {
    return {Bytes(mine.begin(), mine.end())};
  }

  Bytes scatter(std::span<const Bytes> parts, int root) override {
    check_root(*this, root);
    return only(parts);
  }

  Bytes broadcast(ByteView bytes, int root) override {
    check_root(*this, root);
    return {bytes.begin(), bytes.end()};
  }

  std::vector<Bytes> all_to_all(std::vector<Bytes> parts) override {
    only(parts);
    return parts;
  }

  std::vector<std::int64_t> all_reduce(std::span<const std::int64_t> values, ReduceOp) override {
    return {values.begin(), values.end()};
  }

  std::unique_ptr<Communicator> split(int) override { return single_rank(); }

 private:
  static const Bytes& only(std::span<const Bytes> parts) {
    if (parts.size() != 1) {
      throw_error(ErrorCode::kInvalidArgument, {.rank = 0},
                  "got {} buffers for the only rank, expected one per rank", parts.size());
    }
    return parts.front();
  }
};

}  // namespace

std::unique_ptr<Communicator> single_rank() {
  return std::make_unique<SingleRank>();
}

}  // namespace dckpt
