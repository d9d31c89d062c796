// The request of a load against what is stored: keys, shapes, dtypes, names, strict modes.

#include "tests/dist_checkpointing/save_load.h"

#include <algorithm>
#include <array>
#include <fstream>
#include <span>

#include "configs/policy/policy.h"
#include "configs/policy/strategy_options.h"
#include "mapping/state/dlpack.h"
#include "strategies/registry/registry.h"
#include "tests/support/expect_error.h"

namespace dckpt::request_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST_F(SaveLoad, ShapeMismatchIsAnErrorUnlessTheShardAllowsIt) {
  StateDict state;
  state["embedding"] = ShardedTensor::whole("embedding", arange({3, 4}));
  save(state, checkpoint());
  const auto request = [](bool allow) {
    StateDict wanted;
    wanted["embedding"] =
        ShardedTensor::whole("embedding", untouched({5, 3}), {.allow_shape_mismatch = allow});
    return wanted;
  };
  StateDict rigid = request(false);
  EXPECT_THAT(error_of([&] { load(rigid, checkpoint()); }),
              HasSubstr("Global shape mismatch for loaded ((3, 4)) and expected ((5, 3)) tensor "
                        "for key 'embedding'"));
  StateDict allowed = request(true);
  EXPECT_THAT(error_of([&] { load(allowed, checkpoint()); }),
              HasSubstr("3 of 4 elements of axis 1 are asked for, and the next save would lose the "
                        "rest, for key 'embedding': load.allow_truncation for this key drops it"));
  EXPECT_THAT(load(allowed, checkpoint(), {.allow_truncation = {"embed*"}}).truncated,
              ElementsAre("embedding"));
  const auto* const values =
      reinterpret_cast<const float*>(allowed["embedding"].as_tensor().data());
  EXPECT_THAT(std::vector<float>(values, values + 15),
              ElementsAre(0, 1, 2, 4, 5, 6, 8, 9, 10, 0, 0, 0, 0, 0, 0));
}

TEST_F(SaveLoad, RowsThatFiveRanksCannotShareEquallyAreNotDropped) {
  save(Value::dict({{"w", ShardedTensor::whole("w", arange({12, 2}))}}), checkpoint());
  const auto load_with = [&](const LoadOptions& options) {
    return error_of([&] {
      run_ranks(5, [&](Communicator& comm) {
        StateDict state = Value::dict(
            {{"w", ShardedTensor::from_rank_offsets(
                       "w", untouched({2, 2}), {{.axis = 0, .rank = comm.rank(), .count = 5}})}});
        load(state, checkpoint(), options, comm);
      });
    });
  };
  const std::string advice =
      "12 do not divide by 5 ranks: ShardedTensor::from_box describes parts "
      "of 3 and of 2";
  EXPECT_THAT(load_with({}), HasSubstr(advice));
  EXPECT_THAT(load_with({.allow_shape_mismatch = {"*"}}),
              AllOf(HasSubstr("10 of 12 rows of axis 0 are asked for"), HasSubstr(advice)));
  EXPECT_EQ(load_with({.allow_shape_mismatch = {"*"}, .allow_truncation = {"w"}}), "no error");
}

TEST_F(SaveLoad, PaddingMayBeDropped) {
  const auto load_of = [&](const Tensor& stored, const LoadOptions& options) {
    std::filesystem::remove_all(checkpoint());
    save(Value::dict({{"w", ShardedTensor::whole("w", stored)}}), checkpoint());
    return error_of([&] {
      StateDict state = Value::dict({{"w", ShardedTensor::whole("w", untouched({3, 2}))}});
      EXPECT_TRUE(load(state, checkpoint(), options).truncated.empty());
      EXPECT_TRUE(equal(state["w"].as_sharded_tensor().data->contiguous(), arange({3, 2})));
    });
  };
  const LoadOptions allowed{.allow_shape_mismatch = {"w"}};
  const auto padded = [](float a, float b) {
    const std::array<float, 10> values{0, 1, 2, 3, 4, 5, a, b, a, b};
    return Tensor::from_bytes(DType::kFloat32, {5, 2}, std::as_bytes(std::span(values)));
  };
  EXPECT_EQ(load_of(padded(0, 0), allowed), "no error");
  EXPECT_EQ(load_of(padded(4, 5), allowed), "no error") << "the last kept row again";
  EXPECT_THAT(load_of(padded(6, 7), allowed), HasSubstr("3 of 5 rows of axis 0"));
  EXPECT_THAT(load_of(padded(0, 0), {}), HasSubstr("load.allow_truncation drops the rest"));
}

TEST_F(SaveLoad, EveryUnknownKeyIsNamedWithItsNearest) {
  StateDict state;
  state["a"] = ShardedTensor::whole("decoder.layers.weight", arange({2}));
  save(state, checkpoint());
  StateDict wanted;
  wanted["a"] = ShardedTensor::whole("decoder.layer.weight", untouched({2}));
  wanted["b"] = ShardedTensor::whole("completely.different", untouched({2}));
  const std::string message = error_of([&] { load(wanted, checkpoint()); });
  EXPECT_THAT(message, HasSubstr("'decoder.layer.weight': did you mean 'decoder.layers.weight'?"));
  EXPECT_THAT(message, HasSubstr("'completely.different'"));
}

TEST_F(SaveLoad, ADtypeIsNeverCastSilently) {
  StateDict state;
  state["w"] = ShardedTensor::whole("w", arange({2}));
  save(state, checkpoint());
  StateDict wanted;
  wanted["w"] = ShardedTensor::whole("w", Tensor::zeros(DType::kBFloat16, {2}));
  EXPECT_THAT(error_of([&] { load(wanted, checkpoint()); }),
              HasSubstr("dtype mismatch for loaded (float32) and expected (bfloat16)"));
}

TEST_F(SaveLoad, ADestinationWhoseElementsShareMemoryIsRefused) {
  StateDict state;
  state["w"] = ShardedTensor::whole("w", arange({2, 3}));
  save(state, checkpoint());
  const Tensor row = untouched({3});
  StateDict wanted;
  wanted["w"] = ShardedTensor::whole(
      "w", Tensor(DType::kFloat32, {2, 3}, {0, 1}, row.mutable_data(), row.owner()));
  EXPECT_THAT(error_of([&] { load(wanted, checkpoint()); }),
              HasSubstr("the destination of 'w' has the shape (2, 3) and the strides (0, 1): "
                        "several elements share their memory"));
  EXPECT_TRUE(equal(row, untouched({3})));
  save(wanted, checkpoint("expanded"));  // this does not prevent a save
  StateDict rows;
  rows["w"] = ShardedTensor::whole("w", Tensor::zeros(DType::kFloat32, {2, 3}));
  load(rows, checkpoint("expanded"));
  EXPECT_TRUE(equal(rows.at("w").as_sharded_tensor().data->narrow(0, 1, 1).view({3}), row));
}

/// Returns the tensor as another library would see it, and back.
Tensor save_only(const Tensor& tensor) {
  return from_dlpack(to_dlpack(tensor), DlpackUse::kSave);
}

TEST_F(SaveLoad, ATensorThatWasImportedToBeSavedIsNotLoadedInto) {
  StateDict state;
  state["w"] = ShardedTensor::whole("w", save_only(arange({2, 3})));
  state["plain"] = save_only(arange({2}));
  save(state, checkpoint());
  const Tensor elements = untouched({2, 3});
  StateDict wanted;
  wanted["w"] = ShardedTensor::whole("w", save_only(elements));
  EXPECT_THAT(error_of([&] { load(wanted, checkpoint()); }),
              HasSubstr("the destination of 'w' was imported through DLPack to be saved only; "
                        "import it with DlpackUse::kLoad"));
  EXPECT_TRUE(equal(elements, untouched({2, 3})));
  wanted["w"] = ShardedTensor::whole("w", from_dlpack(to_dlpack(elements)));
  const Tensor plain = untouched({2});
  wanted["plain"] = save_only(plain);
  EXPECT_THAT(
      error_of([&] { load(wanted, checkpoint()); }),
      HasSubstr("cannot merge the common state at 'plain': the state's tensor was "
                "imported through DLPack to be saved only; import it with DlpackUse::kLoad"));
  EXPECT_TRUE(equal(plain, untouched({2})));
  wanted["plain"] = from_dlpack(to_dlpack(plain));
  load(wanted, checkpoint());
  EXPECT_TRUE(equal(elements, arange({2, 3})));
  EXPECT_TRUE(equal(plain, arange({2})));
}

TEST_F(SaveLoad, KeysShapesAndDtypesAreOneErrorThatSaysWhyAndWhatToDo) {
  StateDict state;
  state["e"] = ShardedTensor::whole("embedding.word_embeddings.weight", arange({8, 2}));
  state["w"] = ShardedTensor::whole("w", arange({2}));
  for (const char* const layer : {"layers.0.w", "layers.1.w"})
    state[layer] = ShardedTensor::whole(layer, arange({3}));
  save(state, checkpoint());
  run_ranks(2, [&](Communicator& comm) {
    StateDict wanted;
    wanted["e"] = ShardedTensor::whole("embedding.word_embeddings.weight", untouched({12, 2}),
                                       {.replica_id = comm.rank()});
    if (comm.rank() == 1) {
      wanted["w"] = ShardedTensor::whole("w", Tensor::zeros(DType::kBFloat16, {4}));
      wanted["x"] = ShardedTensor::whole("ww", untouched({2}));
      for (const char* const layer : {"layers.0.w", "layers.1.w"})
        wanted[layer] = ShardedTensor::whole(layer, untouched({4}));
    }
    EXPECT_EQ(
        testing::error_of([&] { load(wanted, checkpoint(), {}, comm); }).message(),
        "keys are asked for that the checkpoint does not have (load.strict: log_unexpected leaves "
        "such keys as they are), on rank 1 of 2:\n"
        "  'ww': did you mean 'w'?\n"
        "the request does not fit what is stored, on all 2 ranks:\n"
        "  Global shape mismatch for loaded ((2,)) and expected ((4,)) tensor for key 'w': axis 0 "
        "has 2 in the checkpoint, not 4; load.allow_shape_mismatch for this key reads the common "
        "part and pads the rest\n"
        "  Global shape mismatch for loaded ((3,)) and expected ((4,)) tensor for key 'layers.*.w' "
        "(2 keys, e.g. 'layers.0.w'): axis 0 has 3 in the checkpoint, not 4; "
        "load.allow_shape_mismatch for this key reads the common part and pads the rest\n"
        "  Global shape mismatch for loaded ((8, 2)) and expected ((12, 2)) tensor for key "
        "'embedding.word_embeddings.weight': axis 0 has 8 in the checkpoint, not 12, likely since "
        "the vocabulary is padded for another tensor-parallel size; load.allow_shape_mismatch for "
        "this key reads the common part and pads the rest\n"
        "  dtype mismatch for loaded (float32) and expected (bfloat16) tensor for key 'w': convert "
        "the destination, or set load.cast: allow; nothing is cast silently");
  });
}

/// LoRA: the adapters are new, or the base model is loaded without the adapters of the checkpoint.
TEST_F(SaveLoad, AdaptersOnOneSideOnlyAreAMatterOfTheStrictMode) {
  StateDict base;
  base["w"] = ShardedTensor::whole("fc.weight", arange({2}));
  StateDict tuned = base;
  tuned["adapter"] = ShardedTensor::whole("fc.adapter.weight", arange({2}));
  save(base, checkpoint());
  const std::string refused = testing::error_of([&] { load(tuned, checkpoint()); }).message();
  EXPECT_THAT(refused, HasSubstr("load.strict: log_unexpected leaves such keys as they are"));
  EXPECT_THAT(refused, HasSubstr("\n  'fc.adapter.weight'"));
  EXPECT_EQ(load(tuned, checkpoint(), {.strict = StrictHandling::kLogUnexpected}).missing.size(),
            0U);
  save(tuned, checkpoint(), {.overwrite = true});
  EXPECT_THAT(testing::error_of([&] {
                load(base, checkpoint(), {.strict = StrictHandling::kRaiseAll});
              }).message(),
              HasSubstr("'fc.adapter.weight'\nload.strict: log_all goes on without these keys."));
  load(base, checkpoint(), {.strict = StrictHandling::kLogAll});
}

struct StrictCase {
  StrictHandling strict;
  bool raises;
  bool returns_unexpected;
  bool returns_missing;
};

class StrictModes : public SaveLoad, public ::testing::WithParamInterface<StrictCase> {};

TEST_P(StrictModes, TreatMissingAndUnexpectedKeysAsMegatronDoes) {
  StateDict state;
  state["a"] = ShardedTensor::whole("stored.only", arange({2}));
  state["b"] = ShardedTensor::whole("both", arange({2}));
  save(state, checkpoint());
  StateDict wanted;
  wanted["b"] = ShardedTensor::whole("both", untouched({2}));
  wanted["c"] = ShardedTensor::whole("wanted.only", untouched({2}));
  if (GetParam().raises) {
    EXPECT_THROW(load(wanted, checkpoint(), {.strict = GetParam().strict}), CheckpointError);
    return;
  }
  const LoadReport report = load(wanted, checkpoint(), {.strict = GetParam().strict});
  EXPECT_EQ(report.unexpected.size(), GetParam().returns_unexpected ? 1U : 0U);
  EXPECT_EQ(report.missing.size(), GetParam().returns_missing ? 1U : 0U);
  EXPECT_TRUE(equal(wanted["b"].as_tensor(), arange({2})));
  EXPECT_TRUE(equal(wanted["c"].as_tensor(), untouched({2}))) << "what is not stored stays";
  StateDict plain = wanted;
  load_plain(plain, checkpoint(), {.strict = GetParam().strict});
  EXPECT_TRUE(plain["b"].is_tensor());
  EXPECT_FALSE(plain.contains("c")) << "Megatron drops it";
}

INSTANTIATE_TEST_SUITE_P(
    All, StrictModes,
    ::testing::Values(StrictCase{StrictHandling::kAssumeOkUnexpected, true, false, false},
                      StrictCase{StrictHandling::kLogUnexpected, false, false, false},
                      StrictCase{StrictHandling::kLogAll, false, false, false},
                      StrictCase{StrictHandling::kRaiseUnexpected, true, false, false},
                      StrictCase{StrictHandling::kRaiseAll, true, false, false},
                      StrictCase{StrictHandling::kReturnUnexpected, false, true, false},
                      StrictCase{StrictHandling::kReturnAll, false, true, true},
                      StrictCase{StrictHandling::kIgnoreAll, false, false, false}),
    [](const auto& test) { return std::string(to_string(test.param.strict)); });

TEST_F(SaveLoad, StoredKeysAreRenamedBeforeTheyAreCompared) {
  save_on(1, [](int) {
    StateDict state;
    state["w"] = ShardedTensor::whole("module.decoder.w", arange({3}));
    state["o"] = ShardedObject{"module.rng", Value(7)};
    return state;
  });
  StateDict state;
  state["w"] = ShardedTensor::whole("decoder.w", untouched({3}));
  state["o"] = ShardedObject{"rng", {}};
  load(state, checkpoint(), {.strict = StrictHandling::kRaiseAll, .rename = {{"^module\\.", ""}}});
  EXPECT_TRUE(equal(state["w"].as_tensor(), arange({3})));
  EXPECT_EQ(state["o"].as_sharded_object().data, Value(7));
}

TEST_F(SaveLoad, RulesThatMakeTwoKeysOneAreRefused) {
  save_on(1, [](int) {
    StateDict state;
    state["a"] = ShardedTensor::whole("a.w", arange({3}));
    state["b"] = ShardedTensor::whole("b.w", arange({3}));
    return state;
  });
  StateDict state;
  EXPECT_THAT(error_of([&] {
                load(state, checkpoint(), {.rename = {{"^[ab]\\.", ""}}});
              }),
              HasSubstr("'a.w' and 'b.w' both become 'w'"));
}

TEST_F(SaveLoad, TheStrategyToLoadWithMustExistAndFit) {
  save_on(1, [](int) { return Value::dict({{"w", ShardedTensor::whole("w", arange({4}))}}); });
  StateDict wanted;
  EXPECT_THAT(error_of([&] { load(wanted, checkpoint(), {.strategy = {.name = "torch_dst"}}); }),
              HasSubstr("no strategy reads backend 'torch_dst'; there are"));
  EXPECT_THAT(error_of([&] { load(wanted, checkpoint(), {.strategy = {.name = "zarr"}}); }),
              HasSubstr("the checkpoint has the format 'torch_dist' version 1, but load.strategy "
                        "asks for 'zarr'; name what is there, or say 'auto', which takes it"));
  EXPECT_THAT(
      error_of([&] { load(wanted, checkpoint(), {.strategy = {.name = "dcp", .version = 1}}); }),
      HasSubstr("no strategy reads backend 'dcp' version 1"));
  save(Value::dict({{"w", arange({4})}}), checkpoint("plain"), {.compat = Compat::kDcp});
  EXPECT_THAT(
      error_of([&] { load(wanted, checkpoint("plain"), {.strategy = {.name = "torch_dist"}}); }),
      HasSubstr("has the format 'dcp', but load.strategy asks for 'torch_dist'"));
}

struct EchoOptions {
  int level = 0;
};

/// Registers another reader of plain DCP directories, with an option.
void register_echo(EchoOptions& opened_with) {
  const config::Schema<EchoOptions> schema{
      {config::field("level", &EchoOptions::level, config::integer(0, 9))}};
  const auto read = [schema](const StrategySpec& strategy) {
    return read_options(schema, strategy, kLoadBackendOptions);
  };
  register_strategy(LoadStrategyEntry{
      .name = "echo",
      .matches =
          [](std::span<const FileInfo> entries) {
            return std::ranges::any_of(
                entries, [](const FileInfo& entry) { return entry.name == ".metadata"; });
          },
      .check_options = read,
      .open =
          [read, &opened_with](std::shared_ptr<Storage> storage, const OpenHints& hints) {
            opened_with = read(hints.strategy);
            return find_load_strategy("dcp").open(std::move(storage), {});
          }});
}

TEST_F(SaveLoad, ABackendThatIsNamedReadsWithItsOwnOptions) {
  EchoOptions opened_with;
  register_echo(opened_with);
  save(Value::dict({{"w", arange({4})}}), checkpoint(), {.compat = Compat::kDcp});
  const auto loading = [&](const std::string& backend) {
    StateDict state = Value::dict({{"w", untouched({4})}});
    load(state, checkpoint(),
         Policy::from_text("version: 1\nload: {backend: " + backend + "}").load);
  };
  EXPECT_THAT(error_of([&] { loading("{name: echo, options: {levl: 3}}"); }),
              HasSubstr("load.backend.options has no field 'levl' (did you mean 'level'?)"));
  EXPECT_THAT(error_of([&] { loading("{name: zarr, options: {level: 3}}"); }),
              HasSubstr("strategy 'zarr' has no options of its own, but load.backend.options has "
                        "'level'; what it can be told stands in load itself"));
  loading("{name: echo, options: {level: 3}}");
  EXPECT_EQ(opened_with.level, 3) << "although 'dcp', which comes first, knows these files too";
}

TEST_F(SaveLoad, ATruncatedDataFileIsNamedBeforeTheFirstByteMoves) {
  StateDict state;
  state["w"] = ShardedTensor::whole("w", arange({64, 64}));
  save(state, checkpoint());
  std::filesystem::resize_file(checkpoint() / "__0_0.distcp", 5000);
  const Tensor destination = untouched({64, 64});
  StateDict wanted;
  wanted["w"] = ShardedTensor::whole("w", destination);
  EXPECT_THAT(error_of([&] { load(wanted, checkpoint()); }), HasSubstr("__0_0.distcp"));
  EXPECT_TRUE(equal(destination, untouched({64, 64})));
}

}  // namespace
}  // namespace dckpt::request_test
