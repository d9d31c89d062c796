// The life of a training root: save, resume, retention, and what users and crashes do to it.

#include "dist_checkpointing/checkpointer.h"

#include <gmock/gmock.h>

#include <atomic>
#include <cstring>

#include "mapping/state/sharded_object.h"
#include "mapping/state/sharded_tree.h"
#include "tests/dist_checkpointing/training_run.h"
#include "tests/support/expect_error.h"
#include "tests/support/watched_communicator.h"

namespace dckpt::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::IsSupersetOf;
using ::testing::Not;

constexpr const char* kTracker = "latest_checkpointed_iteration.txt";

class CheckpointerTest : public TrainingRun {};

TEST_F(CheckpointerTest, SavesAndResumesWithAnyNumberOfRanks) {
  std::uint64_t iteration = 0;
  for (const int ranks : {1, 2, 4, 8}) {
    iteration += 100;
    job(ranks, [&](Checkpointer& checkpointer, Communicator& comm) {
      StateDict state = empty_state(comm.rank(), ranks);
      const auto resumed = checkpointer.load_latest(state);
      EXPECT_EQ(resumed.has_value(), iteration > 100);
      EXPECT_TRUE(!resumed || holds(state, iteration - 90, comm.rank(), ranks))
          << "saved by a job of another size";
      checkpointer.save(state_at(iteration, comm.rank(), ranks), iteration);
      checkpointer.save(state_at(iteration + 10, comm.rank(), ranks), iteration + 10);
      EXPECT_EQ(checkpointer.latest(), iteration + 10);
      StateDict before = empty_state(comm.rank(), ranks);
      checkpointer.load(before, iteration);
      EXPECT_TRUE(holds(before, iteration, comm.rank(), ranks));
    });
    EXPECT_EQ(tracker(), std::to_string(iteration + 10));
  }
}

TEST_F(CheckpointerTest, EverySaveReportsWhatItDid) {
  for (const bool in_background : {false, true}) {
    Policy policy;
    policy.save.async.enabled = in_background;
    const std::uint64_t first = in_background ? 300 : 100;
    job(
        2,
        [&](Checkpointer& checkpointer, Communicator& comm) {
          const PendingSave pending = checkpointer.save(state_at(first, comm.rank(), 2), first);
          EXPECT_TRUE(pending.done() || in_background);
          EXPECT_EQ(pending.wait().why_planned, "first save");
          EXPECT_EQ(pending.wait().files, 5U);
          EXPECT_TRUE(checkpointer.save(state_at(first + 100, comm.rank(), 2), first + 100)
                          .wait()
                          .plan_cached);
        },
        policy);
  }
}

/// A state with one leaf of every kind that a load fills, everything of iteration `value`.
StateDict state_of_all_kinds(std::int64_t value, int rank, int ranks) {
  const auto of_value = [&](std::int64_t rows) {
    Tensor tensor = Tensor::empty(DType::kInt64, {rows, 3});
    std::fill_n(reinterpret_cast<std::int64_t*>(tensor.data()), tensor.numel(), value);
    return tensor;
  };
  ShardedTensorFactory halves{.key = "fc1", .data = of_value(4), .replica_id = rank};
  halves.build = [](const std::string& key, const Tensor& data, const ReplicaId& replica,
                    std::optional<FlattenedRange>) {
    return Value::list({ShardedTensor::whole(key + ".w", data.narrow(0, 0, 2).contiguous(),
                                             {.replica_id = replica}),
                        ShardedTensor::whole(key + ".v", data.narrow(0, 2, 2).contiguous(),
                                             {.replica_id = replica})});
  };
  halves.merge = [](const Value& parts) {
    const Tensor merged = Tensor::empty(DType::kInt64, {4, 3});
    for (std::size_t i = 0; i < 2; ++i)
      std::memcpy(merged.data() + i * 48, parts.items()[i].as_tensor().data(), 48);
    return Value(merged);
  };
  const FlattenedRange range = rank == 0 ? FlattenedRange{0, 6} : FlattenedRange{6, 6};
  const Tensor flat = of_value(2).view({6}).narrow(0, 0, range.end - range.begin);
  return Value::dict(
      {{"w", ShardedTensor::from_rank_offsets("w", of_value(1),
                                              {{.axis = 0, .rank = rank, .count = ranks}})},
       {"layers", Value::list({Value::dict({{"fc1", halves}}), Value::dict({{"lr", value}})})},
       {"m", ShardedTensor::from_rank_offsets_flat("m", flat, {2, 3}, {}, range)},
       {"rng",
        ShardedObject{
            .key = "rng", .data = Value(value), .global_shape = {ranks}, .global_offset = {rank}}},
       {"local", LocalNonpersistentObject{Value("of rank " + std::to_string(rank))}},
       {"iteration", value}});
}

TEST_F(CheckpointerTest, OneTreeIsLoadedAndSavedForEver) {
  job(2, [](Checkpointer& checkpointer, Communicator& comm) {
    checkpointer.save(state_of_all_kinds(1, comm.rank(), 2), 1);
  });
  StateDict trees[2];
  for (int rank = 0; rank < 2; ++rank) trees[rank] = state_of_all_kinds(0, rank, 2);
  for (std::int64_t iteration = 1; iteration <= 3; ++iteration) {
    job(2, [&](Checkpointer& checkpointer, Communicator& comm) {
      StateDict& state = trees[comm.rank()];
      const std::byte* const memory = state.at("w").as_tensor().data();
      const std::byte* const factory_memory =
          state.at("layers").items()[0].at("fc1").as_factory().data.data();
      EXPECT_EQ(checkpointer.resume(state).iteration, static_cast<std::uint64_t>(iteration));
      const StateDict expected = plain_state(state_of_all_kinds(iteration, comm.rank(), 2));
      EXPECT_EQ(plain_state(state), expected);
      EXPECT_EQ(state.at("w").as_tensor().data(), memory) << "filled in place";
      EXPECT_EQ(state.at("layers").items()[0].at("fc1").as_factory().data.data(), factory_memory);
      // Trained, then saved: in the trainer's memory, as the same tree.
      for (const Value& leaf :
           {state.at("w"), state.at("layers").items()[0].at("fc1"), state.at("m")}) {
        const Tensor& tensor = leaf.as_tensor();
        std::fill_n(reinterpret_cast<std::int64_t*>(tensor.data()), tensor.numel(), iteration + 1);
      }
      state["rng"] = ShardedObject{.key = "rng",
                                   .data = Value(iteration + 1),
                                   .global_shape = {2},
                                   .global_offset = {comm.rank()}};
      state["layers"].mutable_items()[1]["lr"] = state["iteration"] = iteration + 1;
      checkpointer.save(state, static_cast<std::uint64_t>(iteration + 1));
    });
  }
  EXPECT_EQ(load_sharded_metadata(root_ / "iter_0000004").size(),
            load_sharded_metadata(root_ / "iter_0000001").size());
}

TEST_F(CheckpointerTest, AStateThatHasLostItsDescriptionsIsNotSaved) {
  saved({100});
  job(2, [&](Checkpointer& checkpointer, Communicator& comm) {
    StateDict state = empty_state(comm.rank(), 2);
    checkpointer.resume(state);
    state["w"] = state["w"].as_tensor();
    EXPECT_THAT(error_of([&] { checkpointer.save(state, 200); }).what(),
                AllOf(HasSubstr("plain tensors in place of the ShardedTensors"), HasSubstr("'w'")));
  });
  job(2, [&](Checkpointer& checkpointer, Communicator& comm) {
    StateDict state = empty_state(comm.rank(), 2);
    load_plain(state, root_, {}, comm);
    EXPECT_TRUE(state.at("w").is_tensor());
    EXPECT_THAT(error_of([&] { checkpointer.save(state, 200); }).what(),
                HasSubstr("has sharded ones; describe"));
  });
  EXPECT_EQ(tracker(), "100");
}

TEST_F(CheckpointerTest, AMistypedRootIsAWarningOrAnErrorOfResume) {
  saved({100});
  const fs::path mistyped = root_.string() + "s";
  const Warnings warnings;
  run_ranks(2, [&](Communicator& comm) {
    Checkpointer checkpointer(mistyped, {}, comm);
    StateDict state = empty_state(comm.rank(), 2);
    EXPECT_FALSE(checkpointer.load_latest(state));
    EXPECT_THAT(error_of([&] { checkpointer.resume(state); }).what(),
                AllOf(HasSubstr("cannot resume"), HasSubstr("did you mean")));
  });
  EXPECT_THAT(warnings.text(),
              AllOf(HasSubstr("does not exist; did you mean '" + root_.string() + "'?"),
                    HasSubstr("begins anew")));
}

TEST_F(CheckpointerTest, AnEmptyRootHoldsNothingAndStaysAsItIs) {
  EXPECT_EQ(resumed(), -1);
  EXPECT_FALSE(fs::exists(root_)) << "looking creates nothing";
  fs::create_directory(root_);
  EXPECT_EQ(resumed(), -1);
  EXPECT_THAT(entries(), IsEmpty());
}

TEST_F(CheckpointerTest, ATrackerThatLeadsNowhereIsPassedOver) {
  saved({100, 200});
  const std::string missing = "is not used: it does not exist";
  for (const auto& [content, warning] : std::vector<std::pair<std::string, std::string>>{
           {"rubbish\n", "the tracker holds 'rubbish'"},
           {"", "the tracker holds ''"},
           {"../run/iter_0000100", "the tracker holds '../run"},
           {std::string(9000, '7'), "it has 9,000 bytes"},
           {"300", "'iter_0000300' " + missing},
           {"release", "'release' " + missing}}) {
    set_tracker(content);
    const Warnings warnings;
    EXPECT_EQ(resumed(), 200) << content;
    EXPECT_THAT(warnings.text(),
                AllOf(HasSubstr(warning), HasSubstr("resuming from 'iter_0000200'")));
  }
  fs::remove(root_ / kTracker);
  const Warnings warnings;
  EXPECT_EQ(resumed(), 200);
  EXPECT_EQ(warnings.text(), "");
}

TEST_F(CheckpointerTest, GoesBackWhereTheTrackerSaysSo) {
  saved({100, 200, 300});
  set_tracker("100\n");
  const Warnings warnings;
  EXPECT_EQ(resumed(), 100);
  EXPECT_THAT(warnings.text(),
              HasSubstr("iterations 200 and 300: not used, because "
                        "latest_checkpointed_iteration.txt names an older one, 'iter_0000100'"));
}

TEST_F(CheckpointerTest, ReleasesAreLoadedAsIterationZero) {
  saved({100});
  fs::rename(root_ / "iter_0000100", root_ / "release");
  set_tracker("release");
  EXPECT_EQ(resumed(), 100) << "the common state of iteration 100";
  job(1, [&](Checkpointer& checkpointer, Communicator&) { EXPECT_EQ(checkpointer.latest(), 0U); });
  fs::remove(root_ / kTracker);
  EXPECT_EQ(resumed(), 100);
}

/// What may be wrong with the newest checkpoint, and what the warning says of it.
struct Damage {
  const char* name;
  std::function<void(const fs::path&)> inflict;
  const char* warning;
};

TEST_F(CheckpointerTest, AnIncompleteCheckpointIsPassedOver) {
  const std::vector<Damage> damages = {
      {"a data file is missing", [](const fs::path& path) { fs::remove(path / "__1_0.distcp"); },
       "'__1_0.distcp' is missing"},
      {"a data file is cut",
       [](const fs::path& path) { fs::resize_file(path / "__0_0.distcp", 100); },
       "'__0_0.distcp' has 100 bytes of "},
      {"no metadata", [](const fs::path& path) { fs::remove(path / ".metadata"); },
       ".metadata is missing"},
      {"cut metadata", [](const fs::path& path) { fs::resize_file(path / ".metadata", 50); },
       ".metadata"},
      {"Megatron died before metadata.json",
       [](const fs::path& path) { fs::remove(path / "metadata.json"); },
       "metadata.json is missing"},
      {"no common state", [](const fs::path& path) { fs::remove(path / "common.pt"); },
       "common.pt"},
      {"cut common state", [](const fs::path& path) { fs::resize_file(path / "common.pt", 20); },
       "common.pt"},
      {"nothing in it",
       [](const fs::path& path) { fs::remove_all(path), fs::create_directory(path); },
       "the directory is empty"},
  };
  saved({100, 200});
  const fs::path sound = directory_ / "sound";
  fs::copy(root_ / "iter_0000200", sound);
  for (const Damage& damage : damages) {
    SCOPED_TRACE(damage.name);
    fs::remove_all(root_ / "iter_0000200");
    fs::copy(sound, root_ / "iter_0000200");
    damage.inflict(root_ / "iter_0000200");
    const Warnings warnings;
    EXPECT_EQ(resumed(), 100);
    EXPECT_THAT(warnings.text(),
                AllOf(HasSubstr("'iter_0000200' is not used"), HasSubstr(damage.warning),
                      HasSubstr("resuming from 'iter_0000100'")));
  }
}

TEST_F(CheckpointerTest, OnlyIncompleteCheckpointsAreAnErrorAndNoFreshStart) {
  saved({100, 200});
  fs::remove(root_ / "iter_0000100" / ".metadata");
  fs::remove(root_ / "iter_0000200" / "__0_0.distcp");
  const CheckpointError error = error_of([&] { resumed(); });
  EXPECT_EQ(error.code(), ErrorCode::kIncomplete);
  EXPECT_THAT(error.what(),
              AllOf(HasSubstr("'iter_0000100' is not used"),
                    HasSubstr("'iter_0000200' is not used"), HasSubstr("to start over")));
}

TEST_F(CheckpointerTest, AMissingIterationIsAnErrorThatNamesWhatIsThere) {
  saved({100, 200});
  const CheckpointError error = error_of([&] {
    job(2, [&](Checkpointer& checkpointer, Communicator& comm) {
      StateDict state = empty_state(comm.rank(), 2);
      checkpointer.load(state, 150);
    });
  });
  EXPECT_EQ(error.code(), ErrorCode::kIncomplete);
  EXPECT_THAT(
      error.what(),
      HasSubstr(
          "there is no iteration 150 in the training root; there are iterations 100 and 200"));
}

// Retention

TEST_F(CheckpointerTest, RetentionKeepsTheNewestAndMultiples) {
  saved({100, 200, 300, 400, 500}, {.retention = {.keep_last = 2, .keep_every = 200}});
  EXPECT_THAT(entries(),
              ElementsAre(".dckpt.lock", "iter_0000200", "iter_0000400", "iter_0000500", kTracker));
}

TEST_F(CheckpointerTest, RetentionLeavesWhatIsNotItsOwn) {
  saved({100, 200});
  fs::create_directory(root_ / "iter_1");
  fs::create_directory(root_ / "tokenizer");
  fs::rename(root_ / "iter_0000100", directory_ / "archived");
  fs::create_directory_symlink(directory_ / "archived", root_ / "iter_0000100");
  saved({300}, {.retention = {.keep_last = 1}});
  EXPECT_THAT(entries(), ElementsAre(".dckpt.lock", "iter_0000100", "iter_0000300", "iter_1",
                                     kTracker, "tokenizer"));
  EXPECT_TRUE(fs::exists(directory_ / "archived" / "metadata.json"));
}

TEST_F(CheckpointerTest, RetentionKeepsWhatTheRunHasLoaded) {
  saved({100, 200});
  job(2,
      [&](Checkpointer& checkpointer, Communicator& comm) {
        StateDict state = empty_state(comm.rank(), 2);
        checkpointer.load(state, 100);
        for (const std::uint64_t iteration : {300, 400})
          checkpointer.save(state_at(iteration, comm.rank(), 2), iteration);
      },
      {.retention = {.keep_last = 1}});
  EXPECT_THAT(entries(), ElementsAre(".dckpt.lock", "iter_0000100", "iter_0000400", kTracker));
}

TEST_F(CheckpointerTest, ACheckpointThatCannotBeRemovedIsAWarning) {
  saved({100});
  fs::path deep = root_ / "iter_0000100";
  for (int level = 0; level < 70; ++level) deep /= "d";  // deeper than what is removed
  fs::create_directories(deep);
  const Warnings warnings;
  saved({200, 300}, {.retention = {.keep_last = 1}});
  EXPECT_THAT(warnings.text(),
              HasSubstr("iteration 200 is saved, but old checkpoints could not be removed"));
  EXPECT_EQ(resumed(), 300);
  EXPECT_FALSE(fs::exists(root_ / "iter_0000100")) << "what remains of it is hidden";
}

// Saving what is there already

TEST_F(CheckpointerTest, ACompleteIterationIsNotReplaced) {
  saved({100, 200});
  const CheckpointError error = error_of([&] { saved({200}); });
  EXPECT_EQ(error.code(), ErrorCode::kAlreadyExists);
  EXPECT_THAT(error.what(), HasSubstr("refusing to replace iteration 200, which is complete"));
  EXPECT_THAT(error_of([&] {
                saved({300, 300});
              }).what(),
              HasSubstr("refusing to replace iteration 300"));
  EXPECT_EQ(resumed(), 300);
}

TEST_F(CheckpointerTest, ItIsReplacedWhereThatIsAllowed) {
  saved({100});
  Policy policy;
  policy.save.overwrite = true;
  saved({100, 100}, policy);
  EXPECT_EQ(resumed(), 100);
}

TEST_F(CheckpointerTest, AnIncompleteIterationIsReplaced) {
  saved({100, 200});
  fs::remove(root_ / "iter_0000200" / "__0_0.distcp");
  const Warnings warnings;
  saved({200});
  EXPECT_THAT(warnings.text(), HasSubstr("iteration 200 is there but incomplete, and is replaced"));
  EXPECT_EQ(resumed(), 200);
}

TEST_F(CheckpointerTest, ARunThatWentBackReplacesTheHistoryItLeft) {
  saved({100, 200, 300, 400});
  const Warnings warnings;
  job(2,
      [&](Checkpointer& checkpointer, Communicator& comm) {
        StateDict state = empty_state(comm.rank(), 2);
        checkpointer.load(state, 200);
        checkpointer.save(state_at(300, comm.rank(), 2), 300);
        EXPECT_THAT(error_of([&] { checkpointer.save(state_at(300, comm.rank(), 2), 300); }).what(),
                    HasSubstr("refusing to replace iteration 300"));
      },
      {.retention = {.keep_last = 2}});
  EXPECT_THAT(
      warnings.text(),
      HasSubstr(
          "iteration 300 is replaced: it was saved before the run went back to iteration 200"));
  EXPECT_EQ(resumed(), 300) << "and not 400, of the history that was left";
  EXPECT_THAT(entries(),
              ElementsAre(".dckpt.lock", "iter_0000200", "iter_0000300", "iter_0000400", kTracker));
}

TEST_F(CheckpointerTest, ARunThatForgetsToLoadIsWarned) {
  saved({100, 200});
  const Warnings warnings;
  job(2, [&](Checkpointer& checkpointer, Communicator& comm) {
    checkpointer.claim();
    checkpointer.save(state_at(50, comm.rank(), 2), 50);
  });
  EXPECT_THAT(warnings.text(), HasSubstr("has iterations 100 and 200, but this run has loaded none "
                                         "of them; it is about to save iteration 50"));
}

// Ranks that disagree

TEST_F(CheckpointerTest, ARootNeedsAName) {
  EXPECT_EQ(error_of([] { Checkpointer("", {}, *single_rank()); }).code(),
            ErrorCode::kInvalidArgument);
}

TEST_F(CheckpointerTest, RanksThatDisagreeAreNamedOnAllRanks) {
  saved({100});
  job(4, [&](Checkpointer& checkpointer, Communicator& comm) {
    const CheckpointError error = error_of(
        [&] { checkpointer.save(state_at(200, comm.rank(), 4), comm.rank() == 2 ? 201 : 200); });
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    EXPECT_THAT(error.what(), HasSubstr("cannot save: the ranks were given different iterations: "
                                        "'200' on ranks 0, 1, 3; '201' on rank 2"));
    checkpointer.save(state_at(200, comm.rank(), 4), 200);
  });
  job(2, [&](Checkpointer& checkpointer, Communicator& comm) {
    const CheckpointError error = error_of([&] {
      comm.rank() == 0 ? void(checkpointer.save(state_at(300, 0, 2), 300)) : checkpointer.claim();
    });
    EXPECT_THAT(error.what(), HasSubstr("the ranks were given different tasks: 'save' on rank 0; "
                                        "'claim the training root' on rank 1"));
  });
  run_ranks(2, [&](Communicator& comm) {
    Policy policy;
    if (comm.rank() == 1) policy.save.compat = Compat::kDcp;
    Checkpointer checkpointer(root_, policy, comm);
    EXPECT_THAT(
        error_of([&] { checkpointer.save({}, 300); }).what(),
        HasSubstr("different policies: 'compat: megatron' on rank 0; 'compat: dcp' on rank 1"));
    StateDict state = empty_state(comm.rank(), 2);
    EXPECT_THAT(error_of([&] { std::ignore = checkpointer.load_latest(state); }).what(),
                HasSubstr("different policies"));
  });
  run_ranks(2, [&](Communicator& comm) {
    Checkpointer checkpointer(comm.rank() == 0 ? root_ : directory_ / "walk", {}, comm);
    EXPECT_THAT(error_of([&] { checkpointer.latest(); }).what(),
                AllOf(HasSubstr("different training roots"), HasSubstr("walk' on rank 1")));
  });
  EXPECT_EQ(resumed(), 200);
}

TEST_F(CheckpointerTest, ARankThatCannotDescribeItsStateFailsAllAndTheNextSaveWorks) {
  job(4, [&](Checkpointer& checkpointer, Communicator& comm) {
    checkpointer.save(state_at(100, comm.rank(), 4), 100);
    StateDict state = state_at(200, comm.rank(), 4);
    const Tensor three_rows = Tensor::zeros(DType::kInt64, {3, kColumns / 4});
    if (comm.rank() == 3)
      state["w"] =
          ShardedTensor::from_rank_offsets("w", three_rows, {{.axis = 1, .rank = 3, .count = 4}});
    EXPECT_THAT(error_of([&] { checkpointer.save(state, 200); }).what(), HasSubstr("'w'"));
    EXPECT_EQ(checkpointer.latest(), 100U);
    checkpointer.save(state_at(300, comm.rank(), 4), 300);
  });
  EXPECT_THAT(entries(), ElementsAre(".dckpt.lock", "iter_0000100", "iter_0000300", kTracker));
}

TEST_F(CheckpointerTest, TheSecondSaveExchangesFingerprintsInsteadOfPlans) {
  run_ranks(2, [&](Communicator& comm) {
    WatchedCommunicator watched(comm, [](std::uint64_t) {});
    Checkpointer checkpointer(root_, {}, watched);
    StateDict state = state_at(100, comm.rank(), 2);
    for (int layer = 0; layer < 200; ++layer) {
      const std::string key =
          "model.decoder.layers." + std::to_string(layer) + ".self_attention.linear_qkv.weight";
      state[key] = ShardedTensor::from_rank_offsets(key, Tensor::zeros(DType::kInt64, {1, 1}),
                                                    {{.axis = 0, .rank = comm.rank(), .count = 2}});
    }
    checkpointer.save(state, 100);
    const std::uint64_t first = watched.gathered();
    checkpointer.save(state, 200);
    EXPECT_LT(3 * (watched.gathered() - first), first)
        << "what remains are the places in the files";
  });
}

TEST_F(CheckpointerTest, TheSecondLoadExchangesAFewBytesInsteadOfListsOfParts) {
  Policy policy;
  policy.load.parallel.enabled = true;
  run_ranks(2, [&](Communicator& comm) {
    WatchedCommunicator watched(comm, [](std::uint64_t) {});
    Checkpointer checkpointer(root_, policy, watched);
    const auto state_of_layers = [&](std::int64_t value) {
      StateDict state = Value::dict();
      for (int layer = 0; layer < 200; ++layer) {
        const std::string key =
            "model.decoder.layers." + std::to_string(layer) + ".self_attention.linear_qkv.weight";
        const Tensor data = Tensor::empty(DType::kInt64, {1, 1});
        std::memcpy(data.data(), &value, sizeof value);
        state[key] = ShardedTensor::from_rank_offsets(
            key, data, {{.axis = 0, .rank = comm.rank(), .count = 2}});
      }
      return state;
    };
    std::vector<std::uint64_t> sent;
    for (const std::uint64_t iteration : {100U, 200U})
      checkpointer.save(state_of_layers(static_cast<std::int64_t>(iteration)), iteration);
    for (const std::uint64_t iteration : {100U, 200U}) {
      const std::uint64_t before = watched.gathered();
      StateDict state = state_of_layers(0);
      checkpointer.load(state, iteration);
      sent.push_back(watched.gathered() - before);
      for (const auto& [key, value] : state.as_dict())
        EXPECT_EQ(load_le<std::int64_t>(value.as_tensor().bytes(), 0),
                  static_cast<std::int64_t>(iteration));
    }
    EXPECT_LT(3 * sent[1], sent[0]);
  });
}

/// How many of the ranks fail if one of them throws at a moment of its save (see
/// WatchedCommunicator).
int failed_ranks(const fs::path& root, const Policy& policy, int ranks, std::uint64_t iteration,
                 int leaver, std::uint64_t moment) {
  std::atomic<int> failed = 0;
  run_ranks(ranks, [&](Communicator& comm) {
    WatchedCommunicator watched(comm, [&](std::uint64_t now) {
      if (now == moment && comm.rank() == leaver) throw std::runtime_error("the rank leaves");
    });
    Checkpointer checkpointer(root, policy, watched);
    try {
      checkpointer.save(state_at(iteration, comm.rank(), ranks), iteration);
    } catch (const std::exception&) {
      ++failed;
    }
  });
  return failed;
}

/// A rank leaves before or after each collective of a save in turn: all others throw too, and the
/// next job goes on from what was complete.
TEST_F(CheckpointerTest, WhereverARankLeavesASaveAllLeaveIt) {
  Policy policy{.retention = {.keep_last = 2}};
  policy.save.io.fsync = false;
  const Warnings silenced;
  for (const int ranks : {2, 4, 8}) {
    root_ = directory_ / ("run of " + std::to_string(ranks));
    std::uint64_t last = 100;
    job(
        ranks,
        [&](Checkpointer& checkpointer, Communicator& comm) {
          checkpointer.save(state_at(100, comm.rank(), ranks), 100);
        },
        policy);
    int failed = ranks;
    std::uint64_t moment = 1;
    for (; failed > 1; ++moment) {  // at the last moment nobody waits for the rank that leaves
      const int leaver = static_cast<int>(moment) % ranks;
      SCOPED_TRACE("rank " + std::to_string(leaver) + " of " + std::to_string(ranks) +
                   " leaves at moment " + std::to_string(moment));
      failed = failed_ranks(root_, policy, ranks, last + 100, leaver, moment);
      EXPECT_TRUE(failed == ranks || failed == 1) << failed << " ranks have failed";
      std::uint64_t next = 0;
      job(
          ranks,
          [&](Checkpointer& checkpointer, Communicator& comm) {
            StateDict state = empty_state(comm.rank(), ranks);
            const auto resumed = checkpointer.load_latest(state);
            ASSERT_TRUE(resumed && holds(state, resumed->iteration, comm.rank(), ranks));
            EXPECT_TRUE(resumed->iteration == last + 100 ||
                        (failed > 1 && resumed->iteration == last));
            checkpointer.save(state_at(resumed->iteration + 100, comm.rank(), ranks),
                              resumed->iteration + 100);
            if (comm.rank() == 0) next = resumed->iteration + 100;
          },
          policy);
      last = next;
    }
    EXPECT_GT(moment, 20U);
  }
}

TEST_F(CheckpointerTest, ARootThatCannotBeWrittenIsAnErrorOnAllRanks) {
  std::ofstream(directory_ / "file") << "in the way";
  root_ = directory_ / "file" / "run";
  job(4, [&](Checkpointer& checkpointer, Communicator& comm) {
    const std::vector<std::function<void()>> attempts = {
        [&] { checkpointer.claim(); },
        [&] { checkpointer.save(state_at(100, comm.rank(), 4), 100); }};
    for (const auto& attempt : attempts) {
      const CheckpointError error = error_of(attempt);
      EXPECT_EQ(error.code(), ErrorCode::kIo);
      EXPECT_THAT(error.what(),
                  AllOf(HasSubstr("failed on rank 0 of 4"), HasSubstr("Not a directory")));
    }
  });
}

TEST_F(CheckpointerTest, ATrackerThatCannotBeWrittenIsAnErrorThatSaysTheSaveIsComplete) {
  fs::create_directories(root_ / kTracker / "not empty");
  const CheckpointError error = error_of([&] { saved({100}); });
  EXPECT_THAT(error.what(),
              HasSubstr("recording iteration 100, which is saved and complete, failed on rank 0"));
  fs::remove_all(root_ / kTracker);
  EXPECT_EQ(resumed(), 100);
}

TEST_F(CheckpointerTest, SavesInTheBackgroundAreRecordedThereToo) {
  Policy policy;
  policy.retention.keep_last = 2;
  job(
      2,
      [&](Checkpointer& checkpointer, Communicator& comm) {
        for (const std::uint64_t iteration : {100, 200, 300}) {
          StateDict state = state_at(iteration, comm.rank(), 2);
          checkpointer.save_async(state, iteration);
          const Tensor& mine = *state["w"].as_sharded_tensor().data;
          std::memset(mine.data(), 0xEE, mine.nbytes());
        }
        EXPECT_EQ(checkpointer.latest(), 300U) << "what is asked after a save knows of it";
        StateDict state = empty_state(comm.rank(), 2);
        checkpointer.load(state, 200);
        EXPECT_TRUE(holds(state, 200, comm.rank(), 2));
      },
      policy);
  EXPECT_EQ(tracker(), "300");
  EXPECT_THAT(entries(), ElementsAre(".dckpt.lock", "iter_0000200", "iter_0000300", kTracker));
}

TEST_F(CheckpointerTest, ThePolicySaysWhetherSavesGoToTheBackground) {
  Policy policy;
  policy.save.async.enabled = true;
  saved({100, 200}, policy);
  EXPECT_EQ(resumed(), 200);
}

TEST_F(CheckpointerTest, AFailureInTheBackgroundIsThrownByTheNextCallUnlessAllHaveHadIt) {
  fs::create_directories(root_ / kTracker / "not empty");
  const std::string failure =
      "recording iteration 100, which is saved and complete, failed on rank 0";
  const Warnings warnings;
  job(2, [&](Checkpointer& checkpointer, Communicator& comm) {
    checkpointer.save_async(state_at(100, comm.rank(), 2), 100);
    EXPECT_THAT(error_of([&] { checkpointer.latest(); }).what(), HasSubstr(failure));
    EXPECT_EQ(checkpointer.latest(), 100U);
    const PendingSave pending = checkpointer.save_async(state_at(200, comm.rank(), 2), 200);
    EXPECT_THAT(error_of([&] { pending.wait(); }).what(), HasSubstr("recording iteration 200"));
    EXPECT_EQ(checkpointer.latest(), 200U);
  });
  EXPECT_THAT(warnings.text(), HasSubstr("a save in the background failed: " + failure));
}

}  // namespace
}  // namespace dckpt::testing
