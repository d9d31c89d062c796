#include "benchmarks/measurement.h"

#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <functional>

#include "benchmarks/process_stats.h"
#include "dist_checkpointing/load.h"
#include "dist_checkpointing/save.h"
#include "strategies/comm/threads.h"

namespace dckpt::bench {
namespace {

/// Runs `call` on all ranks at once; rank 0's clock counts, from a barrier to a barrier.
Cost measure(int ranks, const std::function<void(int rank, Communicator& comm)>& call) {
  Cost cost;
  run_ranks(ranks, [&](Communicator& comm) {
    std::uint64_t resident = 0, read = 0, fetched = 0;
    double cpu = 0;
    comm.barrier();
    if (comm.rank() == 0) {
      resident = resident_bytes();
      read = bytes_read();
      fetched = bytes_fetched();
      cpu = cpu_seconds();
      reset_peak();
    }
    comm.barrier();
    const auto start = std::chrono::steady_clock::now();
    call(comm.rank(), comm);
    comm.barrier();
    if (comm.rank() != 0) return;
    cost.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    cost.cpu_seconds = cpu_seconds() - cpu;
    const std::uint64_t peak = peak_resident_bytes();
    cost.extra_resident = peak > resident ? peak - resident : 0;
    cost.read = bytes_read() - read;
    cost.fetched = bytes_fetched() - fetched;
  });
  return cost;
}

std::vector<std::unique_ptr<RankState>> make_ranks(const Workload& workload, std::optional<std::size_t> axis, int ranks, RankState::Content content) {
  std::vector<std::unique_ptr<RankState>> states;
  for (int rank = 0; rank < ranks; ++rank) states.push_back(std::make_unique<RankState>(workload, axis, rank, ranks, content));
  return states;
}

std::vector<StateDict> states_of(const std::vector<std::unique_ptr<RankState>>& ranks) {
  std::vector<StateDict> states;
  for (const auto& rank : ranks) states.push_back(rank->state());
  return states;
}

std::string cpu_metric(const std::string& metric) { return metric.substr(0, metric.size() - 2) + "_cpu_s"; }

}  // namespace

SaveMeasurement::SaveMeasurement(const Workload& workload, const std::filesystem::path& directory, Results& results)
    : workload_(workload), directory_(directory), results_(results), ranks_(make_ranks(workload, workload.save_axis, workload.writers, RankState::Content::kValues)) {
  results_.add(workload_.name, "save_first_s", "s", save_once(true).seconds, "with fsync");
}

Cost SaveMeasurement::save_once(bool fsync) {
  std::filesystem::remove_all(directory_);
  ::sync();
  SaveOptions options;
  options.io.fsync = fsync;
  options.parallel.enabled = workload_.tensor_parallel > 0;
  const std::vector<StateDict> states = states_of(ranks_);
  return measure(workload_.writers, [&](int rank, Communicator& comm) { save(states[static_cast<std::size_t>(rank)], directory_, options, comm); });
}

double SaveMeasurement::run(bool fsync) {
  const Cost cost = save_once(fsync);
  const std::string metric = fsync ? "save_fsync_s" : "save_s";
  results_.add(workload_.name, metric, "s", cost.seconds);
  results_.add(workload_.name, cpu_metric(metric), "s", cost.cpu_seconds);
  if (fsync) results_.add(workload_.name, "save_extra_rss_bytes", "B", static_cast<double>(cost.extra_resident), workload_.writers > 1 ? "all ranks together" : "");
  return cost.seconds;
}

LoadMeasurement::LoadMeasurement(const Workload& workload, const std::filesystem::path& directory, Results& results)
    : workload_(workload), directory_(directory), results_(results), ranks_(make_ranks(workload, workload.load_axis, workload.readers, RankState::Content::kZeros)) {}

double LoadMeasurement::run(bool cold, bool parallel) {
  if (cold) {
    drop_cache(directory_);
  } else {
    warm_cache(directory_);
  }
  LoadOptions options;
  options.parallel.enabled = parallel;
  std::vector<StateDict> states = states_of(ranks_);
  const Cost cost = measure(workload_.readers, [&](int rank, Communicator& comm) { load(states[static_cast<std::size_t>(rank)], directory_, options, comm); });
  const std::string tail = parallel ? "_parallel" : "";
  const std::string metric = workload_.reshards() ? "reshard" + tail + (cold ? "_cold_s" : "_s") : "load" + tail + (cold ? "_cold_s" : "_warm_s");
  char device[64];
  std::snprintf(device, sizeof device, "%.2f GB from the device", static_cast<double>(cost.fetched) / 1e9);
  results_.add(workload_.name, metric, "s", cost.seconds, cold ? device : "");
  results_.add(workload_.name, cpu_metric(metric), "s", cost.cpu_seconds);
  if (!cold) {
    std::uint64_t wanted = 0;
    for (const auto& rank : ranks_) wanted += rank->nbytes();
    results_.add(workload_.name, "load_extra_rss_bytes" + tail, "B", static_cast<double>(cost.extra_resident), workload_.readers > 1 ? "all ranks together" : "");
    results_.add(workload_.name, "read_bytes" + tail, "B", static_cast<double>(cost.read));
    results_.add(workload_.name, "read_amplification" + tail, "x", static_cast<double>(cost.read) / static_cast<double>(wanted));
  }
  return cost.seconds;
}

void LoadMeasurement::check() const {
  for (const auto& rank : ranks_) rank->check();
}

}  // namespace dckpt::bench
