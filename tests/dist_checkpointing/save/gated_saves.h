#pragma once

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <memory>
#include <semaphore>
#include <string>
#include <thread>

#include "dist_checkpointing/load/load.h"
#include "dist_checkpointing/open/open.h"
#include "operations/inspect/verify.h"
#include "strategies/registry/registry.h"
#include "strategies/torch_dist/save_strategy.h"
#include "tests/support/temp_dir.h"

namespace dckpt::testing {

/// State of a torch_dist strategy that writes data only when the test lets it, and not at all on
/// rank `fails_on`.
struct Gate {
  std::counting_semaphore<64> open{0};
  std::atomic<int> waits{0};  ///< threads that have reached it so far
  std::atomic<int> fails_on{-1};
  std::atomic<bool> slow{false};  ///< writing takes varying time, and does not wait
  std::atomic<int> writes{0};
  std::atomic<int> niceness{0};  ///< of the last thread that wrote
};
inline Gate gate;

class GatedStrategy final : public SaveStrategy {
 public:
  explicit GatedStrategy(const SaveOptions& options)
      : inner_(make_torch_dist_save_strategy(options)) {}
  WrittenItems write_data(Storage& storage, const std::string& directory, int rank,
                          const SavePlan& plan, ItemSource& source) const override {
    gate.niceness = getpriority(PRIO_PROCESS, 0);
    if (gate.slow)
      std::this_thread::sleep_for(std::chrono::microseconds(gate.writes++ * 7 % 11 * 300));
    else
      wait_for_gate();
    if (rank == gate.fails_on)
      throw CheckpointError(ErrorCode::kIo, "the disk of this rank is full");
    return inner_->write_data(storage, directory, rank, plan, source);
  }
  void write_index(Storage& storage, const std::string& directory, const Metadata& metadata,
                   const CommonState* common) const override {
    inner_->write_index(storage, directory, metadata, common);
  }
  std::optional<MarkerFile> marker(const Storage& storage, const Metadata& metadata,
                                   const CommonState* common) const override {
    return inner_->marker(storage, metadata, common);
  }

 private:
  static void wait_for_gate() {
    ++gate.waits;
    gate.waits.notify_all();
    gate.open.acquire();
  }

  std::unique_ptr<SaveStrategy> inner_;
};

/// Background saves of two ranks, written when the test lets them.
class GatedSaves : public ::testing::Test {
 protected:
  GatedSaves() {
    register_strategy(SaveStrategyEntry{
        .name = "gated", .about = "for this test", .make = [](const SaveOptions& options) {
          SaveOptions inner = options;
          inner.strategy = {};
          return std::make_unique<GatedStrategy>(inner);
        }});
    gate.fails_on = -1;
    gate.slow = false;
    gate.waits = 0;
    while (gate.open.try_acquire()) {
    }
  }

  static SaveOptions gated() {
    SaveOptions options;
    options.strategy.name = "gated";
    return options;
  }

  static SaveOptions lazy(std::uint64_t staging_memory = std::uint64_t{1} << 30) {
    SaveOptions options = gated();
    options.async.snapshot = Snapshot::kLazy;
    options.async.staging_memory = staging_memory;
    return options;
  }
  /// Staging memory that is too small for state_of(): the writer takes data from the state itself.
  static constexpr std::uint64_t kTooLittle = 0;

  std::filesystem::path path(const std::string& name) const { return directory_.path() / name; }

  /// Returns half of a tensor, all elements `number`; some common state with a tensor in a tuple;
  /// an object.
  static StateDict state_of(int rank, float number, std::int64_t rows = 300) {
    Tensor half = Tensor::empty(DType::kFloat32, {rows, 1000});
    std::fill_n(reinterpret_cast<float*>(half.data()), half.numel(), number);
    Tensor step = Tensor::empty(DType::kFloat32, {1});
    *reinterpret_cast<float*>(step.data()) = number;
    StateDict state;
    state["w"] =
        ShardedTensor::from_rank_offsets("w", half, {{.axis = 0, .rank = rank, .count = 2}});
    state["rng"] = ShardedObject{.key = "rng",
                                 .data = Value(std::int64_t{rank}),
                                 .global_shape = {2},
                                 .global_offset = {rank}};
    state["common"] = Value::tuple({Value(step), Value("text")});
    return state;
  }

  static void overwrite(StateDict& state) {
    const Tensor& half = *state["w"].as_sharded_tensor().data;
    std::memset(half.mutable_data(), 0, half.nbytes());
    const Tensor& step = state["common"].items()[0].as_tensor();
    std::memset(step.mutable_data(), 0, step.nbytes());
  }

  void expect_holds(const std::string& name, float number) const {
    EXPECT_TRUE(verify(*open_checkpoint(path(name)), {.deep = true}).ok());
    const StateDict tensors = load_plain_tensors(path(name));
    const Tensor& w = tensors.at("w").as_tensor();
    const auto* const values = reinterpret_cast<const float*>(w.data());
    EXPECT_TRUE(std::all_of(values, values + w.numel(), [&](float value) {
      return value == number;
    })) << name;
    const StateDict common = load_common_state(path(name));
    EXPECT_EQ(*reinterpret_cast<const float*>(common.at("common").items()[0].as_tensor().data()),
              number);
  }

  TempDir directory_;
};

}  // namespace dckpt::testing
