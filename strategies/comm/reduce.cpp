#include "strategies/comm/reduce.h"

#include <algorithm>
#include <string>

#include "mapping/base/error.h"

namespace dckpt {

void reduce_into(std::span<std::int64_t> into, std::span<const std::int64_t> values,
                 ReduceOp op) noexcept {
  for (std::size_t i = 0; i < into.size(); ++i) {
    switch (op) {
      case ReduceOp::kSum:
        into[i] = static_cast<std::int64_t>(static_cast<std::uint64_t>(into[i]) +
                                            static_cast<std::uint64_t>(values[i]));
        break;
      case ReduceOp::kMin: into[i] = std::min(into[i], values[i]); break;
      case ReduceOp::kMax: into[i] = std::max(into[i], values[i]); break;
    }
  }
}

void check_root(const Communicator& comm, int root) {
  if (root >= 0 && root < comm.size()) return;
  throw_error(ErrorCode::kInvalidArgument, {.rank = comm.rank()},
              "root {} is out of range (size {})", root, comm.size());
}

}  // namespace dckpt
