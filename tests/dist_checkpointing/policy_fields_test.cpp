// No function that takes options ignores a field of a policy: a field that differs from its default
// changes the visible result of a save or load, or is refused. convert_policy_test.cpp covers
// conversions.

#include <gmock/gmock.h>

#include <fstream>
#include <set>

#include "configs/policy/policy.h"
#include "configs/policy/policy_schema.h"
#include "dist_checkpointing/checkpointer/checkpointer.h"
#include "dist_checkpointing/load/load.h"
#include "dist_checkpointing/open/open.h"
#include "dist_checkpointing/save/save.h"
#include "dist_checkpointing/save/save_async.h"
#include "mapping/base/hash.h"
#include "mapping/state/flatten.h"
#include "mapping/state/sharded_object.h"
#include "mapping/state/sharded_tree.h"
#include "strategies/comm/threads.h"
#include "strategies/storage/hashed_file.h"
#include "strategies/storage/posix.h"
#include "tests/dist_checkpointing/training_run.h"
#include "tests/support/arange.h"
#include "tests/support/temp_dir.h"

namespace dckpt::testing::policy_fields_test {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

/// A field: a policy that sets it, one that differs in nothing else, and where the difference
/// shows.
struct FieldCase {
  std::string field;
  std::string with;        ///< YAML below `version: 1`
  std::string without;     ///< "" is the default policy
  std::string shown_by{};  ///< another test, if the result does not show it
};

std::string yaml(const std::string& text) {
  return "version: 1\n" + text + "\n";
}

void add_leaves(const YamlNode& node, const std::string& path, std::set<std::string>& fields) {
  if (node.kind != YamlNode::Kind::kMap || node.keys.empty()) {
    fields.insert(path);
    return;
  }
  for (std::size_t i = 0; i < node.keys.size(); ++i) {
    add_leaves(node.values[i], path.empty() ? node.keys[i].text : path + "." + node.keys[i].text,
               fields);
  }
}

std::set<std::string> fields_of_the_schema() {
  std::set<std::string> fields;
  add_leaves(policy_type().show(Policy()), "", fields);
  return fields;
}

/// Returns whether a test named "Suite.Test" is in the sources.
bool test_exists(const std::string& name) {
  const std::string suite = name.substr(0, name.find('.'));
  const std::string declared = "(" + suite + ", " + name.substr(name.find('.') + 1) + ")";
  for (const auto& entry : fs::recursive_directory_iterator("tests")) {
    if (entry.path().extension() != ".cpp" && entry.path().extension() != ".h") continue;
    std::ifstream file(entry.path());
    const std::string text{std::istreambuf_iterator<char>(file), {}};
    if (text.find(declared) != std::string::npos) return true;
  }
  return false;
}

// Saves.

const std::vector<FieldCase> kSaveFields{
    {"save.strategy", "save: {strategy: nowhere}", ""},
    {"save.compat", "save: {compat: megatron-0.19}", ""},
    {"save.flattened", "save: {flattened: megatron}", ""},
    {"save.flatten", "save: {compat: dcp, flatten: false}", "save: {compat: dcp}"},
    {"save.planner.kind", "", "", "PolicyMessages.PlannersOfDcpSaveDcpOnly"},
    {"save.planner.dedup", "save: {compat: dcp, planner: {dedup: lowest_rank}}",
     "save: {compat: dcp}"},
    {"save.planner.cache", "save: {planner: {cache: false}}", ""},
    {"save.planner.validate", "save: {planner: {validate: false}}", ""},
    {"save.planner.split_replicas",
     "save: {parallel: {enabled: true}, planner: {split_replicas: true}}",
     "save: {parallel: {enabled: true}}"},
    {"save.parallel.enabled", "save: {parallel: {enabled: true}}", ""},
    {"save.async.enabled", "save: {async: {enabled: true}}", ""},
    {"save.async.snapshot", "", "", "SaveAsync.ALazySaveReturnsBeforeTheStateMayChange"},
    {"save.async.staging_memory", "", "", "SaveAsync.AStateLargerThanTheStagingMemoryIsStreamed"},
    {"save.async.when_busy", "", "", "SaveWhileBusy.ASaveMayBeSkippedWhileAnotherRuns"},
    {"save.separation_hint", "save: {separation_hint: optimizer}", ""},
    {"save.io.engine", "save: {io: {engine: direct}}", "save: {io: {engine: buffered}}"},
    {"save.io.threads", "", "", "DataFiles.AreWrittenByAsManyThreadsAsThereMayBe"},
    {"save.io.files_per_rank", "save: {io: {files_per_rank: 2}}", ""},
    {"save.io.fsync", "", "", "Publish.WithoutSyncNoDirectoryIsSynced"},
    {"save.io.checksums", "save: {io: {checksums: false}}", ""},
    {"save.io.page_aligned", "save: {io: {page_aligned: true}}", ""},
    {"save.timeout", "", "", "SaveReportTest.ButBySaveTimeoutWhichSaysHowFarItIs"},
    {"save.integrity", "save: {integrity: sha256}", ""},
    {"save.report", "save: {report: true}", ""},
    {"save.check_replicas", "", "", "ReplicaComparison.AllElementsAreComparedOnRequest"},
    {"save.error_on", "", "", "SaveHooksTest.APolicyMakesDifferencesBetweenRanksAnError"},
};

enum class SaveEntry { kSave, kAsyncSaver, kCheckpointer };

class PolicyFields : public ::testing::Test {
 protected:
  /// Conditions that some fields need to have an effect.
  enum class Extra { kNone, kHole, kLargeReplica };

  /// Returns a state of two ranks with halves of a tensor, replicas, and ranges of a flattened
  /// tensor.
  static StateDict state_of(int rank, Extra extra) {
    StateDict state;
    state["w"] = ShardedTensor::from_rank_offsets("w", arange({3, 5}),
                                                  {{.axis = 0, .rank = rank, .count = 2}});
    for (const char* const key : {"a", "b", "c"})
      state[key] = ShardedTensor::whole(key, arange({100}), {.replica_id = rank});
    const FlattenedRange range = rank == 0 ? FlattenedRange{0, 5} : FlattenedRange{5, 12};
    state["m"] = ShardedTensor::from_rank_offsets_flat(
        "optimizer.m", arange({range.end - range.begin}), {4, 3}, {}, range);
    if (extra == Extra::kHole)
      state["holey"] = ShardedTensor::from_box("holey", arange({2}), {8}, {2 * rank});
    if (extra == Extra::kLargeReplica) {
      state["large"] = ShardedTensor::whole("large", Tensor::zeros(DType::kFloat32, {5 << 20}),
                                            {.replica_id = rank});
    }
    state["step"] = 7;
    return state;
  }

  /// Returns the visible results of two successive saves: the files and their bytes without the
  /// metadata, whose ids differ; the report; errors.
  std::string seen_of(SaveEntry entry, const std::string& text, Extra extra) {
    const fs::path root = directory_.path() / std::to_string(++saves_);  // names of equal length,
                                                                         // since metadata hold them
    std::string report;
    try {
      const Policy policy = Policy::from_text(yaml(text));
      run_ranks(2, [&](Communicator& comm) {
        const StateDict state = state_of(comm.rank(), extra);
        std::optional<Checkpointer> checkpointer;
        std::optional<AsyncSaver> saver;
        SavePlanCache cache;
        if (entry == SaveEntry::kCheckpointer) checkpointer.emplace(root, policy, comm);
        if (entry == SaveEntry::kAsyncSaver) saver.emplace(policy.save, comm);
        for (std::uint64_t i = 1; i <= 2; ++i) {
          const fs::path target = root / std::to_string(i);
          const SaveReport saved = checkpointer ? checkpointer->save(state, i).wait()
                                   : saver      ? saver->save(state, target).wait()
                                                : save(state, target, policy.save, comm, cache);
          if (comm.rank() != 0) continue;
          report += saved.engine + saved.why_planned + (saved.plan_cached ? "cached" : "") +
                    (saved.stage.seconds > 0 ? "staged" : "");
        }
      });
    } catch (const CheckpointError& error) {
      return std::string(to_string(error.code())) +
             error.message().substr(0, error.message().find(root.string()));
    }
    std::set<std::string> files;
    for (const auto& file : fs::recursive_directory_iterator(root)) {
      if (!file.is_regular_file()) continue;
      const std::string name = file.path().filename().string();
      std::string line =
          fs::relative(file.path(), root).string() + " " + std::to_string(file.file_size());
      if (name.ends_with(".distcp")) line += " " + file_sha256(*open_posix_file(file.path()));
      files.insert(line);
    }
    for (const std::string& line : files) report += "\n" + line;
    return report;
  }

  TempDir directory_;
  int saves_ = 1000;
};

TEST_F(PolicyFields, ThatDifferChangeEverySaveOrAreRefused) {
  for (const FieldCase& test : kSaveFields) {
    if (test.with.empty()) continue;
    const Extra extra = test.field == "save.planner.validate"         ? Extra::kHole
                        : test.field == "save.planner.split_replicas" ? Extra::kLargeReplica
                                                                      : Extra::kNone;
    for (const SaveEntry entry :
         {SaveEntry::kSave, SaveEntry::kAsyncSaver, SaveEntry::kCheckpointer}) {
      // save() never copies, AsyncSaver always does.
      if (test.field == "save.async.enabled" && entry != SaveEntry::kCheckpointer) continue;
      const std::string without = seen_of(entry, test.without, extra);
      EXPECT_NE(seen_of(entry, test.with, extra), without)
          << test.field << " of entry " << static_cast<int>(entry);
      if (test.field == "save.compat") {
        EXPECT_EQ(seen_of(entry, test.without, extra), without) << "the same policy looks the same";
      }
    }
  }
}

// Loads.

enum class LoadEntry { kLoad, kLoadPlain, kLoadStateDict, kLoadPlainTensors };

struct LoadCase : FieldCase {
  const char* checkpoint = "sound";  ///< sound, dcp, or damaged
  std::function<StateDict()> request = [] {
    return Value::dict({{"w", ShardedTensor::whole("w", Tensor::zeros(DType::kFloat32, {6, 5}))}});
  };
  bool refused_without_state = true;  ///< refused by load_state_dict and load_plain_tensors
};

Value asking(const std::string& key, const Shape& shape) {
  return Value::dict({{"w", ShardedTensor::whole(key, Tensor::zeros(DType::kFloat32, shape))}});
}

const std::vector<LoadCase> kLoadFields{
    {{"load.strategy", "load: {strategy: zarr}", ""}, "sound", {}, false},
    {{"load.strict", "load: {strict: raise_all}", ""}},
    {{"load.missing", "load: {missing: [{keys: unknown, action: keep}]}", ""},
     "sound",
     [] {
       return asking("unknown", {6, 5});
     }},
    {{"load.planner", "", "", "LoadPlanners.AreNamedByPolicies"}},
    {{"load.allow_partial_load", "load: {allow_partial_load: true}", ""},
     "dcp",
     [] {
       return asking("unknown", {6, 5});
     },
     false},
    {{"load.parallel.enabled", "", "", "ParallelLoad.ReplicasOfAllTensorsAreReadOnce"}},
    {{"load.parallel.exchange", "", "", "ParallelLoad.ReplicasOfAllTensorsAreReadOnce"}},
    {{"load.allow_shape_mismatch", "load: {allow_shape_mismatch: ['w']}", ""},
     "sound",
     [] {
       return asking("w", {7, 5});
     }},
    {{"load.allow_truncation", "load: {allow_shape_mismatch: ['w'], allow_truncation: ['w']}",
      "load: {allow_shape_mismatch: ['w']}"},
     "sound",
     [] {
       return asking("w", {4, 5});
     }},
    {{"load.allow_unloaded", "load: {error_on: [keys-not-loaded], allow_unloaded: ['*']}",
      "load: {error_on: [keys-not-loaded]}"},
     "sound",
     [] {
       return asking("w", {6, 5});
     }},
    {{"load.padding", "load: {allow_shape_mismatch: ['w'], padding: replicate}",
      "load: {allow_shape_mismatch: ['w']}"},
     "sound",
     [] {
       return asking("w", {7, 5});
     }},
    {{"load.cast", "load: {cast: allow}", ""},
     "sound",
     [] {
       return Value::dict(
           {{"w", ShardedTensor::whole("w", Tensor::zeros(DType::kBFloat16, {6, 5}))}});
     }},
    {{"load.map", "load: {map: llama}", ""},
     "sound",
     [] {
       return asking("w", {6, 5});
     },
     false},
    {{"load.rename", "load: {rename: [{from: '^w$', to: v}]}", ""},
     "sound",
     [] {
       return asking("v", {6, 5});
     }},
    {{"load.objects", "load: {objects: [{keys: o, when_resharded: keep}]}", ""},
     "sound",
     [] {
       return Value::dict(
           {{"o", ShardedObject{.key = "o", .global_shape = {3}, .global_offset = {1}}}});
     }},
    {{"load.validate_access_integrity", "load: {validate_access_integrity: false}", ""},
     "sound",
     [] {
       return Value::dict(
           {{"w", ShardedTensor::from_box("w", Tensor::zeros(DType::kFloat32, {2, 5}), {6, 5},
                                          {0, 0})}});
     }},
    {{"load.verify", "load: {verify: none}", ""}, "damaged", {}, false},
    {{"load.engine", "", "", "ReadTensors.LongRunsAreReadPastThePageCacheIfItDoesNotHoldThem"}},
    {{"load.threads", "", "", "ReadTensors.ComparesWhatSeveralThreadsReadOfOneRecord"}},
    {{"load.error_on", "", "", "MissingRules.ThatWarnMakeFindingsWhichMayBeErrors"}},
    {{"load.timeout", "", "", "LoadHooksTest.ALoadThatTakesTooLongEndsOnAllRanks"}},
    {{"load.staging", "", "", "ReadTensors.StagingIsABoundHoweverManyThreadsThereAre"}},
};

class PolicyFieldsOfLoads : public ::testing::Test {
 protected:
  PolicyFieldsOfLoads() {
    StateDict state = Value::dict({{"w", ShardedTensor::whole("w", arange({6, 5}))},
                                   {"u", ShardedTensor::whole("u", arange({2}))}});
    save(state, directory_ / "dcp", {.compat = Compat::kDcp});
    state["o"] =
        ShardedObject{.key = "o", .data = "value", .global_shape = {1}, .global_offset = {0}};
    for (const char* const name : {"sound", "damaged"}) save(state, directory_ / name);
    const auto reader = open_checkpoint(directory_ / "damaged");
    const TensorStorageMetadata* const tensor = reader->metadata().find_tensor("w");
    const std::string file = reader->metadata().files[tensor->places[0].file];
    const auto index = static_cast<std::size_t>(tensor - reader->metadata().tensors.data());
    const std::uint64_t offset = reader->locate(index, 0, *reader->storage().open(file)).offset;
    std::fstream stream(directory_ / "damaged" / file,
                        std::ios::in | std::ios::out | std::ios::binary);
    stream.seekp(static_cast<std::streamoff>(offset));
    stream.put('x');
  }

  std::string seen_of(LoadEntry entry, const LoadCase& test, const std::string& text) {
    const fs::path path = directory_ / test.checkpoint;
    StateDict state = test.request ? test.request() : LoadCase().request();
    try {
      const LoadOptions options = Policy::from_text(yaml(text)).load;
      switch (entry) {
        case LoadEntry::kLoad: load(state, path, options); break;
        case LoadEntry::kLoadPlain: load_plain(state, path, options); break;
        case LoadEntry::kLoadStateDict:
          state = load_state_dict(path,
                                  test.checkpoint == std::string("dcp")
                                      ? std::vector<std::string>{"unknown"}
                                      : std::vector<std::string>{},
                                  options);
          break;
        case LoadEntry::kLoadPlainTensors: state = load_plain_tensors(path, options); break;
      }
    } catch (const CheckpointError& error) {
      return error.message();
    }
    std::string seen;
    visit_leaves(plain_state(state), [&](const KeyPath& at, const Value& leaf) {
      seen += dotted_name(at) +
              (leaf.is_tensor() ? sha256_hex(leaf.as_tensor().contiguous().bytes())
               : leaf.is_str()  ? leaf.as_str()
                                : "") +
              "\n";
    });
    return seen;
  }

  TempDir directory_;
};

TEST_F(PolicyFieldsOfLoads, ThatDifferChangeEveryLoadOrAreRefused) {
  for (const LoadCase& test : kLoadFields) {
    if (test.with.empty()) continue;
    SCOPED_TRACE(test.field);
    for (const LoadEntry entry : {LoadEntry::kLoad, LoadEntry::kLoadPlain}) {
      EXPECT_NE(seen_of(entry, test, test.with), seen_of(entry, test, test.without));
    }
    for (const LoadEntry entry : {LoadEntry::kLoadStateDict, LoadEntry::kLoadPlainTensors}) {
      if (test.refused_without_state) {
        EXPECT_THAT(seen_of(entry, test, test.with),
                    HasSubstr(test.field + ": would have no effect"));
      } else {
        EXPECT_NE(seen_of(entry, test, test.with), seen_of(entry, test, test.without));
      }
    }
  }
}

TEST(PolicyFieldsOfTheSchema, AllHaveACaseAndTestsThatExist) {
  std::set<std::string> cases{"version", "retention.keep_last", "retention.keep_every",
                              "retention.keep", "resume.allow_dropped_keys"};
  std::set<std::string> tests{"CheckpointerTest.RetentionKeepsTheNewestAndMultiples"};
  const auto add = [&](const FieldCase& test) {
    EXPECT_TRUE(cases.insert(test.field).second) << test.field;
    EXPECT_NE(test.with.empty(), test.shown_by.empty()) << test.field;
    if (!test.shown_by.empty()) tests.insert(test.shown_by);
  };
  for (const FieldCase& test : kSaveFields) add(test);
  for (const LoadCase& test : kLoadFields) add(test);
  EXPECT_EQ(cases, fields_of_the_schema());
  for (const std::string& name : tests) EXPECT_TRUE(test_exists(name)) << name;
}

}  // namespace
}  // namespace dckpt::testing::policy_fields_test
