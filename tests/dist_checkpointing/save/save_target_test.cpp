// The places that a save may write to, what it replaces, and what it leaves when it fails or is
// refused.

#include "tests/dist_checkpointing/save_load.h"

#include <fstream>

#include "dist_checkpointing/open/open.h"
#include "mapping/base/log.h"
#include "tests/support/object_store.h"

namespace dckpt::save_target_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST_F(SaveLoad, AnOptionThatWouldHaveNoEffectIsRefusedNotIgnored) {
  const auto state = [](int) { return StateDict(Value::dict()); };
  EXPECT_THAT(error_of([&] { save_on(1, state, {.flatten = false}); }), HasSubstr("save.flatten"));
  EXPECT_FALSE(std::filesystem::exists(checkpoint()));
}

TEST_F(SaveLoad, ReplacingACheckpointKeepsWhatNoSaveHasWritten) {
  namespace fs = std::filesystem;
  const auto state_of = [](int rank) {
    StateDict state;
    state["w"] =
        ShardedTensor::from_rank_offsets("w", arange({4}), {{.axis = 0, .rank = rank, .count = 2}});
    return state;
  };
  for (const SaveOptions& options :
       {SaveOptions{.overwrite = true, .integrity = true, .report = true},
        SaveOptions{.strategy = {.name = "zarr"}, .overwrite = true}}) {
    fs::remove_all(checkpoint());
    save_on(2, state_of, options);
    std::ofstream(checkpoint() / "dckpt_plans.bin") << "of an earlier build";
    EXPECT_EQ(open_checkpoint(checkpoint())->metadata().tensors.size(), 1U);
    fs::create_directories(checkpoint() / "tokenizer");
    for (const char* const name : {"notes.txt", "run_config.yaml", "tokenizer/vocab.json"})
      std::ofstream(checkpoint() / name) << "mine";
    fs::create_symlink("elsewhere", checkpoint() / "link");
    std::ofstream(checkpoint() / "__7_0.distcp") << "of a save of more ranks";
    std::string warnings;
    set_log_sink([&](LogLevel level, std::string_view text) {
      if (level >= LogLevel::kWarning) warnings += text;
    });
    for (int again = 0; again < 2; ++again) save_on(2, state_of, options);
    set_log_sink({});
    for (const char* const name : {"notes.txt", "run_config.yaml", "tokenizer/vocab.json"}) {
      std::string content;
      std::ifstream(checkpoint() / name) >> content;
      EXPECT_EQ(content, "mine") << name;
    }
    EXPECT_TRUE(fs::is_symlink(checkpoint() / "link"));
    EXPECT_FALSE(fs::exists(checkpoint() / "__7_0.distcp"));
    EXPECT_FALSE(fs::exists(checkpoint() / "dckpt_plans.bin"));
    EXPECT_THAT(warnings, HasSubstr("kept in it what no save had written: 'link', 'notes.txt', "
                                    "'run_config.yaml', 'tokenizer'"));
  }
}

TEST_F(SaveLoad, AFailingRankFailsAllAndLeavesNothing) {
  const std::string message = error_of([&] {
    save_on(3, [](int rank) {
      StateDict state;
      state["w"] = ShardedTensor::from_rank_offsets("w", arange({4}),
                                                    {{.axis = 0, .rank = rank, .count = 3}});
      if (rank == 1) state["w"].mutable_sharded_tensor().local_shape = {5};
      return state;
    });
  });
  EXPECT_THAT(message, HasSubstr("rank 1"));
  EXPECT_THAT(std::vector<std::filesystem::path>(
                  std::filesystem::directory_iterator(directory_.path()), {}),
              IsEmpty());
}

TEST_F(SaveLoad, RanksThatWereGivenDifferentThingsAreNamedOnAllRanks) {
  const auto state_of = [](int rank) {
    StateDict state;
    state["w"] =
        ShardedTensor::from_rank_offsets("w", arange({4}), {{.axis = 0, .rank = rank, .count = 3}});
    return state;
  };
  const auto expect_on_all = [&](const std::string& text,
                                 const std::function<void(Communicator&)>& action) {
    run_ranks(3, [&](Communicator& comm) {
      EXPECT_THAT(error_of([&] { action(comm); }), HasSubstr(text)) << "on rank " << comm.rank();
    });
  };
  expect_on_all(
      "cannot save: the ranks were given different options: 'validate: true' on ranks 0, 2; "
      "'validate: false' on rank 1",
      [&](Communicator& comm) {
        save(state_of(comm.rank()), checkpoint(), {.planner = {.validate = comm.rank() != 1}},
             comm);
      });
  expect_on_all("different options: 'overwrite: false' on ranks 0, 2; 'overwrite: true' on rank 1",
                [&](Communicator& comm) {
                  save(state_of(comm.rank()), checkpoint(), {.overwrite = comm.rank() == 1}, comm);
                });
  expect_on_all("cannot save: the ranks were given different directories", [&](Communicator& comm) {
    save(state_of(comm.rank()), checkpoint(comm.rank() == 2 ? "other" : "checkpoint"), {}, comm);
  });
  expect_on_all("cannot save: the ranks were given different directories", [&](Communicator& comm) {
    save(state_of(comm.rank()), checkpoint(comm.rank() == 1 ? std::string(200, 'x') : "checkpoint"),
         {}, comm);
  });
  EXPECT_TRUE(std::filesystem::is_empty(directory_.path()));

  save_on(3, state_of);
  expect_on_all(
      "cannot load: the ranks were given different options: 'strict: raise_all' on rank 0; "
      "'strict: assume_ok_unexpected' on ranks 1, 2",
      [&](Communicator& comm) {
        StateDict wanted = state_of(comm.rank());
        load(wanted, checkpoint(),
             {.strict = comm.rank() == 0 ? StrictHandling::kRaiseAll
                                         : StrictHandling::kAssumeOkUnexpected},
             comm);
      });
  std::filesystem::copy(checkpoint(), checkpoint("copy"));
  run_ranks(3, [&](Communicator& comm) {
    StateDict wanted = state_of(comm.rank());
    load(wanted, checkpoint(comm.rank() == 1 ? "copy" : "checkpoint"), {}, comm);
  });
  save(state_of(0), checkpoint("later"), {.planner = {.validate = false}});
  expect_on_all("cannot load: the ranks were given different checkpoints", [&](Communicator& comm) {
    StateDict wanted = state_of(0);
    load(wanted, checkpoint(comm.rank() == 1 ? "later" : "checkpoint"), {}, comm);
  });
}

TEST_F(SaveLoad, AHoleBetweenRanksIsReportedBeforeAnythingIsWritten) {
  const std::string message = error_of([&] {
    save_on(2, [](int rank) {
      StateDict state;
      if (rank == 0)
        state["w"] = ShardedTensor::from_rank_offsets("w", arange({4}),
                                                      {{.axis = 0, .rank = 0, .count = 2}});
      state["x"] = ShardedTensor::from_rank_offsets("x", arange({4}),
                                                    {{.axis = 0, .rank = rank, .count = 2}});
      return state;
    });
  });
  EXPECT_THAT(message, HasSubstr("'w'"));
  EXPECT_FALSE(std::filesystem::exists(checkpoint()));
}

TEST_F(SaveLoad, AnExistingCheckpointIsReplacedOnlyWhenAsked) {
  const auto state = [](double value) {
    StateDict result;
    result["value"] = value;
    return result;
  };
  save(state(1), checkpoint());
  EXPECT_THROW(save(state(2), checkpoint()), CheckpointError);
  EXPECT_EQ(load_common_state(checkpoint())["value"], Value(1));
  save(state(3), checkpoint(), {.overwrite = true});
  EXPECT_EQ(load_common_state(checkpoint())["value"], Value(3));
}

TEST_F(SaveLoad, ATrainingRootIsNeverReplacedByACheckpoint) {
  const StateDict state = Value::dict({{"w", ShardedTensor::whole("w", arange({4}))}});
  save(state, checkpoint("root") / "iter_0000100");
  const auto replace_root = [&] { save(state, checkpoint("root"), {.overwrite = true}); };
  EXPECT_THAT(error_of(replace_root),
              HasSubstr("refusing to replace a training root (it has iteration 100)"));
  std::filesystem::rename(checkpoint("root") / "iter_0000100", checkpoint("elsewhere"));
  std::ofstream(checkpoint("root") / "latest_checkpointed_iteration.txt") << 100;
  EXPECT_THAT(error_of(replace_root), HasSubstr("refusing to replace a training root"));
  EXPECT_TRUE(std::filesystem::exists(checkpoint("root") / "latest_checkpointed_iteration.txt"));
}

/// Late lists do not show a failed save everything that it has to remove.
TEST_F(SaveLoad, WhatASaveInPlaceHasLeftOfItselfIsReplaced) {
  const StateDict state = Value::dict({{"w", ShardedTensor::whole("w", arange({4}))}});
  for (const char* const left : {".dckpt.saving-1", ".conversion-1.journal", "common.pt",
                                 "integrity.json", "dckpt_plans.bin", "notes.txt"}) {
    const auto objects = std::make_shared<ObjectStore>(ObjectStore::Pace{});
    objects->make_directory("it");
    objects->put(std::string("it/") + left, {});
    const auto replace = [&] { save(state, Location(objects, "it"), {.overwrite = true}); };
    if (left != std::string("notes.txt") && left[1] != 'd')
      replace();
    else if (left[1] == 'd')
      EXPECT_THAT(error_of(replace), HasSubstr("another job writes this checkpoint"));
    else
      EXPECT_THAT(error_of(replace), HasSubstr("is not a checkpoint (it holds 'notes.txt')"));
  }
}

TEST_F(SaveLoad, OnlyCheckpointsAndEmptyDirectoriesAreReplaced) {
  const StateDict state = Value::dict({{"w", ShardedTensor::whole("w", arange({4}))}});
  const auto replace = [&] { save(state, checkpoint(), {.overwrite = true}); };
  std::filesystem::create_directory(checkpoint());
  replace();
  std::filesystem::remove(checkpoint() /
                          "metadata.json");  // as left by an interrupted save of Megatron
  std::filesystem::remove(checkpoint() / ".metadata");
  replace();
  replace();
  std::filesystem::remove_all(checkpoint());
  std::filesystem::create_directory(checkpoint());
  std::ofstream(checkpoint() / "thesis.tex") << "chapter 1";
  EXPECT_THAT(
      error_of(replace),
      AllOf(HasSubstr(
                "refusing to replace a directory that is not a checkpoint (it holds 'thesis.tex')"),
            HasSubstr("choose another name")));
  EXPECT_TRUE(std::filesystem::exists(checkpoint() / "thesis.tex"));
}

TEST_F(SaveLoad, ADirectoryWithoutANameIsRefused) {
  for (const char* const nowhere : {"", "/"})
    EXPECT_THAT(error_of([&] { save(Value::dict(), nowhere); }),
                ::testing::Not(HasSubstr("no error")))
        << nowhere;
}

}  // namespace
}  // namespace dckpt::save_target_test
