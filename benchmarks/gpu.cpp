#include "benchmarks/gpu.h"

#include <cuda_runtime_api.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <functional>
#include <optional>
#include <stdexcept>
#include <utility>

#include "benchmarks/process_stats.h"
#include "dist_checkpointing/load/load.h"
#include "dist_checkpointing/save/save.h"
#include "dist_checkpointing/save/save_async.h"
#include "mapping/state/sharded_tensor.h"
#include "strategies/device/cuda/runtime.h"

namespace dckpt::bench {
namespace {

constexpr std::size_t kAlignment = 512;  // alignment that PyTorch gives tensors in GPU memory
constexpr std::size_t kPieceBytes = std::size_t{8} << 20;

double seconds_of(const std::function<void()>& call) {
  const auto begin = std::chrono::steady_clock::now();
  call();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

void check(cudaError_t result) {
  if (result != cudaSuccess) throw std::runtime_error(cudaGetErrorString(result));
}

std::shared_ptr<std::byte> allocate(bool in_gpu_memory, std::size_t bytes) {
  if (!in_gpu_memory) return {new std::byte[bytes], std::default_delete<std::byte[]>()};
  void* memory = nullptr;
  check(cudaMalloc(&memory, bytes));
  return {static_cast<std::byte*>(memory), [](std::byte* start) { cudaFree(start); }};
}

std::shared_ptr<std::byte> allocate_page_locked(std::size_t bytes) {
  void* memory = nullptr;
  check(cudaHostAlloc(&memory, bytes, cudaHostAllocDefault));
  return {static_cast<std::byte*>(memory), [](std::byte* start) { cudaFreeHost(start); }};
}

/// The tensors of a state dict of sharded tensors, in one block of memory.
class Block {
 public:
  Block(const StateDict& like, bool in_gpu_memory) : in_gpu_memory_(in_gpu_memory) {
    std::size_t bytes = 0;
    for (const auto& [key, shard] : like.as_dict()) {
      offsets_.push_back(bytes);
      bytes +=
          (shard.as_sharded_tensor().data->nbytes() + kAlignment - 1) / kAlignment * kAlignment;
    }
    bytes_ = bytes;
    memory_ = allocate(in_gpu_memory, bytes_);
    std::size_t i = 0;
    for (const auto& [key, shard] : like.as_dict()) {
      const ShardedTensor& other = shard.as_sharded_tensor();
      const Device device{in_gpu_memory ? Device::Kind::kCuda : Device::Kind::kCpu, 0};
      const Tensor tensor(other.data->dtype(), other.data->shape(), other.data->strides(),
                          memory_.get() + offsets_[i++], memory_, device);
      state_[key.as_str().c_str()] = ShardedTensor::from_rank_offsets(other.key, tensor);
    }
  }

  const StateDict& state() const noexcept { return state_; }

  /// Copies the elements of `values`, which has the same keys and is in CPU memory.
  void assign(const StateDict& values) {
    std::size_t i = 0;
    for (const auto& [key, shard] : values.as_dict()) {
      const Tensor& from = *shard.as_sharded_tensor().data;
      std::byte* const to = memory_.get() + offsets_[i++];
      if (in_gpu_memory_)
        check(cudaMemcpy(to, from.data(), from.nbytes(), cudaMemcpyHostToDevice));
      else
        std::memcpy(to, from.data(), from.nbytes());
    }
  }
  void assign(const Block& other) {
    if (!in_gpu_memory_) {
      std::memcpy(memory_.get(), other.memory_.get(), bytes_);
      return;
    }
    check(cudaMemcpy(memory_.get(), other.memory_.get(), bytes_, cudaMemcpyDeviceToDevice));
    check(cudaDeviceSynchronize());
  }
  void overwrite(int value) {
    if (!in_gpu_memory_) {
      std::memset(memory_.get(), value, bytes_);
      return;
    }
    check(cudaMemset(memory_.get(), value, bytes_));
    check(cudaDeviceSynchronize());
  }
  /// Compares all bytes and throws if any differ.
  void require_values(const StateDict& values) const {
    std::size_t i = 0;
    for (const auto& [key, shard] : values.as_dict()) {
      const Tensor& wanted = *shard.as_sharded_tensor().data;
      if (!holds(memory_.get() + offsets_[i++], wanted))
        throw std::runtime_error("wrong content in " + key.as_str() + " after loading");
    }
  }

 private:
  bool holds(const std::byte* got, const Tensor& wanted) const {
    if (!in_gpu_memory_) return std::memcmp(got, wanted.data(), wanted.nbytes()) == 0;
    static const std::shared_ptr<std::byte> piece = allocate_page_locked(kPieceBytes);
    for (std::size_t at = 0; at < wanted.nbytes(); at += kPieceBytes) {
      const std::size_t bytes = std::min<std::size_t>(kPieceBytes, wanted.nbytes() - at);
      check(cudaMemcpy(piece.get(), got + at, bytes, cudaMemcpyDeviceToHost));
      if (std::memcmp(piece.get(), wanted.data() + at, bytes) != 0) return false;
    }
    return true;
  }

  bool in_gpu_memory_;
  std::vector<std::size_t> offsets_{};
  std::size_t bytes_ = 0;
  std::shared_ptr<std::byte> memory_{};
  StateDict state_ = Value::dict();
};

SaveOptions save_options(const GpuCase& measured, Snapshot snapshot) {
  SaveOptions options;
  options.async.snapshot = snapshot;
  options.io.threads = measured.threads;
  options.io.files_per_rank = measured.files;
  return options;
}

}  // namespace

bool can_use_gpu() {
  if (cuda_devices() == 0) return false;
  register_cuda();
  return true;
}

std::vector<Workload> gpu_workloads() {
  const auto tensors = [](int count, const Shape& shape) {
    std::vector<TensorSpec> specs;
    for (int i = 0; i < count; ++i)
      specs.push_back(
          {.key = "layers." + std::to_string(i) + ".weight", .shape = shape, .ordinal = i});
    return specs;
  };
  return {{.name = "4g",
           .about = "32 tensors of 128 MiB: the raw data path",
           .tensors = tensors(32, {65536, 1024})},
          {.name = "many-small",
           .about = "10 000 tensors of 1 KiB: the cost per item",
           .tensors = tensors(10'000, {8, 64})}};
}

std::vector<GpuCase> gpu_cases(const std::vector<Workload>& workloads) {
  std::vector<GpuCase> cases;
  for (const Workload& workload : workloads) {
    cases.push_back({"gpu-" + workload.name, &workload});
    if (workload.nbytes() > std::uint64_t{1} << 30) {
      cases.push_back({"gpu-" + workload.name + ":2-files", &workload, true, 2});
      cases.push_back({"gpu-" + workload.name + ":8-files-8-threads", &workload, true, 8, 8});
    }
    cases.push_back({"host-" + workload.name, &workload, false});
  }
  return cases;
}

class GpuMeasurement::State {
 public:
  State(const GpuCase& measured, std::filesystem::path directory, Results& results)
      : case_(measured),
        directory_(std::move(directory)),
        results_(results),
        source_(*measured.workload, {}, 0, 1, RankState::Content::kValues),
        values_(source_.state()),
        original_(values_, measured.in_gpu_memory),
        block_(values_, measured.in_gpu_memory),
        eager_(save_options(measured, Snapshot::kEager), *comm_),
        lazy_(save_options(measured, Snapshot::kLazy), *comm_) {
    original_.assign(values_);
    block_.overwrite(0);
  }

  void in_foreground() {
    prepare();
    const double cpu = cpu_seconds();
    add("save_fsync_s", seconds_of([&] {
          save(block_.state(), directory_, save_options(case_, Snapshot::kEager));
        }));
    add("save_fsync_cpu_s", cpu_seconds() - cpu);
    load_again();
  }

  void in_background(Snapshot snapshot) {
    prepare();
    const bool lazy = snapshot == Snapshot::kLazy;
    const std::string prefix = lazy ? "lazy_" : "";
    AsyncSaver& saver = lazy ? lazy_ : eager_;
    bool& used = lazy ? lazy_used_ : eager_used_;
    const std::string first = std::exchange(used, true) ? "" : "first_";
    std::optional<PendingSave> pending;
    const double stall = seconds_of([&] { pending = saver.save(block_.state(), directory_); });
    const double staged = seconds_of([&] { saver.wait_staged(); });
    const double touch = seconds_of([&] { block_.overwrite(1); });
    const double rest = seconds_of([&] { pending->wait(); });
    add(prefix + "stall_" + first + "s", stall);
    if (lazy) add("lazy_wait_staged_" + first + "s", staged);
    add(prefix + "complete_" + first + "s", stall + staged + touch + rest);
    load_again();
  }

 private:
  /// Empties the directory, which all saves use, and restores the original values.
  void prepare() {
    std::filesystem::remove_all(directory_);
    ::sync();
    block_.assign(original_);
  }

  /// Loads with the files in the page cache.
  void load_again() {
    block_.overwrite(2);
    warm_cache(directory_);
    LoadOptions options;
    options.threads = case_.threads;
    StateDict state = block_.state();
    const double cpu = cpu_seconds();
    add("load_warm_s", seconds_of([&] { load(state, directory_, options); }));
    add("load_warm_cpu_s", cpu_seconds() - cpu);
    block_.require_values(values_);
  }

  void add(const std::string& metric, double seconds) {
    results_.add(case_.name, metric, "s", seconds);
  }

  const GpuCase case_;
  const std::filesystem::path directory_;
  Results& results_;
  const RankState source_;
  const StateDict values_;
  Block original_;
  Block block_;
  const std::unique_ptr<Communicator> comm_ = single_rank();
  AsyncSaver eager_;
  AsyncSaver lazy_;
  bool eager_used_ = false;
  bool lazy_used_ = false;
};

GpuMeasurement::GpuMeasurement(const GpuCase& measured, const std::filesystem::path& directory,
                               Results& results)
    : state_(std::make_unique<State>(measured, directory, results)) {}
GpuMeasurement::~GpuMeasurement() = default;

double GpuMeasurement::run() {
  return seconds_of([&] {
    state_->in_foreground();
    state_->in_background(Snapshot::kEager);
    state_->in_background(Snapshot::kLazy);
  });
}

}  // namespace dckpt::bench
