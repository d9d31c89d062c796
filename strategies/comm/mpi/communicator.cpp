#include "strategies/comm/mpi/communicator.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <deque>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "mapping/base/error.h"
#include "mapping/base/ranks_text.h"
#include "strategies/comm/point_to_point.h"

namespace dckpt {
namespace {

// The longest piece of a message, the same on all ranks, and the pieces that are in transit at a
// time between two ranks in one direction.
constexpr std::size_t kPiece = std::size_t{1} << 20;
constexpr int kInTransit = 2;

void check_mpi(int result, const char* what) {
  if (result == MPI_SUCCESS) return;
  std::array<char, MPI_MAX_ERROR_STRING> text{};
  int length = 0;
  MPI_Error_string(result, text.data(), &length);
  throw_error(ErrorCode::kIo, "{}: {}", what, printable(text.data()));
}

CheckpointError misuse(const std::string& message) {
  return {ErrorCode::kInvalidArgument, message};
}

bool is_finalized() {
  int finalized = 0;
  MPI_Finalized(&finalized);
  return finalized != 0;
}

/// Throws unless MPI is between MPI_Init_thread and MPI_Finalize, and any thread may call it.
void require_mpi() {
  int initialized = 0;
  MPI_Initialized(&initialized);
  if (initialized == 0)
    throw misuse(
        "MPI is not initialized: call MPI_Init_thread with MPI_THREAD_MULTIPLE before "
        "mpi_communicator()");
  if (is_finalized())
    throw misuse(
        "MPI is finalized and carries no more messages: call MPI_Finalize after the last save or "
        "load, when background saves have ended");
  int provided = MPI_THREAD_SINGLE;
  check_mpi(MPI_Query_thread(&provided), "MPI_Query_thread");
  if (provided == MPI_THREAD_MULTIPLE) return;
  const char* const level = provided == MPI_THREAD_SINGLE     ? "MPI_THREAD_SINGLE"
                            : provided == MPI_THREAD_FUNNELED ? "MPI_THREAD_FUNNELED"
                                                              : "MPI_THREAD_SERIALIZED";
  throw misuse(str_format(
      "MPI provides {}, but dckpt needs MPI_THREAD_MULTIPLE, because background saves communicate "
      "from a thread of their own: call MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, "
      "&provided) in place of MPI_Init, of an MPI that provides it",
      level));
}

/// Waits until `done` returns true, or the deadline has passed. Returns whether it did.
template <typename Done>
bool poll(const Deadline& deadline, Done&& done) {
  constexpr int kBusyTurns = 1000;
  for (int turn = 0; !done(); ++turn) {
    if (deadline.passed()) return false;
    if (turn < kBusyTurns) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
  }
  return true;
}

/// The duplicate of the program's communicator, over which all groups of its ranks send, each with
/// a tag of its own.
struct World {
  MPI_Comm comm = MPI_COMM_NULL;
  int last_tag = 0;
  std::atomic<int> next_tag{1};
  std::atomic<bool> is_sound{true};  ///< false: requests of MPI have been given up
};

/// The messages of one call, on their way in pieces.
class Traffic {
 public:
  Traffic(World& world, int tag) : world_(world), tag_(tag) {}
  Traffic(const Traffic&) = delete;
  Traffic& operator=(const Traffic&) = delete;
  ~Traffic() {
    for (std::size_t i = 0; i < requests_.size(); ++i) {
      if (requests_[i] == MPI_REQUEST_NULL) continue;
      world_.is_sound = false;
      if (!lanes_[pieces_[i].lane].sends) MPI_Cancel(&requests_[i]);
      MPI_Request_free(&requests_[i]);
      pieces_[i].memory.release();  // MPI may access it at any time
    }
  }

  void add(int peer, bool sends, MutableByteView bytes) {
    const auto same = [&](const Lane& lane) { return lane.peer == peer && lane.sends == sends; };
    auto lane = std::ranges::find_if(lanes_, same);
    if (lane == lanes_.end()) lane = lanes_.insert(lanes_.end(), {peer, sends});
    lane->messages.push_back(bytes);
  }

  /// Returns the peers whose messages have not all gone or come by the deadline: those that should
  /// have sent, if there are any.
  std::vector<int> run(const Deadline& deadline) {
    for (std::size_t lane = 0; lane < lanes_.size(); ++lane) {
      for (int i = 0; i < kInTransit; ++i) {
        pieces_.push_back({lane});
        requests_.push_back(MPI_REQUEST_NULL);
        start(pieces_.size() - 1);
      }
    }
    ended_.resize(requests_.size());
    statuses_.resize(requests_.size());
    if (poll(deadline, [&] { return advance(); })) return {};
    std::vector<int> late = unfinished(/*sends=*/false);
    return late.empty() ? unfinished(/*sends=*/true) : late;
  }

 private:
  /// All that goes to one rank, or comes from it, in order.
  struct Lane {
    int peer;
    bool sends;
    std::deque<MutableByteView> messages{};  ///< what has not been started
  };
  struct Piece {
    std::size_t lane;
    MutableByteView place{};                ///< in the message
    std::unique_ptr<std::byte[]> memory{};  ///< what MPI accesses
    std::size_t capacity = 0;               ///< of the memory
  };

  /// Starts the next piece of a lane, if there is one.
  void start(std::size_t index) {
    Piece& piece = pieces_[index];
    Lane& lane = lanes_[piece.lane];
    if (lane.messages.empty()) return;
    MutableByteView& rest = lane.messages.front();
    piece.place = rest.first(std::min(rest.size(), kPiece));
    rest = rest.subspan(piece.place.size());
    if (rest.empty()) lane.messages.pop_front();
    if (piece.capacity < piece.place.size()) {
      piece.memory = std::make_unique_for_overwrite<std::byte[]>(piece.place.size());
      piece.capacity = piece.place.size();
    }
    const auto length = static_cast<int>(piece.place.size());
    if (lane.sends) {
      std::memcpy(piece.memory.get(), piece.place.data(), piece.place.size());
      check_mpi(MPI_Isend(piece.memory.get(), length, MPI_BYTE, lane.peer, tag_, world_.comm,
                          &requests_[index]),
                "MPI_Isend");
    } else {
      check_mpi(MPI_Irecv(piece.memory.get(), length, MPI_BYTE, lane.peer, tag_, world_.comm,
                          &requests_[index]),
                "MPI_Irecv");
    }
  }

  /// Finishes the pieces that have ended and starts others. Returns whether all have ended.
  bool advance() {
    int count = 0;
    const int result = MPI_Testsome(static_cast<int>(requests_.size()), requests_.data(), &count,
                                    ended_.data(), statuses_.data());
    if (result != MPI_SUCCESS && result != MPI_ERR_IN_STATUS) check_mpi(result, "MPI_Testsome");
    if (count == MPI_UNDEFINED) return true;
    for (int i = 0; i < count; ++i) {
      const MPI_Status& status = statuses_[static_cast<std::size_t>(i)];
      const auto index = static_cast<std::size_t>(ended_[static_cast<std::size_t>(i)]);
      finish(pieces_[index], status, result == MPI_SUCCESS ? MPI_SUCCESS : status.MPI_ERROR);
      start(index);
    }
    return false;
  }

  void finish(const Piece& piece, const MPI_Status& status, int error) {
    const Lane& lane = lanes_[piece.lane];
    int kind = MPI_SUCCESS;
    if (error != MPI_SUCCESS) MPI_Error_class(error, &kind);
    if (kind != MPI_ERR_TRUNCATE)
      check_mpi(error, lane.sends ? "sending over MPI" : "receiving over MPI");
    if (lane.sends) return;
    int length = 0;
    if (kind == MPI_SUCCESS) MPI_Get_count(&status, MPI_BYTE, &length);
    if (static_cast<std::size_t>(length) != piece.place.size())
      throw_error(ErrorCode::kInternal,
                  "rank {} sent a message of a different length than announced", lane.peer);
    std::memcpy(piece.place.data(), piece.memory.get(), piece.place.size());
  }

  std::vector<int> unfinished(bool sends) const {
    std::vector<int> peers;
    for (std::size_t i = 0; i < pieces_.size(); ++i) {
      const Lane& lane = lanes_[pieces_[i].lane];
      if (lane.sends == sends && requests_[i] != MPI_REQUEST_NULL) peers.push_back(lane.peer);
    }
    std::ranges::sort(peers);
    peers.erase(std::unique(peers.begin(), peers.end()), peers.end());
    return peers;
  }

  World& world_;
  const int tag_;
  std::vector<Lane> lanes_;
  std::vector<Piece> pieces_;
  std::vector<MPI_Request> requests_;  // of the pieces
  std::vector<int> ended_;
  std::vector<MPI_Status> statuses_;
};

/// Sends messages between the ranks of one group.
class MpiTransport final : public Transport {
 public:
  MpiTransport(std::shared_ptr<World> world, int tag) : world_(std::move(world)), tag_(tag) {}

  void exchange(std::span<const Outgoing> outgoing, std::span<const Incoming> incoming,
                const Deadline& deadline) override {
    require_mpi();
    Traffic traffic(*world_, tag_);
    for (const Incoming& one : incoming) traffic.add(one.from, false, one.bytes);
    for (const Outgoing& one : outgoing) {
      // Only read, since it is sent.
      auto* const bytes = const_cast<std::byte*>(one.bytes.data());
      traffic.add(one.to, true, {bytes, one.bytes.size()});
    }
    const std::vector<int> late = traffic.run(deadline);
    if (!late.empty())
      throw_error(ErrorCode::kUnavailable, "waited {} ms for {}", deadline.timeout.count(),
                  ranks_text(late));
  }

  /// Sends under a tag that is used by no other group of these ranks.
  std::shared_ptr<Transport> part(std::span<const int>, Communicator& group) override {
    const std::int64_t mine = world_->next_tag.load();
    const auto tag = static_cast<int>(group.all_reduce({&mine, 1}, ReduceOp::kMax).front());
    if (tag > world_->last_tag)
      throw_error(ErrorCode::kUnsupported,
                  "MPI has only {} tags, and each group of ranks needs one: "
                  "make fewer communicators with split()",
                  world_->last_tag);
    world_->next_tag = tag + 1;
    return std::make_shared<MpiTransport>(world_, tag);
  }

 private:
  const std::shared_ptr<World> world_;
  const int tag_;
};

/// Duplicates `comm`, collectively, with errors that are returned.
void connect(World& world, MPI_Comm comm, const Deadline& deadline) {
  MPI_Request request = MPI_REQUEST_NULL;
  check_mpi(MPI_Comm_idup(comm, &world.comm, &request), "MPI_Comm_idup");
  int done = 0;
  world.is_sound = poll(deadline, [&] {
    check_mpi(MPI_Test(&request, &done, MPI_STATUS_IGNORE), "MPI_Comm_idup");
    return done != 0;
  });
  if (!world.is_sound)
    throw_error(ErrorCode::kUnavailable,
                "waited {} ms for all ranks of the MPI communicator to call "
                "mpi_communicator(); MPI does not tell which are missing",
                deadline.timeout.count());
  check_mpi(MPI_Comm_set_errhandler(world.comm, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  int* limit = nullptr;
  int found = 0;
  check_mpi(MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, &limit, &found), "MPI_Comm_get_attr");
  world.last_tag = found != 0 ? *limit : 32767;  // what MPI guarantees
}

}  // namespace

std::unique_ptr<Communicator> mpi_communicator(MPI_Comm comm, std::chrono::milliseconds timeout) {
  require_mpi();
  if (comm == MPI_COMM_NULL)
    throw misuse("the MPI communicator is MPI_COMM_NULL: this rank belongs to none of its ranks");
  int is_inter = 0;
  int rank = 0;
  int size = 0;
  check_mpi(MPI_Comm_test_inter(comm, &is_inter), "MPI_Comm_test_inter");
  if (is_inter != 0)
    throw misuse(
        "the MPI communicator connects two groups of ranks: merge them with MPI_Intercomm_merge");
  check_mpi(MPI_Comm_rank(comm, &rank), "MPI_Comm_rank");
  check_mpi(MPI_Comm_size(comm, &size), "MPI_Comm_size");
  const std::shared_ptr<World> world(new World, [](World* one) {
    if (!one->is_sound) return;  // MPI may use the communicator, and even its handle
    if (one->comm != MPI_COMM_NULL && !is_finalized()) MPI_Comm_free(&one->comm);
    delete one;
  });
  auto made = point_to_point(std::make_shared<MpiTransport>(world, 0), rank, size, timeout);
  connect(*world, comm, Deadline::after(timeout));
  return made;
}

}  // namespace dckpt
