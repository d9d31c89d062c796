// Each call of a device fails in turn, in saves and loads of two ranks.

#include <gmock/gmock.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "dist_checkpointing/load/load.h"
#include "dist_checkpointing/open/open.h"
#include "dist_checkpointing/save/save.h"
#include "dist_checkpointing/save/save_async.h"
#include "strategies/comm/threads.h"
#include "tests/strategies/device/device_states.h"
#include "tests/support/random.h"
#include "tests/support/simulated_device.h"
#include "tests/support/temp_dir.h"

namespace dckpt::device_faults_test {
namespace {

using testing::counting;
using ::testing::HasSubstr;
using testing::kPieceFloats;
using testing::RegisteredSimulation;
using testing::transposed;

/// Fails each call of the device in turn, until one run needs fewer calls.
void fail_each_call(const std::function<void(RegisteredSimulation&)>& run,
                    const std::function<void()>& check) {
  testing::Sweep sweep;
  testing::Sweep repeats(5);  // the first calls prepare, the others repeat
  for (int calls = 0;; calls = (calls < 16 ? sweep : repeats).after(calls)) {
    SCOPED_TRACE(sweep.trace(calls));
    RegisteredSimulation simulation{
        {.page_locked = 3 * PageLockedPool::kPieceBytes, .timeout = std::chrono::seconds(30)}};
    simulation->fail_after(calls);
    run(simulation);
    const bool all_seen = !simulation->has_failed();
    EXPECT_EQ(simulation->misuse(), "");
    check();
    register_device(Device::Kind::kCuda, nullptr);  // removes the pool too
    EXPECT_EQ(simulation->leaked(), 0);
    if (all_seen) return;
    ASSERT_LT(calls, 1000);
  }
}

/// Returns whether the attempt failed because of the device, which both ranks must report.
bool fails_on_all(Communicator& comm, const std::function<void()>& attempt) {
  bool failed = false;
  try {
    attempt();
  } catch (const CheckpointError& error) {
    failed = true;
    EXPECT_THAT(error.message(), HasSubstr("the simulated device fails"));
  }
  const auto outcomes = comm.all_gather(Bytes(1, std::byte{failed}));
  EXPECT_EQ(outcomes[0], outcomes[1]);
  return failed;
}

/// Returns a tensor slightly larger than two pieces, and small ones.
std::vector<Tensor> few() {
  return {counting({2, kPieceFloats + 5}), counting({3, 5}, 100),
          transposed(counting({2, 3}, 200))};
}

StateDict halves(const RegisteredSimulation& simulation, int rank) {
  StateDict state = Value::dict();
  for (std::size_t i = 0; i < few().size(); ++i) {
    const std::string key = "weights." + std::to_string(i);
    state[key] = ShardedTensor::from_rank_offsets(key, simulation->on_device(few()[i]),
                                                  {{.axis = 0, .rank = rank, .count = 2}});
  }
  return state;
}

/// Returns the tensors of which the small ones of halves() are halves, in two places.
StateDict small_ones(const RegisteredSimulation& simulation, int rank) {
  StateDict state = Value::dict();
  for (const int place : {0, 1}) {
    const Tensor tensor = simulation->on_device(Tensor::zeros(DType::kFloat32, {6, 5}));
    state[std::to_string(place)] =
        ShardedTensor::whole("weights.1", tensor, {.replica_id = {rank, place}});
  }
  return state;
}

TEST(DeviceFaults, OfASaveLeaveThePreviousCheckpointOnAllRanks) {
  const TempDir dir;
  std::atomic<int> failures = 0;
  for (const bool background : {false, true}) {
    fail_each_call(
        [&](RegisteredSimulation& simulation) {
          run_ranks(2, [&](Communicator& comm) {
            SaveOptions options;
            options.overwrite = true;
            options.async.staging_memory = std::uint64_t{8} << 20;
            const StateDict state = halves(simulation, comm.rank());
            const auto attempt = [&] {
              if (!background) return save(state, dir / "saved", options, comm), void();
              AsyncSaver saver(options, comm);
              saver.save(state, dir / "saved").wait();
            };
            failures += fails_on_all(comm, attempt) && comm.rank() == 0;
          });
        },
        [&] {
          std::size_t entries = 0;
          for (const auto& entry : std::filesystem::directory_iterator(dir.path())) {
            (void)entry;
            ++entries;
          }
          EXPECT_LE(entries, 1U) << "nothing is left of the attempt";
        });
  }
  EXPECT_GT(failures, 10);
  EXPECT_EQ(load_plain_tensors(dir / "saved").at("weights.0").as_tensor().shape()[0], 4);
}

TEST(DeviceFaults, OfALoadAreErrorsOnAllRanks) {
  const TempDir dir;
  LoadOptions together;
  together.parallel = {.enabled = true, .exchange = Exchange::kAllToAll};
  {
    const RegisteredSimulation simulation;
    run_ranks(2, [&](Communicator& comm) {
      save(halves(simulation, comm.rank()), dir / "saved", {}, comm);
    });
  }
  for (const bool share : {false, true}) {
    std::atomic<int> failures = 0;
    fail_each_call(
        [&](RegisteredSimulation& simulation) {
          run_ranks(2, [&](Communicator& comm) {
            StateDict state =
                share ? small_ones(simulation, comm.rank()) : halves(simulation, comm.rank());
            const auto attempt = [&] {
              load(state, dir / "saved", share ? together : LoadOptions(), comm);
            };
            failures += fails_on_all(comm, attempt) && comm.rank() == 0;
          });
        },
        [] {});
    EXPECT_GT(failures, 10);
  }
}

}  // namespace
}  // namespace dckpt::device_faults_test
