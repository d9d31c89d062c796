#include "strategies/comm/nccl/communicator.h"

#include <cuda_runtime.h>
#include <nccl.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <string>
#include <thread>
#include <utility>

#include "mapping/base/error.h"
#include "mapping/base/ranks_text.h"
#include "strategies/comm/agree.h"
#include "strategies/comm/device_exchange.h"
#include "strategies/comm/point_to_point.h"
#include "strategies/comm/rounds.h"
#include "strategies/device/cuda/copy_rows.h"
#include "strategies/device/cuda/current_device.h"

namespace dckpt {
namespace {

using cuda::check_cuda;
using cuda::OnDevice;

static_assert(std::tuple_size_v<NcclId> == NCCL_UNIQUE_ID_BYTES);

// The maximum bytes of one ncclSend. The same on all ranks, whatever their staging.
constexpr std::size_t kLongestPiece = std::size_t{4} << 20;

std::string nccl_text(ncclResult_t result, ncclComm_t comm) {
  const char* last = ncclGetLastError(comm);
  return std::string(ncclGetErrorString(result)) +
         (last == nullptr || *last == '\0' ? "" : str_format(" ({})", printable(last)));
}

/// Throws unless the call succeeded; a call of a non-blocking communicator may also be in progress.
void check_nccl(ncclResult_t result, ncclComm_t comm, const char* what) {
  if (result != ncclSuccess && result != ncclInProgress)
    throw_error(ErrorCode::kIo, "{}: {}", what, nccl_text(result, comm));
}

template <auto kDestroy>
struct Destroy {
  void operator()(auto* object) const noexcept {
    if (kDestroy(object) != cudaSuccess) cudaGetLastError();
  }
};
using Stream = std::unique_ptr<std::remove_pointer_t<cudaStream_t>, Destroy<cudaStreamDestroy>>;
using Event = std::unique_ptr<std::remove_pointer_t<cudaEvent_t>, Destroy<cudaEventDestroy>>;
using DeviceMemory = std::unique_ptr<std::byte, Destroy<cudaFree>>;
using PinnedMemory = std::unique_ptr<std::byte, Destroy<cudaFreeHost>>;

void check_options(const NcclOptions& options) {
  if (options.staging < 2 * kLongestPiece) {
    throw_error(ErrorCode::kInvalidArgument,
                "the staging of a communicator over NCCL is {}, expected at least {}",
                human_bytes(options.staging), human_bytes(2 * kLongestPiece));
  }
  if (options.timeout <= options.timeout.zero()) {
    throw_error(ErrorCode::kInvalidArgument,
                "the timeout of a communicator over NCCL is {} ms, expected a positive time",
                options.timeout.count());
  }
}

/// The staging buffers of one round: outgoing bytes in the first half, incoming bytes in the
/// second.
struct Stage {
  PinnedMemory host;
  DeviceMemory device;
  Event arrived;
};

/// Two stages: while one round is in transit, the next is copied in and the one before is copied
/// out.
struct Staging {
  Staging(int device, const NcclOptions& options)
      : room(options.staging / 2 / kPieceAlignment * kPieceAlignment) {
    check_options(options);
    const OnDevice current(device);
    cudaStream_t made = nullptr;
    check_cuda(cudaStreamCreateWithFlags(&made, cudaStreamNonBlocking),
               "cudaStreamCreateWithFlags");
    stream.reset(made);
    const std::string size = human_bytes(2 * room);
    for (Stage& stage : stages) {
      void* memory = nullptr;
      check_cuda(cudaHostAlloc(&memory, 2 * room, cudaHostAllocDefault),
                 "cudaHostAlloc of " + size);
      stage.host.reset(static_cast<std::byte*>(memory));
      check_cuda(cudaMalloc(&memory, 2 * room),
                 str_format("cudaMalloc of {} on device {}", size, device));
      stage.device.reset(static_cast<std::byte*>(memory));
      cudaEvent_t event = nullptr;
      check_cuda(cudaEventCreateWithFlags(&event, cudaEventDisableTiming),
                 "cudaEventCreateWithFlags");
      stage.arrived.reset(event);
    }
  }

  std::size_t room;  ///< bytes of a stage for each direction
  Stream stream;
  Stage stages[2];
};

using Message = DeviceBoxTransport::Message;

void copy_box(const DeviceBox& box, std::uint64_t begin, std::uint64_t length, std::byte* staging,
              bool out, cudaStream_t stream) {
  for_each_rows(box, begin, length, [&](const PitchedRows& rows) {
    DeviceCopy copy{.to = box.tensor + rows.source,
                    .from = staging + rows.destination,
                    .rows = static_cast<std::size_t>(rows.rows),
                    .row_bytes = static_cast<std::size_t>(rows.run),
                    .to_pitch = static_cast<std::size_t>(rows.source_pitch),
                    .from_pitch = static_cast<std::size_t>(rows.destination_pitch),
                    .direction = DeviceCopy::Direction::kOnDevice};
    if (out) {
      copy.to = staging + rows.destination;
      copy.from = box.tensor + rows.source;
      std::swap(copy.to_pitch, copy.from_pitch);
    }
    cuda::copy_rows(copy, stream);
  });
}

/// Copies parts on the device between their place and the staging, and calls visit(part, begin,
/// length, place) for the others. Returns the ranges of the staging that the others take; they may
/// include gaps.
template <typename Visit>
std::vector<std::pair<std::size_t, std::size_t>> copy_boxes(std::span<const TransferPiece> pieces,
                                                            std::span<const Message> messages,
                                                            std::byte* staging, bool out,
                                                            cudaStream_t stream, Visit&& visit) {
  std::vector<std::pair<std::size_t, std::size_t>> ranges;
  bool extends = false;
  for (const TransferPiece& piece : pieces) {
    for_each_stretch(
        messages[piece.message].parts, piece.offset, piece.length,
        [&](const MessagePart& part, std::uint64_t begin, std::uint64_t length, std::uint64_t at) {
          const std::size_t place = piece.place + at;
          for (const DeviceBox& box : part.boxes)
            copy_box(box, begin, length, staging + place, out, stream);
          if (!part.boxes.empty()) {
            extends = false;
            return;
          }
          if (!extends) ranges.emplace_back(place, 0);
          ranges.back().second = place + length;
          extends = true;
          visit(part, begin, length, place);
        });
  }
  return ranges;
}

/// Sends messages over one NCCL communicator.
class NcclTransport final : public DeviceBoxTransport {
 public:
  /// `members` are the job's ranks in NCCL's order, ascending.
  NcclTransport(std::vector<int> members, int rank, int device, const NcclOptions& options)
      : members_(std::move(members)),
        rank_(rank),
        device_(device),
        options_(options),
        staging_(device, options) {}

  ~NcclTransport() override {
    try {
      const OnDevice current(device_);
      close();
    } catch (const std::exception&) {
      abort();
    }
  }

  /// Collective: rendezvous with all other members.
  void connect(const NcclId& id) {
    const OnDevice current(device_);
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    ncclUniqueId nccl_id;
    std::memcpy(nccl_id.internal, id.data(), id.size());
    std::vector<int> others = members_;
    std::erase(others, rank_);
    try {
      check_nccl(ncclCommInitRankConfig(&comm_, static_cast<int>(members_.size()), nccl_id,
                                        nccl_rank(rank_), &config),
                 nullptr, "ncclCommInitRankConfig");
      wait_ready(Deadline::after(options_.timeout), others);
    } catch (const CheckpointError& error) {
      abort();
      throw_error(error.code(), {.rank = rank_}, "cannot connect {} ranks over NCCL: {}",
                  members_.size(), error.message());
    }
  }

  void take_over(ncclComm_t comm) noexcept { comm_ = comm; }

  Device device() const noexcept override { return {Device::Kind::kCuda, device_}; }

  void exchange(std::span<const Outgoing> outgoing, std::span<const Incoming> incoming,
                const Deadline& deadline) override {
    std::vector<MessagePart> parts;
    parts.reserve(outgoing.size() + incoming.size());
    const auto whole = [&](int peer, const std::byte* bytes, std::size_t size) -> Message {
      // Only read if it is sent.
      parts.push_back({.bytes = size, .host = const_cast<std::byte*>(bytes)});
      return {peer, {&parts.back(), 1}};
    };
    std::vector<Message> out;
    std::vector<Message> in;
    for (const Outgoing& message : outgoing)
      out.push_back(whole(message.to, message.bytes.data(), message.bytes.size()));
    for (const Incoming& message : incoming)
      in.push_back(whole(message.from, message.bytes.data(), message.bytes.size()));
    exchange(std::span<const Message>(out), std::span<const Message>(in), deadline);
  }

  void exchange(std::span<const Message> outgoing, std::span<const Message> incoming,
                const Deadline& deadline) override {
    if (comm_ == nullptr)
      throw_error(ErrorCode::kUnavailable, "the NCCL communicator was aborted: " + failure_);
    try {
      const OnDevice current(device_);
      try {
        exchange_in_rounds(outgoing, incoming, deadline);
      } catch (...) {
        // After an abort nothing delays the copies to and from tensors, which the caller may free.
        abort();
        if (cudaStreamSynchronize(staging_.stream.get()) != cudaSuccess) cudaGetLastError();
        throw;
      }
    } catch (const std::exception& error) {
      const auto* known = dynamic_cast<const CheckpointError*>(&error);
      failure_ = known != nullptr ? known->message() : error.what();
      abort();
      throw;
    }
  }

  std::shared_ptr<Transport> part(std::span<const int> members, Communicator& group) override;

 private:
  void exchange_in_rounds(std::span<const Message> outgoing, std::span<const Message> incoming,
                          const Deadline& deadline) {
    const auto sizes = [](std::span<const Message> messages) {
      std::vector<MessageSize> all;
      for (const Message& message : messages)
        all.push_back({message.peer, static_cast<std::size_t>(length_of(message.parts))});
      return all;
    };
    const std::vector<Round> rounds =
        plan_exchange(sizes(outgoing), sizes(incoming), kLongestPiece, staging_.room);
    for (std::size_t i = 0; i < rounds.size(); ++i) {
      start(staging_.stages[i % 2], rounds[i], outgoing, incoming, deadline);
      if (i > 0) finish(staging_.stages[(i - 1) % 2], rounds[i - 1], incoming, deadline);
    }
    if (!rounds.empty())
      finish(staging_.stages[(rounds.size() - 1) % 2], rounds.back(), incoming, deadline);
  }

  /// Enqueues in stream order: copies to the staging on the device, all messages of the round at
  /// once, and copies onward from there.
  void start(const Stage& stage, const Round& round, std::span<const Message> outgoing,
             std::span<const Message> incoming, const Deadline& deadline) {
    cudaStream_t stream = staging_.stream.get();
    std::byte* const device_in = stage.device.get() + staging_.room;
    const auto from_host = copy_boxes(
        round.outgoing, outgoing, stage.device.get(), /*out=*/true, stream,
        [&](const MessagePart& part, std::uint64_t begin, std::uint64_t length, std::size_t place) {
          std::memcpy(stage.host.get() + place, part.host + begin, length);
        });
    for (const auto& [begin, end] : from_host) {
      check_cuda(cudaMemcpyAsync(stage.device.get() + begin, stage.host.get() + begin, end - begin,
                                 cudaMemcpyHostToDevice, stream),
                 "cudaMemcpyAsync to the device");
    }

    check_nccl(ncclGroupStart(), comm_, "ncclGroupStart");
    ncclResult_t posted = ncclSuccess;
    const auto post = [&](ncclResult_t result) {
      posted = posted == ncclSuccess || posted == ncclInProgress ? result : posted;
    };
    for (const TransferPiece& piece : round.outgoing) {
      post(ncclSend(stage.device.get() + piece.place, piece.length, ncclUint8,
                    nccl_rank(outgoing[piece.message].peer), comm_, stream));
    }
    for (const TransferPiece& piece : round.incoming) {
      post(ncclRecv(device_in + piece.place, piece.length, ncclUint8,
                    nccl_rank(incoming[piece.message].peer), comm_, stream));
    }
    const ncclResult_t ended =
        ncclGroupEnd();  // also after an error: the group belongs to the thread
    check_nccl(posted, comm_, "ncclSend and ncclRecv");
    check_nccl(ended, comm_, "ncclGroupEnd");
    wait_ready(deadline, round.peers);  // the messages are not on the stream before

    const auto to_host = copy_boxes(round.incoming, incoming, device_in, /*out=*/false, stream,
                                    [](const auto&...) {});
    for (const auto& [begin, end] : to_host) {
      check_cuda(cudaMemcpyAsync(stage.host.get() + staging_.room + begin, device_in + begin,
                                 end - begin, cudaMemcpyDeviceToHost, stream),
                 "cudaMemcpyAsync from the device");
    }
    check_cuda(cudaEventRecord(stage.arrived.get(), stream), "cudaEventRecord");
  }

  void finish(const Stage& stage, const Round& round, std::span<const Message> incoming,
              const Deadline& deadline) {
    wait_arrived(stage, deadline, round.peers);
    for (const TransferPiece& piece : round.incoming) {
      for_each_stretch(incoming[piece.message].parts, piece.offset, piece.length,
                       [&](const MessagePart& part, std::uint64_t begin, std::uint64_t length,
                           std::uint64_t at) {
                         if (part.boxes.empty())
                           std::memcpy(part.host + begin,
                                       stage.host.get() + staging_.room + piece.place + at, length);
                       });
    }
  }

  /// Returns NCCL's number of a rank of the job.
  int nccl_rank(int rank) const noexcept {
    return static_cast<int>(std::ranges::lower_bound(members_, rank) - members_.begin());
  }

  /// Waits until `arrived` returns true and NCCL has nothing in progress. Meanwhile NCCL may report
  /// a broken connection, and then nothing has arrived.
  template <typename Arrived>
  void poll(const Deadline& deadline, std::span<const int> peers, Arrived&& arrived) {
    constexpr int kBusyTurns = 1000;
    for (int turn = 0;; ++turn) {
      const bool all = arrived();
      ncclResult_t state = ncclSuccess;
      check_nccl(ncclCommGetAsyncError(comm_, &state), comm_, "ncclCommGetAsyncError");
      if (state != ncclSuccess && state != ncclInProgress) {
        throw_error(ErrorCode::kUnavailable, "lost the connection to {}: {}", ranks_text(peers),
                    nccl_text(state, comm_));
      }
      if (all && state == ncclSuccess) return;
      if (deadline.passed())
        throw_error(ErrorCode::kUnavailable, "waited {} ms for {}", deadline.timeout.count(),
                    ranks_text(peers));
      if (turn < kBusyTurns) {
        std::this_thread::yield();
      } else {
        std::this_thread::sleep_for(std::chrono::microseconds(100));
      }
    }
  }

  void wait_ready(const Deadline& deadline, std::span<const int> peers) {
    poll(deadline, peers, [] { return true; });
  }

  void wait_arrived(const Stage& stage, const Deadline& deadline, std::span<const int> peers) {
    poll(deadline, peers, [&] {
      const cudaError_t state = cudaEventQuery(stage.arrived.get());
      if (state == cudaErrorNotReady) {
        cudaGetLastError();  // not an error, but stored like one
      } else {
        check_cuda(state, "cudaEventQuery");
      }
      return state == cudaSuccess;
    });
  }

  /// Waits until the others have taken the last messages.
  void close() {
    if (comm_ == nullptr) return;
    check_nccl(ncclCommFinalize(comm_), comm_, "ncclCommFinalize");
    wait_ready(Deadline::after(options_.timeout), members_);
    ncclCommDestroy(std::exchange(comm_, nullptr));
  }

  /// Ends everything in progress, so that memory can be freed; NCCL may tell the others.
  void abort() noexcept {
    if (comm_ != nullptr) ncclCommAbort(std::exchange(comm_, nullptr));
  }

  std::vector<int> members_;
  int rank_;
  int device_;
  NcclOptions options_;
  Staging staging_;
  ncclComm_t comm_ = nullptr;
  std::string failure_;
};

/// Connects ranks over an id that the first rank of `bootstrap` makes. All ranks have their memory
/// before any of them begins to wait.
std::shared_ptr<NcclTransport> connected(Communicator& bootstrap, std::vector<int> members,
                                         int rank, int device, const NcclOptions& options) {
  std::shared_ptr<NcclTransport> transport;
  NcclId id{};
  agree(bootstrap, "preparing a communicator over NCCL", [&] {
    transport = std::make_shared<NcclTransport>(std::move(members), rank, device, options);
    if (bootstrap.rank() == 0) id = nccl_unique_id();
  });
  const Bytes received = bootstrap.broadcast(id, 0);
  if (received.size() != id.size()) {
    throw_error(
        ErrorCode::kInvalidArgument, {.rank = rank},
        "rank 0 sent no NCCL id: do all ranks make the same communicators in the same order?");
  }
  std::ranges::copy(received, id.begin());
  transport->connect(id);
  return transport;
}

std::shared_ptr<Transport> NcclTransport::part(std::span<const int> members, Communicator& group) {
  return connected(group, {members.begin(), members.end()}, rank_, device_, options_);
}

std::vector<int> all_ranks(int size) {
  std::vector<int> ranks(static_cast<std::size_t>(size));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

}  // namespace

NcclId nccl_unique_id() {
  ncclUniqueId made;
  check_nccl(ncclGetUniqueId(&made), nullptr, "ncclGetUniqueId");
  NcclId id;
  std::memcpy(id.data(), made.internal, id.size());
  return id;
}

std::unique_ptr<Communicator> nccl_communicator(const NcclId& id, int rank, int size, int device,
                                                const NcclOptions& options) {
  if (rank < 0 || rank >= size) {
    throw_error(ErrorCode::kInvalidArgument, "rank {} is out of range (size {})", rank, size);
  }
  const auto transport = std::make_shared<NcclTransport>(all_ranks(size), rank, device, options);
  transport->connect(id);
  return point_to_point(transport, rank, size, options.timeout);
}

std::unique_ptr<Communicator> nccl_communicator(Communicator& bootstrap, int device,
                                                const NcclOptions& options) {
  return point_to_point(
      connected(bootstrap, all_ranks(bootstrap.size()), bootstrap.rank(), device, options),
      bootstrap.rank(), bootstrap.size(), options.timeout);
}

std::unique_ptr<Communicator> nccl_communicator(ncclComm* comm, const NcclOptions& options) {
  if (comm == nullptr)
    throw_error(ErrorCode::kInvalidArgument,
                "a communicator over NCCL needs one of NCCL's; the one that was passed is null");
  int size = 0;
  int rank = 0;
  int device = 0;
  check_nccl(ncclCommCount(comm, &size), comm, "ncclCommCount");
  check_nccl(ncclCommUserRank(comm, &rank), comm, "ncclCommUserRank");
  check_nccl(ncclCommCuDevice(comm, &device), comm, "ncclCommCuDevice");
  const auto transport = std::make_shared<NcclTransport>(all_ranks(size), rank, device, options);
  std::unique_ptr<Communicator> made = point_to_point(transport, rank, size, options.timeout);
  transport->take_over(comm);
  return made;
}

}  // namespace dckpt
