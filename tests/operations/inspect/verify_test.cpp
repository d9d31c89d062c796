#include "operations/inspect/verify.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "dist_checkpointing/open/open.h"
#include "dist_checkpointing/save/save.h"
#include "operations/json/reports.h"
#include "strategies/formats/torch_archive/torch_file.h"
#include "strategies/storage/counting.h"
#include "strategies/storage/posix.h"
#include "strategies/torch_dist/reader.h"
#include "tests/dist_checkpointing/fake_reader.h"
#include "tests/support/golden.h"
#include "tests/support/temp_dir.h"

namespace dckpt::verify_test {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using testing::counting;
using testing::FakeReader;
using ::testing::HasSubstr;

constexpr const char* kSynthetic = "mcore-head-synthetic";  // has integrity.json
constexpr const char* kFlattened = "mcore-0.14-flattened-tp2pp2dp2";

/// A copy of a golden that may be damaged.
class Damaged {
 public:
  explicit Damaged(const std::string& golden) {
    fs::copy(testing::golden(golden), path(), fs::copy_options::recursive);
  }
  fs::path path() const { return directory_.path() / "ckpt"; }

  Damaged& flip_byte(const std::string& file, std::uint64_t offset) {
    std::fstream stream(path() / file, std::ios::in | std::ios::out | std::ios::binary);
    stream.seekg(static_cast<std::streamoff>(offset));
    const char byte = static_cast<char>(stream.get() ^ 0x10);
    stream.seekp(static_cast<std::streamoff>(offset));
    stream.put(byte);
    return *this;
  }
  Damaged& truncate(const std::string& file, std::uint64_t size) {
    fs::resize_file(path() / file, size);
    return *this;
  }
  Damaged& remove(const std::string& file) {
    fs::remove(path() / file);
    return *this;
  }

  VerifyReport verify(bool deep = false) const {
    return dckpt::verify(*open_checkpoint(path()), {.deep = deep});
  }

 private:
  TempDir directory_;
};

std::string all_problems(const VerifyReport& report) {
  std::string text;
  for (const CheckpointError& problem : report.problems) text += std::string(problem.what()) + "\n";
  return text;
}

TEST(Verify, ACellOfAnObjectsGridThatIsMissingIsAProblem) {
  Damaged zarr("mcore-0.14-zarr-tp2pp1dp2");
  EXPECT_TRUE(zarr.verify().ok()) << all_problems(zarr.verify());
  const std::string folder = "decoder.layers.mlp.linear_fc1._extra_state";
  std::vector<std::string> cells;
  for (const auto& entry : fs::directory_iterator(zarr.path() / folder))
    cells.push_back(entry.path().filename());
  std::ranges::sort(cells);
  ASSERT_GE(cells.size(), 2U);
  for (const std::string& cell : {cells.front(), cells.back()}) {
    SCOPED_TRACE(cell);
    Damaged lacking("mcore-0.14-zarr-tp2pp1dp2");
    lacking.remove(folder + "/" + cell);
    const VerifyReport report = lacking.verify(true);
    ASSERT_EQ(report.problems.size(), 1U) << all_problems(report);
    EXPECT_EQ(report.problems[0].code(), ErrorCode::kIncomplete);
    EXPECT_EQ(report.problems[0].context().key, folder + "/" + cell.substr(0, cell.size() - 3));
  }
}

TEST(Verify, GridsOfObjectsAreCheckedInFormatsThatListObjectsByTheirFiles) {
  struct Case {
    std::string name;
    std::vector<std::string> keys;
    std::string missing;  ///< empty: none
  };
  for (const Case& grid :
       {Case{"whole", {"o/shard_0.0_1.2", "o/shard_0.1_1.2", "p/shard_0_1"}, ""},
        Case{"the last",
             {"o/shard_0.0_2.2", "o/shard_0.1_2.2", "o/shard_1.0_2.2"},
             "o/shard_1.1_2.2"},
        Case{"the first", {"o/shard_1_2"}, "o/shard_0_2"}, Case{"no grids", {"a", "b/shard_x"}, ""},
        Case{"an impossible grid",
             {"o/shard_0.0_9223372036854775807.9223372036854775807"},
             "o/shard_0.1_9223372036854775807.9223372036854775807"}}) {
    SCOPED_TRACE(grid.name);
    FakeReader reader;
    for (const std::string& key : grid.keys) reader.object(key, Value(1));
    std::string missing;
    for (const CheckpointError& problem : verify(reader).problems)
      if (problem.code() == ErrorCode::kIncomplete) missing += problem.context().key.value_or("");
    EXPECT_EQ(missing, grid.missing);
  }
}

TEST(Verify, FindingsSayHowSeriousTheyAreAndWhere) {
  const TempDir directory;
  const fs::path path = directory.path() / "iter_0001000";
  StateDict state;
  state["iteration"] = 10;
  save(state, path);
  const VerifyReport report = verify(*open_checkpoint(path));
  ASSERT_EQ(report.findings.size(), 1u);
  EXPECT_EQ(report.findings[0].code, FindingCode::kIterationConflict);
  EXPECT_EQ(report.findings[0].severity, Severity::kWarning);
  EXPECT_EQ(report.findings[0].file, "common.pt");
  EXPECT_THAT(to_json(report), HasSubstr("\"severity\": \"warning\""));
}

TEST(Verify, SoundCheckpointsHaveNoProblems) {
  for (const char* const golden : {kSynthetic, kFlattened, "mcore-0.10-bucket-space-tp2pp1dp2",
                                   "dcp-fsdp2-tp", "mcore-0.15-dp-reshardable-tp2pp1dp2"}) {
    for (const bool deep : {false, true}) {
      const VerifyReport report = verify(*open_checkpoint(testing::golden(golden)), {.deep = deep});
      EXPECT_TRUE(report.ok()) << golden << ": " << all_problems(report);
      EXPECT_GT(report.chunks, 0u);
      EXPECT_EQ(report.chunks_without_checksum, 0u) << golden;
    }
  }
}

TEST(Verify, AFolderWithTheNameOfAnotherIterationIsRemarked) {
  TempDir directory;
  const auto remarks = [&](const std::string& name) {
    const fs::path path = directory / name;
    fs::copy(testing::golden("mcore-0.16-fully-reshardable-tp2pp2dp2"), path,
             fs::copy_options::recursive);
    const VerifyReport report = verify(*open_checkpoint(path));
    EXPECT_TRUE(report.ok()) << "a folder may be renamed";
    return messages_of(report.findings);
  };
  EXPECT_THAT(remarks("iter_0000020"),
              ::testing::ElementsAre(HasSubstr("is that of iteration 10, in a folder with the name "
                                               "of iteration 20")));
  EXPECT_THAT(remarks("iter_0000010"), ::testing::IsEmpty());
  EXPECT_THAT(remarks("release"), ::testing::IsEmpty());
}

TEST(Verify, MissingFileIsIncomplete) {
  const VerifyReport report = Damaged(kSynthetic).remove("__1_0.distcp").verify();
  ASSERT_FALSE(report.ok());
  EXPECT_EQ(report.problems.front().code(), ErrorCode::kIncomplete);
  EXPECT_THAT(report.problems.front().what(), HasSubstr("__1_0.distcp"));
}

TEST(Verify, TruncatedFileIsNoticedWithoutReadingContent) {
  const auto size = fs::file_size(testing::golden(kFlattened) / "__3_0.distcp");
  const VerifyReport report = Damaged(kFlattened).truncate("__3_0.distcp", size / 2).verify();
  ASSERT_GT(report.problems.size(), 1u) << "all chunks behind the cut are reported";
  for (const CheckpointError& problem : report.problems) {
    EXPECT_EQ(problem.code(), ErrorCode::kCorrupt);
    EXPECT_TRUE(problem.context().key && problem.context().offset);
    EXPECT_THAT(problem.context().file.value_or(""), HasSubstr("__3_0.distcp"));
  }
}

TEST(Verify, FlippedPayloadIsFoundByTheDeepCheckOnly) {
  const auto reader = open_checkpoint(testing::golden(kFlattened));
  const Metadata& metadata = reader->metadata();
  const std::string& file = metadata.files[metadata.tensors[0].places[0].file];
  const ChunkPayload payload = reader->locate(0, 0, *reader->storage().open(file));
  Damaged damaged(kFlattened);
  damaged.flip_byte(file, payload.offset);
  EXPECT_TRUE(damaged.verify().ok());
  const VerifyReport deep = damaged.verify(true);
  ASSERT_EQ(deep.problems.size(), 1u) << all_problems(deep);
  EXPECT_EQ(deep.problems[0].context().key, metadata.tensors[0].key);
  EXPECT_THAT(deep.problems[0].context().file.value_or(""), HasSubstr(file));
}

TEST(Verify, ManifestFindsAChangeThatChecksumsDoNotCover) {
  Damaged damaged(kSynthetic);
  std::ofstream(damaged.path() / "metadata.json", std::ios::app) << " ";
  EXPECT_TRUE(damaged.verify().ok());
  const VerifyReport deep = damaged.verify(true);
  EXPECT_GT(deep.manifest_files, 3u);
  EXPECT_THAT(all_problems(deep), AllOf(HasSubstr("hash mismatch"), HasSubstr("metadata.json")));
}

TEST(Verify, ReadsADataFileOnceForAllItsChecksums) {
  const TempDir directory;
  const fs::path path = directory / "checkpoint";
  save(
      Value::dict({{"w", ShardedTensor::whole("w", Tensor::zeros(DType::kFloat32, {2048, 2048}))}}),
      path, {.integrity = true, .io = {.fsync = false}});
  const auto counters = std::make_shared<StorageCounters>();
  EXPECT_TRUE(
      verify(*open_torch_dist(counting_storage(posix_storage(path), counters)), {.deep = true})
          .ok());
  EXPECT_LT(counters->bytes_read, std::uint64_t{17} << 20);
}

TEST(Verify, DamagedCommonStateIsAProblem) {
  const VerifyReport report = Damaged(kFlattened).truncate("common.pt", 300).verify();
  EXPECT_THAT(all_problems(report), HasSubstr("common.pt"));
}

TEST(Verify, FlippedByteOfACommonStateAmongTheDataIsFoundWhereverItIsRead) {
  Damaged damaged("mcore-head-fully-reshardable-tp2pp2dp2");
  damaged.remove("integrity.json");
  const auto place = open_checkpoint(damaged.path())->info().common_places.at(0);
  std::ifstream file(damaged.path() / "__0_0.distcp", std::ios::binary);
  const std::string content{std::istreambuf_iterator<char>(file), {}};
  damaged.flip_byte("__0_0.distcp", content.find("NullTokenizer", place.offset));
  for (const VerifyReport& report : {damaged.verify(), damaged.verify(true)}) {
    ASSERT_EQ(report.problems.size(), 1u) << all_problems(report);
    EXPECT_THAT(all_problems(report), AllOf(HasSubstr("common_state"), HasSubstr("__0_0.distcp")));
  }
}

TEST(Verify, CommonStatesThatAreNoDictAreAProblem) {
  const Damaged damaged(kFlattened);
  const Bytes list = save_torch_file(Value::list({1}));
  std::ofstream(damaged.path() / "common.pt", std::ios::binary) << as_text(list);
  EXPECT_THAT(all_problems(damaged.verify()), HasSubstr("the common state is not a dict"));
}

TEST(Verify, PathsOfKeysThatAreNotStoredAreAProblem) {
  FakeReader reader;
  reader.tensor("model.w", DType::kFloat32, {4}, counting<float>(4)).write();
  const_cast<Metadata&>(reader.metadata()).stray_paths = {"model.v"};
  EXPECT_THAT(all_problems(verify(reader)),
              HasSubstr("planner_data names a key for which nothing is stored: 'model.v'; "
                        "'model.w' has no path"));
}

TEST(Verify, SaysWhereNoChecksumIsRecorded) {
  FakeReader reader;
  reader.tensor("w", DType::kFloat32, {4}, counting<float>(4), {{{0}, {1}}, {{1}, {3}}})
      .object("o/shard_0_1", 1)
      .checksum(false)
      .write();
  const VerifyReport report = verify(reader, {.deep = true});
  EXPECT_TRUE(report.ok());
  EXPECT_EQ(report.chunks_without_checksum, 2u);
  EXPECT_EQ(report.objects_without_checksum, 1u);
}

TEST(Verify, CollectsHolesOverlapsAndShortFilesTogether) {
  FakeReader reader;
  reader.tensor("hole", DType::kFloat32, {4}, counting<float>(4), {{{0}, {3}}})
      .tensor("overlap", DType::kFloat32, {4}, counting<float>(4), {{{0}, {3}}, {{2}, {2}}})
      .tensor("cut", DType::kFloat32, {4}, counting<float>(4))
      .write(1);
  const VerifyReport report = verify(reader);
  ASSERT_EQ(report.problems.size(), 3u) << all_problems(report);
  EXPECT_EQ(report.problems[0].context().key, "hole");
  EXPECT_EQ(report.problems[0].code(), ErrorCode::kIncomplete);
  EXPECT_EQ(report.problems[1].context().key, "overlap");
  EXPECT_EQ(report.problems[1].code(), ErrorCode::kCorrupt);
  EXPECT_EQ(report.problems[2].context().key, "cut");
  EXPECT_THAT(report.problems[2].message(), HasSubstr("reach beyond the end of the file"));
}

TEST(Verify, GivesTheSameOrderWithManyThreads) {
  FakeReader reader;
  for (int i = 0; i < 50; ++i)
    reader.tensor("t" + std::to_string(i), DType::kFloat32, {4}, counting<float>(4));
  reader.write(600);
  EXPECT_EQ(all_problems(verify(reader, {.threads = 1})),
            all_problems(verify(reader, {.threads = 8})));
}

}  // namespace
}  // namespace dckpt::verify_test
