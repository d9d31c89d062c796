#include "migration/rank_folders/join_ranks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <numeric>

#include "mapping/base/log.h"
#include "strategies/formats/torch_archive/torch_file.h"
#include "strategies/legacy_torch/legacy_reader.h"
#include "strategies/storage/memory.h"
#include "strategies/storage/posix.h"
#include "strategies/tensor_io/read_tensors.h"
#include "tests/support/expect_error.h"
#include "tests/support/golden.h"

namespace dckpt::join_ranks_test {
namespace {

using ::testing::ElementsAre;
using testing::error_of;
using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;
using Numbers = std::vector<std::int32_t>;

Tensor tensor(Shape shape, const Numbers& values) {
  return Tensor::from_bytes(DType::kInt32, std::move(shape), std::as_bytes(std::span(values)));
}

Tensor filled(Shape shape, std::int32_t first) {
  Numbers values(static_cast<std::size_t>(numel(shape)));
  std::iota(values.begin(), values.end(), first);
  return tensor(std::move(shape), values);
}

/// A run whose ranks hold the state given by a test.
struct Job {
  Dict args{{"tensor_model_parallel_size", 1}, {"pipeline_model_parallel_size", 1}};
  Value version = 3.0;
  std::map<std::string, Value> models{};      // key: folder
  std::map<std::string, Value> optimizers{};  // key: folder

  std::unique_ptr<CheckpointReader> join() const {
    auto storage = memory_storage();
    std::int64_t rank = 0;
    const auto write = [&](const std::string& name, const Value& value) {
      const auto file = storage->create(name);
      const Bytes content = save_torch_file(value);
      file->append(ByteView(content));
      file->close();
    };
    for (const auto& [folder, model] : models) {
      storage->make_directory(folder);
      Dict own = args;
      own.set("rank", rank++);
      Value state = Value::dict({{"args", own},
                                 {"iteration", 7},
                                 {"checkpoint_version", version},
                                 {"model", model},
                                 {"optimizer", Value::dict({{"optimizer", Value::dict()}})},
                                 {"rng_state", Value::list({Value::dict({{"seed", rank}})})}});
      write(folder + "/model_optim_rng.pt", state);
    }
    for (const auto& [folder, optimizer] : optimizers)
      write(folder + "/distrib_optim.pt", optimizer);
    return join_ranks(open_legacy_torch(storage));
  }
};

Numbers values(const CheckpointReader& reader, const std::string& key) {
  for (std::size_t i = 0; i < reader.metadata().tensors.size(); ++i) {
    if (reader.metadata().tensors[i].key != key) continue;
    const Tensor content = read_box(reader, i, whole(reader.metadata().tensors[i].size));
    const auto* const data = reinterpret_cast<const std::int32_t*>(content.data());
    return {data, data + numel(content.shape())};
  }
  ADD_FAILURE() << key << " is not there";
  return {};
}

std::vector<std::string> keys(const CheckpointReader& reader) {
  std::vector<std::string> result;
  for (const TensorStorageMetadata& entry : reader.metadata().tensors) result.push_back(entry.key);
  return result;
}

TEST(JoinRanks, GoldensHaveTheTensorsOfTheWholeModelAndItsOptimizer) {
  for (const char* const name :
       {"legacy-torch-tp2pp2", "legacy-torch-vpp-tp1pp2", "legacy-torch-moe-pp2ep2"}) {
    SCOPED_TRACE(name);
    const auto reader =
        join_ranks(open_legacy_torch(posix_storage(testing::golden(name) / "iter_0000010")));
    const Value expected = testing::golden_expected(name).at("tensors");
    ASSERT_EQ(reader->metadata().tensors.size(), expected.size());
    for (std::size_t i = 0; i < expected.size(); ++i) {
      const std::string& key = reader->metadata().tensors[i].key;
      const Value content = testing::describe_content(*reader, i);
      EXPECT_EQ(content.at("sha256"), expected.at(key).at("sha256")) << key;
      EXPECT_EQ(content.at("shape"), expected.at(key).at("global_shape")) << key;
      EXPECT_EQ(content.at("dtype"), expected.at(key).at("dtype")) << key;
    }
  }
}

TEST(JoinRanks, OldNamesAndRowsOfQkvBecomeTodays) {
  // Two ranks, one head of two rows each; a row is 100·head + 10·(query, key, value) + row.
  const auto qkv = [](double version, std::int32_t head) {
    const auto row = [&](std::int32_t which, std::int32_t i) {
      return 100 * head + 10 * which + i;
    };
    return version < 1 ? Numbers{row(0, 0), row(0, 1), row(1, 0), row(1, 1), row(2, 0), row(2, 1)}
                       : Numbers{row(0, 0), row(1, 0), row(2, 0), row(0, 1), row(1, 1), row(2, 1)};
  };
  for (const double version : {0.0, 1.0}) {
    Job run;
    run.version = version;
    run.args.set("tensor_model_parallel_size", 2);
    run.args.set("num_attention_heads", 2);
    for (std::int32_t rank = 0; rank < 2; ++rank) {
      const Value layer =
          Value::dict({{"attention.query_key_value.weight", tensor({6, 1}, qkv(version, rank))},
                       {"attention.dense.weight", filled({2, 1}, 10 * rank)},
                       {"mlp.dense_h_to_4h.weight", filled({2, 1}, 10 * rank)},
                       {"mlp.dense_4h_to_h.weight", filled({1, 2}, 10 * rank)},
                       {"input_layernorm.weight", filled({1}, 5)},
                       {"post_attention_layernorm.weight", filled({1}, 6)}});
      Value transformer = Value::dict({{"final_layernorm.weight", filled({1}, 8)}});
      for (const auto& [name, value] : layer.as_dict())
        transformer.mutable_dict().set("layers.0." + name.as_str(), value);
      run.models["mp_rank_0" + std::to_string(rank)] = Value::dict(
          {{"language_model",
            Value::dict({{"embedding",
                          Value::dict({{"word_embeddings",
                                        Value::dict({{"weight", filled({2, 1}, 10 * rank)}})}})},
                         {"transformer", transformer}})}});
    }
    const auto reader = run.join();
    EXPECT_THAT(keys(*reader),
                UnorderedElementsAre("embedding.word_embeddings.weight",
                                     "decoder.layers.self_attention.linear_qkv.layer_norm_weight",
                                     "decoder.layers.self_attention.linear_qkv.weight",
                                     "decoder.layers.self_attention.linear_proj.weight",
                                     "decoder.layers.mlp.linear_fc1.layer_norm_weight",
                                     "decoder.layers.mlp.linear_fc1.weight",
                                     "decoder.layers.mlp.linear_fc2.weight",
                                     "decoder.final_layernorm.weight"));
    EXPECT_THAT(values(*reader, "decoder.layers.self_attention.linear_qkv.weight"),
                ElementsAre(0, 1, 10, 11, 20, 21, 100, 101, 110, 111, 120, 121));
    EXPECT_THAT(values(*reader, "decoder.layers.self_attention.linear_proj.weight"),
                ElementsAre(0, 10, 1, 11));
    EXPECT_THAT(values(*reader, "decoder.layers.mlp.linear_fc1.weight"), ElementsAre(0, 1, 10, 11));
  }
}

/// Returns a layer of one matrix, and the tensors of the first and the last stage.
Value stage(std::int32_t layer, bool first, bool last) {
  Value model = Value::dict();
  if (first) model["embedding.word_embeddings.weight"] = filled({2, 1}, 0);
  model["decoder.layers.0.mlp.linear_fc2.weight"] = filled({1, 1}, layer);
  if (last) model["output_layer.weight"] = filled({2, 1}, 0);
  return model;
}

TEST(JoinRanks, StagesStackTheirLayersAndTiedOutputsAreDropped) {
  Job run;
  run.args.set("pipeline_model_parallel_size", 2);
  run.models = {{"mp_rank_00_000", stage(40, true, false)},
                {"mp_rank_00_001", stage(41, false, true)}};
  run.args.set("untie_embeddings_and_output_weights", false);
  const auto tied = run.join();
  EXPECT_THAT(keys(*tied), ElementsAre("embedding.word_embeddings.weight",
                                       "decoder.layers.mlp.linear_fc2.weight"));
  EXPECT_THAT(values(*tied, "decoder.layers.mlp.linear_fc2.weight"), ElementsAre(40, 41));
  run.args.set("untie_embeddings_and_output_weights", true);
  EXPECT_EQ(keys(*run.join()).back(), "output_layer.weight");
  EXPECT_EQ(tied->metadata().objects.size(), 2);
  EXPECT_EQ(tied->metadata().objects[1].key, "rng_state/shard_1.0_2.1");
  EXPECT_EQ(tied->common_state().at("iteration"), Value(7));
  EXPECT_FALSE(tied->common_state().contains("rng_state"));
}

TEST(JoinRanks, LayersThatDifferKeepTheirNumbers) {
  Job run;
  run.models["mp_rank_00"] =
      Value::dict({{"decoder.layers.0.mlp.linear_fc2.weight", filled({1, 1}, 1)},
                   {"decoder.layers.1.mlp.router.weight", filled({2, 1}, 2)},
                   {"decoder.layers.1.mlp.experts.linear_fc2.weight0", filled({1, 2}, 10)},
                   {"decoder.layers.1.mlp.experts.linear_fc2.weight1", filled({1, 2}, 20)}});
  const auto reader = run.join();
  EXPECT_THAT(keys(*reader), ElementsAre("decoder.layers.0.mlp.linear_fc2.weight",
                                         "decoder.layers.1.mlp.router.weight",
                                         "decoder.layers.1.mlp.experts.experts.linear_fc2.weight"));
  EXPECT_THAT(values(*reader, "decoder.layers.1.mlp.experts.experts.linear_fc2.weight"),
              ElementsAre(10, 11, 20, 21));
}

TEST(JoinRanks, RngStatesThatHaveNoPlaceAreNamed) {
  Job run;
  run.args.set("expert_model_parallel_size", 2);
  for (const char* const folder : {"mp_rank_00_000", "mp_rank_00_001"})
    run.models[folder] =
        Value::dict({{"decoder.layers.0.mlp.experts.linear_fc2.weight0", filled({1, 2}, 0)}});
  std::string said;
  set_log_sink([&](LogLevel, std::string_view message) { said += message; });
  const auto reader = run.join();
  set_log_sink({});
  EXPECT_EQ(reader->metadata().objects.size(), 1);
  EXPECT_THAT(said, HasSubstr("rng_state of 1 folder is left out"));
}

/// Returns a job with parameters of 3 and 2 elements: buffers begin with the last, each on a
/// multiple of 64.
Job trained(const Value& optimizer) {
  Job run;
  run.models["mp_rank_00"] =
      Value::dict({{"embedding.position_embeddings.weight", filled({3, 1}, 0)},
                   {"decoder.final_layernorm.weight", filled({2}, 0)}});
  run.optimizers["mp_rank_00"] = optimizer;
  return run;
}
const Value kDTypes = Value::tuple({Global{"torch", "int32"}, Global{"torch", "int32"}});

TEST(JoinRanks, OptimizerStateLiesInTheOrderOfTheGradientBuffers) {
  // The buckets are joined, as since April 2024; in a list with padding at the ends, as before; and
  // one per dtype of gradients, as at first.
  const Value today =
      Value::dict({{"buckets_coalesced", true},
                   {0, Value::dict({{kDTypes, Value::dict({{"exp_avg", filled({67}, 0)}})}})}});
  const Value before = Value::dict(
      {{0, Value::dict({{kDTypes, Value::dict({{"exp_avg", Value::list({filled({60}, 0),
                                                                        filled({60}, 64)})}})}})}});
  const Value first = Value::dict(
      {{0,
        Value::dict({{Global{"torch", "int32"}, Value::dict({{"exp_avg", filled({128}, 0)}})}})}});
  for (const Value& optimizer : {today, before, first}) {
    const auto reader = trained(optimizer).join();
    EXPECT_THAT(values(*reader, "optimizer.state.exp_avg.decoder.final_layernorm.weight"),
                ElementsAre(0, 1));
    EXPECT_THAT(values(*reader, "optimizer.state.exp_avg.embedding.position_embeddings.weight"),
                ElementsAre(64, 65, 66));
    EXPECT_EQ(reader->common_state().at("optimizer").at("param_state_sharding_type"),
              Value("fully_sharded_model_space"));
  }
}

TEST(JoinRanks, WhatDoesNotFitIsRefused) {
  const auto message = [](const Job& run) {
    return std::string(error_of([&] { run.join(); }).what());
  };
  const auto buffer = [](std::int64_t length) {
    return trained(Value::dict(
        {{"buckets_coalesced", true},
         {0, Value::dict({{kDTypes, Value::dict({{"param", filled({length}, 0)}})}})}}));
  };
  EXPECT_THAT(message(buffer(68)), HasSubstr("1 element that is not those of a parameter"));
  EXPECT_THAT(message(buffer(66)), HasSubstr("not those of a parameter"));

  Job unknown;
  unknown.args.set("tensor_model_parallel_size", 2);
  for (std::int32_t rank : {0, 1})
    unknown.models["mp_rank_0" + std::to_string(rank)] =
        Value::dict({{"decoder.layers.0.mixer.weight", filled({2}, rank)}});
  EXPECT_THAT(message(unknown), HasSubstr("it is not known how 2 tensor-parallel ranks share"));

  Job few;
  few.args.set("num_layers", 3);
  few.models["mp_rank_00"] = stage(1, true, true);
  EXPECT_THAT(message(few), HasSubstr("num_layers: 3"));
}

TEST(JoinRanks, WhatWouldGetOneKeyTwiceIsRefused) {
  const auto message = [](const Job& run) {
    return std::string(error_of([&] { run.join(); }).what());
  };
  Job t5;  // an encoder and a decoder
  t5.models["mp_rank_00"] = Value::dict(
      {{"language_model.encoder.layers.0.mlp.dense_4h_to_h.weight", filled({1, 1}, 1)},
       {"language_model.decoder.layers.0.mlp.dense_4h_to_h.weight", filled({1, 1}, 2)}});
  EXPECT_THAT(message(t5), HasSubstr("would both be 'decoder.layers.mlp.linear_fc2.weight'"));

  Job towers;  // layers outside the decoder, on two stages
  towers.args.set("pipeline_model_parallel_size", 2);
  for (const std::int32_t stage : {0, 1})
    towers.models["mp_rank_00_00" + std::to_string(stage)] =
        Value::dict({{"encoder.layers.0.mlp.linear_fc2.weight", filled({1, 1}, stage)}});
  EXPECT_THAT(message(towers), HasSubstr("would both be"));

  Job experts;
  experts.args.set("tensor_model_parallel_size", 2);
  experts.args.set("expert_tensor_parallel_size", 1);
  for (const std::int32_t rank : {0, 1})
    experts.models["mp_rank_0" + std::to_string(rank)] =
        Value::dict({{"decoder.layers.0.mlp.experts.linear_fc2.weight0", filled({1, 2}, rank)}});
  EXPECT_THAT(message(experts), HasSubstr("experts are shared by 1 tensor-parallel ranks"));

  Job grouped;
  grouped.models["mp_rank_00"] =
      Value::dict({{"decoder.layers.0.mlp.experts.weight1", filled({2, 2}, 0)}});
  EXPECT_THAT(message(grouped), HasSubstr("GroupedMLP"));
}

TEST(JoinRanks, TensorsThatAreNoParametersAreObjectsAndCommonState) {
  Job run;
  run.models["mp_rank_00"] =
      Value::dict({{"decoder.layers.0.mlp.linear_fc2.weight", filled({1, 1}, 1)},
                   {"decoder.layers.0.mlp.linear_fc2._extra_state", filled({2}, 5)}});
  run.args.set("scale", filled({1}, 9));
  const auto reader = run.join();
  ASSERT_EQ(reader->metadata().objects.size(), 2);
  EXPECT_EQ(reader->metadata().objects[0].key,
            "decoder.layers.mlp.linear_fc2._extra_state/shard_0_1");
  EXPECT_EQ(reader->object(0), Value(filled({2}, 5)));
  EXPECT_EQ(reader->common_state().at("args").at("scale"), Value(filled({1}, 9)));
}

TEST(JoinRanks, AParameterWithoutItsOptimizerStateOnSomeRankIsAnError) {
  Job run;
  run.args.set("tensor_model_parallel_size", 2);
  for (const std::int32_t rank : {0, 1}) {
    const std::string folder = "mp_rank_0" + std::to_string(rank);
    run.models[folder] = Value::dict({{"embedding.word_embeddings.weight", filled({2, 1}, rank)}});
    run.optimizers[folder] = Value::dict(
        {{"buckets_coalesced", true},
         {0, rank == 0 ? Value::dict()
                       : Value::dict({{kDTypes, Value::dict({{"param", filled({2}, 0)}})}})}});
  }
  EXPECT_THAT(error_of([&] { run.join(); }).what(), HasSubstr("no optimizer state param"));
}

TEST(JoinRanks, FoldersWithoutAModelStayAsTheyAre) {
  Job run;
  run.models["mp_rank_00"] = Value::dict();
  EXPECT_TRUE(run.join()->info().conventions.per_rank);
}

}  // namespace
}  // namespace dckpt::join_ranks_test
