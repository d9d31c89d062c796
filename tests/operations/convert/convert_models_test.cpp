// Conversions to and from tensor-only folders, the form in which models are published.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>

#include "dist_checkpointing/load/load.h"
#include "dist_checkpointing/open/open.h"
#include "dist_checkpointing/save/save.h"
#include "mapping/base/error.h"
#include "mapping/base/format.h"
#include "mapping/megatron/optimizer_keys.h"
#include "operations/inspect/diff.h"
#include "operations/inspect/inspect.h"
#include "operations/inspect/verify.h"
#include "strategies/formats/torch_archive/torch_file.h"
#include "tests/operations/convert/conversions.h"
#include "tests/support/arange.h"
#include "tests/support/golden.h"
#include "tests/support/process_usage.h"

namespace dckpt::convert_models_test {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using testing::golden;
using ::testing::HasSubstr;
using ::testing::Pair;
using testing::refusal_of;
using ::testing::UnorderedElementsAreArray;

class ConvertModels : public testing::Conversions {};

TEST_F(ConvertModels, ToSafetensorsAndBackKeepsTheTensorsAndNamesTheRest) {
  const fs::path source = golden("mcore-0.14-flattened-tp2pp2dp2");
  const ConvertOptions to_hf{.source = {.map = {.name = "none"}, .keys = {.include = {"*"}}},
                             .target = {.strategy = "hf"}};
  ConvertOptions plan = to_hf;
  plan.dry_run = true;
  const ConvertReport planned = convert(source, at("model"), plan);
  const ConvertReport report = convert(source, at("model"), to_hf);
  EXPECT_EQ(planned.files, report.files);
  EXPECT_EQ(report.chunks_after, report.tensors);
  EXPECT_GT(report.left_out, 0U);
  EXPECT_THAT(messages_of(report.findings),
              Contains(AllOf(HasSubstr("left out"), HasSubstr("20 objects"))));
  EXPECT_THAT(
      messages_of(report.findings),
      Contains(AllOf(HasSubstr("left out"), HasSubstr("common state"), HasSubstr("'args'"))));
  EXPECT_THAT(messages_of(report.findings), Contains(HasSubstr("no config.json")));
  convert(at("model"), at("back"), {.target = {.strategy = "torch_dist", .ranks = 3}});
  ConvertOptions again = to_hf;
  again.target.strategy = "safetensors";
  convert(at("back"), at("again"), again);
  EXPECT_EQ(differences(at("model"), at("again")), 0U);
  EXPECT_EQ(open_checkpoint(at("back"))->metadata().tensors.size(), report.tensors);
}

TEST_F(ConvertModels, TheModelsFilesGoAlongFromFolderToFolder) {
  const auto write = [&](const std::string& name, const std::string& text) {
    fs::create_directories((at(name)).parent_path());
    std::ofstream(at(name)) << text;
  };
  convert(golden("dcp-hf-safetensors"), at("model"));
  write("model/config.json", "{}");
  write("model/tokenizer.model", "tokens");
  write("model/pytorch_model.bin", "weights");
  write("model/.gitattributes", "");
  write("model/original/params.json", "{}");
  const auto files = [&](const std::string& name) {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(at(name)))
      names.push_back(entry.path().filename().string());
    return names;
  };
  const ConvertReport report = convert(at("model"), at("copy"), {.target = {.integrity = true}});
  EXPECT_THAT(files("copy"), UnorderedElementsAreArray({"config.json", "integrity.json",
                                                        "model.safetensors", "tokenizer.model"}));
  EXPECT_THAT(messages_of(report.findings),
              Contains(HasSubstr("'config.json', 'tokenizer.model'")));
  EXPECT_THAT(messages_of(report.findings), Contains(HasSubstr("not copied")));
  write("copy/config.json", "{ }");
  EXPECT_EQ(
      refusal_of([&] { convert(at("copy"), at("x"), {.checks = {.integrity = true}}); }).first,
      ErrorCode::kCorrupt);
  convert(at("model"), at("megatron"), {.target = {.strategy = "torch_dist"}});
  convert(at("megatron"), at("given"),
          {.target = {.strategy = "hf", .model_files = Location(at("model"))}});
  EXPECT_THAT(files("given"), UnorderedElementsAreArray({"config.json", "integrity.json",
                                                         "model.safetensors", "tokenizer.model"}));
}

TEST_F(ConvertModels, ElementsOfSixBitsAreCopiedAndCompared) {
  const Tensor weights = Tensor::empty(DType::kFloat6E2M3FNx4, {4, 8});
  for (std::size_t i = 0; i < weights.nbytes(); ++i)
    weights.mutable_bytes()[i] = static_cast<std::byte>(i);
  save(Value::dict({{"w", ShardedTensor::whole("w", weights)}}), at("model"),
       {.strategy = {.name = "hf"}});
  convert(at("model"), at("copy"), {.target = {.strategy = "safetensors"}});
  EXPECT_EQ(differences(at("model"), at("copy")), 0U);
  EXPECT_TRUE(verify(*open_checkpoint(at("copy")), {.deep = true}).problems.empty());
  const Tensor loaded = Tensor::zeros(DType::kFloat6E2M3FNx4, {4, 2});
  StateDict part = Value::dict({{"w", ShardedTensor::from_rank_offsets("w", loaded, {{1, 1, 4}})}});
  load(part, at("copy"), {.validate_access_integrity = false});
  EXPECT_EQ(loaded.bytes()[6], weights.bytes()[24 + 6]);
  for (const char* const format : {"torch_dist", "dcp"}) {
    const auto [code, message] =
        refusal_of([&] { convert(at("model"), at(format), {.target = {.strategy = format}}); });
    EXPECT_EQ(code, ErrorCode::kUnsupported) << format;
    EXPECT_THAT(message, HasSubstr("torch has no elements of float6_e2m3fn_x4"));
    EXPECT_FALSE(fs::exists(at(format)));
  }
}

TEST_F(ConvertModels, AManifestStandsInForTheChecksumsThatAFormatLacks) {
  save(Value::dict({{"w", ShardedTensor::whole("w", arange({64}))}}), at("source"));
  const auto problems = [&] {
    std::string text;
    for (const CheckpointError& problem :
         verify(*open_checkpoint(at("copy")), {.deep = true}).problems)
      text += problem.what();
    return text;
  };
  const std::map<std::string, std::string> data{
      {"hf", "model.safetensors"}, {"safetensors", "model.safetensors"}, {"zarr", "w/0"}};
  for (const auto& [format, file] : data) {
    SCOPED_TRACE(format);
    ConvertOptions options{.target = {.strategy = format, .overwrite = true}};
    run("source", "copy", options);
    EXPECT_EQ(problems(), "");
    std::fstream(at("copy") / file, std::ios::in | std::ios::out | std::ios::ate)
            .seekp(-1, std::ios::end)
        << '?';
    EXPECT_THAT(problems(), AllOf(HasSubstr("hash mismatch"), HasSubstr(file)));
    EXPECT_EQ(refusal_of([&] { run("copy", "back"); }).first, ErrorCode::kCorrupt);
    EXPECT_EQ(refusal_of([&] {
                (void)load_state_dict(at("copy"), {}, {.verify = Verify::kSha256});
              }).first,
              ErrorCode::kCorrupt);
    options.target.integrity = false;
    run("source", "copy", options);
    EXPECT_FALSE(fs::exists(at("copy") / "integrity.json"));
  }
  run("source", "copy", {.target = {.overwrite = true}});
  EXPECT_FALSE(fs::exists(at("copy") / "integrity.json")) << "records have checksums";
}

TEST_F(ConvertModels, WhatFilesSayAboutTheModelGoesAlong) {
  const auto header = [](const std::string& json) {
    const std::uint64_t length = json.size();
    return std::string(reinterpret_cast<const char*>(&length), sizeof length) + json;
  };
  std::ofstream(at("model.safetensors"), std::ios::binary)
      << header(R"({"__metadata__": {"format": "mlx", "license": "", "who \"?\n": "née: {x}"},)"
                R"("w": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]}}     )")
      << 'w';
  const auto annotations = [&](const std::string& name) {
    return open_checkpoint(at(name))->info().annotations;
  };
  convert(at("model.safetensors"), at("copy"), {.target = {.strategy = "hf"}});
  EXPECT_THAT(annotations("copy"), ElementsAre(Pair("license", ""), Pair("who \"?\n", "née: {x}")));
  EXPECT_THAT(
      messages_of(
          convert(at("copy"), at("megatron"), {.target = {.strategy = "torch_dist"}}).findings),
      Contains(HasSubstr("__metadata__ stays behind: 'license'")));
}

TEST_F(ConvertModels, ConfigJsonDoesNotSpeakOfFloat8ThatIsGone) {
  fs::create_directories(at("model"));
  convert(golden("dcp-hf-safetensors"), at("model"), {.target = {.overwrite = true}});
  const auto config_after = [&](const std::string& config) {
    std::ofstream(at("model/config.json")) << config;
    convert(at("model"), at("copy"), {.target = {.overwrite = true}});
    std::ifstream copy(at("copy/config.json"));
    return std::string(std::istreambuf_iterator<char>(copy), {});
  };
  EXPECT_EQ(config_after(R"({"a": 1e-06, "quantization_config": {"quant_method": "fp8"},
                              "expert_dtype": "fp4"})"),
            "{\n  \"a\": 1e-06\n}\n");
  for (const char* const other :
       {R"({"a":1})", R"({"quantization_config": {"quant_method": "awq"}})"})
    EXPECT_EQ(config_after(other), other);
}

TEST_F(ConvertModels, AModelsFilesAreNamedUnderAMapToo) {
  const fs::path model = fs::path(DCKPT_TEST_DATA) / "hf_pairs/qwen2/hf";
  EXPECT_THAT(
      messages_of(convert(model, at("megatron"), {.source = {.map = {"auto", {}}}}).findings),
      Contains("the model's files stay behind: 'config.json'"));
  EXPECT_THAT(
      messages_of(convert(model, at("again"), {.source = {.map = {"auto", {"keys=hf"}}}}).findings),
      Contains("the model's files go along: 'config.json'"));
}

TEST_F(ConvertModels, ARoundTripShowsProgressAndStops) {
  const fs::path model = fs::path(DCKPT_TEST_DATA) / "hf_pairs/qwen2/hf";
  std::uint64_t last = 0, end = 0;
  ConvertOptions options{.source = {.map = {"auto", {}}}, .checks = {.round_trip = true}};
  options.progress = [&](std::uint64_t done, std::uint64_t total) {
    EXPECT_GE(done, last) << "of both, one after the other";
    last = done;
    end = total;
  };
  const ConvertReport report = convert(model, at("megatron"), options);
  EXPECT_EQ(last, end);
  EXPECT_GT(end, report.bytes);

  std::stop_source stop;
  options.stop = stop.get_token();
  options.dry_run = true;
  options.progress = [&](std::uint64_t, std::uint64_t) { stop.request_stop(); };
  EXPECT_EQ(refusal_of([&] { convert(model, at("x"), options); }).first, ErrorCode::kCancelled);
}

TEST_F(ConvertModels, WithoutTensorsThereIsNoModel) {
  const auto [code, message] = refusal_of([&] {
    convert(fs::path(DCKPT_TEST_DATA) / "hf_pairs/qwen2/mcore", at("x"),
            {.source = {.map = {.name = "none"}, .keys = {.include = {"*._extra_state/*"}}},
             .target = {.strategy = "hf"}});
  });
  EXPECT_EQ(code, ErrorCode::kInvalidArgument);
  EXPECT_THAT(message, HasSubstr("none is a tensor"));
  save(Value::dict({{"step", 1}}), at("numbers"), {.compat = Compat::kDcp});
  EXPECT_THAT(refusal_of([&] { run("numbers", "x", {.target = {.strategy = "hf"}}); }).second,
              HasSubstr("none is a tensor"));
}

TEST_F(ConvertModels, NoFormatOfTensorsLosesOne) {
  fs::create_directory(at("ranks"));
  for (const char* const rank : {"0", "1"}) {  // as FSDP saves plain tensors
    const Bytes file = save_torch_file(Value::dict({{"w", arange({2})}, {"step", 3}}));
    std::ofstream(at("ranks") / str_format("model_rank_{}.pt", rank), std::ios::binary)
        .write(reinterpret_cast<const char*>(file.data()), std::ssize(file));
  }
  save(Value::dict({{"sharded", ShardedTensor::from_rank_offsets("sharded", arange({4}), {})},
                    {"bias", arange({3})},
                    {"rng_state", arange({5})}}),
       at("common"));
  for (const char* const format : {"hf", "safetensors"}) {
    const auto [code, message] =
        refusal_of([&] { run("ranks", "x", {.target = {.strategy = format}}); });
    EXPECT_EQ(code, ErrorCode::kInvalidArgument);
    EXPECT_THAT(message, HasSubstr("stored as objects: 'model_rank.w'; leave them out"));
    EXPECT_THAT(refusal_of([&] { run("common", "x", {.target = {.strategy = format}}); }).second,
                HasSubstr("tensors of the common state: 'bias'; say which keys are wanted"));
    EXPECT_EQ(run("common", format,
                  {.source = {.keys = {.include = {"*"}}}, .target = {.strategy = format}})
                  .tensors,
              1U);
  }
}

TEST_F(ConvertModels, AModelsFolderHasTheKeysOfItsModelUnlessOneInsists) {
  const fs::path pairs = fs::path(DCKPT_TEST_DATA) / "hf_pairs";
  const auto fitting = [&](const std::string& family) {
    const auto [code, message] = refusal_of(
        [&] { convert(pairs / family / "mcore", at("x"), {.target = {.strategy = "hf"}}); });
    EXPECT_EQ(code, ErrorCode::kInvalidArgument);
    return message;
  };
  for (const char* const family :
       {"qwen2",      "qwen3",      "gpt2",   "mixtral",    "gemma2",     "gemma3",     "glm4",
        "nemotron",   "starcoder2", "olmo2",  "olmoe",      "exaone4",    "gpt_oss",    "glm4_moe",
        "minimax_m2", "gpt_neox",   "llama4", "nemotron_h", "qwen3_next", "qwen2_5_vl", "qwen3_vl"})
    EXPECT_THAT(fitting(family), HasSubstr(str_format("for --map {}; --map none insists", family)));
  for (const char* const family : {"deepseek_v3", "glm4_moe_lite"})
    EXPECT_THAT(fitting(family), HasSubstr("for --map deepseek_v3 or --map glm4_moe_lite; --map"));
  const fs::path source = golden("mcore-0.14-flattened-tp2pp2dp2");
  EXPECT_THAT(
      refusal_of([&] { convert(source, at("x"), {.target = {.strategy = "safetensors"}}); }).second,
      HasSubstr("no shipped map fits this model"));
  const ConvertReport report = convert(
      source, at("model"), {.source = {.map = {.name = "none"}}, .target = {.strategy = "hf"}});
  EXPECT_THAT(messages_of(report.findings), Contains(HasSubstr("the optimizer stays behind")));
  const auto model = open_checkpoint(at("model"));
  for (const TensorStorageMetadata& tensor : model->metadata().tensors)
    EXPECT_FALSE(is_optimizer_key(tensor.key)) << tensor.key;
  EXPECT_EQ(run("model", "copy", {}).tensors, report.tensors) << "a copy of it stays as it is";
}

TEST_F(ConvertModels, MapsTakeNumbersFromTheModelsFilesWhateverIsWritten) {
  const fs::path pair = fs::path(DCKPT_TEST_DATA) / "hf_pairs/qwen2";
  fs::create_directory(at("bare"));
  fs::copy_file(pair / "hf/model.safetensors", at("bare/model.safetensors"));
  ConvertOptions options{.source = {.map = {.name = "auto"}}, .target = {.strategy = "torch_dist"}};
  options.target.model_files = Location(at("bare"));
  EXPECT_THAT(refusal_of([&] { convert(at("bare"), at("x"), options); }).second,
              HasSubstr("there is no config.json"));
  options.target.model_files = Location(at("none"));
  EXPECT_EQ(refusal_of([&] { convert(at("bare"), at("x"), options); }).first, ErrorCode::kIo);
  options.target.model_files = Location(pair / "hf");
  convert(at("bare"), at("megatron"), options);
  const KeyFilter weights{.include = {}, .exclude = {"*._extra_state/*"}};
  EXPECT_TRUE(diff(*open_checkpoint(at("megatron")), *open_checkpoint(pair / "mcore"),
                   {.keys = weights, .common = false})
                  .equal());
}

/// The rows of gpt-oss alternate; rows at equal distances are one part while they are read.
TEST_F(ConvertModels, NormsThatTheMapTakesForFactorsAreNot0) {
  std::ofstream(at("one.yaml")) << R"(version: 1
family: one
numbers: {}
tensors:
  - {megatron: decoder.weight, hf: w}
  - {megatron: decoder.final_layernorm.weight, hf: norm.weight}
)";
  Tensor norm = Tensor::empty(DType::kFloat32, {4});
  std::fill_n(norm.data<float>(), 4, 0.0F);
  save(Value::dict({{"w", ShardedTensor::whole("w", arange({2, 4}))},
                    {"norm", ShardedTensor::whole("norm.weight", norm)}}),
       at("model"), {.strategy = {.name = "hf"}});
  const auto [code, message] = refusal_of([&] {
    run("model", "megatron",
        {.source = {.map = {.name = at("one.yaml").string()}},
         .target = {.strategy = "torch_dist"}});
  });
  EXPECT_EQ(code, ErrorCode::kUnsupported);
  EXPECT_THAT(message, HasSubstr("all weights of all norms are 0"));
  EXPECT_FALSE(fs::exists(at("megatron")));
}

TEST_F(ConvertModels, RowsInAnotherOrderAreStoredAsMatrices) {
  const fs::path pair = fs::path(DCKPT_TEST_DATA) / "hf_pairs/gpt_oss";
  ConvertOptions in_files{.target = {.strategy = "hf"}};
  in_files.target.options = {{"max_file_size", "20KiB"}};
  convert(pair / "hf", at("files"), in_files);
  const ConvertOptions options{.source = {.map = {.name = "auto"}},
                               .target = {.strategy = "torch_dist"}};
  const ConvertReport report = run("files", "megatron", options);
  EXPECT_LT(report.chunks_before, 100U);
  EXPECT_LT(report.chunks_after, 100U);
  EXPECT_TRUE(diff(*open_checkpoint(at("megatron")), *open_checkpoint(pair / "mcore"),
                   {.keys = {.exclude = {"*._extra_state/*"}}, .common = false})
                  .equal());
  // The manifest of the source still covers every file that contributes to a matrix.
  const auto source = open_checkpoint(at("files"));
  for (const TensorStorageMetadata& tensor : source->metadata().tensors) {
    if (tensor.key != "model.layers.1.mlp.experts.gate_up_proj") continue;
    std::fstream file(at("files") / source->metadata().files[tensor.places.front().file],
                      std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(static_cast<std::streamoff>(tensor.places.front().offset));
    file.put('\x7F');
  }
  EXPECT_EQ(refusal_of([&] { run("files", "x", options); }).first, ErrorCode::kCorrupt);
}

TEST_F(ConvertModels, OptionsThatSafetensorsHaveNoUseForAreRefused) {
  const fs::path source = golden("dcp-hf-safetensors");
  const auto code = [&](const ConvertOptions& options) {
    return refusal_of([&] { convert(source, at("x"), options); }).first;
  };
  EXPECT_EQ(code({.target = {.strategy = "hf", .ranks = 2}}), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code({.target = {.strategy = "dcp", .model_files = Location(source)}}),
            ErrorCode::kInvalidArgument);
  EXPECT_EQ(code({.target = {.strategy = "hf", .model_files = Location(at("none"))}}),
            ErrorCode::kIo);
  EXPECT_EQ(
      code({.target = {.strategy = "hf"}, .optimizer = {.flattened = FlattenedForm::kMegatron}}),
      ErrorCode::kUnsupported);
}

}  // namespace
}  // namespace dckpt::convert_models_test
