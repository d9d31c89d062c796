#include "dist_checkpointing/rewrite/bucket_layout.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/expect_error.h"

namespace dckpt {
namespace {

using ::testing::ElementsAre;
using testing::error_of;
using ::testing::HasSubstr;

/// Weights of these keys and shapes, all trained.
class Model {
 public:
  Model& weight(const std::string& key, Shape shape, DType dtype = DType::kBFloat16) {
    metadata_.tensors.push_back({.key = key,
                                 .properties = {.dtype = dtype},
                                 .size = shape,
                                 .chunks = BoxList(shape.size())});
    trained_.push_back(static_cast<std::uint32_t>(trained_.size()));
    return *this;
  }

  std::vector<LaidOutGroup> lay_out(const BucketSettings& settings = {}) const {
    return lay_out_buckets(metadata_, trained_, settings);
  }

  /// "key[offsets]@begin" of each part of a bucket.
  std::vector<std::string> parts(const LaidOutBucket& bucket) const {
    std::vector<std::string> texts;
    for (const LaidOutBucket::Part& part : bucket.parts) {
      std::string text = metadata_.tensors[part.tensor].key + "[";
      for (const std::int64_t offset : part.box.offsets) text += std::to_string(offset) + ",";
      text.back() = ']';
      texts.push_back(text + "@" + std::to_string(part.begin));
    }
    return texts;
  }

 private:
  Metadata metadata_;
  std::vector<std::uint32_t> trained_;
};

Model small_model() {
  return Model()
      .weight("decoder.final_layernorm.weight", {8})
      .weight("decoder.layers.mlp.linear_fc1.weight", {2, 8, 8})
      .weight("decoder.layers.mlp.linear_fc1.layer_norm_weight", {2, 8})
      .weight("decoder.layers.mlp.linear_fc2.weight", {2, 8, 4})
      .weight("embedding.word_embeddings.weight", {16, 8});
}

TEST(BucketLayout, ParametersLieFromTheLastToTheFirst) {
  const auto groups = small_model().lay_out({.data = 4});
  ASSERT_EQ(groups.size(), 1);
  ASSERT_EQ(groups[0].buffers.size(), 1);
  ASSERT_EQ(groups[0].buffers[0].buckets.size(), 1);
  const LaidOutBucket& bucket = groups[0].buffers[0].buckets[0];
  const std::string layers = "decoder.layers.mlp.linear_";
  EXPECT_THAT(
      small_model().parts(bucket),
      ElementsAre("decoder.final_layernorm.weight[0]@0",  //
                  layers + "fc2.weight[1,0,0]@64",        //
                  layers + "fc1.weight[1,0,0]@128",       // gate and gated
                  layers + "fc1.weight[1,4,0]@160", layers + "fc1.layer_norm_weight[1,0]@192",
                  layers + "fc2.weight[0,0,0]@256",  //
                  layers + "fc1.weight[0,0,0]@320", layers + "fc1.weight[0,4,0]@352",
                  layers + "fc1.layer_norm_weight[0,0]@384",
                  "embedding.word_embeddings.weight[0,0]@448"));
  EXPECT_EQ(bucket.used, 448 + 128);
  EXPECT_EQ(bucket.padded, 640);
  EXPECT_EQ(bucket.ranks, 4);
}

TEST(BucketLayout, RanksAndStagesHaveTheirParts) {
  const auto groups = small_model().lay_out({.tensor = 2, .pipeline = 2});
  ASSERT_EQ(groups.size(), 4);
  const auto parts = [&](std::size_t group, std::size_t bucket = 0) {
    return small_model().parts(groups[group].buffers[0].buckets.at(bucket));
  };
  const std::string layers = "decoder.layers.mlp.linear_";
  // Tied: the last stage has the word embeddings, too, and both stages in a bucket of their own.
  EXPECT_THAT(parts(3), ElementsAre("embedding.word_embeddings.weight[8,0]@0"));
  EXPECT_THAT(
      parts(3, 1),
      ElementsAre("decoder.final_layernorm.weight[0]@0",  //
                  layers + "fc2.weight[1,0,2]@64", layers + "fc1.weight[1,2,0]@128",
                  layers + "fc1.weight[1,6,0]@144", layers + "fc1.layer_norm_weight[1,0]@192"));
  EXPECT_THAT(parts(0, 1), ElementsAre("embedding.word_embeddings.weight[0,0]@0"));
  EXPECT_EQ(groups[0].buffers[0].buckets[0].used, 192);  // up to where the next would begin
}

TEST(BucketLayout, OnTheFirstStageBucketsEndWhenTheyAreLargeEnough) {
  const auto groups = small_model().lay_out({.bucket_size = 192});
  std::vector<std::int64_t> used;
  for (const LaidOutBucket& bucket : groups[0].buffers[0].buckets) used.push_back(bucket.used);
  EXPECT_THAT(used, ElementsAre(192, 192, 192));
}

TEST(BucketLayout, ExpertsHaveAnOptimizerOfTheirOwn) {
  const std::string experts = "decoder.layers.mlp.experts.experts.";
  const Model model = Model()
                          .weight("decoder.layers.mlp.router.weight", {1, 4, 8})
                          .weight(experts + "linear_fc1.weight", {1, 4, 2, 8})
                          .weight(experts + "linear_fc2.weight", {1, 4, 8, 2});
  BucketSettings settings{.expert = 2};
  const auto of_second_rank = [&] {
    const auto groups = model.lay_out(settings);
    EXPECT_EQ(groups.size(), 3);
    EXPECT_EQ(groups[2].chain, 1);
    EXPECT_EQ(groups[2].index, 1);
    return model.parts(groups[2].buffers[0].buckets[0]);
  };
  EXPECT_THAT(of_second_rank(), ElementsAre(experts + "linear_fc2.weight[0,3,0,0]@0",
                                            experts + "linear_fc1.weight[0,3,0,0]@64",
                                            experts + "linear_fc2.weight[0,2,0,0]@128",
                                            experts + "linear_fc1.weight[0,2,0,0]@192"));
  settings.grouped_experts = true;
  EXPECT_THAT(of_second_rank(), ElementsAre(experts + "linear_fc2.weight[0,3,0,0]@0",
                                            experts + "linear_fc2.weight[0,2,0,0]@64",
                                            experts + "linear_fc1.weight[0,3,0,0]@128",
                                            experts + "linear_fc1.weight[0,2,0,0]@192"));
  EXPECT_EQ(model.lay_out().size(), 1);  // without expert parallelism there is one optimizer
}

TEST(BucketLayout, DtypesHaveBuffersOfTheirOwn) {
  const Model model = Model()
                          .weight("decoder.final_layernorm.weight", {8}, DType::kFloat32)
                          .weight("output_layer.weight", {8, 8}, DType::kFloat16);
  const auto groups = model.lay_out({.float16_gradients = true});
  ASSERT_EQ(groups[0].buffers.size(), 2);
  EXPECT_EQ(groups[0].buffers[0].parameters, DType::kFloat32);
  EXPECT_EQ(groups[0].buffers[1].gradients, DType::kFloat16);
}

TEST(BucketLayout, NormsOfMegatronsOwnLayersComeFirst) {
  const std::string attention = "decoder.layers.self_attention.linear_";
  const Model model = Model()
                          .weight(attention + "proj.weight", {1, 8, 8})
                          .weight(attention + "qkv.layer_norm_weight", {1, 8});
  const auto last = [&](bool local) {
    return model.parts(model.lay_out({.local = local})[0].buffers[0].buckets[0]).back();
  };
  EXPECT_THAT(last(false), HasSubstr("proj.weight"));
  EXPECT_THAT(last(true), HasSubstr("qkv.layer_norm_weight"));
}

TEST(BucketLayout, WhatIsNotKnownIsRefused) {
  const auto message = [](const Model& model, const BucketSettings& settings) {
    return std::string(error_of([&] { model.lay_out(settings); }).what());
  };
  EXPECT_THAT(message(small_model().weight("mtp.layers.0.enorm.weight", {8}), {}),
              HasSubstr("'mtp.layers.0.enorm.weight'"));
  EXPECT_THAT(message(small_model().weight("decoder.layers.mlp.experts.weight1", {2, 8, 8}), {}),
              HasSubstr("'decoder.layers.mlp.experts.weight1'"));
  EXPECT_THAT(message(small_model(), {.tensor = 3}), HasSubstr("cannot be shared by 3 ranks"));
  EXPECT_THAT(message(small_model(), {.pipeline = 4}),
              HasSubstr("2 layers cannot be shared evenly by 4 pipeline stages"));
  EXPECT_THAT(message(small_model().weight("decoder.layers.mlp.linear_fc1.bias", {3, 8}), {}),
              HasSubstr("has 2 layers, the model 3"));
  EXPECT_THAT(message(small_model().weight("output_layer.weight", {}), {}),
              HasSubstr("is not that of a parameter"));
  EXPECT_THAT(small_model().lay_out({.tensor = 2})[1].buffers, ::testing::SizeIs(1));
}

Value args(std::initializer_list<std::pair<Value, Value>> entries) {
  return Value::dict({{"args", Value::dict(entries)}});
}

TEST(BucketSettings, ComeFromOptionsThenFromArgs) {
  const Value common = args({{"tensor_model_parallel_size", 4},
                             {"pipeline_model_parallel_size", 2},
                             {"data_parallel_size", 64},
                             {"overlap_grad_reduce", true},
                             {"ddp_bucket_size", nullptr},
                             {"transformer_impl", "transformer_engine"}});
  const BucketSettings settings =
      bucket_settings(common, {{"pipeline_model_parallel_size", 8}}, false, false);
  EXPECT_EQ(settings.tensor, 4);
  EXPECT_EQ(settings.pipeline, 8);
  EXPECT_EQ(settings.bucket_size, 64'000'000);
  EXPECT_FALSE(settings.local);
  EXPECT_EQ(bucket_settings(common, {{"overlap_grad_reduce", 0}}, false, false).bucket_size, 0);
  EXPECT_EQ(bucket_settings(common, {{"ddp_bucket_size", 9}}, false, false).bucket_size, 9);
  EXPECT_TRUE(bucket_settings(common, {{"transformer_impl", "local"}}, false, false).local);
}

TEST(BucketSettings, WhatFollowsFromASizeFollowsItsNewValue) {
  const Value common = args({{"tensor_model_parallel_size", 1},
                             {"pipeline_model_parallel_size", 2},
                             {"virtual_pipeline_model_parallel_size", 3},
                             {"expert_model_parallel_size", 2},
                             {"expert_tensor_parallel_size", 1},
                             {"data_parallel_size", 4},
                             {"moe_grouped_gemm", true},
                             {"transformer_impl", "local"}});
  const auto settings = [&](const RunArguments& given) {
    return bucket_settings(common, given, true, true);
  };
  EXPECT_EQ(settings({}).virtual_pipeline, 3);
  EXPECT_EQ(settings({{"pipeline_model_parallel_size", 1}}).virtual_pipeline, 1);
  EXPECT_EQ(settings({{"tensor_model_parallel_size", 2}}).expert_tensor, 2);
  EXPECT_EQ(settings({{"tensor_model_parallel_size", 2}, {"expert_tensor_parallel_size", 1}})
                .expert_tensor,
            1);
  EXPECT_GT(settings({{"overlap_grad_reduce", "True"}}).bucket_size, 0);
  const auto message = [&](const RunArguments& given) {
    return std::string(error_of([&] { settings(given); }).what());
  };
  EXPECT_THAT(
      message({{"pipeline_model_parallel_size", 1}, {"virtual_pipeline_model_parallel_size", 2}}),
      HasSubstr("a single pipeline stage has no chunks"));
  EXPECT_THAT(message({{"data_parallel_size", 3}}),
              HasSubstr("make 3 ranks in each pipeline stage, which expert_model_parallel_size 2"));
  EXPECT_THAT(message({{"num_distributed_optimizer_instances", 3}}),
              HasSubstr("3 do not divide the 4 ranks that share a buffer"));
}

TEST(BucketSettings, WhatNobodySaysIsAskedFor) {
  const auto message = [](const RunArguments& given, const Value& common = {}) {
    return std::string(error_of([&] { bucket_settings(common, given, true, true); }).what());
  };
  EXPECT_THAT(message({}), HasSubstr("convert --arg tensor_model_parallel_size=N"));
  RunArguments given{{"tensor_model_parallel_size", 1},
                     {"pipeline_model_parallel_size", 1},
                     {"data_parallel_size", 2}};
  EXPECT_THAT(message(given), HasSubstr("--arg expert_model_parallel_size=N"));
  given["expert_model_parallel_size"] = 2;
  EXPECT_THAT(message(given), HasSubstr("--arg moe_grouped_gemm=0, or 1"));
  given["moe_grouped_gemm"] = 1;
  EXPECT_THAT(message(given), HasSubstr("--arg transformer_impl=transformer_engine, or local"));
  given["transformer_impl"] = "local";
  EXPECT_TRUE(bucket_settings({}, given, true, true).grouped_experts);
  const auto with = [&](const char* name, Value value) {
    RunArguments more = given;
    more[name] = std::move(value);
    return message(more);
  };
  EXPECT_THAT(with("tensor_parallel", 1), HasSubstr("'tensor_parallel' is none of the arguments"));
  EXPECT_THAT(with("data_parallel_size", 0), HasSubstr("expected a number from 1"));
  EXPECT_THAT(with("overlap_grad_reduce", "yes"), HasSubstr("found 'yes', expected a number"));
  EXPECT_THAT(with("ddp_bucket_size", 5), HasSubstr("needs overlap_grad_reduce=1"));
  EXPECT_THAT(with("transformer_impl", "x"), HasSubstr("known are local and transformer_engine"));
  EXPECT_THAT(message(given, args({{"fp8_param_gather", true}})), HasSubstr("fp8_param_gather"));
  given["tensor_model_parallel_size"] = 2;
  EXPECT_THAT(message(given, args({{"group_query_attention", true}, {"num_query_groups", 1}})),
              HasSubstr("how 2 ranks share 1 query groups"));
}

}  // namespace
}  // namespace dckpt
