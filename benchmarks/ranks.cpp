#include "benchmarks/ranks.h"

#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <iostream>
#include <stdexcept>
#include <string>
#include <vector>

#include "strategies/comm/sockets/socket_communicator.h"
#include "strategies/comm/threads.h"

namespace dckpt::bench {
namespace {

Bytes run_threads(int ranks, const std::function<Bytes(Communicator&)>& body) {
  Bytes result;
  run_ranks(ranks, [&](Communicator& comm) {
    Bytes mine = body(comm);
    if (comm.rank() == 0) result = std::move(mine);
  });
  return result;
}

/// Returns a port that was free a moment ago.
int free_port() {
  const int socket = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  auto* const generic = reinterpret_cast<sockaddr*>(&address);
  const bool found =
      ::bind(socket, generic, length) == 0 && ::getsockname(socket, generic, &length) == 0;
  ::close(socket);
  if (!found) throw std::runtime_error("no free port for the ranks to meet at");
  return ntohs(address.sin_port);
}

/// Runs a forked rank until it exits. Rank 0 writes its result into `channel`.
[[noreturn]] void be_rank(const Connect& connect, int rank, int ranks, int port, int channel,
                          const std::function<Bytes(Communicator&)>& body) {
  try {
    const auto comm = connect(port, rank, ranks);
    const Bytes result = body(*comm);
    comm->barrier();  // other ranks may still communicate with this one
    if (rank == 0 &&
        ::write(channel, result.data(), result.size()) != static_cast<ssize_t>(result.size()))
      throw std::runtime_error("cannot hand over the result");
    std::_Exit(0);
  } catch (const std::exception& error) {
    std::cerr << "rank " << rank << ": " << error.what() << '\n';
    std::_Exit(1);
  }
}

}  // namespace

Bytes run_processes(const Connect& connect, int ranks,
                    const std::function<Bytes(Communicator&)>& body) {
  const int port = free_port();
  std::array<int, 2> channel{};
  if (::pipe(channel.data()) != 0) throw std::runtime_error("cannot make a pipe");
  std::vector<pid_t> children;
  for (int rank = 0; rank < ranks; ++rank) {
    const pid_t child = ::fork();
    if (child == 0) be_rank(connect, rank, ranks, port, channel[1], body);
    if (child > 0) children.push_back(child);
  }
  ::close(channel[1]);
  Bytes result;
  std::array<std::byte, 4096> part;
  for (ssize_t got = 0; (got = ::read(channel[0], part.data(), part.size())) > 0;)
    result.insert(result.end(), part.begin(), part.begin() + got);
  ::close(channel[0]);
  bool good = children.size() == static_cast<std::size_t>(ranks);
  for (const pid_t child : children) {
    int status = 0;
    good = ::waitpid(child, &status, 0) == child && status == 0 && good;
  }
  if (!good) throw std::runtime_error("a rank's process failed");
  return result;
}

Bytes run_ranks_as(RankKind kind, int ranks, const std::function<Bytes(Communicator&)>& body) {
  if (kind == RankKind::kThreads || ranks == 1) return run_threads(ranks, body);
  const auto connect = [](int port, int rank, int size) {
    return socket_communicator("127.0.0.1:" + std::to_string(port), rank, size);
  };
  return run_processes(connect, ranks, body);
}

}  // namespace dckpt::bench
