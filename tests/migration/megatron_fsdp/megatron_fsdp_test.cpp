#include "migration/megatron_fsdp/megatron_fsdp.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "dist_checkpointing/open/open.h"
#include "dist_checkpointing/save/save.h"
#include "mapping/base/format.h"
#include "mapping/geometry/cast.h"
#include "mapping/megatron/model_keys.h"
#include "mapping/megatron/optimizer_keys.h"
#include "operations/convert/convert.h"
#include "operations/inspect/diff.h"
#include "strategies/comm/threads.h"
#include "strategies/tensor_io/read_tensors.h"
#include "tests/dist_checkpointing/fake_reader.h"
#include "tests/support/expect_error.h"
#include "tests/support/golden.h"
#include "tests/support/temp_dir.h"

namespace dckpt::megatron_fsdp_test {
namespace {

using ::testing::Contains;
using testing::counting;
using testing::error_of;
using testing::FakeReader;
using testing::golden;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::UnorderedElementsAreArray;

constexpr const char* kReshardable = "mcore-0.16-fully-reshardable-tp2pp2dp2";
/// A real checkpoint: Megatron-Core 0.16.1, three ranks, uneven shards.
const std::filesystem::path kReal = DCKPT_FSDP_GOLDEN "/ckpt";

std::size_t position(const Metadata& metadata, const std::string& key) {
  return static_cast<std::size_t>(metadata.find_tensor(key) - metadata.tensors.data());
}

Bytes content(const CheckpointReader& reader, const std::string& key) {
  const std::size_t tensor = position(reader.metadata(), key);
  const Tensor read = read_box(reader, tensor, whole(reader.metadata().tensors.at(tensor).size));
  return {read.bytes().begin(), read.bytes().end()};
}

Bytes joined(const CheckpointReader& reader, std::initializer_list<std::string> keys) {
  Bytes bytes;
  for (const std::string& key : keys) {
    const Bytes part = content(reader, key);
    bytes.insert(bytes.end(), part.begin(), part.end());
  }
  return bytes;
}

TEST(MegatronFsdp, ARealCheckpointBecomesMegatronCores) {
  TempDir directory;
  convert(kReal, directory / "made", {.target = {.strategy = "torch_dist"}});
  const auto real = open_checkpoint(kReal);
  const auto made = open_checkpoint(directory / "made");
  const std::string layer = "model.module.decoder.layers.";
  EXPECT_EQ(
      content(*made, "optimizer.state.param.decoder.layers.mlp.linear_fc1.weight"),
      joined(*real, {layer + "0.mlp.linear_fc1.weight_w", layer + "0.mlp.linear_fc1.weight_v",
                     layer + "1.mlp.linear_fc1.weight_w", layer + "1.mlp.linear_fc1.weight_v"}));
  const std::string state = "optimizer.state.module.module.decoder.layers.";
  EXPECT_EQ(
      content(*made, "optimizer.state.exp_avg.decoder.layers.self_attention.linear_qkv.weight"),
      joined(*real, {state + "0.self_attention.linear_qkv.weight.exp_avg",
                     state + "1.self_attention.linear_qkv.weight.exp_avg"}));
  const Bytes main = content(*real, "model.module.output_layer.weight");
  Bytes rounded(main.size() / 2);
  cast_elements(DType::kFloat32, main.data(), DType::kBFloat16, rounded.data(), main.size() / 4);
  EXPECT_EQ(content(*made, "output_layer.weight"), rounded);

  EXPECT_EQ(
      content(*made, "optimizer.state.param.decoder.layers.mlp.linear_fc1.layer_norm_bias"),
      joined(*real, {layer + "0.pre_mlp_layernorm.bias", layer + "1.pre_mlp_layernorm.bias"}));

  const Value common = made->common_state();
  EXPECT_EQ(optimizer_sharding(common), "fully_reshardable");
  EXPECT_EQ(common.at("iteration"), Value(10));
  const ValueList& groups = common.at("optimizer").at("optimizer").at("param_groups").items();
  ASSERT_EQ(groups.size(), 2U);
  EXPECT_EQ(groups[0].at("wd_mult"), Value(1.0));
  EXPECT_EQ(groups[1].at("wd_mult"), Value(0.0));
  EXPECT_NE(made->metadata().find_object("rng_state/shard_0.0_1.1"), nullptr);
  EXPECT_NE(made->metadata().find_object("decoder.layers.mlp.linear_fc2._extra_state/shard_1_2"),
            nullptr);
}

/// The real checkpoint is an oracle of keys, paths, shapes and of each parameter's options.
TEST(MegatronFsdp, WhatIsMadeHasAllThatTheRealOneHas) {
  TempDir directory;
  convert(kReal, directory / "made", {.target = {.strategy = "torch_dist"}});
  convert(directory / "made", directory / "back", {.target = {.strategy = "fsdp_dtensor"}});
  const auto real = open_checkpoint(kReal);
  const auto back = open_checkpoint(directory / "back");
  EXPECT_TRUE(back->info().conventions.megatron_fsdp);
  for (const Difference& difference : diff(*real, *back).differences) {
    EXPECT_TRUE(difference.key.starts_with("rng_state.(0, 0).0."))  // tensors there, objects here
        << difference.key;
  }
  const std::map<std::string, KeyPath> paths(back->metadata().paths.begin(),
                                             back->metadata().paths.end());
  for (const auto& [key, path] : real->metadata().paths) EXPECT_EQ(paths.at(key), path) << key;
}

std::vector<std::string> keys_of(const CheckpointReader& reader) {
  std::vector<std::string> keys;
  for (const auto& tensor : reader.metadata().tensors) keys.push_back(tensor.key);
  for (const auto& object : reader.metadata().objects) keys.push_back(object.key);
  return keys;
}

/// The keys are not as Megatron would make them for this model: one wrapper, and gates that no
/// shape shows.
TEST(MegatronFsdp, UnusualKeysComeBack) {
  TempDir directory;
  const auto source = golden("dcp-fsdp-dtensor-layout");
  for (const char* const format : {"torch_dist", "zarr"}) {
    convert(source, directory / "made", {.target = {.strategy = format, .overwrite = true}});
    convert(directory / "made", directory / "back",
            {.target = {.strategy = "fsdp_dtensor", .overwrite = true}});
    for (const Difference& difference :
         diff(*open_checkpoint(source), *open_checkpoint(directory / "back")).differences)
      EXPECT_TRUE(difference.key.starts_with("rng_state.") ||
                  difference.key.starts_with("optimizer.param_to_group_meta."))  // of halves
          << difference.key;
  }
}

/// Experts have an optimizer of their own; neither optimizer is distributed.
TEST(MegatronFsdp, AChainOfPlainOptimizersKeepsItsKeys) {
  const std::string weight = "output_layer.weight";
  const std::string expert = "decoder.layers.mlp.experts.experts.linear_fc2.weight";
  for (const std::string prefix : {"chained_0.", ""}) {
    const auto chained = [&](int number, const char* state, const std::string& key) {
      return str_format("{}optimizer.state.{}.{}",
                        prefix.empty() ? prefix : str_format("chained_{}.", number), state, key);
    };
    const auto member = [](bool experts) {
      const Value group = Value::dict({{"wd_mult", 1.0}, {"is_expert_parallel", experts}});
      return Value::dict({{"optimizer", Value::dict({{"param_groups", Value::list({group})}})}});
    };
    Value common = Value::dict({{"optimizer", Value::dict({{0, member(false)}, {1, member(true)}})},
                                {"args", Value::dict({{"bf16", true}})},
                                {"checkpoint_version", 3.0}});
    if (prefix.empty())
      common["content_metadata"] = Value::dict({{"chained_optim_avoid_prefix", true}});
    const auto make = [&] {
      auto source = std::make_unique<FakeReader>();
      source->tensor(weight, DType::kBFloat16, {2, 2}, counting<std::uint16_t>(4))
          .tensor(expert, DType::kFloat32, {1, 2, 2, 2}, counting<float>(8))
          .tensor(chained(0, "fp32_param", weight), DType::kFloat32, {2, 2}, counting<float>(4))
          .tensor(chained(0, "exp_avg", weight), DType::kFloat32, {2, 2}, counting<float>(4))
          .tensor(chained(1, "exp_avg", expert), DType::kFloat32, {1, 2, 2, 2}, counting<float>(8))
          .object(expert.substr(0, expert.rfind('.')) + "._extra_state/shard_0.0_1.2", Value(1))
          .common(common)
          .write();
      return source;
    };
    const auto back = from_megatron_fsdp(to_megatron_fsdp(make(), {}).reader).reader;
    EXPECT_THAT(keys_of(*back), UnorderedElementsAreArray(keys_of(*make())));
    EXPECT_EQ(back->common_state(), common);
  }
}

TEST(MegatronFsdp, ThereAndBackNothingIsLost) {
  for (const char* const name : {kReshardable, "mcore-head-moe-ep2", "legacy-torch-moe-pp2ep2"}) {
    for (const char* const format : {"torch_dist", "zarr"}) {
      TempDir directory;
      convert(golden(name), directory / "fsdp",
              {.target = {.strategy = "fsdp_dtensor", .ranks = 3}});
      convert(directory / "fsdp", directory / "back", {.target = {.strategy = format}});
      EXPECT_THAT(
          diff(*open_checkpoint(golden(name)), *open_checkpoint(directory / "back")).differences,
          IsEmpty())
          << name << " " << format;
    }
  }
}

TEST(MegatronFsdp, StateThatIsNotOfTheModelsShapesIsConvertedFirst) {
  TempDir directory;
  const auto path = golden("mcore-0.16-dp-reshardable-tp2pp1dp2");
  const CheckpointError error =
      error_of([&] { convert(path, directory / "no", {.target = {.strategy = "fsdp_dtensor"}}); });
  EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
  EXPECT_THAT(error.what(),
              HasSubstr("here it is dp_reshardable; add --optimizer fully_reshardable"));
  constexpr auto kForm = OptimizerSharding::kFullyReshardable;
  convert(path, directory / "new", {.optimizer = {.sharding = kForm}});
  convert(path, directory / "fsdp",
          {.target = {.strategy = "fsdp_dtensor"}, .optimizer = {.sharding = kForm}});
  convert(directory / "fsdp", directory / "back", {.target = {.strategy = "torch_dist"}});
  EXPECT_THAT(
      diff(*open_checkpoint(directory / "new"), *open_checkpoint(directory / "back")).differences,
      IsEmpty());
  // The result converts further to a form that Megatron-Core 0.14 resumes from.
  convert(directory / "fsdp", directory / "old",
          {.target = {.strategy = "torch_dist"},
           .optimizer = {.sharding = OptimizerSharding::kFullyShardedModelSpace}});
  EXPECT_NE(open_checkpoint(directory / "old")
                ->metadata()
                .find_tensor("optimizer.state.fp32_param.output_layer.weight"),
            nullptr);
}

TEST(MegatronFsdp, StateThatWasFlattenedComesBackAsNewerReleasesResumeIt) {
  TempDir directory;
  convert(golden("mcore-0.14-zarr-tp2pp1dp2"), directory / "fsdp",
          {.target = {.strategy = "fsdp_dtensor"}});
  const ConvertReport back =
      convert(directory / "fsdp", directory / "back", {.target = {.strategy = "torch_dist"}});
  EXPECT_THAT(messages_of(back.findings),
              Contains("the optimizer continues in: Megatron-Core 0.15 and newer, "
                       "under any layout"));
}

TEST(MegatronFsdp, StateOfOtherOptimizersIsLeftOutFirst) {
  auto plain = std::make_unique<FakeReader>();
  plain->tensor("output_layer.weight", DType::kFloat32, {2}, counting<float>(2));
  plain->tensor("optim.state.w.exp_avg", DType::kFloat32, {2}, counting<float>(2));
  plain->write();
  const CheckpointError error =
      error_of([&] { to_megatron_fsdp(std::move(plain), {.wrappers = 2}); });
  EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
  EXPECT_THAT(error.what(), HasSubstr("leave it out (--exclude 'optim.*', in a conversion of its"));
  EXPECT_THAT(error.what(), Not(HasSubstr("fully_reshardable")));
}

/// This also holds if a map renames the keys, or the target is rank folders.
TEST(MegatronFsdp, WeightsAreInThePrecisionThatTheRunComputesIn) {
  TempDir directory;
  convert(kReal, directory / "made", {.target = {.strategy = "torch_dist"}});
  const auto dtype = [&](const char* checkpoint, const std::string& key) {
    const auto reader = open_checkpoint(directory / checkpoint);
    return reader->metadata().tensors.at(position(reader->metadata(), key)).properties.dtype;
  };
  EXPECT_EQ(dtype("made", "output_layer.weight"), DType::kBFloat16);
  convert(
      kReal, directory / "mapped",
      {.source = {.map = {.name = "megatron", .set = {"keys=megatron", "layout=non-homogeneous"}}},
       .checks = {.round_trip = true}});
  EXPECT_EQ(dtype("mapped", "output_layer.weight"), DType::kBFloat16);
  const ConvertOptions ranks{
      .source = {.keys = {.exclude = {"optimizer*"}}},
      .target = {.strategy = "torch", .options = {{"transformer_impl", "local"}}}};
  convert(kReal, directory / "ranks", ranks);
  convert(directory / "made", directory / "same", ranks);
  EXPECT_THAT(
      diff(*open_checkpoint(directory / "ranks"), *open_checkpoint(directory / "same")).differences,
      IsEmpty());

  // Without the optimizer only the weights have all digits.
  convert(kReal, directory / "weights", {.source = {.keys = {.exclude = {"optimizer*"}}}});
  const ConvertReport report =
      convert(directory / "weights", directory / "float32", {.target = {.strategy = "torch_dist"}});
  EXPECT_EQ(dtype("float32", "output_layer.weight"), DType::kFloat32);
  EXPECT_THAT(messages_of(report.findings),
              Contains(HasSubstr("weights stay float32, although the run computed "
                                 "in bfloat16")));
}

std::unique_ptr<FakeReader> model_with_groups(std::initializer_list<Value> groups) {
  auto source = std::make_unique<FakeReader>();
  source->tensor("output_layer.weight", DType::kFloat32, {2, 2}, counting<float>(4))
      .tensor("optimizer.state.exp_avg.output_layer.weight", DType::kFloat32, {2, 2},
              counting<float>(4))
      .common(Value::dict(
          {{"optimizer",
            Value::dict({{"optimizer", Value::dict({{"param_groups", Value::list(groups)}})}})}}))
      .write();
  return source;
}

TEST(MegatronFsdp, AParameterHasTheOptionsOfItsGroup) {
  const auto group = [](double decay, double rate) {
    return Value::dict({{"wd_mult", decay}, {"lr_mult", rate}});
  };
  const auto made =
      to_megatron_fsdp(model_with_groups({group(0, 1), group(1, 1)}), {.wrappers = 1}).reader;
  std::vector<std::string> keys;
  for (std::size_t i = 0; i < made->metadata().objects.size(); ++i) {
    keys.push_back(made->metadata().objects[i].key);
    if (keys.back() == "optimizer.param_to_group_meta.module.output_layer.weight.wd_mult") {
      EXPECT_EQ(made->object(i), Value(1.0));
    }
  }
  EXPECT_THAT(keys, Contains("optimizer.param_to_group_meta.module.output_layer.weight.wd_mult"));
  const CheckpointError error = error_of([&] {
    to_megatron_fsdp(model_with_groups({group(1, 1), group(1, 2)}), {.wrappers = 1});
  });
  EXPECT_EQ(error.code(), ErrorCode::kMismatch);
  EXPECT_THAT(error.what(), HasSubstr("'output_layer.weight': 2 groups"));
}

TEST(MegatronFsdp, HalvesAndLayersThatAreMissingAreNamed) {
  const auto with = [](std::initializer_list<std::string> keys) {
    auto source = std::make_unique<FakeReader>();
    for (const std::string& key : keys)
      source->tensor("model.module." + key, DType::kFloat32, {2}, counting<float>(2));
    source->write();
    return source;
  };
  const auto fails = [&](std::initializer_list<std::string> keys) {
    const CheckpointError error = error_of([&] { from_megatron_fsdp(with(keys)); });
    EXPECT_EQ(error.code(), ErrorCode::kMismatch);
    EXPECT_THAT(error.what(), HasSubstr("layers, experts or halves are missing"));
  };
  fails({"decoder.layers.0.mlp.linear_fc1.weight_w"});
  fails({"decoder.layers.1.mlp.linear_fc2.weight"});
  fails({"decoder.layers.0.mlp.experts.linear_fc2.weight1"});
  fails({"decoder.layers.0.mlp.linear_fc1.bias_w", "decoder.layers.0.mlp.linear_fc1.bias_v",
         "decoder.layers.0.mlp.linear_fc1.bias"});
  const auto made =
      from_megatron_fsdp(with({"decoder.layers.0.a", "decoder.layers.1.b", "steps"})).reader;
  EXPECT_NE(made->metadata().find_tensor("decoder.layers.1.b"), nullptr);  // layers differ
}

/// Releases without the fix save such keys: both stages call their only layer the first one.
TEST(MegatronFsdp, AnOptionRenumbersLayersOfPipelineStages) {
  TempDir directory;
  const auto path = directory / "stages";
  run_ranks(2, [&](Communicator& comm) {
    auto value = Tensor::zeros(DType::kInt64, {1});
    value.data<std::int64_t>()[0] = comm.rank();
    Opaque args{.form = Opaque::Form::kNew, .callable = Global{"argparse", "Namespace"}};
    args.states.push_back(
        Value::dict({{"num_layers", 2}, {"world_size", 2}, {"pipeline_model_parallel_size", 2}}));
    save(Value::dict(
             {{"model", Value::dict({{"module.decoder.layers.0.x", value}})},
              {"rng_state", Value::dict({{str_format("({}, 0)", comm.rank()), Value::list({1})}})},
              {"args", args},
              {"checkpoint_version", 3.0}}),
         path, {.compat = Compat::kDcp, .planner = {.kind = PlannerKind::kDcp}}, comm);
  });
  const CheckpointError error = error_of([&] { (void)open_checkpoint(path); });
  EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
  EXPECT_THAT(error.what(), HasSubstr("or renumber, which gives layers their numbers"));
  const StrategySpec renumber{.name = "fsdp_dtensor", .options = {{"stage_local", "renumber"}}};
  const auto reader = open_checkpoint(path, {.strategy = renumber});
  ASSERT_EQ(reader->metadata().tensors.size(), 1U);
  const Tensor content = read_box(*reader, 0, whole(Shape{1}));
  EXPECT_EQ(reader->metadata().tensors[0].key,
            str_format("model.module.decoder.layers.{}.x", content.data<const std::int64_t>()[0]));
}

TEST(MegatronFsdp, OfHuggingFacesKeysItIsMadeByAMapOnly) {
  TempDir directory;
  const auto model = std::filesystem::path(DCKPT_TEST_DATA) / "hf_pairs/qwen2/hf";
  const CheckpointError error =
      error_of([&] { convert(model, directory / "no", {.target = {.strategy = "fsdp_dtensor"}}); });
  EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
  EXPECT_THAT(error.what(), HasSubstr("a map gives Hugging Face's keys these names (--map)"));
  convert(model, directory / "yes",
          {.source = {.map = {.name = "qwen2"}}, .target = {.strategy = "fsdp_dtensor"}});
  EXPECT_NE(open_checkpoint(directory / "yes")
                ->metadata()
                .find_tensor("model.module.decoder.final_layernorm.weight"),
            nullptr);
}

TEST(MegatronFsdp, KeysThatAreNotMegatronsAreRefused) {
  for (const std::string key : {"layer1.weight", "model.decoder.layers.0.mlp.linear_fc1.weight",
                                "module.output_layer.weight", "transformer.h.0.attn.weight"}) {
    auto source = std::make_unique<FakeReader>();
    source->tensor("w", DType::kFloat32, {2}, counting<float>(2))
        .tensor(key, DType::kFloat32, {2}, counting<float>(2))
        .write();
    const CheckpointError error = error_of([&] { to_megatron_fsdp(std::move(source), {}); });
    EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
    EXPECT_THAT(error.what(), HasSubstr(str_format("under its own: 'w', '{}'", key)));
  }
}

TEST(MegatronFsdp, SavesDoNotMakeItsKeys) {
  TempDir directory;
  const CheckpointError error = error_of([&] {
    save(Value::dict({{"iteration", 1}}), directory / "no", {.strategy = {.name = "fsdp_dtensor"}});
  });
  EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
  EXPECT_THAT(error.what(), HasSubstr("is for conversions"));
}

}  // namespace
}  // namespace dckpt::megatron_fsdp_test
