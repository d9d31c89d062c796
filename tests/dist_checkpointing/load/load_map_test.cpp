// load.map: a trainer starts from a Hugging Face folder.

#include <gmock/gmock.h>

#include <fstream>

#include "configs/policy/policy.h"
#include "dist_checkpointing/load/load.h"
#include "dist_checkpointing/open/open.h"
#include "mapping/geometry/cast.h"
#include "strategies/tensor_io/read_tensors.h"
#include "tests/dist_checkpointing/save_load.h"

namespace dckpt::load_map_test {
namespace {

using ::testing::HasSubstr;

constexpr int kRanks = 3;
constexpr const char* kPolicies[] = {
    "version: 1\nload: {map: auto}\n",
    "version: 1\nload: {map: auto, parallel: {enabled: true, exchange: all_to_all}}\n",
    "version: 1\nload: {map: auto, parallel: {enabled: true, exchange: gather}}\n"};

/// Returns rank r's rows along the axis after the layers, in uneven parts.
Box part_of(const Shape& shape, int rank) {
  Box box = whole(shape);
  const std::size_t axis = shape.size() > 2 ? 1 : 0;
  box.offsets[axis] = shape[axis] * rank / kRanks;
  box.sizes[axis] = shape[axis] * (rank + 1) / kRanks - box.offsets[axis];
  return box;
}

Bytes cast(const Tensor& values, DType to) {
  Bytes result(static_cast<std::size_t>(values.numel()) * item_size(to));
  cast_elements(values.dtype(), values.data(), to, result.data(),
                static_cast<std::size_t>(values.numel()));
  return result;
}

/// Expects that ranks which load parts of all tensors of `like` through the map get their values.
void expect_loads(const std::filesystem::path& folder, const CheckpointReader& like,
                  const std::string& policy, std::optional<DType> dtype = {}) {
  const LoadOptions options = Policy::from_text(policy).load;
  run_ranks(kRanks, [&](Communicator& comm) {
    StateDict state;
    for (const TensorStorageMetadata& tensor : like.metadata().tensors) {
      const Box box = part_of(tensor.size, comm.rank());
      state[tensor.key.c_str()] = ShardedTensor::from_box(
          tensor.key, Tensor::empty(dtype.value_or(tensor.properties.dtype), box.sizes),
          tensor.size, box.offsets);
    }
    load(state, folder, options, comm);
    for (std::size_t i = 0; i < like.metadata().tensors.size(); ++i) {
      const TensorStorageMetadata& tensor = like.metadata().tensors[i];
      const Tensor& loaded = state.at(tensor.key.c_str()).as_tensor();
      const Tensor expected = read_box(like, i, part_of(tensor.size, comm.rank()));
      EXPECT_TRUE(std::ranges::equal(loaded.bytes(), cast(expected, loaded.dtype())))
          << tensor.key << " on rank " << comm.rank() << " with " << policy;
    }
  });
}

TEST(LoadMap, RanksStartFromAModelOfHuggingFaceAsFromMegatrons) {
  const auto pair = std::filesystem::path(DCKPT_TEST_DATA) / "hf_pairs/qwen2";
  const auto megatron = open_checkpoint(pair / "mcore");
  for (const char* const policy : kPolicies) expect_loads(pair / "hf", *megatron, policy);
  expect_loads(pair / "hf", *megatron,
               "version: 1\nload: {map: {name: qwen2, set: [tensor_model_parallel_size=1]}, "
               "cast: allow}\n",
               DType::kFloat32);
}

TEST(LoadMap, TellsOfAnAdapterBesideTheModel) {
  const TempDir folder;
  const auto model = folder.path() / "model";
  std::filesystem::copy(std::filesystem::path(DCKPT_TEST_DATA) / "hf_pairs/qwen2/hf", model);
  const LoadOptions options = Policy::from_text(kPolicies[0]).load;
  const auto findings = [&] {
    std::vector<Findings> found(2);
    run_ranks(2, [&](Communicator& comm) {
      StateDict state;
      state["norm"] = ShardedTensor::from_rank_offsets("decoder.final_layernorm.weight",
                                                       Tensor::empty(DType::kBFloat16, {48}), {},
                                                       {.replica_id = comm.rank()});
      found[static_cast<std::size_t>(comm.rank())] = load(state, model, options, comm).findings;
    });
    EXPECT_EQ(found[0], found[1]);
    return found[0];
  };
  using ::testing::Contains;
  const auto says = Contains(::testing::Field(&Finding::code, FindingCode::kAdapterLeftOut));
  EXPECT_THAT(findings(), ::testing::Not(says));
  std::ofstream(model / "adapter_config.json") << "{}";
  EXPECT_THAT(findings(), says);
}

/// A trainer with the names of transformers, whose linear layers are (out, in) like torch's.
TEST(LoadMap, ATrainerWithNamesOfItsOwnStartsFromAFolderOfTransformers) {
  const auto model = std::filesystem::path(DCKPT_TEST_DATA) / "hf_pairs/gpt2/hf";
  const TempDir folder;
  std::ofstream(folder.path() / "trainer.yaml") << R"(version: 1
family: trainer
left: InfiniTrain
tensors:
  - {left: "transformer.h.{l}.attn.c_attn.weight", hf: "transformer.h.{l}.attn.c_attn.weight", transform: transpose}
  - {left: "transformer.wte.weight", hf: "transformer.wte.weight"}
ignore: {hf: ["*.bias", "*.ln_*", "*.c_proj.*", "*.c_fc.*", "*.wpe.*"]}
)";
  const auto stored = open_checkpoint(model);
  const std::string key = "transformer.h.1.attn.c_attn.weight";
  const auto& tensors = stored->metadata().tensors;
  const auto at = std::ranges::find(tensors, key, &TensorStorageMetadata::key) - tensors.begin();
  const Tensor columns = read_box(*stored, static_cast<std::size_t>(at), whole(Shape{48, 144}));
  const LoadOptions options =
      Policy::from_text("version: 1\nload: {allow_unloaded: [\"*\"], map: " +
                        (folder.path() / "trainer.yaml").string() + "}\n")
          .load;
  run_ranks(kRanks, [&](Communicator& comm) {
    const Box box = part_of({144, 48}, comm.rank());
    StateDict state;
    state["w"] = ShardedTensor::from_box(key, Tensor::empty(DType::kFloat32, box.sizes), {144, 48},
                                         box.offsets);
    load(state, model, options, comm);
    const auto* const loaded = state.at("w").as_tensor().data<float>();
    for (std::int64_t row = 0; row < box.sizes[0]; ++row) {
      for (std::int64_t column = 0; column < 48; ++column)
        EXPECT_EQ(loaded[row * 48 + column],
                  columns.data<float>()[column * 144 + box.offsets[0] + row]);
    }
  });
}

/// A weight of quantized blocks of 128 × 128, and its values.
class LoadQuantized : public SaveLoad {
 protected:
  void SetUp() override {
    Tensor weight = Tensor::empty(DType::kFloat8E4M3FN, {kRows, kColumns});
    Tensor scales = Tensor::empty(DType::kFloat32, {3, 5});
    for (std::int64_t i = 0; i < weight.numel(); ++i)
      weight.data()[i] = static_cast<std::byte>(i * 131 % 251 % 0x7F);  // never NaN
    for (std::int64_t i = 0; i < scales.numel(); ++i)
      scales.data<float>()[i] = 0.01F * static_cast<float>(i + 1);
    save_on(1,
            [&](int) {
              return Value::dict(
                  {{"w", ShardedTensor::from_rank_offsets("w", weight)},
                   {"w_scale_inv", ShardedTensor::from_rank_offsets("w_scale_inv", scales)}});
            },
            {.strategy = {.name = "hf"}});
    values_ = Tensor::empty(DType::kFloat32, {kRows, kColumns});
    const Bytes floats = cast(weight, DType::kFloat32);
    for (std::int64_t i = 0; i < weight.numel(); ++i) {
      const float scale = scales.data<float>()[i / kColumns / 128 * 5 + i % kColumns / 128];
      values_.data<float>()[i] = load_float(DType::kFloat32, floats.data() + 4 * i) * scale;
    }
    std::ofstream(directory_.path() / "one.yaml") << R"(version: 1
family: one
numbers: {}
dequantize: {scales: _scale_inv, block: [128, 128]}
tensors:
  - {megatron: decoder.weight, hf: w}
)";
  }

  /// `load` holds more fields of the policy.
  void expect_values(DType dtype, const std::string& load) {
    const std::string map = (directory_.path() / "one.yaml").string();
    const Policy policy = Policy::from_text("version: 1\nload: {map: " + map + load + "}\n");
    run_ranks(kRanks, [&](Communicator& comm) {
      const Box box = part_of({kRows, kColumns}, comm.rank());
      StateDict state;
      state["w"] = ShardedTensor::from_box("decoder.weight", Tensor::empty(dtype, box.sizes),
                                           {kRows, kColumns}, box.offsets);
      dckpt::load(state, checkpoint(), policy.load, comm);
      const Tensor part(DType::kFloat32, box.sizes, {kColumns, 1},
                        values_.data<float>() + box.offsets[0] * kColumns, nullptr);
      const Bytes rounded = cast(part, DType::kBFloat16);
      const Tensor stored = Tensor::from_bytes(DType::kBFloat16, box.sizes, rounded);
      EXPECT_TRUE(std::ranges::equal(state.at("w").as_tensor().bytes(), cast(stored, dtype)));
    });
  }

  static constexpr std::int64_t kRows = 300, kColumns = 600;
  Tensor values_;
};

TEST_F(LoadQuantized, EveryRankGetsTheValuesOfItsPart) {
  expect_values(DType::kBFloat16, "");
  expect_values(DType::kBFloat16, ", parallel: {enabled: true, exchange: all_to_all}");
  expect_values(DType::kBFloat16, ", parallel: {enabled: true, exchange: gather}");
  expect_values(DType::kFloat32, ", cast: allow");
  expect_values(DType::kFloat32, ", cast: allow, parallel: {enabled: true}");
}

}  // namespace
}  // namespace dckpt::load_map_test
