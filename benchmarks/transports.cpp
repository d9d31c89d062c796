#include "benchmarks/transports.h"

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <iterator>
#include <limits>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "benchmarks/ranks.h"
#include "dist_checkpointing/save/save.h"
#include "strategies/comm/sockets/socket_communicator.h"
#ifdef DCKPT_BENCH_GLOO
#include "strategies/comm/c10d/process_group.h"
#endif

namespace dckpt::bench {
namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;
constexpr int kRounds = 5;

struct Transport {
  const char* name;
  Connect connect;
};

#ifdef DCKPT_BENCH_GLOO

/// Makes memfd_create() fail from now on, so that Gloo's communicator does not move messages
/// through shared memory.
void forbid_shared_memory() {
  sock_filter program[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_memfd_create, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog filter{static_cast<unsigned short>(std::size(program)), program};
  if (::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
      ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) != 0)
    throw std::runtime_error("cannot measure Gloo without shared memory");
}

std::unique_ptr<Communicator> gloo(int port, int rank, int ranks) {
  ::setenv("RANK", std::to_string(rank).c_str(), 1);
  ::setenv("WORLD_SIZE", std::to_string(ranks).c_str(), 1);
  ::setenv("MASTER_ADDR", "127.0.0.1", 1);
  ::setenv("MASTER_PORT", std::to_string(port).c_str(), 1);
  ::setenv("GLOO_SOCKET_IFNAME", "lo", 0);
  forbid_shared_memory();
  return gloo_from_environment(std::chrono::minutes(5));
}

#endif

std::vector<Transport> transports(const std::filesystem::path& directory) {
  const auto sockets = [](const std::string& rendezvous, int rank, int ranks, bool shared) {
    return socket_communicator(
        rendezvous, rank, ranks,
        {.timeout = std::chrono::minutes(5), .token = "bench", .shared_memory = shared});
  };
  const auto tcp = [sockets](bool shared) {
    return [sockets, shared](int port, int rank, int ranks) {
      return sockets("127.0.0.1:" + std::to_string(port), rank, ranks, shared);
    };
  };
  return {
#ifdef DCKPT_BENCH_GLOO
      {"gloo", gloo},
#endif
      {"tcp", tcp(false)},
      {"unix", [sockets, folder = directory.string() + "/"](
                   int, int rank, int ranks) { return sockets(folder, rank, ranks, false); }},
      {"shared_memory", tcp(true)}};
}

/// A metric and the calls of one round.
struct Step {
  const char* metric;
  std::function<void(Communicator&)> run;
};

StateDict small_tensors(const Communicator& comm) {
  StateDict state;
  for (int i = 0; i < 2000; ++i) {
    const std::string key = "tensor." + std::to_string(i);
    state[key] =
        ShardedTensor::from_rank_offsets(key, Tensor::empty(DType::kFloat32, {16}),
                                         {{.axis = 0, .rank = comm.rank(), .count = comm.size()}});
  }
  return state;
}

std::vector<Step> steps(const std::filesystem::path& checkpoint) {
  const auto repeat = [](auto call) {
    return [call](Communicator& comm) {
      for (int i = 0; i < 100; ++i) call(comm);
    };
  };
  return {{"barriers_s", repeat([](Communicator& comm) { comm.barrier(); })},
          {"all_gathers_100_s",
           repeat([mine = Bytes(100)](Communicator& comm) { (void)comm.all_gather(mine); })},
          {"gather_1m_s", [mine = Bytes(kMiB)](Communicator& comm) { (void)comm.gather(mine, 0); }},
          {"broadcast_32m_s",
           [all = Bytes(32 * kMiB)](Communicator& comm) {
             (void)comm.broadcast(comm.rank() == 0 ? ByteView(all) : ByteView(), 0);
           }},
          {"all_to_all_8m_s",
           [](Communicator& comm) {
             const auto size = static_cast<std::size_t>(comm.size());
             (void)comm.all_to_all(std::vector<Bytes>(size, Bytes(8 * kMiB)));
           }},
          {"save_2000_s", [checkpoint](Communicator& comm) {
             const StateDict state = small_tensors(comm);
             save(state, checkpoint, {.overwrite = true, .io = {.fsync = false}}, comm);
           }}};
}

/// Returns the seconds of the fastest round of each step, on rank 0's clock.
Bytes fastest_rounds(Communicator& comm, const std::vector<Step>& steps) {
  std::vector<double> fastest;
  for (const Step& step : steps) {
    fastest.push_back(std::numeric_limits<double>::infinity());
    for (int round = 0; round < kRounds; ++round) {
      comm.barrier();
      const auto start = std::chrono::steady_clock::now();
      step.run(comm);
      comm.barrier();
      const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
      fastest.back() = std::min(fastest.back(), taken.count());
    }
  }
  const ByteView bytes = std::as_bytes(std::span(fastest));
  return {bytes.begin(), bytes.end()};
}

}  // namespace

double measure_transports(const std::filesystem::path& directory, Results& results) {
  std::filesystem::create_directories(directory);
  const std::vector<Step> all = steps(directory / "checkpoint");
  double sum = 0;
  for (const int ranks : {2, 4}) {
    for (const Transport& transport : transports(directory)) {
      const Bytes found = run_processes(
          transport.connect, ranks, [&](Communicator& comm) { return fastest_rounds(comm, all); });
      std::vector<double> seconds(all.size());
      if (found.size() != seconds.size() * sizeof(double))
        throw std::runtime_error("rank 0 has no result");
      std::memcpy(seconds.data(), found.data(), found.size());
      const std::string name = std::string(kTransports) + '-' + std::to_string(ranks);
      for (std::size_t i = 0; i < all.size(); ++i) {
        results.add(name, std::string(transport.name) + ":" + all[i].metric, "s", seconds[i]);
        sum += seconds[i];
      }
    }
  }
  return sum;
}

}  // namespace dckpt::bench
