#include "migration/optimizer/optimizer_buckets.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>

#include "dist_checkpointing/open/open.h"
#include "mapping/geometry/cast.h"
#include "mapping/megatron/run_args.h"
#include "migration/optimizer/optimizer_conversion.h"
#include "strategies/tensor_io/read_tensors.h"
#include "tests/dist_checkpointing/fake_reader.h"
#include "tests/support/expect_error.h"
#include "tests/support/golden.h"

namespace dckpt::optimizer_buckets_test {
namespace {

using ::testing::ElementsAre;
using testing::error_of;
using testing::FakeReader;
using testing::golden;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using enum OptimizerSharding;

constexpr std::int64_t kAlignment = 64;

Tensor read(const CheckpointReader& reader, std::string_view key) {
  const std::vector<TensorStorageMetadata>& tensors = reader.metadata().tensors;
  const auto found = std::ranges::find(tensors, key, &TensorStorageMetadata::key);
  if (found == tensors.end()) throw std::out_of_range(std::string(key));
  return read_box(reader, static_cast<std::size_t>(found - tensors.begin()),
                  whole(found->global_shape()));
}

std::vector<float> floats(const Tensor& tensor) {
  const auto* const begin = tensor.data<const float>();
  return {begin, begin + tensor.numel()};
}

std::vector<std::uint16_t> bfloat16(const std::vector<float>& values) {
  std::vector<std::uint16_t> rounded(values.size());
  cast_elements(DType::kFloat32, reinterpret_cast<const std::byte*>(values.data()),
                DType::kBFloat16, reinterpret_cast<std::byte*>(rounded.data()), values.size());
  return rounded;
}

TEST(OptimizerBuckets, TheStateOfEveryTensorIsFoundInRealCheckpoints) {
  for (const char* const name :
       {"mcore-0.10-bucket-space-tp2pp1dp2", "mcore-0.14-bucket-space-zarr-tp2pp1dp2",
        "mcore-0.14-dp-zero-tp2pp1dp2", "mcore-0.15-dp-reshardable-tp2pp1dp2",
        "mcore-head-dp-reshardable-tp2pp1dp2"}) {
    SCOPED_TRACE(name);
    const auto [made, findings] =
        with_optimizer_sharding(open_checkpoint(golden(name)), kFullyReshardable);
    EXPECT_THAT(messages_of(findings), ElementsAre(HasSubstr("became fully_reshardable")));
    for (const TensorStorageMetadata& tensor : made->metadata().tensors) {
      EXPECT_THAT(tensor.key, ::testing::Not(HasSubstr("dp_group_idx")));
      if (tensor.key.starts_with("optimizer.")) continue;
      const Tensor model = read(*made, tensor.key);
      const Tensor main = read(*made, "optimizer.state.param." + tensor.key);
      ASSERT_EQ(main.shape(), model.shape());
      Tensor rounded = Tensor::empty(model.dtype(), model.shape());
      cast_elements(main.dtype(), main.data(), model.dtype(), rounded.data(),
                    static_cast<std::size_t>(main.numel()));
      EXPECT_TRUE(std::ranges::equal(rounded.bytes(), model.bytes())) << tensor.key;
      for (const float square : floats(read(*made, "optimizer.state.exp_avg_sq." + tensor.key)))
        ASSERT_GE(square, 0);
    }
    const Value common = made->common_state();
    const Value& optimizer = *common.find("optimizer");
    EXPECT_EQ(*optimizer.find("param_state_sharding_type"), Value("fully_reshardable"));
    const Value& group = optimizer.find("optimizer")->find("param_groups")->items().at(0);
    EXPECT_EQ(*group.find("step"), Value(2));
  }
}

/// A checkpoint whose optimizer has one buffer per group with one bucket each. The first moment
/// (exp_avg) is the position of the element in the buffer.
class Job {
 public:
  Job& model(const std::string& key, Shape shape, const std::vector<float>& values,
             std::vector<Box> chunks = {}) {
    reader_->tensor(key, DType::kBFloat16, std::move(shape), bfloat16(values), std::move(chunks));
    return *this;
  }

  /// Adds parameters one after the other, each aligned.
  Job& bucket(const std::string& group, const std::vector<std::vector<float>>& parameters,
              std::int64_t padding = 0) {
    std::vector<float> values;
    for (const std::vector<float>& parameter : parameters) {
      values.resize((values.size() + kAlignment - 1) / kAlignment * kAlignment, -7);
      values.insert(values.end(), parameter.begin(), parameter.end());
    }
    const auto used = static_cast<std::int64_t>(values.size());
    values.resize(values.size() + static_cast<std::size_t>(padding), 13);
    const auto size = static_cast<std::int64_t>(values.size());
    const std::string key =
        group + ".gbuf_idx_0.dtype_(torch.bfloat16, torch.float32).bucket_idx_0.";
    reader_->tensor(key + "param", DType::kFloat32, {size}, values);
    reader_->tensor(key + "exp_avg", DType::kFloat32, {size},
                    testing::counting<float>(values.size()));
    reader_->object(group + ".optimizer/shard_0_1",
                    Value::dict({{"param_groups", Value::list({Value::dict({{"step", 3}})})}}));
    reader_->object(group + ".per_bucket_numel_unpadded/shard_0_1",
                    Value::list({Value::dict({{"dtypes", Value::list({Value(used)})}})}));
    return *this;
  }

  View convert(OptimizerSharding wanted = kFullyReshardable) {
    reader_->common(Value::dict(
        {{"optimizer", Value::dict({{"param_state_sharding_type", "dp_reshardable"}})}}));
    reader_->write();
    return with_optimizer_sharding(std::move(reader_), wanted);
  }

 private:
  std::unique_ptr<FakeReader> reader_ = std::make_unique<FakeReader>();
};

constexpr const char* kGroup0 = "optimizer.distributed.dp_group_idx_0";
constexpr const char* kGroup1 = "optimizer.distributed.dp_group_idx_1";

TEST(OptimizerBuckets, ShardsOfRanksAndPartsOfAParameterComeTogether) {
  // Two tensor parallel ranks hold the halves of `gated`'s two parts, and all of `norm`.
  const auto [made, findings] =
      Job()
          .model("norm", {2}, {100, 200})
          .model("gated", {4, 2}, {1, 2, 3, 4, 5, 6, 7, 8},
                 {{{0, 0}, {1, 2}}, {{1, 0}, {1, 2}}, {{2, 0}, {1, 2}}, {{3, 0}, {1, 2}}})
          .bucket(kGroup0, {{1, 2, 5, 6}, {100, 200}}, 30)
          .bucket(kGroup1, {{3, 4, 7, 8}, {100, 200}})
          .convert();
  EXPECT_THAT(floats(read(*made, "optimizer.state.param.gated")),
              ElementsAre(1, 2, 3, 4, 5, 6, 7, 8));
  EXPECT_THAT(floats(read(*made, "optimizer.state.exp_avg.gated")),
              ElementsAre(0, 1, 0, 1, 2, 3, 2, 3));
  EXPECT_THAT(floats(read(*made, "optimizer.state.exp_avg.norm")), ElementsAre(64, 65));
  EXPECT_THAT(messages_of(findings), ElementsAre(HasSubstr("2 buckets")));
}

TEST(OptimizerBuckets, JoinedBucketsBeginAnywhere) {
  // Two buckets of two parameters each, without the padding at their ends.
  std::vector<float> buffer(66 + 65, -7);
  std::ranges::copy(std::vector<float>{1, 2}, buffer.begin());
  std::ranges::copy(std::vector<float>{3, 4}, buffer.begin() + 64);
  std::ranges::copy(std::vector<float>{5, 6}, buffer.begin() + 66);
  buffer[66 + 64] = 7;
  auto source = std::make_unique<FakeReader>();
  for (const auto& [key, values] : std::map<std::string, std::vector<float>>{
           {"a", {1, 2}}, {"b", {3, 4}}, {"c", {5, 6}}, {"d", {7}}})
    source->tensor(key, DType::kBFloat16, {static_cast<std::int64_t>(values.size())},
                   bfloat16(values));
  const std::string key = std::string(kGroup0) + ".gbuf_idx_0.dtype_(torch.bfloat16).";
  source->tensor(key + "param", DType::kFloat32, {131}, buffer)
      .tensor(key + "exp_avg", DType::kFloat32, {131}, testing::counting<float>(131))
      .write();
  const auto [made, findings] = with_optimizer_sharding(std::move(source), kFullyReshardable);
  EXPECT_THAT(floats(read(*made, "optimizer.state.exp_avg.b")), ElementsAre(64, 65));
  EXPECT_THAT(floats(read(*made, "optimizer.state.exp_avg.c")), ElementsAre(66, 67));
  EXPECT_THAT(floats(read(*made, "optimizer.state.exp_avg.d")), ElementsAre(130));
}

TEST(OptimizerBuckets, EqualValuesAreToldApartByTheOrderOfModules) {
  // The order is that of fused layers: from the last to the first, with norms that are still 1.
  const std::string layers = "decoder.layers.";
  const std::vector<Box> rows{{{0, 0}, {1, 2}}, {{1, 0}, {1, 2}}};
  const std::vector<float> ones{1, 1};
  const auto [made, findings] =
      Job()
          .model(layers + "mlp.linear_fc1.layer_norm_weight", {2, 2}, {1, 1, 1, 1}, rows)
          .model(layers + "self_attention.linear_qkv.layer_norm_weight", {2, 2}, {1, 1, 1, 1}, rows)
          .model(layers + "mlp.linear_fc1.weight", {2, 2}, {10, 11, 12, 13}, rows)
          .model(layers + "self_attention.linear_qkv.weight", {2, 2}, {20, 21, 22, 23}, rows)
          .bucket(kGroup0, {{12, 13},
                            ones,
                            {22, 23},
                            ones,  // the second layer
                            {10, 11},
                            ones,
                            {20, 21},
                            ones})
          .convert();
  EXPECT_THAT(
      floats(
          read(*made, "optimizer.state.exp_avg.decoder.layers.mlp.linear_fc1.layer_norm_weight")),
      ElementsAre(5 * 64, 5 * 64 + 1, 64, 65));
  EXPECT_THAT(floats(read(*made,
                          "optimizer.state.exp_avg.decoder.layers.self_attention.linear_qkv."
                          "layer_norm_weight")),
              ElementsAre(7 * 64, 7 * 64 + 1, 3 * 64, 3 * 64 + 1));
  EXPECT_THAT(messages_of(findings),
              ElementsAre(HasSubstr("order of modules"), HasSubstr("in its 1 bucket")));
}

TEST(OptimizerBuckets, NormsOfQueriesAndKeysComeAsMegatronDeclaresThem) {
  // The order is linear_proj, linear_qkv, q_layernorm, k_layernorm, which is not alphabetical.
  const std::string attention = "decoder.layers.0.self_attention.";
  const std::vector<float> ones{1, 1};
  const auto [made, findings] = Job()
                                    .model(attention + "k_layernorm.weight", {2}, ones)
                                    .model(attention + "linear_proj.weight", {2}, {2, 3})
                                    .model(attention + "linear_qkv.weight", {2}, {4, 5})
                                    .model(attention + "q_layernorm.weight", {2}, ones)
                                    .bucket(kGroup0, {ones, ones, {4, 5}, {2, 3}})
                                    .convert();
  EXPECT_THAT(floats(read(*made, "optimizer.state.exp_avg." + attention + "k_layernorm.weight")),
              ElementsAre(0, 1));
  EXPECT_THAT(floats(read(*made, "optimizer.state.exp_avg." + attention + "q_layernorm.weight")),
              ElementsAre(64, 65));
  EXPECT_THAT(messages_of(findings), ::testing::Contains(HasSubstr("k_layernorm")));
}

TEST(OptimizerBuckets, EqualExpertsAreToldApartToo) {
  // Copies of one expert, whose state is stored from the last to the first, matrix by matrix.
  const std::string experts = "decoder.layers.mlp.experts.experts.";
  const std::vector<Box> each{{{0, 0, 0}, {1, 1, 2}}, {{0, 1, 0}, {1, 1, 2}}};
  const auto [made, findings] =
      Job()
          .model(experts + "linear_fc1.weight", {1, 2, 2}, {1, 2, 1, 2}, each)
          .model(experts + "linear_fc2.weight", {1, 2, 2}, {3, 4, 3, 4}, each)
          .bucket(kGroup0, {{3, 4}, {1, 2}, {3, 4}, {1, 2}})
          .convert();
  EXPECT_THAT(floats(read(*made, "optimizer.state.exp_avg." + experts + "linear_fc2.weight")),
              ElementsAre(128, 129, 0, 1));
  EXPECT_THAT(floats(read(*made, "optimizer.state.exp_avg." + experts + "linear_fc1.weight")),
              ElementsAre(192, 193, 64, 65));
}

TEST(OptimizerBuckets, ChunksThatDifferOutsideOfTheirSamplesAreToldApart) {
  std::vector<float> a(1000, 1);
  std::vector<float> b = a;
  b[200] = 2;
  const auto [made, findings] =
      Job().model("a", {1000}, a).model("b", {1000}, b).bucket(kGroup0, {a, b}).convert();
  EXPECT_EQ(floats(read(*made, "optimizer.state.param.a")), a);
  EXPECT_EQ(floats(read(*made, "optimizer.state.param.b")), b);
  EXPECT_THAT(messages_of(findings), ElementsAre(HasSubstr("became fully_reshardable")));
}

TEST(OptimizerBuckets, EveryOptimizerOfAChainIsNamed) {
  const auto [made, findings] = Job()
                                    .model("dense", {2}, {1, 2})
                                    .model("experts", {2}, {3, 4})
                                    .model("frozen", {2}, {5, 6})
                                    .bucket(std::string("chained_0.") + kGroup0, {{1, 2}})
                                    .bucket(std::string("chained_1.") + kGroup0, {{3, 4}})
                                    .convert(kFullyShardedModelSpace);
  EXPECT_THAT(floats(read(*made, "optimizer.state.fp32_param.experts")), ElementsAre(3, 4));
  EXPECT_THAT(made->metadata().objects, IsEmpty());
  const Value common = made->common_state();
  for (const int i : {0, 1}) {
    const Value* const optimizer = common.find("optimizer")->as_dict().find(Value(i));
    ASSERT_NE(optimizer, nullptr);
    EXPECT_EQ(*optimizer->find("param_state_sharding_type"), Value("fully_sharded_model_space"));
    EXPECT_EQ(*optimizer->find("optimizer")->find("param_groups")->items()[0].find("step"),
              Value(3));
  }
  EXPECT_THAT(messages_of(findings),
              ::testing::Contains(HasSubstr("no optimizer state for 'frozen'")));
}

TEST(OptimizerBuckets, MainParametersOfFloat8WeightsAreRefused) {
  // Megatron saves such weights in bfloat16, but rounded to float8 before.
  auto source = std::make_unique<FakeReader>();
  source->tensor("w", DType::kBFloat16, {2}, bfloat16({1, 2}))
      .tensor<float>(std::string(kGroup0) +
                         ".gbuf_idx_0.dtype_(torch.uint8, torch.float32).bucket_idx_0.param",
                     DType::kFloat32, {2}, {1.03F, 1.98F})
      .write();
  const CheckpointError error =
      error_of([&] { with_optimizer_sharding(std::move(source), kFullyReshardable); });
  EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
  EXPECT_THAT(error.what(), ::testing::AllOf(HasSubstr("float8 weights (--fp8-param-gather)"),
                                             HasSubstr("--dist-ckpt-optim-fully-reshardable")));
}

TEST(OptimizerBuckets, WhatIsNotTheModelsIsRefused) {
  const auto message = [](Job job) { return std::string(error_of([&] { job.convert(); }).what()); };
  EXPECT_THAT(message(std::move(Job().model("w", {2}, {1, 2}).bucket(kGroup0, {{1, 2}, {3, 4}}))),
              HasSubstr("from element 64 to 66 are, rounded, not the values of any"));
  const std::vector<float> ones{1, 1};
  EXPECT_THAT(message(std::move(Job()
                                    .model("mtp.layers.0.enorm.weight", {2}, ones)
                                    .model("mtp.layers.0.hnorm.weight", {2}, ones)
                                    .bucket(kGroup0, {ones, ones}))),
              HasSubstr("'mtp.layers.0.enorm.weight', 'mtp.layers.0.hnorm.weight' have the same"));
  EXPECT_THAT(
      message(std::move(
          Job().model("w", {2}, {1, 2}).bucket("optimizer.distributed.dp_group_idx_x", {{1, 2}}))),
      HasSubstr("is no key of a bucket"));
  EXPECT_THAT(
      message(std::move(
          Job().model("w", {4}, {1, 2, 3, 4}, {{{0}, {2}}, {{2}, {2}}}).bucket(kGroup0, {{1, 2}}))),
      HasSubstr("2 of the 4 elements of 'w' have state"));
}

}  // namespace
}  // namespace dckpt::optimizer_buckets_test
