#include "benchmarks/pool.h"

#include <chrono>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include "dist_checkpointing/rewrite/convert.h"
#include "dist_checkpointing/save/save.h"
#include "strategies/storage/posix.h"
#include "strategies/storage/throttled.h"

namespace dckpt::bench {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kReadRate = 100'000'000;
constexpr int kTensors = 64;
constexpr int kSmallTensors = 512;

void write_source(const fs::path& place, int tensors, std::int64_t elements) {
  StateDict state;
  for (int i = 0; i < tensors; ++i) {
    const std::string key = "w" + std::to_string(i);
    state[key] = ShardedTensor::whole(key, Tensor::zeros(DType::kFloat32, {elements}));
  }
  save(state, place, {.io = {.fsync = false}});
}

template <typename Call>
double seconds_of(const Call& call) {
  const auto begin = std::chrono::steady_clock::now();
  call();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

ConvertOptions options_for(int ranks) {
  return {.target = {.ranks = ranks, .overwrite = true},
          .limits = {.io = {.threads = 1, .fsync = false}}};
}

/// Returns the seconds that so many workers need, each with a storage of its own.
double share(const fs::path& directory, int workers) {
  fs::remove_all(directory / "pool");
  return seconds_of([&] {
    std::vector<std::jthread> threads;
    for (int i = 0; i < workers; ++i) {
      threads.emplace_back([&] {
        const auto source =
            throttled_storage(posix_storage(directory), std::make_shared<ReadRate>(kReadRate));
        ConvertOptions options = options_for(kTensors);
        options.workers.directory = Location(directory / "pool");
        convert(Location(source, "source"), directory / "shared", options);
      });
    }
  });
}

}  // namespace

double measure_pool(const fs::path& directory, Results& results) {
  fs::create_directories(directory);
  if (!fs::exists(directory / "source")) {
    write_source(directory / "source", kTensors, std::int64_t{1} << 20);
    write_source(directory / "small", kSmallTensors, 1024);
  }
  const std::string name(kPool);
  const double one = share(directory, 1);
  const double four = share(directory, 4);
  results.add(name, "convert_1_worker", "s", one);
  results.add(name, "convert_4_workers", "s", four);
  results.add(name, "speedup_of_4", "x", one / four);

  ConvertOptions options = options_for(kSmallTensors);
  const double alone =
      seconds_of([&] { convert(directory / "small", directory / "alone", options); });
  fs::remove_all(directory / "pool");
  options.workers.directory = Location(directory / "pool");
  const double shared =
      seconds_of([&] { convert(directory / "small", directory / "shared_small", options); });
  results.add(name, "unit", "s", (shared - alone) / kSmallTensors);
  return one + four + alone + shared;
}

}  // namespace dckpt::bench
