#include "dckpt/json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "dckpt/convert.h"
#include "dckpt/inspect.h"
#include "dckpt/policy.h"
#include "tests/tools/goldens.h"
#include "tests/tools/run_tool.h"

namespace dckpt::json_test {
namespace {

using testing::kModel;
using testing::kSynthetic;
using testing::path_of;
using testing::Root;
using testing::run_tool;

std::string printed(std::vector<std::string> words) {
  words.emplace_back("--json");
  return run_tool(std::move(words)).out;
}

TEST(ToolJson, IsWhatTheLibraryMakesOfACheckpoint) {
  const std::string path = path_of(kModel);
  const auto reader = open_checkpoint(path);
  EXPECT_EQ(printed({"inspect", path}), to_json(inspect(*reader)));
  EXPECT_EQ(printed({"inspect", path, "--chunks"}),
            to_json(inspect(*reader, {.chunks = true}), true));
  EXPECT_EQ(printed({"verify", path, "--deep"}), to_json(verify(*reader, {.deep = true})));
  EXPECT_EQ(printed({"digest", path}), to_json(digest(*reader)));
  EXPECT_EQ(printed({"stats", path}), to_json(stats(*reader)));
  const std::string key = reader->metadata().tensors.front().key;
  EXPECT_EQ(printed({"explain", path, key}), to_json(explain(*reader, key)));
  EXPECT_EQ(printed({"extract", path, "--common"}), common_json(reader->common_state()));
  EXPECT_EQ(printed({"extract", path, "--objects"}), objects_json(*reader));
  EXPECT_EQ(printed({"extract", path, reader->metadata().objects.front().key}),
            object_json(reader->object(0)));
  EXPECT_EQ(printed({"diff", path, path_of(kSynthetic)}),
            to_json(diff(*reader, *open_checkpoint(path_of(kSynthetic)))));
}

TEST(ToolJson, IsWhatTheLibraryMakesOfAConversionAndARemoval) {
  const testing::Copy copy(kModel);
  const std::string to = (copy.directory / "to").string();
  EXPECT_EQ(
      printed({"convert", copy.text(), to, "--to", "dcp", "--dry-run"}),
      to_json(convert(copy.text(), to, {.target = {.strategy = "dcp"}, .dry_run = true}), true));
  EXPECT_EQ(printed({"remove", copy.text(), "--prefix", "decoder", "--dry-run"}),
            to_json(remove_sharded_tensors(copy.text(), "decoder", {.dry_run = true}), copy.text(),
                    "decoder", true));
}

TEST(ToolJson, IsWhatTheLibraryMakesOfATrainingRoot) {
  const Root root;
  const RootSurvey survey = survey_root(root.text());
  const std::string first = root.text() + "/iter_0000010";
  EXPECT_EQ(printed({"inspect", root.text(), "--iteration", "10"}),
            to_json(inspect(*open_checkpoint(first)), false, &survey));
  RootVerification all{.resume = survey.resume};
  for (const std::string& path : {first, root.text() + "/iter_0000020"})
    all.checkpoints.push_back({path, verify(*open_checkpoint(path))});
  EXPECT_EQ(printed({"verify", root.text(), "--all"}), to_json(all));
}

TEST(ToolJson, IsWhatTheLibraryMakesOfFormatsAndPolicies) {
  EXPECT_EQ(printed({"formats"}), to_json(list_formats()));
  EXPECT_EQ(printed({"config", "show", "production"}), to_json(Policy::shipped("production")));
  EXPECT_EQ(printed({"config", "check", "production"}),
            to_json(check_policy(shipped_policy("production")).problems, "production"));
}

/// Returns the enumeration in a schema that the names lead to from its $defs.
std::vector<std::string> listed(const std::string& schema, const std::vector<std::string>& names) {
  const std::string file = "docs/schemas/" + schema + ".schema.json";
  const std::string text = testing::slurp(file);
  Value at = parse_json(as_bytes(text), file).at("$defs");
  for (const std::string& name : names) at = Value(at.at(name));
  std::vector<std::string> values;
  for (const Value& value : at.at("enum").items()) values.push_back(value.as_str());
  return values;
}

TEST(ToolJson, SchemasListTheNamesThatTheLibraryHas) {
  const auto up_to = [](auto last) {
    std::vector<std::string> names;
    for (int i = 0; i <= static_cast<int>(last); ++i)
      names.emplace_back(to_string(static_cast<decltype(last)>(i)));
    return names;
  };
  const auto of = [](const auto& table) {
    std::vector<std::string> names;
    for (const auto& [value, name] : table) names.emplace_back(name);
    return names;
  };
  for (const char* const schema : {"inspect", "explain", "digest", "extract"})
    EXPECT_THAT(listed(schema, {"dtype"}),
                ::testing::UnorderedElementsAreArray(up_to(DType::kQInt32)));
  const auto codes = up_to(ErrorCode::kInternal);
  EXPECT_EQ(listed("verify", {"problem", "properties", "code"}), codes);
  EXPECT_EQ(listed("config", {"check", "properties", "problems", "items", "properties", "code"}),
            codes);
  EXPECT_EQ(listed("inspect", {"iteration", "properties", "state"}), of(kIterationStateNames));
  const auto save = [](const std::string& field) {
    return listed("config", {"policy", "properties", "save", "properties", field});
  };
  const auto load = [](const std::string& field) {
    return listed("config", {"policy", "properties", "load", "properties", field});
  };
  EXPECT_EQ(save("compat"), of(kCompatNames));
  EXPECT_EQ(save("flattened"), of(kFlattenedFormNames));
  EXPECT_EQ(load("strict"), of(kStrictNames));
  EXPECT_EQ(load("padding"), of(kPaddingNames));
  EXPECT_EQ(load("cast"), of(kCastNames));
  EXPECT_EQ(load("verify"), of(kVerifyNames));
}

}  // namespace
}  // namespace dckpt::json_test
