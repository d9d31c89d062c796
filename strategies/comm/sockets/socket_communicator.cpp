#include "strategies/comm/sockets/socket_communicator.h"

#include <cstdlib>
#include <utility>

#include "mapping/base/error.h"
#include "strategies/comm/point_to_point.h"
#include "strategies/comm/shared_memory.h"
#include "strategies/comm/sockets/job_place.h"
#include "strategies/comm/sockets/rendezvous.h"
#include "strategies/comm/sockets/socket_transport.h"

namespace dckpt {

std::unique_ptr<Communicator> socket_communicator(const std::string& rendezvous, int rank, int size,
                                                  const SocketOptions& options) {
  const sockets::Rendezvous place = sockets::parse_rendezvous(rendezvous);
  if (size < 1 || size > sockets::kMostRanks || rank < 0 || rank >= size) {
    throw_error(ErrorCode::kInvalidArgument, "rank {} is out of range (size {}, at most {})", rank,
                size, sockets::kMostRanks);
  }
  if (options.timeout <= options.timeout.zero()) {
    throw_error(ErrorCode::kInvalidArgument,
                "the timeout of a communicator is {} ms, expected a positive time",
                options.timeout.count());
  }
  if (options.token.size() > sockets::kMostToken) {
    throw_error(ErrorCode::kInvalidArgument, "the token of the job has {} bytes, more than {}",
                options.token.size(), sockets::kMostToken);
  }
  if (size == 1) return single_rank();
  sockets::Meeting meeting =
      sockets::meet(place, rank, size, options.token, Deadline::after(options.timeout));
  std::shared_ptr<Transport> transport = sockets::socket_transport(std::move(meeting), rank);
  if (options.shared_memory) transport = with_shared_memory(std::move(transport), rank);
  auto comm = point_to_point(std::move(transport), rank, size, options.timeout);
  comm->barrier();  // from now on rank 0 is connected with all, and notices if one ends
  return comm;
}

JobPlace job_from_environment() {
  return sockets::job_place([](const char* name) { return std::getenv(name); });
}

std::unique_ptr<Communicator> sockets_from_environment(SocketOptions options) {
  const JobPlace place = job_from_environment();
  if (const char* const token = std::getenv("DCKPT_TOKEN");
      token != nullptr && options.token.empty())
    options.token = token;
  if (place.size == 1 && place.rank == 0 && place.rendezvous.empty()) return single_rank();
  if (place.rendezvous.empty()) {
    throw_error(ErrorCode::kInvalidArgument,
                "the {} ranks of this job have no rendezvous: set DCKPT_RENDEZVOUS to HOST:PORT "
                "(MASTER_ADDR and MASTER_PORT are taken, too), or to a folder if all are on one "
                "host",
                place.size);
  }
  return socket_communicator(place.rendezvous, place.rank, place.size, options);
}

}  // namespace dckpt
