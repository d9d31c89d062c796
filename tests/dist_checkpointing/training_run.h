#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "dist_checkpointing/checkpointer/checkpointer.h"
#include "mapping/base/log.h"
#include "strategies/comm/threads.h"
#include "tests/support/temp_dir.h"

namespace dckpt::testing {

constexpr std::int64_t kColumns = 48;
constexpr const char* kTracker = "latest_checkpointed_iteration.txt";

/// Returns a rank's state at an iteration: columns of one tensor, whose element i is 1000 ·
/// iteration + i, and the iteration as common state.
inline StateDict state_at(std::uint64_t iteration, int rank, int ranks) {
  const std::int64_t width = kColumns / ranks;
  Tensor mine = Tensor::empty(DType::kInt64, {2, width});
  auto* values = reinterpret_cast<std::int64_t*>(mine.data());
  for (std::int64_t row = 0; row < 2; ++row) {
    for (std::int64_t column = 0; column < width; ++column)
      *values++ =
          static_cast<std::int64_t>(1000 * iteration) + row * kColumns + rank * width + column;
  }
  StateDict state;
  state["w"] =
      ShardedTensor::from_rank_offsets("w", mine, {{.axis = 1, .rank = rank, .count = ranks}});
  state["iteration"] = static_cast<std::int64_t>(iteration);
  return state;
}

/// Returns a state of the same structure to load into.
inline StateDict empty_state(int rank, int ranks) {
  StateDict state;
  state["w"] =
      ShardedTensor::from_rank_offsets("w", Tensor::zeros(DType::kInt64, {2, kColumns / ranks}),
                                       {{.axis = 1, .rank = rank, .count = ranks}});
  return state;
}

inline bool holds(const StateDict& loaded, std::uint64_t iteration, int rank, int ranks) {
  return loaded.at("iteration").as_int() == static_cast<std::int64_t>(iteration) &&
         equal(loaded.at("w").as_tensor(),
               *state_at(iteration, rank, ranks).at("w").as_sharded_tensor().data);
}

/// Collects the warnings during its lifetime.
class Warnings {
 public:
  Warnings() {
    set_log_sink([this](LogLevel level, std::string_view message) {
      if (level >= LogLevel::kWarning) text_ += std::string(message) + "\n";
    });
  }
  ~Warnings() { set_log_sink({}); }
  Warnings(const Warnings&) = delete;
  Warnings& operator=(const Warnings&) = delete;
  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

/// A training root and the jobs that use it, their ranks as threads.
class TrainingRun : public ::testing::Test {
 protected:
  using Body = std::function<void(Checkpointer&, Communicator&)>;

  /// Runs one job: each rank constructs a checkpointer and runs `body`.
  void job(int ranks, const Body& body, const Policy& policy = {}) const {
    run_ranks(ranks, [&](Communicator& comm) {
      Checkpointer checkpointer(root_, policy, comm);
      body(checkpointer, comm);
    });
  }

  /// Runs a job of two ranks that saves without having loaded.
  void saved(const std::vector<std::uint64_t>& iterations, const Policy& policy = {}) const {
    job(
        2,
        [&](Checkpointer& checkpointer, Communicator& comm) {
          for (const std::uint64_t iteration : iterations)
            checkpointer.save(state_at(iteration, comm.rank(), 2), iteration);
        },
        policy);
  }

  /// Returns the iteration from which a job of two ranks resumes, after checking its values. -1:
  /// none.
  std::int64_t resumed(const Policy& policy = {}) const {
    std::int64_t found = -1;
    job(
        2,
        [&](Checkpointer& checkpointer, Communicator& comm) {
          StateDict state = empty_state(comm.rank(), 2);
          const auto resumed = checkpointer.load_latest(state);
          if (!resumed) return;
          EXPECT_EQ(checkpointer.latest(), resumed->iteration);
          EXPECT_TRUE(holds(state, static_cast<std::uint64_t>(state.at("iteration").as_int()),
                            comm.rank(), 2));
          if (comm.rank() == 0) found = state.at("iteration").as_int();
        },
        policy);
    return found;
  }

  std::vector<std::string> entries() const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(root_))
      names.push_back(entry.path().filename());
    std::ranges::sort(names);
    return names;
  }

  std::string tracker() const {
    std::ifstream file(root_ / kTracker);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  void set_tracker(const std::string& content) const {
    std::ofstream(root_ / kTracker, std::ios::trunc) << content;
  }

  TempDir directory_;
  std::filesystem::path root_ = directory_ / "run";
};

/// The fixture of the tests of Checkpointer, in several files.
class CheckpointerTest : public TrainingRun {};

}  // namespace dckpt::testing
