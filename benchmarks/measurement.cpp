#include "benchmarks/measurement.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <functional>
#include <stdexcept>

#include "benchmarks/process_stats.h"
#include "dist_checkpointing/load/load.h"
#include "dist_checkpointing/save/save.h"

namespace dckpt::bench {
namespace {

/// Resources that this process has used so far. A rank that is a thread counts nothing unless it is
/// the first.
struct Counts {
  std::int64_t resident = 0, read = 0, fetched = 0, cpu_microseconds = 0;

  static Counts now(bool counts) {
    if (!counts) return {};
    return {static_cast<std::int64_t>(resident_bytes()), static_cast<std::int64_t>(bytes_read()),
            static_cast<std::int64_t>(bytes_fetched()), std::llround(cpu_seconds() * 1e6)};
  }
};

/// Runs `call` on all ranks concurrently and measures rank 0's time from barrier to barrier. `call`
/// returns the bytes that it reports as read, since the system does not count mapped reads.
Cost measure(RankKind kind, const std::vector<std::unique_ptr<RankState>>& ranks,
             const std::function<std::uint64_t(int rank, Communicator& comm)>& call) {
  const Bytes result = run_ranks_as(kind, static_cast<int>(ranks.size()), [&](Communicator& comm) {
    const bool counts = kind == RankKind::kProcesses || comm.rank() == 0;
    if (kind == RankKind::kProcesses) ranks[static_cast<std::size_t>(comm.rank())]->touch();
    comm.barrier();
    const Counts before = Counts::now(counts);
    if (counts) reset_peak();
    comm.barrier();
    const auto start = std::chrono::steady_clock::now();
    const std::uint64_t reported = call(comm.rank(), comm);
    comm.barrier();
    const double seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    const Counts after = Counts::now(counts);
    const std::int64_t peak = counts ? static_cast<std::int64_t>(peak_resident_bytes()) : 0;
    const std::int64_t used[] = {after.cpu_microseconds - before.cpu_microseconds,
                                 std::max<std::int64_t>(peak - before.resident, 0),
                                 after.read - before.read, after.fetched - before.fetched,
                                 static_cast<std::int64_t>(reported)};
    const std::vector<std::int64_t> total = comm.all_reduce(used, ReduceOp::kSum);
    const Cost cost{seconds, static_cast<double>(total[0]) / 1e6,
                    static_cast<std::uint64_t>(total[1]),
                    static_cast<std::uint64_t>(std::max(total[2], total[4])),
                    static_cast<std::uint64_t>(total[3])};
    const auto bytes = std::as_bytes(std::span(&cost, 1));
    return Bytes(bytes.begin(), bytes.end());
  });
  Cost cost;
  if (result.size() != sizeof cost) throw std::runtime_error("rank 0 has no result");
  std::memcpy(&cost, result.data(), sizeof cost);
  return cost;
}

std::vector<std::unique_ptr<RankState>> make_ranks(const Workload& workload,
                                                   std::optional<std::size_t> axis, int ranks,
                                                   RankState::Content content) {
  std::vector<std::unique_ptr<RankState>> states;
  for (int rank = 0; rank < ranks; ++rank)
    states.push_back(std::make_unique<RankState>(workload, axis, rank, ranks, content));
  return states;
}

std::vector<StateDict> states_of(const std::vector<std::unique_ptr<RankState>>& ranks) {
  std::vector<StateDict> states;
  for (const auto& rank : ranks) states.push_back(rank->state());
  return states;
}

std::string cpu_metric(const std::string& metric) {
  return metric.substr(0, metric.size() - 2) + "_cpu_s";
}

}  // namespace

SaveMeasurement::SaveMeasurement(const Workload& workload, const std::filesystem::path& directory,
                                 RankKind kind, Results& results)
    : workload_(workload),
      directory_(directory),
      kind_(kind),
      results_(results),
      ranks_(
          make_ranks(workload, workload.save_axis, workload.writers, RankState::Content::kValues)) {
  results_.add(workload_.name, "save_first_s", "s", save_once(true).seconds, "with fsync");
}

Cost SaveMeasurement::save_once(bool fsync) {
  std::filesystem::remove_all(directory_);
  ::sync();
  SaveOptions options;
  options.io.fsync = fsync;
  options.parallel.enabled = workload_.tensor_parallel > 0;
  const std::vector<StateDict> states = states_of(ranks_);
  return measure(kind_, ranks_, [&](int rank, Communicator& comm) {
    save(states[static_cast<std::size_t>(rank)], directory_, options, comm);
    return std::uint64_t{0};
  });
}

double SaveMeasurement::run(bool fsync) {
  // A virtual machine returns memory that has been free for a while, and then waits to get it
  // again. Saves with fsync leave nothing in the page cache, so a save without fsync would measure
  // only that wait.
  if (!fsync) save_once(false);
  const Cost cost = save_once(fsync);
  const std::string metric = fsync ? "save_fsync_s" : "save_s";
  results_.add(workload_.name, metric, "s", cost.seconds);
  results_.add(workload_.name, cpu_metric(metric), "s", cost.cpu_seconds);
  if (fsync)
    results_.add(workload_.name, "save_extra_rss_bytes", "B",
                 static_cast<double>(cost.extra_resident),
                 workload_.writers > 1 ? "all ranks together" : "");
  return cost.seconds;
}

LoadMeasurement::LoadMeasurement(const Workload& workload, const std::filesystem::path& directory,
                                 RankKind kind, Results& results)
    : workload_(workload),
      directory_(directory),
      kind_(kind),
      results_(results),
      ranks_(
          make_ranks(workload, workload.load_axis, workload.readers, RankState::Content::kZeros)) {}

double LoadMeasurement::run(bool cold, bool parallel) {
  if (cold) {
    drop_cache(directory_);
  } else {
    warm_cache(directory_);
  }
  LoadOptions options;
  options.parallel.enabled = parallel;
  std::vector<StateDict> states = states_of(ranks_);
  const Cost cost = measure(kind_, ranks_, [&](int rank, Communicator& comm) {
    return load(states[static_cast<std::size_t>(rank)], directory_, options, comm).bytes_read;
  });
  const std::string tail = parallel ? "_parallel" : "";
  const std::string metric = workload_.reshards() ? "reshard" + tail + (cold ? "_cold_s" : "_s")
                                                  : "load" + tail + (cold ? "_cold_s" : "_warm_s");
  char device[64];
  std::snprintf(device, sizeof device, "%.2f GB from the device",
                static_cast<double>(cost.fetched) / 1e9);
  results_.add(workload_.name, metric, "s", cost.seconds, cold ? device : "");
  results_.add(workload_.name, cpu_metric(metric), "s", cost.cpu_seconds);
  if (!cold) {
    std::uint64_t wanted = 0;
    for (const auto& rank : ranks_) wanted += rank->nbytes();
    results_.add(workload_.name, "load_extra_rss_bytes" + tail, "B",
                 static_cast<double>(cost.extra_resident),
                 workload_.readers > 1 ? "all ranks together" : "");
    results_.add(workload_.name, "read_bytes" + tail, "B", static_cast<double>(cost.read));
    results_.add(workload_.name, "read_amplification" + tail, "x",
                 static_cast<double>(cost.read) / static_cast<double>(wanted));
  }
  return cost.seconds;
}

void LoadMeasurement::check() const {
  for (const auto& rank : ranks_) rank->check();
}

}  // namespace dckpt::bench
