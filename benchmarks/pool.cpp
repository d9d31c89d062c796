#include "benchmarks/pool.h"

#include <malloc.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <fstream>
#include <functional>
#include <stop_token>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "benchmarks/planning.h"
#include "benchmarks/process_stats.h"
#include "dist_checkpointing/save/save.h"
#include "mapping/base/text.h"
#include "mapping/planning/save/global_plan.h"
#include "operations/convert/convert.h"
#include "operations/convert/workers/worker_pool.h"
#include "strategies/registry/registry.h"
#include "strategies/storage/buffered_file.h"
#include "strategies/storage/forwarding.h"
#include "strategies/storage/memory.h"
#include "strategies/storage/posix.h"
#include "strategies/storage/throttled.h"

namespace dckpt::bench {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kReadRate = 100'000'000;
constexpr int kTensors = 64;
constexpr int kSmallTensors = 512;
constexpr int kWorkers = 256;
constexpr int kLooks = 8;

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

/// Writes a checkpoint whose files are holes, except for the metadata.
std::string write_hollow(const fs::path& place, const PlanWorkload& workload) {
  fs::create_directories(place);
  const auto storage = posix_storage(place);
  const SaveOptions options{.io = {.fsync = false}};
  std::vector<SavePlan> local;
  for (std::uint32_t rank = 0; rank < workload.ranks; ++rank)
    local.push_back(plan_local_save(workload.shards(rank), FlattenedForm::kBoxes));
  const GlobalPlan plan = plan_global_save(local, {.kind = workload.kind});
  std::vector<std::vector<StorageInfo>> places;
  std::vector<std::vector<std::string>> files;
  std::uint64_t bytes = 0;
  for (std::size_t rank = 0; rank < local.size(); ++rank) {
    WrittenItems items =
        find_save_strategy("torch_dist")
            .measure(options, static_cast<int>(rank), final_plan(local[rank], plan.items[rank]));
    std::vector<std::uint64_t> sizes(items.files.size());
    for (const StorageInfo& item : items.places)
      sizes[item.file] = std::max(sizes[item.file], item.offset + item.length);
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      std::ofstream(place / items.files[i]).close();
      fs::resize_file(place / items.files[i], sizes[i]);
      bytes += sizes[i];
    }
    places.push_back(std::move(items.places));
    files.push_back(std::move(items.files));
  }
  const auto strategy = make_save_strategy(options);
  const CommonState common(Value::dict({{"iteration", 1}}));
  const Metadata metadata = written_metadata(plan, places, files);
  strategy->write_index(*storage, "", metadata, &common);
  const MarkerFile marker = strategy->marker(*storage, metadata, &common).value();
  write_small_file(*storage, marker.name, marker.content, false);
  std::size_t chunks = 0;
  for (const TensorStorageMetadata& tensor : metadata.tensors) chunks += tensor.chunks.size();
  return human_bytes(bytes) + ", " + grouped(metadata.tensors.size()) + " tensors, " +
         grouped(chunks) + " chunks, " + grouped(workload.ranks) + " files";
}

/// The storage of a pool: counts requests, and calls a function when the job is noted and each time
/// a worker is about to look for work.
class WatchedPool final : public ForwardingStorage {
 public:
  WatchedPool(std::shared_ptr<Storage> storage, std::function<void(bool)> looks)
      : ForwardingStorage(std::move(storage)), looks_(std::move(looks)) {}

  std::uint64_t requests() const { return requests_; }

  std::vector<FileInfo> list(const std::string& directory) const override {
    ++requests_;
    return storage_->list(directory);
  }
  std::optional<FileInfo> stat(const std::string& name) const override {
    if (name.ends_with(kPublishedFile)) looks_(false);
    ++requests_;
    return storage_->stat(name);
  }
  std::unique_ptr<ReadableFile> open(const std::string& name) const override {
    requests_ += 2;  // it is read, too
    return storage_->open(name);
  }
  void put(const std::string& name, ByteView content) override {
    storage_->put(name, content);
    if (name.ends_with(kJobFile)) looks_(true);
  }

 private:
  const std::function<void(bool)> looks_;
  mutable std::atomic<std::uint64_t> requests_ = 0;
};

}  // namespace

double measure_large_pool(const fs::path& directory, Results& results) {
  fs::create_directories(directory);
  if (!fs::exists(directory / "source")) {
    const std::string about = write_hollow(directory / "source", ten_terabytes());
    std::ofstream(directory / "about") << about;
  }
  fs::remove_all(directory / "pool");
  std::string note;
  std::getline(std::ifstream(directory / "about"), note);

  std::stop_source stop;
  std::shared_ptr<WatchedPool> pool;
  double planned = 0, peak = 0, cpu = 0;
  std::uint64_t requests = 0;
  int looks = 0;
  ::malloc_trim(0);
  reset_peak();
  const auto begin = std::chrono::steady_clock::now();
  cpu = cpu_seconds();
  pool = std::make_shared<WatchedPool>(posix_storage(directory), [&](bool is_planned) {
    if (is_planned) {
      planned = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
      planned = std::min(planned, cpu_seconds() - cpu);  // as Stopwatch
      peak = static_cast<double>(peak_resident_bytes());
      const std::size_t units = read_job(Location(directory / "pool")).units.size();
      for (std::size_t i = 0; i < units; ++i)  // another worker has each
        std::ofstream(directory / "pool" / (claim_prefix(i) + "1")) << "elsewhere-1-1-1 1 600000";
      return;
    }
    if (++looks == 3) {  // before are those on arrival, and the first for work
      cpu = cpu_seconds();
      requests = pool->requests();
    }
    if (looks != 3 + kLooks) return;
    cpu = cpu_seconds() - cpu;
    requests = pool->requests() - requests;
    stop.request_stop();
  });
  ConvertOptions options = options_for(kWorkers);
  options.workers = {.directory = Location(pool, "pool"), .lease = std::chrono::minutes(10)};
  options.stop = stop.get_token();
  try {
    convert(directory / "source", Location(memory_storage(), "shared"), options);
  } catch (const CheckpointError& error) {
    if (error.code() != ErrorCode::kCancelled) throw;
  }
  const std::string name(kLargePool);
  results.add(name, "join_s", "s", planned, note);
  results.add(name, "join_peak_rss_bytes", "B", peak, note);
  results.add(name, "look_cpu_s", "s", cpu / kLooks, note);
  results.add(name, "look_requests", "", static_cast<double>(requests) / kLooks, note);
  return planned;
}

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
