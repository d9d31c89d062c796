#include "mpi_transport.h"

#include <algorithm>
#include <climits>
#include <cstdio>
#include <numeric>
#include <vector>

#include "strategies/comm/point_to_point.h"

namespace {

/// Sends messages between two ranks. dckpt needs no more of a network: it builds the collectives on
/// them.
class MpiTransport final : public dckpt::Transport {
 public:
  /// Owns `mpi`, whose ranks are `members` of the whole job, in order.
  MpiTransport(MPI_Comm mpi, std::vector<int> members) : mpi_(mpi), members_(std::move(members)) {}
  ~MpiTransport() override { MPI_Comm_free(&mpi_); }
  MpiTransport(const MpiTransport&) = delete;
  MpiTransport& operator=(const MpiTransport&) = delete;

  void exchange(std::span<const Outgoing> outgoing, std::span<const Incoming> incoming,
                const dckpt::Deadline& deadline) override {
    std::vector<MPI_Request> requests;
    // MPI counts in int: longer messages are sent in pieces, which arrive in order.
    const auto in_pieces = [&](auto bytes, const auto& start) {
      for (std::size_t at = 0; at < bytes.size(); at += INT_MAX) {
        const std::size_t length = std::min<std::size_t>(bytes.size() - at, INT_MAX);
        start(bytes.data() + at, static_cast<int>(length), &requests.emplace_back());
      }
    };
    for (const Incoming& message : incoming) {
      const int peer = position(message.from);
      in_pieces(message.bytes, [&](auto* data, int length, MPI_Request* request) {
        MPI_Irecv(data, length, MPI_BYTE, peer, 0, mpi_, request);
      });
    }
    for (const Outgoing& message : outgoing) {
      const int peer = position(message.to);
      in_pieces(message.bytes, [&](auto* data, int length, MPI_Request* request) {
        MPI_Isend(data, length, MPI_BYTE, peer, 0, mpi_, request);
      });
    }
    for (int done = 0; done == 0;) {
      MPI_Testall(static_cast<int>(requests.size()), requests.data(), &done, MPI_STATUSES_IGNORE);
      if (done == 0 && deadline.passed()) {
        std::fprintf(stderr, "dckpt: a rank did not respond in time\n");
        MPI_Abort(MPI_COMM_WORLD,
                  1);  // MPI cannot cancel a send, so its buffer could never be released
      }
    }
  }

  std::shared_ptr<dckpt::Transport> part(std::span<const int> members,
                                         dckpt::Communicator&) override {
    std::vector<int> positions;
    for (const int member : members) positions.push_back(position(member));
    MPI_Group all;
    MPI_Group some;
    MPI_Comm own;
    MPI_Comm_group(mpi_, &all);
    MPI_Group_incl(all, static_cast<int>(positions.size()), positions.data(), &some);
    MPI_Comm_create_group(mpi_, some, 0, &own);
    MPI_Group_free(&some);
    MPI_Group_free(&all);
    return std::make_shared<MpiTransport>(own, std::vector<int>(members.begin(), members.end()));
  }

 private:
  /// Returns the rank in `mpi_` of a rank of the job.
  int position(int rank) const {
    return static_cast<int>(std::ranges::lower_bound(members_, rank) - members_.begin());
  }

  MPI_Comm mpi_;
  std::vector<int> members_;
};

}  // namespace

std::unique_ptr<dckpt::Communicator> over_mpi(MPI_Comm mpi, std::chrono::milliseconds timeout) {
  int rank = 0;
  int size = 0;
  MPI_Comm own;
  MPI_Comm_dup(mpi, &own);  // keeps its messages apart from the program's
  MPI_Comm_rank(own, &rank);
  MPI_Comm_size(own, &size);
  std::vector<int> members(static_cast<std::size_t>(size));
  std::iota(members.begin(), members.end(), 0);
  return dckpt::point_to_point(std::make_shared<MpiTransport>(own, std::move(members)), rank, size,
                               timeout);
}
