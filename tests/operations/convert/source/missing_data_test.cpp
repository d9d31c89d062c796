#include "operations/convert/source/missing_data.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <set>

#include "dist_checkpointing/open/open.h"
#include "operations/convert/convert.h"
#include "operations/inspect/diff.h"
#include "operations/inspect/verify.h"
#include "tests/support/expect_error.h"
#include "tests/support/golden.h"
#include "tests/support/temp_dir.h"

namespace dckpt::missing_data_test {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using testing::error_of;
using testing::golden;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr const char* kModel = "mcore-0.14-flattened-tp2pp2dp2";
constexpr const char* kLost = "__3_0.distcp";

/// A checkpoint to damage, and the destination of its copy.
class MissingData : public ::testing::Test {
 protected:
  void take(const char* name) { fs::copy(golden(name), source_, fs::copy_options::recursive); }

  /// Expects a refusal that leaves nothing at or beside the destination, and returns it.
  CheckpointError refused(const ConvertOptions& options = {}) {
    const CheckpointError error = error_of([&] { convert(source_, copy_, options); });
    const auto entries = fs::directory_iterator(directory_.path());
    EXPECT_EQ(std::distance(begin(entries), end(entries)), 1);
    return error;
  }

  TempDir directory_;
  fs::path source_ = directory_ / "source";
  fs::path copy_ = directory_ / "copy";
};

/// Returns the keys with data in `file`, according to the metadata.
std::set<std::string> keys_in(const char* checkpoint, const std::string& file) {
  const auto reader = open_checkpoint(golden(checkpoint));
  const Metadata& metadata = reader->metadata();
  std::set<std::string> keys;
  for (const TensorStorageMetadata& tensor : metadata.tensors) {
    for (const StorageInfo& place : tensor.places)
      if (metadata.files[place.file] == file) keys.insert(tensor.key);
  }
  for (const BytesStorageMetadata& object : metadata.objects)
    if (metadata.files[object.place.file] == file) keys.insert(object.key);
  return keys;
}

TEST_F(MissingData, IsNamedWithItsShareOfEachKey) {
  take(kModel);
  fs::remove(source_ / kLost);
  const CheckpointError error = refused();
  EXPECT_EQ(error.code(), ErrorCode::kIncomplete);
  EXPECT_THAT(error.what(),
              AllOf(HasSubstr("data files are missing or too short: '__3_0.distcp'"),
                    HasSubstr("'decoder.layers.mlp.linear_fc1.weight': 6.2 % of 32.0 KiB"),
                    HasSubstr("--allow-partial")));
}

TEST_F(MissingData, WhatIsWholeIsTakenOnRequest) {
  for (const bool truncated : {false, true}) {
    take(kModel);
    if (truncated)
      fs::resize_file(source_ / kLost, 1);
    else
      fs::remove(source_ / kLost);
    const ConvertReport report = convert(source_, copy_, {.source = {.allow_partial = true}});
    const std::set<std::string> lost = keys_in(kModel, kLost);
    EXPECT_EQ(std::set<std::string>(report.lost.begin(), report.lost.end()), lost);
    EXPECT_EQ(report.left_out, lost.size());
    EXPECT_THAT(messages_of(report.findings),
                ::testing::Contains(HasSubstr("left out, as data files are")));
    EXPECT_TRUE(verify(*open_checkpoint(copy_), {.deep = true}).ok());
    std::set<std::string> differ;
    for (const Difference& difference :
         diff(*open_checkpoint(golden(kModel)), *open_checkpoint(copy_)).differences) {
      EXPECT_EQ(difference.kind, Difference::Kind::kOnlyInA) << difference.key;
      differ.insert(difference.key);
    }
    EXPECT_EQ(differ, lost);
    fs::remove_all(source_);
    fs::remove_all(copy_);
  }
}

TEST_F(MissingData, OfKeysThatAreNotWantedDoesNotMatter) {
  take(kModel);
  fs::remove(source_ / kLost);
  ConvertOptions options;
  for (const std::string& key : keys_in(kModel, kLost)) options.source.keys.exclude.push_back(key);
  EXPECT_THAT(convert(source_, copy_, options).lost, IsEmpty());
}

TEST_F(MissingData, NothingIsTakenWithoutTheCommonState) {
  take("mcore-head-moe-ep2");
  const auto reader = open_checkpoint(source_);
  fs::remove(source_ / reader->metadata().files[reader->info().common_places.at(0).file]);
  const CheckpointError error = refused({.source = {.allow_partial = true}});
  EXPECT_EQ(error.code(), ErrorCode::kIncomplete);
  EXPECT_THAT(error.what(), HasSubstr("the common state was in one of them"));
}

TEST_F(MissingData, FilesOfAnotherSaveAreNotTaken) {
  take(kModel);
  fs::copy_file(source_ / "__0_0.distcp", source_ / "__4_0.distcp",
                fs::copy_options::overwrite_existing);
  for (const bool allow_partial : {false, true})
    EXPECT_EQ(refused({.source = {.allow_partial = allow_partial}}).code(), ErrorCode::kCorrupt);
}

TEST_F(MissingData, FilesOfAnotherIterationDoNotMatchTheManifest) {
  take("mcore-0.15-flattened-tp2pp2dp2");
  convert(source_, copy_, {.target = {.integrity = true}});
  fs::remove_all(source_);
  convert(golden(kModel), source_, {});
  fs::copy_file(source_ / "__0_0.distcp", copy_ / "__0_0.distcp",
                fs::copy_options::overwrite_existing);
  fs::remove_all(source_);
  fs::rename(copy_, source_);
  EXPECT_EQ(refused().code(), ErrorCode::kCorrupt);
}

TEST_F(MissingData, AnIndexOfAnotherModelIsNotTaken) {
  take("dcp-hf-safetensors");
  fs::copy_file(golden("dcp-hf-safetensors") / "model-00001-of-00002.safetensors",
                source_ / "model-00002-of-00002.safetensors", fs::copy_options::overwrite_existing);
  const CheckpointError error =
      refused({.source = {.allow_partial = true}, .target = {.strategy = "dcp"}});
  EXPECT_EQ(error.code(), ErrorCode::kCorrupt);
}

TEST_F(MissingData, BucketsAreNotRecognizedWithoutAllOfTheModel) {
  for (const char* const name :
       {"mcore-0.16-dp-reshardable-tp2pp1dp2", "mcore-0.14-dp-zero-tp2pp1dp2"}) {
    fs::remove_all(source_);
    take(name);
    fs::remove(source_ / "__1_0.distcp");
    const CheckpointError error =
        refused({.source = {.allow_partial = true},
                 .optimizer = {.sharding = OptimizerSharding::kFullyReshardable}});
    EXPECT_EQ(error.code(), ErrorCode::kIncomplete);
    EXPECT_THAT(error.what(),
                AllOf(HasSubstr("'__1_0.distcp'"), HasSubstr("allow-partial without --optimizer"),
                      HasSubstr("self_attention.linear_proj.weight': 25.0 % of")));
  }
}

TEST_F(MissingData, MegatronFsdpTakesWholeCheckpointsOnly) {
  take("mcore-0.16-fully-reshardable-tp2pp2dp2");
  fs::remove(source_ / "__1_0.distcp");
  const CheckpointError fsdp =
      refused({.source = {.allow_partial = true}, .target = {.strategy = "fsdp_dtensor"}});
  EXPECT_EQ(fsdp.code(), ErrorCode::kIncomplete);
  EXPECT_THAT(fsdp.what(),
              HasSubstr("first convert what is whole to torch_dist (--allow-partial)"));
}

}  // namespace
}  // namespace dckpt::missing_data_test
