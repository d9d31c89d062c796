#include "operations/inspect/modelopt.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>

#include "dist_checkpointing/open/open.h"
#include "operations/convert/convert.h"
#include "operations/inspect/inspect.h"
#include "tests/dist_checkpointing/fake_reader.h"
#include "tests/support/golden.h"
#include "tests/support/temp_dir.h"

namespace dckpt::modelopt_test {
namespace {

namespace fs = std::filesystem;

using ::testing::Contains;
using ::testing::ElementsAre;
using testing::FakeReader;
using testing::golden;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;

/// Returns a checkpoint that ModelOpt 0.47.0 has written its state into.
fs::path with_modelopt(const TempDir& directory) {
  const fs::path path = directory / "source";
  fs::copy(golden("mcore-head-fully-reshardable-tp2pp2dp2"), path, fs::copy_options::recursive);
  fs::copy(fs::path(DCKPT_TEST_DATA) / "modelopt", path, fs::copy_options::recursive);
  fs::remove(path / "make.py");
  std::ofstream(path / "modelopt_run_config.yaml") << "quant_cfg: INT8_DEFAULT_CFG\n";
  return path;
}

std::string content(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

TEST(ModelOpt, InspectSaysWhatItHasDone) {
  TempDir directory;
  const auto reader = open_checkpoint(with_modelopt(directory));
  const auto state = inspect(*reader).modelopt;
  ASSERT_TRUE(state);
  EXPECT_EQ(state->place, "modelopt_state");
  EXPECT_EQ(state->version, "0.47.0");
  EXPECT_THAT(state->modes, ElementsAre("quantize", "max_calibrate"));
  EXPECT_FALSE(inspect(*open_checkpoint(golden("mcore-0.16-synthetic"))).modelopt);
}

TEST(ModelOpt, AFolderThatCannotBeReadIsThereNevertheless) {
  TempDir directory;
  const fs::path path = with_modelopt(directory);
  std::ofstream(path / "modelopt_state" / "common.pt") << "no archive";
  const auto state = modelopt_state(*open_checkpoint(path));
  ASSERT_TRUE(state);
  EXPECT_EQ(state->version, "");
  FakeReader in_common;
  in_common.common(Value::dict({{"modelopt_state_0", Value::dict({{"modelopt_version", "0.33"}})}}))
      .write();
  EXPECT_EQ(modelopt_state(in_common)->version, "0.33");
  EXPECT_EQ(modelopt_state(in_common)->place, "modelopt_state_0");
}

TEST(ModelOpt, ItsStateGoesAlongOrIsNamed) {
  TempDir directory;
  const fs::path source = with_modelopt(directory);
  for (const char* const format : {"torch_dist", "zarr", "dcp", "fsdp_dtensor"}) {
    const fs::path made = directory / format;
    const ConvertReport report = convert(source, made, {.target = {.strategy = format}});
    EXPECT_THAT(messages_of(report.findings), Contains(StartsWith("ModelOpt's state goes along")));
    EXPECT_THAT(messages_of(report.findings), Not(Contains(HasSubstr("stays behind"))));
    for (const std::string& name : modelopt_files(open_checkpoint(source)->storage())) {
      EXPECT_EQ(content(source / name), content(made / name)) << made / name;
    }
    EXPECT_EQ(inspect(*open_checkpoint(made)).modelopt->version, "0.47.0");
  }
  const ConvertReport report =
      convert(source, directory / "hf",
              {.source = {.map = {.name = "none"}}, .target = {.strategy = "safetensors"}});
  EXPECT_THAT(messages_of(report.findings),
              Contains(StartsWith("ModelOpt's state stays behind: 'modelopt_state'")));
  EXPECT_THAT(modelopt_files(open_checkpoint(directory / "hf")->storage()), IsEmpty());
}

/// Manifests list the files of the checkpoint's own folder.
TEST(ModelOpt, AManifestLeavesOutItsFolder) {
  TempDir directory;
  convert(with_modelopt(directory), directory / "made",
          {.target = {.strategy = "torch_dist", .integrity = true}});
  convert(directory / "made", directory / "again",
          {.target = {.strategy = "torch_dist"}, .checks = {.integrity = true}});
  EXPECT_TRUE(fs::exists(directory / "again" / "modelopt_state" / "common.pt"));
}

TEST(ModelOpt, AFolderWithoutFilesIsNoState) {
  TempDir directory;
  const fs::path path = directory / "source";
  fs::copy(golden("mcore-0.14-synthetic"), path, fs::copy_options::recursive);
  fs::create_directory(path / "modelopt_state");
  EXPECT_FALSE(modelopt_state(*open_checkpoint(path)));
  const auto remarks = messages_of(convert(path, directory / "x", {.dry_run = true}).findings);
  EXPECT_THAT(remarks, Not(Contains(HasSubstr("ModelOpt"))));
  EXPECT_THAT(remarks, Contains(HasSubstr("stays behind: 'modelopt_state'")));
}

}  // namespace
}  // namespace dckpt::modelopt_test
