#include "dist_checkpointing/load/select_keys.h"

#include <gmock/gmock.h>

#include "tests/support/expect_error.h"

namespace dckpt::select_keys_test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

/// Returns three values with recorded paths, in the order in which they were saved, and one
/// without.
Metadata metadata() {
  Metadata result;
  for (const char* const key : {"optimizer.0.m", "layer.w", "bare.key"})
    result.tensors.emplace_back().key = key;
  result.objects.emplace_back().key = "optimizer.1";
  result.paths = {{"layer.w", {"layer.w"}},
                  {"optimizer.0.m", {"optimizer", 0, "m"}},
                  {"optimizer.1", {"optimizer", 1}},
                  {"gone", {"gone"}}};
  return result;
}

std::vector<std::string> chosen(const std::vector<std::string>& wanted,
                                std::set<std::string> expect_unused = {}) {
  std::set<std::string> unused;
  std::vector<std::string> keys;
  for (const SelectedKey& entry : select_keys(metadata(), wanted, unused))
    keys.push_back(entry.key);
  EXPECT_EQ(unused, expect_unused);
  return keys;
}

TEST(ChooseKeys, AllInTheOrderInWhichTheyWereSaved) {
  EXPECT_THAT(chosen({}), ElementsAre("layer.w", "optimizer.0.m", "optimizer.1", "bare.key"));
}

TEST(ChooseKeys, PathsOfRemovedTensorsDoNotMatter) {
  Metadata removed = metadata();
  removed.stray_paths = {"encoder.embedding.weight"};
  std::set<std::string> unused;
  EXPECT_EQ(select_keys(removed, {}, unused).size(), 4U);
}

TEST(ChooseKeys, OnlyWherePlannerDataNamesWhatIsStored) {
  Metadata damaged = metadata();
  damaged.stray_paths = {"bare.kez"};
  std::set<std::string> unused;
  const CheckpointError error = testing::error_of([&] { select_keys(damaged, {}, unused); });
  EXPECT_EQ(error.code(), ErrorCode::kCorrupt);
  EXPECT_THAT(error.what(), ::testing::HasSubstr("'bare.key' has no path: is a letter damaged?"));
}

TEST(ChooseKeys, ByThemselvesOrByAPathThatLeadsToThem) {
  EXPECT_THAT(chosen({"optimizer"}), ElementsAre("optimizer.0.m", "optimizer.1"));
  EXPECT_THAT(chosen({"optimizer.0"}), ElementsAre("optimizer.0.m"));
  EXPECT_THAT(chosen({"optimizer.1", "layer.w"}), ElementsAre("layer.w", "optimizer.1"));
  EXPECT_THAT(chosen({"bare"}), ElementsAre("bare.key"))
      << "no path is recorded, so the key is taken for one";
}

TEST(ChooseKeys, NamesThatChooseNothingAreReturned) {
  EXPECT_THAT(chosen({"layer"}, {"layer"}), IsEmpty()) << "the dot is part of a dict's key";
  EXPECT_THAT(chosen({"optim", "gone", "optimizer.1"}, {"gone", "optim"}),
              ElementsAre("optimizer.1"));
}

}  // namespace
}  // namespace dckpt::select_keys_test
