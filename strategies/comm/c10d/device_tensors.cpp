#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <algorithm>
#include <numeric>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <utility>

#include "mapping/base/error.h"
#include "mapping/base/ranks_text.h"
#include "strategies/comm/c10d/backend_call.h"
#include "strategies/comm/c10d/process_group.h"
#include "strategies/comm/point_to_point.h"
#include "strategies/comm/rounds.h"

namespace dckpt {
namespace {

// The maximum bytes of one message. The same on all ranks, whatever their staging.
constexpr std::size_t kLongestPiece = std::size_t{4} << 20;

/// Sends messages over a backend, staged through tensors of its device. Backends for devices ignore
/// tags.
class DeviceTransport final : public Transport {
 public:
  /// `members` are the job's ranks in the backend's order, ascending. All transports derived from
  /// one backend share `next_group`.
  DeviceTransport(c10::intrusive_ptr<c10d::Backend> backend, std::vector<int> members,
                  DeviceTensors how, std::shared_ptr<std::int64_t> next_group)
      : backend_(std::move(backend)),
        members_(std::move(members)),
        how_(std::move(how)),
        next_group_(std::move(next_group)),
        room_(how_.staging / kPieceAlignment * kPieceAlignment),
        out_(at::empty({static_cast<std::int64_t>(room_)},
                       at::TensorOptions(at::kByte).device(how_.device))),
        in_(at::empty_like(out_)) {}

  void exchange(std::span<const Outgoing> outgoing, std::span<const Incoming> incoming,
                const Deadline& deadline) override {
    for (const Round& round : plan_exchange(outgoing, incoming, kLongestPiece, room_)) {
      backend_call(round.peers, deadline, [&] {
        for (const TransferPiece& piece : round.outgoing)
          part_of(out_, piece)
              .copy_(
                  tensor_over(outgoing[piece.message].bytes.subspan(piece.offset, piece.length)));
        for (const Work& work : post(round, outgoing, incoming)) wait(*work, deadline);
        for (const TransferPiece& piece : round.incoming)
          tensor_over(incoming[piece.message].bytes.subspan(piece.offset, piece.length))
              .copy_(part_of(in_, piece));
      });
    }
  }

  std::shared_ptr<Transport> part(std::span<const int> members, Communicator& group) override {
    if (!how_.new_group) {
      throw_error(ErrorCode::kUnsupported,
                  "ranks over a backend for device tensors, whose messages have no tags, "
                  "can be split only with DeviceTensors::new_group (a save in "
                  "the background needs it)");
    }
    const std::int64_t number = group.all_reduce({next_group_.get(), 1}, ReduceOp::kMax)
                                    .front();  // used by no other group of these ranks
    *next_group_ = number + 1;
    std::vector<int> ranks(members.begin(), members.end());
    const std::string name = str_format("dckpt/{}/{}", number, ranks.front());
    c10::intrusive_ptr<c10d::Backend> backend;
    backend_call(members, Deadline::after(group.timeout()),
                 [&] { backend = how_.new_group(ranks, name); });
    if (!backend || backend->getSize() != group.size() || backend->getRank() != group.rank()) {
      throw_error(ErrorCode::kInvalidArgument,
                  "DeviceTensors::new_group made no process group of {} in this order",
                  ranks_text(ranks));
    }
    return std::make_shared<DeviceTransport>(std::move(backend), std::move(ranks), how_,
                                             next_group_);
  }

 private:
  using Work = c10::intrusive_ptr<c10d::Work>;

  /// Posts all messages at once where the backend can: a backend that works through a stream would
  /// otherwise wait for the first before it begins the second.
  std::vector<Work> post(const Round& round, std::span<const Outgoing> outgoing,
                         std::span<const Incoming> incoming) {
    std::vector<Work> works;
    const bool at_once = backend_->supportsCoalescing();
    if (at_once) backend_->startCoalescing();
    try {
      for (const TransferPiece& piece : round.outgoing) {
        std::vector<at::Tensor> tensors = {part_of(out_, piece)};
        works.push_back(backend_->send(tensors, backend_rank(outgoing[piece.message].to), 0));
      }
      for (const TransferPiece& piece : round.incoming) {
        std::vector<at::Tensor> tensors = {part_of(in_, piece)};
        works.push_back(backend_->recv(tensors, backend_rank(incoming[piece.message].from), 0));
      }
    } catch (...) {
      if (at_once) end_quietly();
      throw;
    }
    if (at_once) works = {backend_->endCoalescing()};
    std::erase(works, nullptr);
    return works;
  }

  /// Ends coalescing, so that the trainer's next calls do not become part of ours.
  void end_quietly() noexcept {
    try {
      backend_->endCoalescing();
    } catch (const std::exception&) {
    }
  }

  static at::Tensor part_of(const at::Tensor& staging, const TransferPiece& piece) {
    return staging.narrow(0, static_cast<std::int64_t>(piece.place),
                          static_cast<std::int64_t>(piece.length));
  }

  int backend_rank(int rank) const noexcept {
    return static_cast<int>(std::ranges::lower_bound(members_, rank) - members_.begin());
  }

  c10::intrusive_ptr<c10d::Backend> backend_;
  std::vector<int> members_;
  DeviceTensors how_;
  std::shared_ptr<std::int64_t> next_group_;
  std::size_t room_;
  at::Tensor out_;
  at::Tensor in_;
};

}  // namespace

std::unique_ptr<Communicator> c10d_communicator(const c10::intrusive_ptr<c10d::Backend>& backend,
                                                DeviceTensors how,
                                                std::chrono::milliseconds timeout) {
  check_backend(backend);
  if (how.staging < kLongestPiece) {
    throw_error(ErrorCode::kInvalidArgument,
                "the staging of a communicator over device tensors is {}, expected at least {}",
                human_bytes(how.staging), human_bytes(kLongestPiece));
  }
  std::vector<int> members(static_cast<std::size_t>(backend->getSize()));
  std::iota(members.begin(), members.end(), 0);
  return point_to_point(
      std::make_shared<DeviceTransport>(backend, std::move(members), std::move(how),
                                        std::make_shared<std::int64_t>(0)),
      backend->getRank(), backend->getSize(), timeout);
}

}  // namespace dckpt
