// Fails the storage, or the power, at any operation of a save, a conversion, a load, a removal:
// every operation fails in turn, until none does. After each failure
//
//   * the old state loads bit for bit, or the new one does: nothing in between, and what was
//     reported as done is the new state;
//   * the next job succeeds, and leaves nothing hidden.
//
// Operations are numbered in the order in which the threads of a job reach them. An ordinary run
// takes a sample of them; DCKPT_SWEEP=all takes every one.

#include <gmock/gmock.h>

#include <cstdio>
#include <map>
#include <set>
#include <thread>

#include "dist_checkpointing/open/open.h"
#include "dist_checkpointing/training_root/latest.h"
#include "dist_checkpointing/training_root/staging_token.h"
#include "mapping/base/text.h"
#include "operations/convert/convert.h"
#include "operations/convert/remove_sharded_tensors.h"
#include "strategies/storage/hidden_sibling.h"
#include "strategies/storage/memory.h"
#include "tests/dist_checkpointing/training_run.h"
#include "tests/support/faulty_storage.h"
#include "tests/support/object_store.h"
#include "tests/support/random.h"
#include "tests/support/simulated_disk.h"

namespace dckpt::testing::fault_sweep_test {
namespace {

using ::testing::AnyOf;
using ::testing::ElementsAre;

constexpr int kRanks = 2;

using Files = std::map<std::string, Bytes>;

void collect(const Storage& storage, const std::string& directory, Files& files) {
  for (const FileInfo& entry : storage.list(directory)) {
    const std::string name = join_name(directory, entry.name);
    if (entry.kind == FileInfo::Kind::kDirectory)
      collect(storage, name, files);
    else
      files[name] = read_file(*storage.open(name), entry.size);
  }
}

/// Returns a disk on which the files are durable.
std::shared_ptr<SimulatedDisk> disk_with(const Files& files) {
  auto disk = std::make_shared<SimulatedDisk>();
  for (const auto& [name, content] : files) {
    const std::string directory = parent_name(name);
    disk->make_directory(directory);
    const auto file = disk->create(name);
    file->append(content);
    file->sync();
    disk->sync_directory(directory);
    for (std::string above = directory; !above.empty();)
      disk->sync_directory(above = parent_name(above));
  }
  return disk;
}

std::string token_of_ended_process() {
  const std::vector<std::string> parts = split(staging_token(), '-');
  std::string ended;
  for (std::size_t i = 0; i + 3 < parts.size(); ++i) ended += parts[i] + "-";
  return ended + "4194305-1-";  // no process has this number
}

/// Makes what this process has left hidden look like that of a process that has ended.
void end_process(Storage& root) {
  const std::string ended = token_of_ended_process();
  int count = 0;
  for (const FileInfo& entry : root.list("")) {
    auto sibling = parse_hidden_sibling(entry.name);
    if (!sibling) continue;
    sibling->token = ended + std::to_string(++count);
    root.rename(entry.name, to_string(*sibling));
  }
}

std::vector<std::string> hidden_in(const Storage& root) {
  std::vector<std::string> hidden;
  for (const FileInfo& entry : root.list("")) {
    if (parse_hidden_sibling(entry.name)) hidden.push_back(entry.name);
  }
  return hidden;
}

/// A job that is interrupted, described by its effects on the directory `root`.
struct Job {
  std::string name;
  std::function<void(const Location& root)> before;  ///< makes the old state
  std::function<void(const Location& root)> run;
  /// Returns the state found: "old", "new", or what is wrong with it.
  std::function<std::string(const Location& root)> found;
  /// Runs the next job, which establishes the new state in any case.
  std::function<void(const Location& root)> next;
};

void PrintTo(const Job& job, std::ostream* out) {
  *out << job.name;
}

// The checkpoints of these jobs are of state_at(iteration).

void save_iteration(const Location& checkpoint, std::uint64_t iteration,
                    const SaveOptions& options = {}) {
  run_ranks(kRanks, [&](Communicator& comm) {
    save(state_at(iteration, comm.rank(), kRanks), checkpoint, options, comm);
  });
}

void save_in_background(const Location& checkpoint, std::uint64_t iteration) {
  run_ranks(kRanks, [&](Communicator& comm) {
    AsyncSaver saver({}, comm);
    saver.save(state_at(iteration, comm.rank(), kRanks), checkpoint);
    saver.wait();
  });
}

bool holds_iteration(const Location& checkpoint, std::uint64_t iteration) {
  StateDict state = empty_state(0, 1);
  load(state, checkpoint);
  return holds(state, iteration, 0, 1);
}

/// Returns whether the checkpoint is complete. On a storage that can rename, it is if it exists.
bool is_complete(const Location& checkpoint) {
  if (!checkpoint.stat()) return false;
  if (checkpoint.storage()->capabilities().rename) return true;
  try {
    (void)open_checkpoint(checkpoint);
    return true;
  } catch (const CheckpointError&) {
    return false;
  }
}

/// Returns the state found after jobs that put iteration 2 beside iteration 1 or in its place.
std::string found_in(const Location& root, const std::string& name) {
  const Location checkpoint = root / name;
  if (!holds_iteration(root / "first", 1)) return "'first' is another one";
  if (!is_complete(checkpoint)) return "old";
  return holds_iteration(checkpoint, 2) ? "new" : "the new one is damaged";
}

const SaveOptions kReplace{.overwrite = true};

Job new_checkpoint() {
  return {"NewCheckpoint", [](const Location& root) { save_iteration(root / "first", 1); },
          [](const Location& root) { save_iteration(root / "second", 2); },
          [](const Location& root) { return found_in(root, "second"); },
          [](const Location& root) { save_iteration(root / "second", 2, kReplace); }};
}

Job in_background() {
  Job job = new_checkpoint();
  job.name = "InBackground";
  job.run = [](const Location& root) { save_in_background(root / "second", 2); };
  return job;
}

Job replaced_checkpoint() {
  return {"ReplacedCheckpoint", [](const Location& root) { save_iteration(root / "it", 1); },
          [](const Location& root) { save_iteration(root / "it", 2, kReplace); },
          [](const Location& root) -> std::string {
            if (holds_iteration(root / "it", 1)) return "old";
            return holds_iteration(root / "it", 2) ? "new" : "neither";
          },
          [](const Location& root) { save_iteration(root / "it", 2, kReplace); }};
}

Job conversion() {
  return {"Conversion",
          [](const Location& root) { save_iteration(root / "first", 1, {.integrity = true}); },
          [](const Location& root) {
            convert(root / "first", root / "copy", {.target = {.strategy = "dcp", .ranks = 3}});
          },
          [](const Location& root) -> std::string {
            if (!holds_iteration(root / "first", 1)) return "the source is another one";
            if (!is_complete(root / "copy")) return "old";
            return holds_iteration(root / "copy", 1) ? "new" : "the copy is damaged";
          },
          [](const Location& root) {
            convert(root / "first", root / "copy",
                    {.target = {.strategy = "dcp", .overwrite = true}});
          }};
}

Job removal() {
  const auto state = [](int rank) {
    StateDict all = state_at(1, rank, kRanks);
    all["optimizer"] = ShardedTensor::whole("optimizer.m", Tensor::zeros(DType::kFloat32, {64}),
                                            {.replica_id = rank});
    return all;
  };
  const auto remove = [](const Location& root) {
    remove_sharded_tensors(root / "it", "optimizer");
  };
  return {"Removal",
          [state](const Location& root) {
            run_ranks(kRanks, [&](Communicator& comm) {
              save(state(comm.rank()), root / "it",
                   {.integrity = true, .separation_hint = "optimizer"}, comm);
            });
          },
          remove,
          [](const Location& root) -> std::string {
            if (!holds_iteration(root / "it", 1)) return "what stays is another one";
            return open_checkpoint(root / "it")->metadata().find_tensor("optimizer.m") ? "old"
                                                                                       : "new";
          },
          [remove](const Location& root) {
            try {
              remove(root);
            } catch (const CheckpointError& error) {  // nothing was left to remove
              if (error.code() != ErrorCode::kInvalidArgument) throw;
            }
          }};
}

/// A load changes nothing, so it always has the new state.
Job loading() {
  return {"Load", [](const Location& root) { save_iteration(root / "it", 1, {.integrity = true}); },
          [](const Location& root) {
            run_ranks(kRanks, [&](Communicator& comm) {
              StateDict state = empty_state(comm.rank(), kRanks);
              load(state, root / "it", {.verify = Verify::kSha256}, comm);
              EXPECT_TRUE(holds(state, 1, comm.rank(), kRanks));
            });
          },
          [](const Location& root) { return holds_iteration(root / "it", 1) ? "new" : "damaged"; },
          [](const Location&) {}};
}

/// Resumes a run and saves once more; its retention removes the oldest iteration.
void resume_and_save(const Location& root, std::uint64_t iteration, bool in_background) {
  run_ranks(kRanks, [&](Communicator& comm) {
    Policy policy{.retention = {.keep_last = 2}};
    policy.save.async = {.snapshot = Snapshot::kLazy, .staging_memory = 0};
    Checkpointer checkpointer(root, policy, comm);
    StateDict state = empty_state(comm.rank(), kRanks);
    const ResumedFrom resumed = checkpointer.resume(state);
    EXPECT_THAT(resumed.iteration, AnyOf(200U, 300U));
    EXPECT_TRUE(holds(state, resumed.iteration, comm.rank(), kRanks));
    const StateDict next = state_at(iteration, comm.rank(), kRanks);
    in_background ? checkpointer.save_async(next, iteration) : checkpointer.save(next, iteration);
    checkpointer.wait();
  });
}

Job run_of_training(bool in_background) {
  return {in_background ? "TrainingInBackground" : "Training",
          [](const Location& root) {
            run_ranks(kRanks, [&](Communicator& comm) {
              Checkpointer checkpointer(root, {}, comm);
              for (const std::uint64_t iteration : {100, 200})
                checkpointer.save(state_at(iteration, comm.rank(), kRanks), iteration);
            });
          },
          [in_background](const Location& root) { resume_and_save(root, 300, in_background); },
          [](const Location& root) -> std::string {
            const auto latest = find_latest(root);
            if (!latest) return "nothing to resume from";
            if (!holds_iteration(root / latest->directory, latest->iteration)) return "damaged";
            return latest->iteration == 200 ? "old" : latest->iteration > 200 ? "new" : "lost";
          },
          [in_background](const Location& root) { resume_and_save(root, 400, in_background); }};
}

class FaultSweep : public ::testing::TestWithParam<Job> {
 protected:
  static constexpr const char* kRoot = "run";

  void SetUp() override {
    set_log_sink([](LogLevel, std::string_view) {});
    const auto storage = memory_storage();
    GetParam().before(Location(storage, kRoot));
    collect(*storage, "", files_);
  }
  void TearDown() override { set_log_sink({}); }

  /// Returns whether the job was reported as done.
  bool run(const std::shared_ptr<Storage>& storage) {
    try {
      GetParam().run(Location(storage, kRoot));
      return true;
    } catch (const CheckpointError&) {
      return false;
    }
  }

  /// Returns the state found.
  std::string check(const std::shared_ptr<Storage>& storage, bool is_done) {
    const Location root(storage, kRoot);
    const std::string found = GetParam().found(root);
    EXPECT_THAT(found, is_done ? AnyOf("new", "new") : AnyOf("old", "new"));
    end_process(*root.directory());
    GetParam().next(root);
    EXPECT_EQ(GetParam().found(root), "new");
    EXPECT_THAT(hidden_in(*root.directory()), ElementsAre());
    return found;
  }

  Files files_;
};

TEST_P(FaultSweep, LeavesTheOldOrTheNewStateAndTheNextJobSucceeds) {
  Sweep sweep(15);
  std::set<std::string> found;
  std::size_t faults = 0;
  std::size_t states = 0;
  for (const Fault::Kind kind :
       {Fault::Kind::kError, Fault::Kind::kErrorAfterEffect, Fault::Kind::kCrash}) {
    bool fired = true;
    for (std::uint64_t at = 1; fired && !HasFailure(); at = sweep.after(at)) {
      SCOPED_TRACE(sweep.trace(at));
      const auto disk = disk_with(files_);
      const auto faulty = std::make_shared<FaultyStorage>(disk, Fault{kind, at});
      const bool is_done = run(faulty);
      fired = faulty->fired();
      faults += fired ? 1 : 0;
      EXPECT_TRUE(fired || is_done);
      for (const auto& storage :
           {disk->after({PowerCut::Kind::kLosesUnsynced}),
            disk->after({PowerCut::Kind::kKeepsUnsynced}),
            disk->after({PowerCut::Kind::kMixed, static_cast<unsigned>(at)}),
            std::shared_ptr<Storage>(disk)}) {  // last, since the checks change it
        found.insert(check(storage, is_done));
        ++states;
      }
    }
  }
  std::printf("%s: %zu faults injected, %zu states checked (%s)\n", GetParam().name.c_str(), faults,
              states, sweep.trace(0).c_str());
  std::set<std::string> expected{"new", "old"};
  if (GetParam().name == "Load") expected.erase("old");  // a load changes nothing
  EXPECT_EQ(found, expected);
}

/// Runs the same in an object store, where nothing is renamed and lists are late. A checkpoint that
/// is replaced is gone for a while; nothing else is.
class FaultSweepOfObjects : public FaultSweep {
 protected:
  std::shared_ptr<ObjectStore> store() const {
    const auto objects = memory_storage("objects:");
    for (const auto& [name, content] : files_) {
      objects->make_directory(parent_name(name));
      const auto file = objects->create(name);
      file->append(content);
      file->close();
    }
    return std::make_shared<ObjectStore>(ObjectStore::Pace{.late = ObjectStore::Milliseconds(1)},
                                         objects);
  }

  /// Makes claims of this process look like those of a process that has ended.
  static void end_claims(Storage& storage, const std::string& directory) {
    for (const FileInfo& entry : storage.list(directory)) {
      const std::string name = join_name(directory, entry.name);
      if (entry.kind == FileInfo::Kind::kDirectory) end_claims(storage, name);
      if (entry.name.starts_with(".dckpt.saving-"))
        storage.put(name, as_bytes(token_of_ended_process() + "1"));
    }
  }
};

TEST_P(FaultSweepOfObjects, LeavesTheOldOrTheNewStateAndTheNextJobSucceeds) {
  Sweep sweep(15);
  std::set<std::string> found;
  for (const Fault::Kind kind :
       {Fault::Kind::kError, Fault::Kind::kErrorAfterEffect, Fault::Kind::kCrash}) {
    bool fired = true;
    for (std::uint64_t at = 1; fired && !HasFailure(); at = sweep.after(at)) {
      SCOPED_TRACE(sweep.trace(at));
      const std::shared_ptr<ObjectStore> objects = store();
      const auto faulty = std::make_shared<FaultyStorage>(objects, Fault{kind, at});
      const bool is_done = run(faulty);
      fired = faulty->fired();
      std::this_thread::sleep_for(ObjectStore::Milliseconds(2));  // lists are late
      end_claims(*objects, kRoot);
      found.insert(check(objects, is_done));
      EXPECT_EQ(objects->forbidden(), 0);
    }
  }
  std::set<std::string> expected{"new", "old"};
  if (GetParam().name == "Load") expected.erase("old");
  EXPECT_EQ(found, expected);
}

INSTANTIATE_TEST_SUITE_P(All, FaultSweepOfObjects,
                         ::testing::Values(new_checkpoint(), in_background(), conversion(),
                                           loading(), removal(), run_of_training(false),
                                           run_of_training(true)),
                         [](const auto& job) { return job.param.name; });

INSTANTIATE_TEST_SUITE_P(All, FaultSweep,
                         ::testing::Values(new_checkpoint(), replaced_checkpoint(), in_background(),
                                           conversion(), loading(), removal(),
                                           run_of_training(false), run_of_training(true)),
                         [](const auto& job) { return job.param.name; });

}  // namespace
}  // namespace dckpt::testing::fault_sweep_test
