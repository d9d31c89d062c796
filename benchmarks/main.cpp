// dckpt_bench [--filter TEXT] [--json FILE] [--dir FOLDER] [--repeats N] [--ranks
// threads|processes] runs the workloads and prints a table. With --json it also appends one JSON
// line per metric to the file ("-" means standard output). README.md describes what is measured and
// how.

#include <benchmark/benchmark.h>

#include <cstdlib>
#include <exception>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iostream>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "benchmarks/background.h"
#include "benchmarks/describing.h"
#ifdef DCKPT_BENCH_CUDA
#include "benchmarks/gpu.h"
#endif
#include "benchmarks/measurement.h"
#include "benchmarks/planning.h"
#include "benchmarks/pool.h"
#include "benchmarks/sparse.h"
#include "benchmarks/transfer_planning.h"
#include "benchmarks/transports.h"
#include "mapping/base/text.h"

namespace {

using namespace dckpt::bench;

struct Options {
  std::string filter;
  std::string json;
  std::filesystem::path directory = std::filesystem::temp_directory_path() / "dckpt_bench";
  int repeats = 5;
  RankKind ranks = RankKind::kThreads;
};

std::optional<Options> parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string name = argv[i], value = argv[i + 1];
    if (name == "--filter") {
      options.filter = value;
    } else if (name == "--json") {
      options.json = value;
    } else if (name == "--dir") {
      options.directory = value;
    } else if (const auto number = dckpt::parse_u64(value);
               name == "--repeats" && number && *number > 0 && *number <= 1000) {
      options.repeats = static_cast<int>(*number);
    } else if (name == "--ranks" && (value == "threads" || value == "processes")) {
      options.ranks = value == "threads" ? RankKind::kThreads : RankKind::kProcesses;
    } else {
      return std::nullopt;
    }
  }
  return argc % 2 == 1 ? std::optional(options) : std::nullopt;
}

/// Registers a benchmark of one timed call per repeat.
void add(const std::string& name, int repeats, std::function<double()> call) {
  benchmark::RegisterBenchmark(name.c_str(),
                               [call = std::move(call)](benchmark::State& state) {
                                 for ([[maybe_unused]] auto _ : state)
                                   state.SetIterationTime(call());
                               })
      ->Iterations(1)
      ->Repetitions(repeats)
      ->UseManualTime()
      ->Unit(benchmark::kMillisecond);
}

/// Reports progress. Google Benchmark repeats and interleaves; the measurements record themselves,
/// since one call gives several metrics.
class ProgressReporter : public benchmark::BenchmarkReporter {
 public:
  bool ReportContext(const Context&) override { return true; }
  void ReportRuns(const std::vector<Run>& runs) override {
    if (!runs.empty()) std::cerr << runs.front().run_name.function_name << '\n';
  }
};

void run_registered() {
  ProgressReporter progress;
  benchmark::RunSpecifiedBenchmarks(&progress);
  benchmark::ClearRegisteredBenchmarks();
}

/// Runs saves and loads separately, so that neither counts the other's memory.
void run(const Workload& workload, const Options& options, Results& results) {
  const std::filesystem::path directory = options.directory / workload.name;
  {
    SaveMeasurement saves(workload, directory, options.ranks, results);
    add(workload.name + "/save_fsync", options.repeats, [&] { return saves.run(true); });
    add(workload.name + "/save", options.repeats, [&] { return saves.run(false); });
    run_registered();
  }
  LoadMeasurement loads(workload, directory, options.ranks, results);
  add(workload.name + "/load_warm", options.repeats, [&] { return loads.run(false); });
  add(workload.name + "/load_cold", options.repeats, [&] { return loads.run(true); });
  if (workload.tensor_parallel > 0 || workload.reshards()) {
    add(workload.name + "/load_parallel_warm", options.repeats,
        [&] { return loads.run(false, true); });
    add(workload.name + "/load_parallel_cold", options.repeats,
        [&] { return loads.run(true, true); });
  }
  run_registered();
  loads.check();
  std::filesystem::remove_all(directory);
}

void run_planning(const Options& options, Results& results) {
  const auto wanted = [&](std::string_view name) {
    return name.find(options.filter) != std::string_view::npos;
  };
  for (const PlanWorkload& workload : plan_workloads()) {
    if (wanted(workload.name))
      add(workload.name, options.repeats,
          [workload, &results] { return measure_planning(workload, results); });
  }
  for (const TransferWorkload& workload : transfer_workloads()) {
    if (wanted(workload.name))
      add(workload.name, options.repeats,
          [workload, &results] { return measure_transfer_planning(workload, results); });
  }
  if (wanted(kDescribing))
    add(kDescribing, options.repeats, [&results] { return measure_describing(results); });
  if (wanted(kOverlapCheck))
    add(std::string(kOverlapCheck), options.repeats,
        [&results] { return measure_overlap_check(results); });
  run_registered();
}

/// Runs a measurement in a folder of its own, in which repeats find what the first one has made.
void run_in_folder(std::string_view name, double (*measure)(const std::filesystem::path&, Results&),
                   const Options& options, Results& results) {
  if (name.find(options.filter) == std::string_view::npos) return;
  const std::filesystem::path directory = options.directory / name;
  add(std::string(name), options.repeats,
      [&, directory, measure] { return measure(directory, results); });
  run_registered();
  std::filesystem::remove_all(directory);
}

void run_background(const Options& options, Results& results) {
  for (const BackgroundWorkload& workload : kBackgroundWorkloads) {
    if (workload.name.find(options.filter) == std::string_view::npos) continue;
    const std::filesystem::path directory = options.directory / workload.name;
    for (const dckpt::Snapshot snapshot : {dckpt::Snapshot::kEager, dckpt::Snapshot::kLazy}) {
      add(std::string(workload.name) + '/' + std::string(name_of(dckpt::kSnapshotNames, snapshot)),
          options.repeats, [&workload, snapshot, directory, &results] {
            return measure_background(workload, snapshot, directory, results);
          });
    }
    run_registered();
  }
}

/// Does nothing on machines without a GPU.
void run_gpu([[maybe_unused]] const Options& options, [[maybe_unused]] Results& results) {
#ifdef DCKPT_BENCH_CUDA
  if (!can_use_gpu()) return;
  const std::vector<Workload> workloads = gpu_workloads();
  for (const GpuCase& measured : gpu_cases(workloads)) {
    if (measured.name.find(options.filter) == std::string::npos) continue;
    const std::filesystem::path directory = options.directory / "gpu";
    GpuMeasurement measurement(measured, directory, results);
    add(measured.name, options.repeats, [&] { return measurement.run(); });
    run_registered();
    std::filesystem::remove_all(directory);
  }
#endif
}

}  // namespace

int main(int argc, char** argv) {
  const std::optional<Options> options = parse(argc, argv);
  if (!options) {
    std::cerr << "usage: " << argv[0]
              << " [--filter TEXT] [--json FILE] [--dir FOLDER] [--repeats N] [--ranks "
                 "threads|processes]\n";
    return 2;
  }
  // The repeats of the two benchmarks of a run alternate in random order, so that a slow minute
  // hits both.
  std::string program = argv[0], interleave = "--benchmark_enable_random_interleaving=true";
  char* library_argv[] = {program.data(), interleave.data(), nullptr};
  int library_argc = 2;
  benchmark::Initialize(&library_argc, library_argv);
  try {
    const bool made = std::filesystem::create_directories(options->directory);
    Results results;
    for (const Workload& workload : workloads()) {
      if (workload.name.find(options->filter) != std::string::npos)
        run(workload, *options, results);
    }
    run_planning(*options, results);
    run_background(*options, results);
    run_in_folder(kSparse, measure_sparse, *options, results);
    run_in_folder(kPool, measure_pool, *options, results);
    run_in_folder(kLargePool, measure_large_pool, *options, results);
    run_in_folder(kTransports, measure_transports, *options, results);
    run_gpu(*options, results);
    if (made) std::filesystem::remove_all(options->directory);
    if (options->json != "-") results.write_table(std::cout);
    if (options->json == "-") {
      results.write_json_lines(std::cout);
    } else if (!options->json.empty()) {
      std::ofstream file(options->json, std::ios::app);
      results.write_json_lines(file);
      if (!file.flush()) throw std::runtime_error("cannot write " + options->json);
    }
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return 1;
  }
}
