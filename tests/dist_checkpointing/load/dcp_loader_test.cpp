// Loads plain DCP directories. tests/interop/test_loads_torch.py shows that real ones of torch load
// as torch itself loads them.

#include <gmock/gmock.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <span>
#include <vector>

#include "dist_checkpointing/load/load.h"
#include "dist_checkpointing/open/open.h"
#include "dist_checkpointing/save/save.h"
#include "mapping/base/log.h"
#include "operations/convert/convert.h"
#include "operations/inspect/diff.h"
#include "operations/inspect/verify.h"
#include "strategies/comm/threads.h"
#include "tests/support/expect_error.h"
#include "tests/support/golden.h"
#include "tests/support/temp_dir.h"

namespace dckpt::dcp_loader_test {
namespace {

using ::testing::ElementsAre;
using testing::golden;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

/// Returns a float tensor of n elements, all with this value.
Tensor filled(std::int64_t n, float value) {
  Tensor tensor = Tensor::empty(DType::kFloat32, {n});
  std::fill_n(reinterpret_cast<float*>(tensor.data()), n, value);
  return tensor;
}

class DcpLoader : public ::testing::Test {
 protected:
  void save_dcp(const StateDict& state) const { save(state, path_, {.compat = Compat::kDcp}); }
  std::string message_of_load(StateDict state, const LoadOptions& options = {}) const {
    return testing::error_of([&] { load(state, path_, options); }).message();
  }

  TempDir directory_;
  std::filesystem::path path_ = directory_.path() / "checkpoint";
};

TEST_F(DcpLoader, AllNamesThatAreNotStoredAreOneError) {
  save_dcp(Value::dict({{"model", Value::dict({{"weight", filled(2, 1)}})}, {"step", 3}}));
  EXPECT_EQ(
      message_of_load(
          Value::dict({{"model", Value::dict({{"wieght", filled(2, 0)}, {"bias", filled(2, 0)}})},
                       {"step", 0}})),
      R"(Missing key in checkpoint state_dict (load.allow_partial_load keeps the old values of such keys):
  'model.bias'
  'model.wieght': did you mean 'model.weight'?)");
}

TEST_F(DcpLoader, APartialLoadKeepsTheValuesOfNamesThatAreNotStored) {
  save_dcp(Value::dict({{"w", filled(2, 1)}, {"step", 3}}));
  StateDict state = Value::dict({{"w", filled(2, 0)},
                                 {"step", 0},
                                 {"new", filled(1, 7)},
                                 {"lr", 0.5},
                                 {"shard", ShardedTensor::whole("elsewhere", filled(1, 8))}});
  const LoadReport report = load(state, path_, {.allow_partial_load = true});
  EXPECT_TRUE(equal(state["w"].as_tensor(), filled(2, 1)));
  EXPECT_EQ(state["step"], Value(3));
  EXPECT_TRUE(equal(state["new"].as_tensor(), filled(1, 7)));
  EXPECT_EQ(state["lr"], Value(0.5));
  EXPECT_EQ(state["shard"].as_sharded_tensor().key, "elsewhere") << "as it was";
  EXPECT_THAT(report.unexpected, ElementsAre("new", "lr", "elsewhere"));
}

TEST_F(DcpLoader, APartialLoadGoesOnWithoutAMissingFile) {
  save(Value::dict({{"a", filled(2, 1)}, {"b", filled(2, 1)}}), path_,
       {.compat = Compat::kDcp, .io = {.files_per_rank = 2}});
  const auto file_of = [&](const char* key) {
    const auto reader = open_checkpoint(path_);
    const Metadata& metadata = reader->metadata();
    return metadata.files[metadata.find_tensor(key)->places.front().file];
  };
  const std::string lost = file_of("b");
  ASSERT_NE(file_of("a"), lost);
  std::filesystem::remove(path_ / lost);
  StateDict state = Value::dict({{"a", filled(2, 0)}, {"b", filled(2, 0)}});
  EXPECT_THAT(message_of_load(state),
              AllOf(HasSubstr(lost + "' is missing"), HasSubstr("'b': 100.0 % of 8 B")));
  const LoadReport report = load(state, path_, {.allow_partial_load = true});
  EXPECT_TRUE(equal(state["a"].as_tensor(), filled(2, 1)));
  EXPECT_TRUE(equal(state["b"].as_tensor(), filled(2, 0)));
  EXPECT_THAT(report.unexpected, ElementsAre("b"));
  EXPECT_FALSE(load_state_dict(path_, {}, {.allow_partial_load = true}).contains("b"));
}

TEST_F(DcpLoader, AnotherSizeIsAnErrorUnlessItIsAllowed) {
  save_dcp(Value::dict({{"w", filled(2, 1)}, {"v", filled(3, 1)}}));
  const StateDict state = Value::dict({{"w", filled(4, 9)}, {"v", filled(2, 9)}});
  EXPECT_THAT(message_of_load(state, {.allow_partial_load = true}),
              AllOf(HasSubstr("Size mismatch between saved (2,) and current: (4,) for 'w'"),
                    HasSubstr("Size mismatch between saved (3,) and current: (2,) for 'v'")));
  StateDict clipped = state;
  EXPECT_EQ(load(clipped, path_, {.allow_shape_mismatch = {"w", "v"}}).truncated.size(), 0U)
      << "the third element is the second again";
  const auto* const w = reinterpret_cast<const float*>(clipped["w"].as_tensor().data());
  EXPECT_THAT(std::vector<float>(w, w + 4), ElementsAre(1, 1, 0, 0));
  EXPECT_TRUE(equal(clipped["v"].as_tensor(), filled(2, 1)));
}

TEST_F(DcpLoader, AllReasonsWhyATensorDoesNotFitAreReported) {
  const std::array<float, 3> values{1, 2, 3};
  save_dcp(Value::dict(
      {{"w", Tensor::from_bytes(DType::kFloat32, {3}, std::as_bytes(std::span(values)))}}));
  EXPECT_THAT(message_of_load(Value::dict({{"w", Tensor::zeros(DType::kFloat64, {2})}}),
                              {.allow_shape_mismatch = {"w"}}),
              AllOf(HasSubstr("dtype mismatch for loaded (float32) and expected (float64)"),
                    HasSubstr("2 of 3 rows of axis 0 are asked for")));
}

TEST_F(DcpLoader, RanksFailTogetherWhenOneCannotReadWhatItWouldDrop) {
  save_dcp(Value::dict({{"w", filled(3, 1)}}));
  const auto reader = open_checkpoint(path_);
  std::filesystem::resize_file(path_ / reader->metadata().files.front(), 1);
  std::vector<std::string> messages(2);
  run_ranks(2, [&](Communicator& comm) {
    StateDict state = Value::dict({});
    if (comm.rank() == 1) state["w"] = filled(2, 9);
    messages[static_cast<std::size_t>(comm.rank())] =
        testing::error_of([&] {
          load(state, path_, {.allow_shape_mismatch = {"w"}}, comm);
        }).message();
  });
  EXPECT_THAT(messages[1], HasSubstr("it is truncated"));
  EXPECT_EQ(messages[0], messages[1]);
}

TEST_F(DcpLoader, AKeyThatEndsLikeAnotherKeepsItsOwnShape) {
  const Tensor row = filled(2, 3).view({1, 2});
  save_dcp(Value::dict(
      {{"w", filled(2, 1)},
       {"optimizer",
        Value::dict({{"w", row}})}}));  // Megatron would store a flattened (2,) as (1, 2)
  StateDict state =
      Value::dict({{"optimizer", Value::dict({{"w", Tensor::zeros(DType::kFloat32, {1, 2})}})}});
  load(state, path_);
  EXPECT_TRUE(equal(state["optimizer"]["w"].as_tensor(), row));
}

TEST_F(DcpLoader, AnObjectIsNoTensorForAShard) {
  save_dcp(Value::dict({{"w", "text"}}));
  EXPECT_THAT(message_of_load(Value::dict({{"w", ShardedTensor::whole("w", filled(1, 0))}})),
              HasSubstr("there is no tensor 'w'; an object has this name"));
}

TEST_F(DcpLoader, ATensorThatIsNotFilledIsNamed) {
  save_dcp(Value::dict({{"step", 3.0}, {"name", "text"}, {"w", filled(2, 1)}}));
  std::string log;
  set_log_sink([&](LogLevel, std::string_view text) { log += text; });
  StateDict state =
      Value::dict({{"step", filled(1, 0)}, {"name", filled(1, 0)}, {"w", filled(2, 0)}});
  const LoadReport report = load(state, path_);
  set_log_sink({});
  EXPECT_EQ(state["step"], Value(3.0));
  EXPECT_THAT(report.replaced,
              UnorderedElementsAre(ReplacedTensor{"step", "float"}, ReplacedTensor{"name", "str"}));
  EXPECT_THAT(log, HasSubstr("something else is stored: 'name' (str), 'step' (float); the "
                             "loaded state dict holds what is stored"));
}

TEST_F(DcpLoader, WhatIsStoredDecidesTheKindOfALeaf) {
  save_dcp(Value::dict({{"a", filled(2, 1)}, {"b", "text"}}));
  StateDict state = Value::dict({{"a", "text"}, {"b", filled(2, 0)}});
  load(state, path_);
  EXPECT_TRUE(equal(state["a"].as_tensor(), filled(2, 1)));
  EXPECT_EQ(state["b"], Value("text"));
}

TEST_F(DcpLoader, AnEmptyContainerAsksForNoTensor) {
  save_dcp(Value::dict({{"w", filled(10000, 1)}, {"v", filled(2, 2)}}));
  StateDict state = Value::dict({{"w", Value::dict()}, {"v", filled(2, 0)}});
  EXPECT_LT(load(state, path_).bytes_read, 10000U);
  EXPECT_EQ(state["w"], Value::dict()) << "as a rank outside of the tensor's mesh has it";
  EXPECT_TRUE(equal(state["v"].as_tensor(), filled(2, 2)));
}

TEST_F(DcpLoader, AListThatHasGrownIsNamedWithItsItems) {
  const Value item = Value::dict({{"k", 1}});
  save_dcp(Value::dict({{"t", filled(2, 1)}, {"hist", Value::list({item, item})}}));
  StateDict state = Value::dict({{"t", filled(2, 0)}, {"hist", Value::list()}});
  EXPECT_THAT(testing::error_of([&] { load(state, path_); }).what(),
              HasSubstr("'hist.0.k', 'hist.1.k' below this name"));
}

TEST_F(DcpLoader, KeysOfDictsKeepTheirKind) {
  const auto state_of = [](float value) {
    return Value::dict(
        {{"state", Value::dict({{0, filled(2, value)},
                                {1, Value::dict({{"step", static_cast<int>(value)}})},
                                {true, "yes"}})}});
  };
  save_dcp(state_of(3));
  StateDict state = state_of(0);
  load(state, path_);
  EXPECT_EQ(state, state_of(3)) << "no '0' beside 0";
}

TEST_F(DcpLoader, AContainerThatWasStoredAsOneObjectReplacesItsParts) {
  save_dcp(Value::dict({{"optimizer", Value::tuple({1, 2})},
                        {"model", Value::dict({{"w", filled(1, 1)}, {"hyper", 5}})}}));
  StateDict state = Value::dict(
      {{"optimizer",
        Value::dict({{"lr", 0.1}, {"groups", Value::list({Value::dict({{"betas", 1}})})}})},
       {"model", Value::dict({{"w", filled(1, 0)}, {"hyper", Value::dict()}})}});
  load(state, path_);
  EXPECT_EQ(state["optimizer"], Value::tuple({1, 2}));
  EXPECT_EQ(state["model"]["hyper"], Value(5)) << "an empty dict has no parts to look for";
  EXPECT_TRUE(equal(state["model"]["w"].as_tensor(), filled(1, 1)));
}

TEST_F(DcpLoader, PartsAreTakenWhereTheyAreStored) {
  save_dcp(Value::dict({{"optimizer", Value::dict({{"lr", 0.5}, {"eps", 1}})}}));
  StateDict state = Value::dict({{"optimizer", Value::dict({{"lr", 0.1}})}});
  load(state, path_);
  EXPECT_EQ(state, Value::dict({{"optimizer", Value::dict({{"lr", 0.5}})}}));
}

TEST_F(DcpLoader, FactoriesObjectsAndLocalValuesAreTreatedAsInMegatronsLoads) {
  const auto state = [](float value, const Value& object) {
    ShardedTensorFactory halves;
    halves.key = "fc1";
    halves.data = filled(4, value);
    halves.build = [](const std::string& key, const Tensor& data, const ReplicaId&,
                      std::optional<FlattenedRange>) {
      return Value::dict({{"w", ShardedTensor::whole(key + ".w", data.narrow(0, 0, 2))},
                          {"v", ShardedTensor::whole(key + ".v", data.narrow(0, 2, 2))}});
    };
    halves.merge = [](const Value& parts) { return Value::list({parts.at("w"), parts.at("v")}); };
    return Value::dict(
        {{"fc1", halves},
         {"rng",
          ShardedObject{.key = "rng", .data = object, .global_shape = {1}, .global_offset = {0}}},
         {"local", LocalNonpersistentObject{"here"}}});
  };
  save_dcp(state(1, "stored"));
  StateDict loaded = state(0, "old");
  load_plain(loaded, path_);
  EXPECT_TRUE(equal(loaded["fc1"].items()[1].as_tensor(), filled(2, 1)));
  EXPECT_EQ(loaded["rng"], Value("stored"));
  EXPECT_EQ(loaded["local"], Value("here"));
}

TEST_F(DcpLoader, StrictModesSayWhatIsMissingHereToo) {
  save_dcp(Value::dict({{"a", 1}, {"b", 2}}));
  StateDict state = Value::dict({{"a", 0}, {"c", 0}});
  const LoadReport report = load(state, path_, {.strict = StrictHandling::kReturnAll});
  EXPECT_THAT(report.missing, ElementsAre("b"));
  EXPECT_THAT(report.unexpected, ElementsAre("c"));
  EXPECT_THAT(
      message_of_load(state, {.strict = StrictHandling::kRaiseAll}),
      HasSubstr("Missing keys (for all ranks):\n  'b'\nUnexpected keys (for this rank):\n  'c'"));
}

TEST_F(DcpLoader, EveryRankFailsIfOneAsksForWhatIsNotStored) {
  save_dcp(Value::dict({{"a", 1}}));
  run_ranks(3, [&](Communicator& comm) {
    StateDict state = Value::dict({{comm.rank() == 1 ? "b" : "a", 0}});
    EXPECT_THAT(testing::error_of([&] { load(state, path_, {}, comm); }).message(),
                HasSubstr("on rank 1 of 3:\n  'b'"));
  });
}

TEST_F(DcpLoader, WithoutAStateDictAllComesBackNestedAsItWasSaved) {
  const StateDict saved =
      Value::dict({{"model", Value::dict({{"layer.w", filled(2, 1)}})},
                   {"optimizer", Value::list({Value::dict({{"m", filled(1, 2)}}), 0.5})},
                   {"step", 3}});
  save_dcp(saved);
  EXPECT_EQ(load_state_dict(path_), saved);
  EXPECT_EQ(load_state_dict(path_, {"model"}), Value::dict({{"model", saved.at("model")}}));
  EXPECT_EQ(load_state_dict(path_, {"optimizer.1", "step"}),
            Value::dict({{"optimizer", Value::list({Value(), 0.5})}, {"step", 3}}))
      << "what is not taken of a list is none";
}

TEST_F(DcpLoader, WithoutAStateDictANameOfNothingIsAnError) {
  save_dcp(Value::dict({{"model", 1}}));
  const auto load_it = [&](const LoadOptions& options) {
    return load_state_dict(path_, {"modl"}, options);
  };
  EXPECT_EQ(testing::error_of([&] { load_it({}); }).message(),
            "Missing key in checkpoint state_dict (load.allow_partial_load goes on without such "
            "keys):\n  'modl': did you mean 'model'?");
  EXPECT_EQ(load_it({.allow_partial_load = true}), Value::dict());
  EXPECT_EQ(testing::error_of([&] {
              load_it({.rename = {{"a", "b"}}});
            }).code(),
            ErrorCode::kInvalidArgument);
}

TEST_F(DcpLoader, WithoutAStateDictAMegatronCheckpointIsFlat) {
  save(Value::dict(
           {{"elsewhere", ShardedTensor::whole("decoder.w", filled(2, 1))}, {"iteration", 7}}),
       path_);
  EXPECT_EQ(load_state_dict(path_), Value::dict({{"decoder.w", filled(2, 1)}}));
  EXPECT_EQ(load_state_dict(path_, {"decoder"}), Value::dict({{"decoder.w", filled(2, 1)}}));
}

/// With flatten_state_dict=False, torch saves "model", "optim" and others as objects, each with its
/// tensors inside.
TEST_F(DcpLoader, TensorsInsideObjectsAreLoadedIntoTheCallersTensors) {
  const StateDict saved = load_state_dict(golden("dcp-not-flattened"));
  const Tensor expected = saved.at("optim").at("state").at("0").at("exp_avg_sq").as_tensor();
  const Tensor weight = Tensor::zeros(DType::kFloat32, {4, 3});
  const Tensor rows = Tensor::zeros(DType::kFloat32, {2, 3});
  const Tensor view = Tensor::zeros(DType::kFloat64, {4});
  StateDict state = Value::dict(
      {{"model", Value::dict({{"weight", weight}})},
       {"shard", ShardedTensor::from_box("optim.state.0.exp_avg_sq", rows, {4, 3}, {2, 0})},
       {"views", Value::list({Tensor::zeros(DType::kFloat32, {2, 6}), view})},
       {"mixed", Value::dict({{"pair", Value()}})},
       {"values", Value::dict({{"a", 0}})},
       {"epoch", 0}});
  load(state, golden("dcp-not-flattened"),
       {.cast = Cast::kAllow, .validate_access_integrity = false});
  EXPECT_TRUE(equal(weight, saved.at("model").at("weight").as_tensor()));
  EXPECT_TRUE(equal(rows, expected.narrow(0, 2, 2).contiguous()));
  const auto* const column = reinterpret_cast<const double*>(view.data());
  EXPECT_THAT(std::vector<double>(column, column + 4), ElementsAre(2, 8, 14, 20))
      << "with gaps in the file";
  EXPECT_TRUE(state.at("mixed").at("pair").items()[1].is_tensor()) << "a tuple is a leaf";
  EXPECT_EQ(state.at("epoch"), Value(5));
  EXPECT_EQ(state.at("values").at("b").items()[1], Value("three"));
}

TEST_F(DcpLoader, DamageInsideSuchAnObjectIsFound) {
  std::filesystem::copy(golden("dcp-not-flattened"), path_,
                        std::filesystem::copy_options::recursive);
  const auto reader = open_checkpoint(path_);
  const auto& tensors = reader->metadata().tensors;
  const auto found = std::ranges::find(tensors, "model.weight", &TensorStorageMetadata::key);
  const StorageInfo place = found->places.front();
  std::filesystem::permissions(path_ / "__0_0.distcp", std::filesystem::perms::owner_all);
  std::fstream file(path_ / "__0_0.distcp", std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(static_cast<std::streamoff>(place.offset)).put('x');
  file.close();
  EXPECT_THAT(message_of_load(Value::dict(
                  {{"model", Value::dict({{"weight", Tensor::zeros(DType::kFloat32, {4, 3})}})}})),
              HasSubstr("CRC-32"));
  const VerifyReport report = verify(*open_checkpoint(path_), {.deep = true});
  ASSERT_FALSE(report.problems.empty());
  EXPECT_EQ(report.problems.front().context().key, "model.weight");
}

TEST_F(DcpLoader, WhatWasNotFlattenedIsConvertedToAFlattenedCheckpoint) {
  convert(golden("dcp-not-flattened"), path_);
  EXPECT_TRUE(diff(*open_checkpoint(golden("dcp-not-flattened")), *open_checkpoint(path_))
                  .differences.empty());
  EXPECT_EQ(load_state_dict(path_).at("optim").at("param_groups").items()[0].at("lr"), Value(0.1));
}

}  // namespace
}  // namespace dckpt::dcp_loader_test
