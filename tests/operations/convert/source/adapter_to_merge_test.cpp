// Conversions that merge adapters, and conversions of adapters alone.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <stop_token>

#include "operations/inspect/verify.h"
#include "tests/migration/adapters/adapter_folder.h"
#include "tests/operations/convert/conversions.h"

namespace dckpt::adapter_to_merge_test {
namespace {

namespace fs = std::filesystem;
using testing::adapter_data;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::Each;
using ::testing::Field;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::refusal_of;
using ::testing::UnorderedElementsAre;

class ConvertAdapters : public testing::Conversions {
 protected:
  ConvertOptions merging(const std::string& to = "", const std::string& map = "") const {
    ConvertOptions options{.source = {.map = {.name = map}}, .target = {.strategy = to}};
    options.source.merge_adapter = Location(adapter_);
    return options;
  }
  std::vector<std::string> files(const std::string& name) const {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(at(name)))
      names.push_back(entry.path().filename().string());
    return names;
  }
  void copy(const fs::path& from, const std::string& name) const {
    fs::create_directories(at(name));
    for (const auto& entry : fs::directory_iterator(from))
      fs::copy_file(entry.path(), at(name) / entry.path().filename());
  }
  std::size_t differs_from_merged(const std::string& name) const {
    return differences(merged_, at(name));
  }

  const fs::path base_ = adapter_data("llama", "base");
  const fs::path adapter_ = adapter_data("llama", "adapter");
  const fs::path merged_ = adapter_data("llama", "merged");
};

constexpr const char* kMerged = "merged the adapter into";
constexpr const char* kLeftOut = "the adapter beside the model was not merged";

auto says(const char* sentence) {
  return Contains(Field(&Finding::message, HasSubstr(sentence)));
}

TEST_F(ConvertAdapters, AnAdapterIsMergedIntoAModelsFolder) {
  const ConvertReport report = convert(base_, at("model"), merging());
  EXPECT_EQ(differs_from_merged("model"), 0U);
  EXPECT_THAT(files("model"),
              UnorderedElementsAre("config.json", "integrity.json", "model.safetensors"));
  EXPECT_THAT(report.findings, says(kMerged));
  EXPECT_THAT(report.findings, Contains(Field(&Finding::code, FindingCode::kValuesRounded)));
  EXPECT_THAT(report.steps, Contains(Field(&ConversionStep::name, "adapter")));
}

TEST_F(ConvertAdapters, LittleMemoryIsEnough) {
  ConvertOptions options = merging();
  options.limits.memory = std::uint64_t{12} << 20;
  convert(base_, at("model"), options);
  EXPECT_EQ(differs_from_merged("model"), 0U);
}

TEST_F(ConvertAdapters, AMapSeesTheMergedModel) {
  ConvertOptions to_megatron = merging("torch_dist", "llama");
  to_megatron.checks.round_trip = true;
  const ConvertReport report = convert(base_, at("megatron"), to_megatron);
  EXPECT_EQ(report.steps[0].name, "adapter");
  EXPECT_EQ(report.steps[1].name, "map");
  ConvertOptions back{.source = {.map = {.name = "llama"}}};
  back.target.model_files = Location(base_);
  convert(at("megatron"), at("model"), back);
  EXPECT_EQ(differs_from_merged("model"), 0U);
}

TEST_F(ConvertAdapters, AModelOfMegatronIsMergedBehindItsMap) {
  convert(base_, at("megatron"),
          {.source = {.map = {.name = "llama"}}, .target = {.strategy = "torch_dist"}});
  ConvertOptions options = merging("hf", "llama");
  options.target.model_files = Location(base_);
  const ConvertReport report = convert(at("megatron"), at("model"), options);
  EXPECT_EQ(report.steps[0].name, "map");
  EXPECT_EQ(report.steps[1].name, "adapter");
  EXPECT_EQ(differs_from_merged("model"), 0U);
  EXPECT_THAT(refusal_of([&] { convert(at("megatron"), at("other"), merging()); }).second,
              HasSubstr("name a map to these keys (--map)"));
}

TEST_F(ConvertAdapters, TheResultOfAMergeIsConvertedAsAnyOther) {
  ConvertOptions options = merging("dcp");
  options.source.keys.include = {"model.layers.1.*"};
  convert(base_, at("layer"), options);
  EXPECT_EQ(open_checkpoint(at("layer"))->metadata().tensors.size(), 13U);
  convert(merged_, at("expected"),
          {.source = {.keys = options.source.keys}, .target = {.strategy = "dcp"}});
  EXPECT_EQ(differences(at("expected"), at("layer")), 0U);
}

TEST_F(ConvertAdapters, ADryRunFindsWhatDoesNotFitAndWritesNothing) {
  ConvertOptions options = merging();
  options.dry_run = true;
  EXPECT_THAT(convert(base_, at("model"), options).findings, says(kMerged));
  EXPECT_FALSE(fs::exists(at("model")));
  options.source.merge_adapter = Location(adapter_data("gpt2", "adapter"));
  EXPECT_EQ(refusal_of([&] { convert(base_, at("model"), options); }).first, ErrorCode::kMismatch);
}

TEST_F(ConvertAdapters, AnAdapterBesideAModelIsNeitherMergedNorMixedIn) {
  copy(base_, "both");
  copy(adapter_, "both");
  const ConvertReport report = run("both", "model");
  EXPECT_EQ(differences(base_, at("model")), 0U);
  EXPECT_THAT(report.findings, says(kLeftOut));
  EXPECT_THAT(messages_of(report.findings), Contains(HasSubstr("--merge-adapter")));
  EXPECT_THAT(files("model"), Not(Contains(HasSubstr("adapter"))));
  EXPECT_THAT(run("both", "megatron",
                  {.source = {.map = {.name = "llama"}}, .target = {.strategy = "torch_dist"}})
                  .findings,
              says(kLeftOut));
  EXPECT_EQ(refusal_of([&] {
              run("both", "refused", {.checks = {.error_on = {FindingCode::kAdapterLeftOut}}});
            }).first,
            ErrorCode::kMismatch);

  ConvertOptions from_there;
  from_there.target.model_files = Location(at("both"));
  EXPECT_THAT(convert(base_, at("with its files"), from_there).findings, says(kLeftOut));

  ConvertOptions options;
  options.source.merge_adapter = Location(at("both"));
  EXPECT_THAT(run("both", "merged", options).findings, Not(says(kLeftOut)));
  options.source.map.name = "llama";
  EXPECT_THAT(run("both", "mapped", options).findings, Not(says(kLeftOut)));
  EXPECT_EQ(differs_from_merged("merged"), 0U);
  EXPECT_THAT(files("merged"), Not(Contains(HasSubstr("adapter"))));
}

TEST_F(ConvertAdapters, AnAdapterAloneIsConvertedAndBackAsPeftLoadsIt) {
  EXPECT_THAT(convert(adapter_, at("copy"), {}).findings,
              Each(Field(&Finding::code, FindingCode::kModelFilesCopied)));
  EXPECT_THAT(files("copy"), UnorderedElementsAre("adapter_config.json", "integrity.json",
                                                  "adapter_model.safetensors"));
  EXPECT_EQ(differences(adapter_, at("copy")), 0U);
  EXPECT_TRUE(verify(*open_checkpoint(at("copy"))).ok());
  EXPECT_EQ(open_checkpoint(at("copy"))->info().producer, "PEFT");

  run("copy", "dcp", {.target = {.strategy = "dcp"}});
  EXPECT_THAT(messages_of(run("dcp", "bare", {.target = {.strategy = "hf"}}).findings),
              Contains(HasSubstr("there is no adapter_config.json")));
  ConvertOptions options{.target = {.strategy = "hf"}};
  options.target.model_files = Location(adapter_);
  run("dcp", "back", options);
  options = {};
  options.source.merge_adapter = Location(at("back"));
  convert(base_, at("merged"), options);
  EXPECT_EQ(differs_from_merged("merged"), 0U);
}

TEST_F(ConvertAdapters, AnAdapterIsNotMergedIntoAnAdapter) {
  EXPECT_THAT(refusal_of([&] { convert(adapter_, at("x"), merging()); }),
              ::testing::Pair(ErrorCode::kInvalidArgument, HasSubstr("the source is an adapter")));
}

TEST_F(ConvertAdapters, AFolderThatIsNotThereIsNamed) {
  ConvertOptions options;
  options.source.merge_adapter = Location(at("nowhere"));
  EXPECT_THAT(refusal_of([&] { convert(base_, at("x"), options); }),
              ::testing::Pair(ErrorCode::kIo, HasSubstr("nowhere")));
}

TEST_F(ConvertAdapters, ADamagedAdapterIsNotMerged) {
  convert(adapter_, at("adapter"), {});
  {
    std::fstream file(at("adapter") / "adapter_model.safetensors", std::ios::in | std::ios::out);
    file.seekp(-1, std::ios::end);
    file.put('\x7F');
  }
  ConvertOptions options;
  options.source.merge_adapter = Location(at("adapter"));
  EXPECT_EQ(refusal_of([&] { convert(base_, at("x"), options); }).first, ErrorCode::kCorrupt);
  options.checks.source = false;
  convert(base_, at("trusted"), options);
  EXPECT_NE(differs_from_merged("trusted"), 0U);
}

TEST_F(ConvertAdapters, AnInterruptedMergeGoesOnWithTheSameAdapterOnly) {
  copy(adapter_, "adapter");
  std::stop_source stop;
  ConvertOptions options;
  options.source.merge_adapter = Location(at("adapter"));
  options.target.resume = true;
  options.stop = stop.get_token();
  options.progress = [&](std::uint64_t, std::uint64_t) { stop.request_stop(); };
  EXPECT_EQ(refusal_of([&] { convert(base_, at("model"), options); }).first, ErrorCode::kCancelled);
  options.stop = {};
  options.progress = {};
  fs::last_write_time(at("adapter") / "adapter_model.safetensors",
                      fs::file_time_type::clock::now() + std::chrono::hours(1));
  EXPECT_THAT(refusal_of([&] { convert(base_, at("model"), options); }),
              ::testing::Pair(ErrorCode::kMismatch, HasSubstr("adapter_model.safetensors")));
}

}  // namespace
}  // namespace dckpt::adapter_to_merge_test
