#include "operations/convert/remove_sharded_tensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>

#include "dist_checkpointing/open/open.h"
#include "dist_checkpointing/save/save.h"
#include "mapping/base/hash.h"
#include "mapping/base/log.h"
#include "operations/inspect/verify.h"
#include "strategies/comm/threads.h"
#include "strategies/formats/dcp/megatron_json.h"
#include "strategies/storage/memory.h"
#include "strategies/storage/posix.h"
#include "strategies/torch_dist/reader.h"
#include "tests/support/expect_error.h"
#include "tests/support/faulty_storage.h"
#include "tests/support/golden.h"
#include "tests/support/random.h"
#include "tests/support/simulated_disk.h"
#include "tests/support/temp_dir.h"

namespace dckpt::remove_sharded_tensors_test {
namespace {

namespace fs = std::filesystem;
using ::testing::AnyOf;
using ::testing::ElementsAre;
using testing::error_of;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;

constexpr std::uint64_t kMuch = std::uint64_t{1} << 30;

Tensor filled(float value) {
  Tensor tensor = Tensor::empty(DType::kFloat32, {4});
  for (int i = 0; i < 4; ++i) reinterpret_cast<float*>(tensor.data())[i] = value;
  return tensor;
}

/// Saves two ranks with a model, an optimizer and a random state each.
void save_to(const fs::path& directory, const SaveOptions& options) {
  run_ranks(2, [&](Communicator& comm) {
    const int rank = comm.rank();
    StateDict state;
    for (const char* const key : {"model.w", "optimizer.m", "optimizer.v"}) {
      state[key] = ShardedTensor::from_rank_offsets(key, filled(static_cast<float>(rank)),
                                                    {{.axis = 0, .rank = rank, .count = 2}});
    }
    state["rng"] = ShardedObject{
        .key = "optimizer.rng", .data = Value(rank), .global_shape = {2}, .global_offset = {rank}};
    state["iteration"] = 7;
    save(state, directory, options, comm);
  });
}

/// Returns the files of a directory by name, hidden ones included.
std::map<std::string, std::string> contents(const Storage& storage) {
  std::map<std::string, std::string> files;
  for (const FileInfo& entry : storage.list(""))
    files.emplace(entry.name, as_text(read_file(*storage.open(entry.name), kMuch)));
  return files;
}

std::vector<std::string> keys_of(const Metadata& metadata) {
  std::vector<std::string> keys;
  for (const TensorStorageMetadata& tensor : metadata.tensors) keys.push_back(tensor.key);
  for (const BytesStorageMetadata& object : metadata.objects) keys.push_back(object.key);
  return keys;
}

/// Expects that everything exists and has the correct checksums and digests; an interrupted removal
/// may leave .metadata without one.
void expect_sound(const std::shared_ptr<Storage>& storage, bool interrupted = false) {
  std::vector<std::string> problems;
  for (const CheckpointError& problem :
       verify(*open_torch_dist(storage), {.deep = true}).problems) {
    if (!interrupted || !problem.message().starts_with("integrity.json does not list '.metadata'"))
      problems.emplace_back(problem.what());
  }
  EXPECT_THAT(problems, IsEmpty());
}

class RemoveShardedTensors : public ::testing::Test {
 protected:
  fs::path checkpoint() const { return directory_ / "checkpoint"; }
  std::shared_ptr<Storage> storage() const { return posix_storage(checkpoint()); }
  TempDir directory_;
};

TEST_F(RemoveShardedTensors, DeletesTheFilesOfTheHintAndTouchesNoOther) {
  save_to(checkpoint(), {.separation_hint = "optimizer"});
  auto before = contents(*storage());
  const RemovedTensors removed = remove_sharded_tensors(checkpoint(), "optimizer");
  EXPECT_EQ(removed.tensors, 2u);
  EXPECT_EQ(removed.objects, 2u);
  EXPECT_THAT(removed.files, ElementsAre("optimizer__0_1.distcp", "optimizer__1_1.distcp"));
  EXPECT_EQ(removed.bytes_freed,
            before["optimizer__0_1.distcp"].size() + before["optimizer__1_1.distcp"].size());
  EXPECT_EQ(removed.bytes_kept, 0u);

  auto after = contents(*storage());
  for (const std::string& file : removed.files) before.erase(file);
  EXPECT_NE(after[".metadata"], before[".metadata"]);
  before.erase(".metadata");
  after.erase(".metadata");
  EXPECT_EQ(after, before);
  EXPECT_THAT(keys_of(open_checkpoint(checkpoint())->metadata()), ElementsAre("model.w"));
  EXPECT_EQ(open_checkpoint(checkpoint())->common_state().at("iteration").as_int(), 7);
  expect_sound(storage());
}

TEST_F(RemoveShardedTensors, FilesThatHoldOtherKeysTooStayAndItSaysHowMuch) {
  save_to(checkpoint(), {});
  const auto before = contents(*storage());
  const Metadata metadata = open_checkpoint(checkpoint())->metadata();
  std::uint64_t bytes = 0;
  for (const StorageInfo& place : metadata.find_tensor("optimizer.m")->places)
    bytes += place.length;
  const RemovedTensors removed = remove_sharded_tensors(checkpoint(), "optimizer.m");
  EXPECT_THAT(removed.files, IsEmpty());
  EXPECT_EQ(removed.bytes_freed, 0u);
  EXPECT_EQ(removed.bytes_kept, bytes);
  EXPECT_EQ(contents(*storage()).at("__0_0.distcp"), before.at("__0_0.distcp"));
  EXPECT_EQ(open_checkpoint(checkpoint())->metadata().find_tensor("optimizer.m"), nullptr);
  EXPECT_NE(open_checkpoint(checkpoint())->metadata().find_tensor("optimizer.v"), nullptr);
  expect_sound(storage());
}

TEST_F(RemoveShardedTensors, TheManifestIsBroughtUpToDateAndDigestsOfWhatStaysAreKept) {
  save_to(checkpoint(), {.integrity = true, .separation_hint = "optimizer"});
  const auto manifest = [&] {
    return read_integrity_manifest(as_bytes(contents(*storage()).at("integrity.json")));
  };
  const IntegrityManifest before = manifest();
  std::ofstream(checkpoint() / "__0_0.distcp", std::ios::app) << "damage";
  remove_sharded_tensors(checkpoint(), "optimizer");
  std::vector<std::string> names;
  for (const IntegrityManifest::Entry& entry : manifest().files) {
    names.push_back(entry.name);
    const bool kept = std::ranges::find(before.files, entry) != before.files.end();
    EXPECT_EQ(kept, entry.name != ".metadata") << entry.name;
  }
  EXPECT_THAT(names, ElementsAre(".metadata", "__0_0.distcp", "__1_0.distcp", "common.pt",
                                 "metadata.json"));
  const auto problems = verify(*open_torch_dist(storage()), {.deep = true}).problems;
  ASSERT_FALSE(problems.empty());
  EXPECT_THAT(problems.front().what(), HasSubstr("__0_0.distcp")) << "damage gets no fresh digest";
}

TEST_F(RemoveShardedTensors, MetadataThatContradictTheManifestAreNotGivenANewDigest) {
  save_to(checkpoint(), {.integrity = true, .separation_hint = "optimizer"});
  IntegrityManifest manifest =
      read_integrity_manifest(as_bytes(contents(*storage()).at("integrity.json")));
  for (IntegrityManifest::Entry& entry : manifest.files)
    entry.sha256[0] = entry.sha256[0] == '0' ? '1' : '0';
  std::ofstream(checkpoint() / "integrity.json") << write_integrity_manifest(manifest);
  const auto before = contents(*storage());
  EXPECT_EQ(error_of([&] { remove_sharded_tensors(checkpoint(), "optimizer"); }).code(),
            ErrorCode::kCorrupt);
  EXPECT_EQ(contents(*storage()), before);
}

TEST_F(RemoveShardedTensors, TheCommonStateIsNeverRemoved) {
  save_to(checkpoint(), {.compat = Compat::kMegatron019});
  EXPECT_THAT(error_of([&] { remove_sharded_tensors(checkpoint(), "common_state"); }).message(),
              HasSubstr("the common state is never removed"));
  remove_sharded_tensors(checkpoint(), "o");
  remove_sharded_tensors(checkpoint(), "m");
  EXPECT_EQ(open_checkpoint(checkpoint())->common_state().at("iteration").as_int(), 7);
}

TEST_F(RemoveShardedTensors, ADryRunReportsAndChangesNothing) {
  save_to(checkpoint(), {.integrity = true, .separation_hint = "optimizer"});
  const auto before = contents(*storage());
  EXPECT_EQ(remove_sharded_tensors(checkpoint(), "optimizer", {.dry_run = true}).files.size(), 2u);
  EXPECT_EQ(contents(*storage()), before);
}

TEST_F(RemoveShardedTensors, APrefixThatNoKeyHasIsAnErrorThatNamesNearOnes) {
  save_to(checkpoint(), {});
  const auto before = contents(*storage());
  EXPECT_THAT(error_of([&] { remove_sharded_tensors(checkpoint(), "optimzer"); }).message(),
              HasSubstr("begins with 'optimzer' (did you mean 'optimizer'?)"));
  EXPECT_THAT(error_of([&] { remove_sharded_tensors(checkpoint(), "optimizr."); }).message(),
              HasSubstr("(did you mean 'optimizer.'?)"));
  EXPECT_EQ(error_of([&] { remove_sharded_tensors(checkpoint(), ""); }).code(),
            ErrorCode::kInvalidArgument);
  EXPECT_EQ(contents(*storage()), before);
}

TEST_F(RemoveShardedTensors, MarkersAreNotDeletedWhateverTheMetadataSay) {
  save_to(checkpoint(), {.separation_hint = "optimizer"});
  auto files = contents(*storage());
  const std::string data = "optimizer__0_1.distcp";
  const std::string marker = "important_marker.json";  // of equal length, so that the pickle stays
                                                       // sound
  std::string& pickle = files[".metadata"];
  pickle.replace(pickle.find(data), data.size(), marker);
  // The number over the file is forged as well (metadata_seal.h): it lies before five bytes.
  const std::size_t number = pickle.size() - 5 - sizeof(std::uint32_t);
  pickle.replace(number, sizeof(std::uint32_t), sizeof(std::uint32_t), '\0');
  const std::uint32_t crc = crc32(as_bytes(pickle));
  std::memcpy(pickle.data() + number, &crc, sizeof crc);
  const auto forged = memory_storage();
  for (const auto& [name, content] : files)
    forged->create(name == data ? marker : name)->append(as_bytes(content));
  const RemovedTensors removed = remove_sharded_tensors(Location(forged), "optimizer");
  EXPECT_THAT(removed.files, ElementsAre("optimizer__1_1.distcp"));
  EXPECT_TRUE(forged->stat(marker)) << "it is not named like a data file";
  EXPECT_GT(removed.bytes_kept, 0u);
}

TEST_F(RemoveShardedTensors, GoldensOfMegatronKeepTheirOtherTensors) {
  for (const char* const name : {"mcore-0.14-flattened-tp2pp2dp2", "mcore-0.15-flattened-tp2pp2dp2",
                                 "mcore-0.16-fully-reshardable-tp2pp2dp2", "mcore-head-moe-ep2"}) {
    SCOPED_TRACE(name);
    fs::remove_all(checkpoint());
    fs::copy(testing::golden(name), checkpoint());
    remove_sharded_tensors(checkpoint(), "optimizer.");
    const auto reader = open_checkpoint(checkpoint());
    const Value expected = testing::golden_expected(name).at("tensors");
    std::size_t left = 0;
    for (const auto& [key, entry] : expected.as_dict().items())
      left += key.as_str().starts_with("optimizer.") ? 0 : 1;
    ASSERT_EQ(reader->metadata().tensors.size(), left);
    for (std::size_t i = 0; i < left; ++i) {
      EXPECT_EQ(testing::describe_content(*reader, i).at("sha256"),
                expected.at(reader->metadata().tensors[i].key).at("sha256"));
    }
  }
}

/// Returns the checkpoint in a storage, "old" or "new", both sound. Fails the test for anything
/// else.
std::string state_of(const std::shared_ptr<Storage>& storage, bool interrupted = false) {
  expect_sound(storage, interrupted);
  const std::vector<std::string> keys = keys_of(open_torch_dist(storage)->metadata());
  if (keys.size() == 1 && keys[0] == "model.w") return "new";
  return keys.size() == 5 ? "old" : "neither";
}

class RemoveSweep : public ::testing::TestWithParam<std::tuple<Fault::Kind, bool>> {
 protected:
  void SetUp() override {
    save_to(directory_ / "checkpoint",
            {.integrity = std::get<1>(GetParam()), .separation_hint = "optimizer"});
    files_ = contents(*posix_storage(directory_ / "checkpoint"));
    set_log_sink([](LogLevel, std::string_view) {});
  }
  void TearDown() override { set_log_sink({}); }

  std::shared_ptr<SimulatedDisk> disk() const {
    auto disk = std::make_shared<SimulatedDisk>();
    for (const auto& [name, content] : files_) {
      const auto file = disk->create(name);
      file->append(as_bytes(content));
      file->sync();
    }
    disk->sync_directory("");
    return disk;
  }

  TempDir directory_;
  std::map<std::string, std::string> files_;
};

TEST_P(RemoveSweep, ItIsTheOldOrTheNewCheckpointAtEveryFaultPoint) {
  bool ran_through = false;
  std::set<std::string> seen;
  testing::Sweep sweep;
  for (std::uint64_t at = 1; !ran_through; at = sweep.after(at)) {
    SCOPED_TRACE(sweep.trace(at));
    const auto simulated = disk();
    const auto faulty =
        std::make_shared<FaultyStorage>(simulated, Fault{std::get<0>(GetParam()), at});
    bool reported = false;
    try {
      remove_sharded_tensors(Location(faulty), "optimizer");
    } catch (const CheckpointError&) {
      reported = true;
    }
    ran_through = !faulty->fired();
    std::vector<std::shared_ptr<Storage>> found{simulated};
    for (const PowerCut::Kind kind :
         {PowerCut::Kind::kLosesUnsynced, PowerCut::Kind::kKeepsUnsynced})
      found.push_back(simulated->after({kind}));
    for (unsigned seed = 0; seed < 4; ++seed)
      found.push_back(simulated->after({PowerCut::Kind::kMixed, seed}));
    for (const auto& storage : found) {
      const std::string state = state_of(storage, reported);
      seen.insert(state);
      EXPECT_THAT(state, reported ? AnyOf("old", "new") : AnyOf("new", "new"));
      try {
        remove_sharded_tensors(Location(storage), "optimizer");
      } catch (const CheckpointError& error) {
        EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument)
            << "nothing was left to be removed: " << error.what();
      }
      EXPECT_EQ(state_of(storage), "new");
      for (const FileInfo& entry : storage->list(""))
        EXPECT_THAT(entry.name, Not(StartsWith("optimizer")));
    }
  }
  EXPECT_THAT(seen, ElementsAre("new", "old"));
}

std::string name_of(Fault::Kind kind) {
  return kind == Fault::Kind::kError              ? "Error"
         : kind == Fault::Kind::kErrorAfterEffect ? "ErrorAfterEffect"
                                                  : "Crash";
}

INSTANTIATE_TEST_SUITE_P(AllFaults, RemoveSweep,
                         ::testing::Combine(::testing::Values(Fault::Kind::kError,
                                                              Fault::Kind::kErrorAfterEffect,
                                                              Fault::Kind::kCrash),
                                            ::testing::Bool()),
                         [](const auto& test) {
                           return name_of(std::get<0>(test.param)) +
                                  (std::get<1>(test.param) ? "WithManifest" : "");
                         });

}  // namespace
}  // namespace dckpt::remove_sharded_tensors_test
