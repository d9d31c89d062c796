#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "tests/support/golden.h"
#include "tests/tools/goldens.h"
#include "tests/tools/run_tool.h"

namespace dckpt::extract_command_test {
namespace {

namespace fs = std::filesystem;
using testing::golden_expected;
using ::testing::HasSubstr;
using testing::kSynthetic;
using testing::path_of;
using testing::run_tool;
using testing::ToolRun;

std::vector<std::string> members(const Value& dict) {
  std::vector<std::string> names;
  for (const auto& [name, value] : dict.as_dict()) names.push_back(name.as_str());
  return names;
}

TEST(ToolExtract, ExtractGivesJsonOrATensorFile) {
  const Value expected = golden_expected(kSynthetic);
  EXPECT_EQ(members(run_tool({"extract", path_of(kSynthetic), "--objects"}).json()).size(),
            expected.at("objects").size());
  EXPECT_EQ(run_tool({"extract", path_of(kSynthetic), "--common"}).json().at("str"),
            expected.at("common").at("str"));
  EXPECT_EQ(run_tool({"extract", path_of(kSynthetic), "obj.ints/shard_2_4"}).out, "11002\n");

  const TempDir scratch;
  const std::string file = (scratch / "w.npy").string();
  ASSERT_EQ(run_tool({"extract", path_of(kSynthetic), "dtype.float32", "-o", file}).exit_code, 0);
  const std::string npy = testing::slurp(file);
  EXPECT_EQ(sha256_hex(as_bytes(npy).subspan(npy.size() - 48)),
            expected.at("tensors").at("dtype.float32").at("sha256").as_str());
  EXPECT_EQ(run_tool({"extract", path_of(kSynthetic), "dtype.float32", "-o", "-"}).out, npy);
}

TEST(ToolExtract, ExtractExplainsWhatItCannotDo) {
  const TempDir scratch;
  const std::string file = (scratch / "w.npy").string();
  const ToolRun no_type = run_tool({"extract", path_of(kSynthetic), "dtype.bfloat16", "-o", file});
  EXPECT_EQ(no_type.exit_code, 6);
  EXPECT_THAT(no_type.err, HasSubstr(".safetensors"));
  EXPECT_TRUE(fs::is_empty(scratch.path())) << "nothing is left behind";
  const ToolRun slip = run_tool({"extract", path_of(kSynthetic), "dtype.bfloat61", "-o", file});
  EXPECT_EQ(slip.exit_code, 1);
  EXPECT_THAT(slip.err, HasSubstr("did you mean 'dtype.bfloat16'?"));
  EXPECT_EQ(run_tool({"extract", path_of(kSynthetic), "dtype.float32"}).exit_code, 2);
  EXPECT_EQ(run_tool({"extract", path_of(kSynthetic), "dtype.float32", "-o",
                      (scratch / "no" / "folder.npy").string()})
                .exit_code,
            3);
}

TEST(ToolExtract, ExtraStateIsExtractedAsItsBytes) {
  const TempDir scratch;
  const std::string file = (scratch / "state.bin").string();
  const Value expected = golden_expected("mcore-0.14-moe-ep2").at("objects");
  const auto sha256 = [&](const std::string& key) {
    EXPECT_EQ(run_tool({"extract", path_of("mcore-0.14-moe-ep2"), key, "-o", file}).exit_code, 0);
    return sha256_hex(as_bytes(testing::slurp(file)));
  };
  const std::string bytes_io = "decoder.layers.self_attention.linear_proj._extra_state/shard_0_2";
  const std::string tensor = "decoder.layers.self_attention.linear_qkv._extra_state/shard_0_2";
  EXPECT_EQ(sha256(bytes_io), expected.at(bytes_io).at("__BytesIO__").at("sha256").as_str());
  EXPECT_EQ(sha256(tensor), expected.at(tensor).at("__tensor__").at("sha256").as_str());
  const std::string json = (scratch / "state.json").string();
  EXPECT_EQ(run_tool({"extract", path_of("mcore-0.14-moe-ep2"), tensor, "-o", json}).exit_code, 0);
  EXPECT_THAT(testing::slurp(json), HasSubstr("__tensor__"));
}

TEST(ToolExtract, FilesAreWhatTheirNamesSay) {
  const TempDir scratch;
  const std::string npy = (scratch / "w.npy").string();
  const ToolRun common = run_tool({"extract", path_of(kSynthetic), "--common", "-o", npy});
  EXPECT_EQ(common.exit_code, 2);
  EXPECT_THAT(common.err, HasSubstr("would be a file of a tensor"));
  const ToolRun json =
      run_tool({"extract", path_of(kSynthetic), "dtype.float32", "--json", "-o", npy});
  EXPECT_EQ(json.exit_code, 2);
  EXPECT_THAT(json.err, HasSubstr("--json is for objects; leave it out"));
  EXPECT_TRUE(fs::is_empty(scratch.path()));
}

TEST(ToolExtract, SaysThatThereIsNoCommonState) {
  const ToolRun run = run_tool({"extract", path_of("dcp-hf-safetensors"), "--common"});
  EXPECT_EQ(run.out, "{}\n");
  EXPECT_THAT(run.err, HasSubstr("has no common state"));
}

}  // namespace
}  // namespace dckpt::extract_command_test
