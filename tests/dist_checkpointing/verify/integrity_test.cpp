#include "dist_checkpointing/verify/integrity.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "dist_checkpointing/load/load.h"
#include "dist_checkpointing/open/open.h"
#include "dist_checkpointing/save/save.h"
#include "mapping/base/error.h"
#include "operations/convert/convert.h"
#include "operations/inspect/digest.h"
#include "operations/inspect/verify.h"
#include "strategies/comm/threads.h"
#include "tests/support/expect_error.h"
#include "tests/support/golden.h"
#include "tests/support/process_usage.h"
#include "tests/support/temp_dir.h"

namespace dckpt::integrity_test {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr int kRanks = 2;

std::string text_of(const fs::path& file) {
  std::ostringstream text;
  text << std::ifstream(file, std::ios::binary).rdbuf();
  return text.str();
}

/// Returns a row of a tensor on each of two ranks.
StateDict rows(int rank, float value) {
  Tensor row = Tensor::zeros(DType::kFloat32, {1, 4});
  std::fill_n(reinterpret_cast<float*>(row.data()), 4, value);
  return Value::dict(
      {{"w", ShardedTensor::from_rank_offsets("w", row, {{0, rank, kRanks}})}, {"step", 7}});
}

class VerifiedLoad : public ::testing::Test {
 protected:
  void save_with(bool integrity) {
    run_ranks(kRanks, [&](Communicator& comm) {
      save(rows(comm.rank(), 1), path(), {.integrity = integrity}, comm);
    });
  }
  /// Returns the error, which is the same on every rank; "" if none fails.
  std::string load_verified() { return load_with({.verify = Verify::kSha256}); }
  std::string load_with(const LoadOptions& options) {
    std::string errors[kRanks];
    run_ranks(kRanks, [&](Communicator& comm) {
      StateDict state = rows(comm.rank(), 0);
      try {
        load(state, path(), options, comm);
      } catch (const CheckpointError& error) {
        errors[comm.rank()] = error.what();
      }
    });
    EXPECT_EQ(errors[0], errors[1]);
    return errors[0];
  }
  std::string problems() const {
    std::string text;
    for (const CheckpointError& problem : verify(*open_checkpoint(path())).problems)
      text += problem.what();
    return text;
  }
  std::string text_of(const std::string& file) const {
    return integrity_test::text_of(path() / file);
  }
  void replace(const std::string& file, const std::string& text) {
    std::ofstream(path() / file) << text;
  }
  void append_to(const std::string& file, const std::string& text) {
    std::ofstream(path() / file, std::ios::app) << text;
  }
  fs::path path() const { return directory_.path() / "checkpoint"; }

 private:
  TempDir directory_;
};

TEST_F(VerifiedLoad, AcceptsAnUntouchedCheckpoint) {
  save_with(true);
  EXPECT_EQ(load_verified(), "");
  StateDict state = rows(0, 0);
  EXPECT_NO_THROW(load(state, testing::golden("mcore-head-synthetic"),
                       {.strict = StrictHandling::kIgnoreAll, .verify = Verify::kSha256}))
      << "Megatron's manifest";
}

TEST_F(VerifiedLoad, FailsForAnyDifferenceAlsoOfMetadataThatStillParse) {
  save_with(true);
  std::string json = text_of("metadata.json");
  std::swap(json[json.find(": ")], json[json.find(": ") + 1]);
  replace("metadata.json", json);
  EXPECT_THAT(load_verified(), AllOf(HasSubstr("metadata.json: hash mismatch (expected "),
                                     Not(HasSubstr(".distcp"))));
  EXPECT_EQ(load_with({}), "") << "without verification it loads";
}

TEST_F(VerifiedLoad, ComparesSizesAlways) {
  save_with(true);
  append_to("metadata.json", "\n");
  for (const Verify verify : {Verify::kNone, Verify::kCrc}) {
    EXPECT_THAT(load_with({.verify = verify}),
                HasSubstr("metadata.json: size mismatch (expected "));
  }
  EXPECT_THAT(problems(), HasSubstr("size mismatch"));
  EXPECT_THAT(testing::error_of([&] { (void)load_state_dict(path()); }).what(),
              HasSubstr("size mism"));
  EXPECT_THAT(testing::error_of([&] { (void)load_plain_tensors(path()); }).what(),
              HasSubstr("size mism"));
  EXPECT_NO_THROW((void)load_state_dict(path(), {}, {.allow_partial_load = true}))
      << "what is there";
  fs::remove(path() / "integrity.json");
  EXPECT_EQ(load_with({}), "");
}

TEST_F(VerifiedLoad, AManifestOfAnotherProgramIsNoObstacle) {
  save_with(false);
  for (const char* const json : {"{}", "[", R"({"algorithm": "md5", "files": []})"}) {
    std::ofstream(path() / "integrity.json") << json;
    EXPECT_EQ(load_with({}), "");
  }
}

TEST_F(VerifiedLoad, FailsForAMissingFile) {
  save_with(true);
  fs::remove(path() / "__1_0.distcp");
  EXPECT_THAT(load_verified(), HasSubstr("__1_0.distcp: file missing or unreadable"));
}

TEST_F(VerifiedLoad, FailsWithoutAManifest) {
  save_with(false);
  EXPECT_THAT(load_verified(), HasSubstr("it has no integrity.json"));
}

TEST_F(VerifiedLoad, TheRanksShareTheFilesAndTellEachOther) {
  save_with(true);
  append_to("__0_0.distcp", "x");
  append_to("__1_0.distcp", "x");
  append_to("common.pt", "x");
  EXPECT_THAT(load_verified(),
              AllOf(HasSubstr("Checkpoint integrity verification failed"), HasSubstr("rank")));
}

TEST_F(VerifiedLoad, AFileThatIsReadMustBeListed) {
  save_with(true);
  const IntegrityManifest manifest = find_integrity_manifest(*Location(path()).directory()).value();
  for (const char* const file : {".metadata", "metadata.json", "common.pt", "__1_0.distcp"}) {
    IntegrityManifest without = manifest;
    ASSERT_EQ(std::erase_if(without.files, [&](const auto& entry) { return entry.name == file; }),
              1);
    replace("integrity.json", write_integrity_manifest(without));
    EXPECT_THAT(load_verified(),
                HasSubstr("integrity.json does not list '" + std::string(file) + "'"));
    EXPECT_THAT(problems(), HasSubstr("integrity.json does not list '" + std::string(file) + "'"));
    EXPECT_THAT(
        testing::error_of([&] { convert(path(), path().parent_path() / "converted"); }).what(),
        HasSubstr("does not list '" + std::string(file) + "'"));
    EXPECT_FALSE(fs::exists(path().parent_path() / "converted"));
  }
}

/// A checkpoint of one rank with a large tensor, a small one, an object and a common state, any of
/// which can get a flipped bit.
class DamagedData : public ::testing::Test {
 protected:
  static constexpr std::int64_t kRows = 512;  // rows of 64 KiB: 32 MiB, read by several threads

  DamagedData() {
    StateDict state = Value::dict(
        {{"large", ShardedTensor::whole("large", Tensor::zeros(DType::kFloat32, {kRows, 16384}))},
         {"small", ShardedTensor::whole("small", Tensor::zeros(DType::kFloat32, {3}))},
         {"object", ShardedObject{.key = "object",
                                  .data = "some text in an object",
                                  .global_shape = {1},
                                  .global_offset = {0}}},
         {"step", 7},
         {"moments", Tensor::zeros(DType::kFloat32, {100})}});
    save(state, path(), {.io = {.fsync = false}});
  }

  fs::path path() const { return directory_.path() / "checkpoint"; }
  fs::path target() const { return directory_.path() / "converted"; }

  void flip(const std::string& file, std::uint64_t offset) const {
    std::fstream stream(path() / file, std::ios::in | std::ios::out | std::ios::binary);
    stream.seekg(static_cast<std::streamoff>(offset));
    const char byte = static_cast<char>(stream.get() ^ 1);
    stream.seekp(static_cast<std::streamoff>(offset));
    stream.put(byte);
  }
  std::uint64_t flip_tensor(const std::string& key, std::uint64_t byte) const {
    const auto reader = open_checkpoint(path());
    const auto tensor = static_cast<std::size_t>(reader->metadata().find_tensor(key) -
                                                 reader->metadata().tensors.data());
    const std::string file =
        reader->metadata().files[reader->metadata().tensors[tensor].places[0].file];
    const std::uint64_t offset =
        reader->locate(tensor, 0, *reader->storage().open(file)).offset + byte;
    flip(file, offset);
    return offset;
  }

  /// Returns the outcome of a load in which each rank requests its rows.
  std::string load_on(int ranks, const LoadOptions& options) const {
    std::vector<std::string> errors(static_cast<std::size_t>(ranks));
    std::vector<std::uint64_t> unchecked(static_cast<std::size_t>(ranks));
    run_ranks(ranks, [&](Communicator& comm) {
      const Tensor rows = Tensor::empty(DType::kFloat32, {kRows / ranks, 16384});
      StateDict state = Value::dict(
          {{"large", ShardedTensor::from_rank_offsets("large", rows, {{0, comm.rank(), ranks}})}});
      const auto rank = static_cast<std::size_t>(comm.rank());
      try {
        unchecked[rank] = load(state, path(), options, comm).bytes_unchecked;
      } catch (const CheckpointError& error) {
        EXPECT_EQ(error.code(), ErrorCode::kCorrupt);
        EXPECT_EQ(error.context().key, "large");
        EXPECT_TRUE(error.context().file && error.context().offset);
        errors[rank] = error.what();
      }
    });
    EXPECT_EQ(errors.front(), errors.back());
    return errors.front().empty() ? std::to_string(unchecked.front()) + " bytes unchecked"
                                  : errors.front();
  }

 private:
  TempDir directory_;
};

TEST_F(DamagedData, IsNeverLoadedInSilence) {
  for (const int ranks : {1, 2}) {
    for (const bool parallel : {false, true})
      EXPECT_EQ(load_on(ranks, {.parallel = {.enabled = parallel}}), "0 bytes unchecked") << ranks;
  }
  flip_tensor("large", 20'000'000);
  for (const int ranks : {1, 2}) {
    for (const bool parallel : {false, true}) {
      EXPECT_THAT(load_on(ranks, {.parallel = {.enabled = parallel}}),
                  HasSubstr("not match the CRC-32"))
          << ranks;
      EXPECT_EQ(load_on(ranks, {.parallel = {.enabled = parallel}, .verify = Verify::kNone}),
                std::to_string((32 << 20) / ranks) + " bytes unchecked");
    }
  }
  const auto expect_refused = [](const auto& body) {
    EXPECT_THAT(testing::error_of(body).what(), HasSubstr("not match the CRC-32"));
  };
  expect_refused([&] { (void)load_state_dict(path(), {"large"}); });
  expect_refused([&] { (void)load_plain_tensors(path()); });
  expect_refused([&] { (void)digest(*open_checkpoint(path())); });
  expect_refused([&] { convert(path(), target()); });
  EXPECT_NO_THROW((void)load_state_dict(path(), {"small"})) << "the rest is sound";
}

TEST_F(DamagedData, OfSmallThingsIsFoundTooAndNoneOfItIsConverted) {
  const auto message = [](const auto& body) { return std::string(testing::error_of(body).what()); };
  const auto objects = [&] {
    (void)digest(*open_checkpoint(path()), {.keys = {.include = {"object*"}}});
  };
  const std::string data = "__0_0.distcp";
  const std::string bytes = text_of(path() / data);

  const std::size_t object = bytes.find("some text in an object");
  ASSERT_NE(object, std::string::npos);
  flip(data, object);
  EXPECT_THAT(message(objects), HasSubstr("not match the CRC-32"));
  EXPECT_THAT(message([&] { convert(path(), target()); }), HasSubstr("not match the CRC-32"));
  flip(data, object);

  flip_tensor("small", 5);
  EXPECT_THAT(message([&] { (void)load_state_dict(path(), {"small"}); }),
              HasSubstr("not match the CRC-32"));
  for (const int ranks : {1, 3})
    EXPECT_THAT(message([&] { convert(path(), target(), {.target = {.ranks = ranks}}); }),
                HasSubstr("not match the CRC-32"));
  flip_tensor("small", 5);

  const std::size_t moments = text_of(path() / "common.pt").find("data/0") + 200;
  flip("common.pt", moments);
  EXPECT_THAT(message([&] { (void)load_common_state(path()); }), HasSubstr("not match the CRC-32"));
  EXPECT_FALSE(fs::exists(target()));
  flip("common.pt", moments);
  convert(path(), target(), {.target = {.ranks = 3}, .limits = {.memory = std::uint64_t{2} << 20}});
  EXPECT_THAT(message([&] {
                convert(path(), target(),
                        {.target = {.overwrite = true}, .limits = {.memory = 1000}});
              }),
              HasSubstr("a conversion takes at least 1.1 MiB of memory"));
}

TEST_F(DamagedData, OfAFileWithoutChecksumsIsNotConvertedWhereAManifestShowsIt) {
  const fs::path source = path().parent_path() / "source";
  convert(path(), source, {.target = {.integrity = true}, .limits = {.io = {.checksums = false}}});
  fs::remove_all(path());
  fs::rename(source, path());
  flip_tensor("large", 1000);
  EXPECT_EQ(load_on(1, {}), std::to_string(32 << 20) + " bytes unchecked") << "no CRC was recorded";
  EXPECT_THAT(testing::error_of([&] { convert(path(), target()); }).what(),
              HasSubstr("__0_0.distcp: hash mismatch"));
  EXPECT_FALSE(fs::exists(target()));
  EXPECT_NO_THROW(convert(path(), target(), {.checks = {.source = false}}));
}

TEST_F(DamagedData, AManifestIsWrittenAndComparedWithoutReadingAnythingAgain) {
  constexpr std::uint64_t kData = 32 << 20;
  const auto read_by = [](const auto& body) {
    const std::uint64_t before = testing::bytes_read();
    body();
    return testing::bytes_read() - before;
  };
  const fs::path source = path().parent_path() / "source";
  EXPECT_LT(read_by([&] { convert(path(), source, {.target = {.integrity = true}}); }),
            kData * 11 / 10);
  EXPECT_LT(read_by([&] { convert(source, target()); }), kData * 11 / 10) << "compares with it";
  EXPECT_TRUE(verify(*open_checkpoint(target()), {.deep = true}).ok());

  StateDict state;
  state["w"] = ShardedTensor::from_rank_offsets("w", Tensor::zeros(DType::kFloat32, {1 << 20}), {});
  const fs::path saved = path().parent_path() / "saved";
  EXPECT_LT(read_by([&] { save(state, saved, {.integrity = true}); }), 1 << 20);
  EXPECT_TRUE(verify(*open_checkpoint(saved), {.deep = true}).ok());
}

TEST_F(DamagedData, OfTheManifestIsFoundWhicheverWayTheFilesAreRead) {
  const fs::path source = path().parent_path() / "source";
  convert(path(), source, {.target = {.integrity = true}});
  fs::remove_all(path());
  fs::rename(source, path());
  const std::size_t digest = text_of(path() / kIntegrityFile).find("\"__0_0.distcp\": \"") + 20;
  flip(kIntegrityFile, digest);
  for (const ConvertOptions& options :
       {ConvertOptions{}, ConvertOptions{.target = {.ranks = 5}},
        ConvertOptions{.checks = {.integrity = true}},
        ConvertOptions{.checks = {.integrity = true}, .dry_run = true}}) {
    EXPECT_THAT(testing::error_of([&] { convert(path(), target(), options); }).what(),
                HasSubstr("__0_0.distcp: hash mismatch"));
    EXPECT_FALSE(fs::exists(target()));
  }
}

}  // namespace
}  // namespace dckpt::integrity_test
