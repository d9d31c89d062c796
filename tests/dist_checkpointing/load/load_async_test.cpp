#include "dist_checkpointing/load/load_async.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <thread>
#include <utility>

#include "configs/policy/policy.h"
#include "strategies/storage/memory.h"
#include "tests/dist_checkpointing/save_load.h"
#include "tests/support/code_of.h"

namespace dckpt::testing::load_async_test {
namespace {

using ::testing::HasSubstr;

constexpr int kRanks = 2;
constexpr std::int64_t kRows = 512;

Tensor numbers(const Shape& shape, int first) {
  Tensor tensor = arange(shape);
  for (std::int64_t i = 0; i < tensor.numel(); ++i)
    tensor.data<float>()[i] += static_cast<float>(first);
  return tensor;
}

StateDict state_of(int rank, bool with_values) {
  const Shape shape{kRows, 64};
  StateDict state = Value::dict();
  for (int i = 0; i < 8; ++i) {
    const std::string key = "w" + std::to_string(i);
    state[key] = ShardedTensor::from_rank_offsets(
        key, with_values ? numbers(shape, rank * 7 + i) : Tensor::zeros(DType::kFloat32, shape),
        {{.axis = 0, .rank = rank, .count = kRanks}});
  }
  state["rng"] = ShardedObject{.key = "rng",
                               .data = with_values ? Value(rank) : Value(),
                               .global_shape = {kRanks},
                               .global_offset = {rank},
                               .has_data = with_values};
  state["iteration"] = with_values ? 7 : 0;
  return state;
}

/// Returns whether the state is that of rank `rank` of the saving job.
bool is_saved(const StateDict& state, int rank) {
  const StateDict saved = state_of(rank, true);
  for (int i = 0; i < 8; ++i) {
    const std::string key = "w" + std::to_string(i);
    if (!state.contains(key)) return false;
    if (!(Value(*state.at(key).as_sharded_tensor().data) ==
          Value(*saved.at(key).as_sharded_tensor().data)))
      return false;
  }
  return state.at("rng").as_sharded_object().data == Value(rank) &&
         state.at("iteration") == Value(7);
}

class LoadHooksTest : public SaveLoad {
 protected:
  void SetUp() override {
    save_on(kRanks, [](int rank) { return state_of(rank, true); });
  }
  static LoadOptions with(bool parallel) { return {.parallel = {.enabled = parallel}}; }
};

TEST_F(LoadHooksTest, TellWhatHasArrivedOnThisRank) {
  for (const bool parallel : {false, true}) {
    run_ranks(kRanks, [&](Communicator& comm) {
      StateDict state = state_of(comm.rank(), false);
      std::uint64_t last = 0;
      std::uint64_t in_all = 0;
      load(state, checkpoint(), with(parallel), comm,
           {.progress = [&](std::uint64_t arrived, std::uint64_t total) {
             EXPECT_GE(arrived, last);
             last = arrived;
             in_all = total;
           }});
      EXPECT_EQ(in_all, std::uint64_t{8 * kRows * 64 * 4});
      EXPECT_EQ(last, in_all);
      EXPECT_TRUE(is_saved(state, comm.rank()));
    });
  }
}

TEST_F(LoadHooksTest, TellWhatHasArrivedInAllRoundsOfAnExchange) {
  const Shape shape{std::int64_t{8} << 20};  // 32 MiB
  const auto replicated = [&](int rank) {
    StateDict state = Value::dict();
    for (const char* const key : {"a", "b", "c", "d"})
      state[key] =
          ShardedTensor::whole(key, Tensor::zeros(DType::kFloat32, shape), {.replica_id = rank});
    return state;
  };
  run_ranks(kRanks, [&](Communicator& comm) {
    StateDict state = replicated(comm.rank());
    save(state, checkpoint("large"), {}, comm);
    std::uint64_t last = 0;
    load(state, checkpoint("large"), with(true), comm,
         {.progress = [&](std::uint64_t arrived, std::uint64_t total) {
           EXPECT_GE(arrived, last) << "of " << total;
           last = arrived;
         }});
  });
}

TEST_F(LoadHooksTest, PrepareTheState) {
  run_ranks(kRanks, [&](Communicator& comm) {
    StateDict state = state_of(comm.rank(), false);
    load(state, checkpoint(), {}, comm, {.preprocess = [](StateDict tree) {
           tree.mutable_dict().erase(Value("w3"));
           return tree;
         }});
    EXPECT_FALSE(state.contains("w3"));
    const auto fails = [&] {
      load(state, checkpoint(), {}, comm, {.preprocess = [](const StateDict&) -> StateDict {
             throw CheckpointError(ErrorCode::kInvalidArgument, "no");
           }});
    };
    EXPECT_EQ(code_of(fails), "invalid-argument");
    const auto is_not_there = [&] {
      load(state, checkpoint("nowhere"), {}, comm, {.preprocess = [](StateDict tree) {
             tree.mutable_dict().erase(Value("w4"));
             return tree;
           }});
    };
    EXPECT_EQ(code_of(is_not_there), "io");
    EXPECT_TRUE(state.contains("w4")) << "the caller keeps his tree";
    EXPECT_EQ(state.at("iteration"), Value(7));
  });
}

TEST_F(LoadHooksTest, OneRankCancelsTheLoadOfAll) {
  for (const bool parallel : {false, true}) {
    for (const bool before : {true, false}) {
      run_ranks(kRanks, [&](Communicator& comm) {
        std::stop_source stop;
        if (before && comm.rank() == 1) stop.request_stop();
        StateDict state = state_of(comm.rank(), false);
        const auto load_it = [&] {
          load(state, checkpoint(), with(parallel), comm,
               {.progress =
                    [&](std::uint64_t, std::uint64_t) {
                      if (comm.rank() == 1) stop.request_stop();
                    },
                .cancel = stop.get_token()});
        };
        EXPECT_EQ(code_of(load_it), "cancelled") << parallel << before;
      });
    }
  }
}

TEST_F(LoadHooksTest, ALoadThatTakesTooLongEndsOnAllRanks) {
  for (const bool parallel : {false, true}) {
    run_ranks(kRanks, [&](Communicator& comm) {
      StateDict state = state_of(comm.rank(), false);
      LoadOptions options = with(parallel);
      options.timeout = std::chrono::milliseconds(150);
      const std::string error = error_of([&] {
        load(state, checkpoint(), options, comm, {.progress = [&](std::uint64_t, std::uint64_t) {
               if (comm.rank() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(300));
             }});
      });
      EXPECT_NE(error, "no error") << parallel;
    });
  }
  EXPECT_EQ(Policy::from_text("version: 1\nload: {timeout: 90s}").load.timeout,
            std::chrono::seconds(90));
  StateDict state = state_of(0, false);
  EXPECT_THAT(
      error_of([&] { load(state, checkpoint(), {.timeout = std::chrono::milliseconds(-1)}); }),
      HasSubstr("load.timeout"));
}

class AsyncLoad : public LoadHooksTest {};

TEST_F(AsyncLoad, EndsAsALoadDoes) {
  run_ranks(kRanks, [&](Communicator& comm) {
    AsyncLoader loader(comm);
    for (int i = 0; i < 2; ++i) {
      const StateDict asked = state_of(comm.rank(), false);
      const PendingLoad pending = loader.load(asked, checkpoint(), with(i == 1));
      StateDict state;
      const LoadReport report = pending.wait(state);
      EXPECT_TRUE(is_saved(state, comm.rank()));
      EXPECT_EQ(asked.at("w0").as_sharded_tensor().data->data(),
                state.at("w0").as_sharded_tensor().data->data())
          << "filled in place";
      EXPECT_EQ(report.bytes_wanted, pending.progress().total);
      EXPECT_EQ(pending.progress().arrived, pending.progress().total);
      EXPECT_TRUE(pending.done());
      EXPECT_EQ(code_of([&] { pending.wait(state); }), "invalid-argument") << "taken already";
      EXPECT_TRUE(is_saved(state, comm.rank()));
    }
  });
}

TEST_F(AsyncLoad, ReturnsBeforeAnythingIsReadAndCanBeCancelledByOneRank) {
  run_ranks(kRanks, [&](Communicator& comm) {
    AsyncLoader loader(comm);
    std::atomic<bool> go{false};
    const LoadHooks slow{.progress = [&](std::uint64_t, std::uint64_t) {
      while (!go) std::this_thread::yield();
    }};
    const PendingLoad pending = loader.load(state_of(comm.rank(), false), checkpoint(), {}, slow);
    EXPECT_FALSE(pending.done());
    if (comm.rank() == 0) pending.cancel();
    go = true;
    StateDict state = Value::dict({{"mine", 1}});
    EXPECT_EQ(code_of([&] { pending.wait(state); }), "cancelled");
    EXPECT_EQ(state, Value::dict({{"mine", 1}}));

    StateDict again;
    loader.load(state_of(comm.rank(), false), checkpoint()).wait(again);
    EXPECT_TRUE(is_saved(again, comm.rank())) << "the next one succeeds";
  });
}

TEST_F(AsyncLoad, FailsForAllRanksAlike) {
  run_ranks(kRanks, [&](Communicator& comm) {
    AsyncLoader loader(comm);
    StateDict wrong = state_of(comm.rank(), false);
    if (comm.rank() == 1) wrong["more"] = ShardedTensor::whole("more", arange({2}));
    const PendingLoad pending = loader.load(wrong, checkpoint());
    StateDict state;
    EXPECT_EQ(code_of([&] { pending.wait(state); }), "mismatch");
    EXPECT_EQ(code_of([&] { pending.wait(state); }), "mismatch") << "also when asked again";
  });
}

TEST_F(AsyncLoad, TheLoaderWaitsForALoadThatNobodyAsksFor) {
  StateDict asked = state_of(0, false);
  run_ranks(kRanks, [&](Communicator& comm) {
    AsyncLoader loader(comm);
    loader.load(comm.rank() == 0 ? asked : state_of(1, false), checkpoint());
  });
  EXPECT_EQ(Value(*asked.at("w5").as_sharded_tensor().data), Value(numbers({kRows, 64}, 5)));
}

}  // namespace
}  // namespace dckpt::testing::load_async_test
