// Ranks as threads save under one layout and load under another.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <numeric>

#include "dist_checkpointing/load.h"
#include "dist_checkpointing/open.h"
#include "dist_checkpointing/save.h"
#include "mapping/base/error.h"
#include "strategies/comm/threads.h"
#include "tests/support/arange.h"
#include "tests/support/expect_error.h"
#include "tests/support/temp_dir.h"

namespace dckpt {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

Tensor untouched(const Shape& shape) {
  Tensor tensor = Tensor::empty(DType::kFloat32, shape);
  std::memset(tensor.data(), 0xFF, tensor.nbytes());
  return tensor;
}

class SaveLoad : public ::testing::Test {
 protected:
  std::filesystem::path checkpoint(const std::string& name = "checkpoint") const { return directory_.path() / name; }

  void save_on(int ranks, const std::function<StateDict(int rank)>& state, const SaveOptions& options = {}) {
    run_ranks(ranks, [&](Communicator& comm) { save(state(comm.rank()), checkpoint(), options, comm); });
  }

  std::string error_of(const std::function<void()>& action) {
    try {
      action();
    } catch (const CheckpointError& error) {
      return error.what();
    }
    return "no error";
  }

  TempDir directory_;
};

TEST_F(SaveLoad, RowsOfFourRanksBecomeColumnsOfThree) {
  const Shape shape{8, 9};
  save_on(4, [&](int rank) {
    StateDict state;
    state["model"]["w"] = ShardedTensor::from_rank_offsets("w", part_of_arange(shape, {{2 * rank, 0}, {2, 9}}), {{.axis = 0, .rank = rank, .count = 4}});
    return state;
  });
  run_ranks(3, [&](Communicator& comm) {
    const Box mine{{0, 3 * comm.rank()}, {8, 3}};
    const Tensor destination = untouched({8, 3});
    StateDict state;
    state["elsewhere"] = ShardedTensor::from_rank_offsets("w", destination, {{.axis = 1, .rank = comm.rank(), .count = 3}});
    load(state, checkpoint(), {}, comm);
    EXPECT_TRUE(equal(destination, part_of_arange(shape, mine))) << "filled in place";
    EXPECT_EQ(state["elsewhere"].as_tensor().data(), destination.data());
  });
}

TEST_F(SaveLoad, KeysWithTheSeparationHintHaveFilesOfTheirOwn) {
  save_on(
      2,
      [&](int rank) {
        StateDict state;
        for (const char* const key : {"model.w", "optimizer.w"}) {
          state[key] = ShardedTensor::from_rank_offsets(key, part_of_arange({4, 3}, {{2 * rank, 0}, {2, 3}}), {{.axis = 0, .rank = rank, .count = 2}});
        }
        return state;
      },
      {.separation_hint = "optimizer"});
  const auto reader = open_checkpoint(checkpoint());
  EXPECT_THAT(reader->metadata().files, ::testing::UnorderedElementsAre("__0_0.distcp", "optimizer__0_1.distcp", "__1_0.distcp", "optimizer__1_1.distcp"));
  StateDict wanted;
  wanted["w"] = ShardedTensor::whole("optimizer.w", untouched({4, 3}));
  load(wanted, checkpoint());
  EXPECT_TRUE(equal(wanted["w"].as_tensor(), arange({4, 3})));
}

TEST_F(SaveLoad, ASeparationHintThatIsNoFileNameIsRefusedBeforeAnythingIsWritten) {
  StateDict state;
  state["w"] = ShardedTensor::whole("w", arange({2}));
  EXPECT_THAT(error_of([&] { save(state, checkpoint(), {.separation_hint = "a/../b"}); }), HasSubstr("the separation hint 'a/../b' has a slash"));
  EXPECT_FALSE(std::filesystem::exists(checkpoint()));
}

TEST_F(SaveLoad, OnlyTheWantedBytesOfARowShardAreRead) {
  const Shape shape{1024, 1024};
  StateDict state;
  state["w"] = ShardedTensor::whole("w", arange(shape));
  save(state, checkpoint());
  StateDict wanted;
  wanted["w"] = ShardedTensor::from_box("w", untouched({100, 1024}), shape, {200, 0});
  const LoadReport report = load(wanted, checkpoint(), {.validate_access_integrity = false});
  EXPECT_EQ(report.bytes_wanted, 100U * 1024 * 4);
  EXPECT_LE(report.bytes_read, report.bytes_wanted * 105 / 100);
  EXPECT_TRUE(equal(wanted["w"].as_tensor(), part_of_arange(shape, {{200, 0}, {100, 1024}})));
}

TEST_F(SaveLoad, FillsAStridedDestination) {
  const Shape shape{6, 4};
  StateDict state;
  state["w"] = ShardedTensor::whole("w", arange(shape));
  save(state, checkpoint());
  const Tensor memory = untouched({4, 6});
  const Tensor transposed(DType::kFloat32, shape, Shape{1, 6}, memory.data(), memory.owner());
  StateDict wanted;
  wanted["w"] = ShardedTensor::whole("w", transposed);
  load(wanted, checkpoint());
  EXPECT_TRUE(equal(transposed, arange(shape)));
}

TEST_F(SaveLoad, Float8GoesFromAndToStridedTensors) {
  // Torch has no copy of such a tensor that is not contiguous; here their elements are bytes like any others.
  const auto transposed = [](DType dtype, const Tensor& memory) { return Tensor(dtype, Shape{6, 4}, Shape{1, 6}, memory.data(), memory.owner()); };
  for (const DType dtype : {DType::kFloat8E4M3FN, DType::kFloat8E4M3FNUZ, DType::kFloat8E5M2, DType::kFloat8E5M2FNUZ, DType::kFloat8E8M0FNU}) {
    for (const Compat compat : {Compat::kMegatron, Compat::kDcp}) {
      const auto path = checkpoint(std::string(to_string(dtype)) + "-" + std::string(to_string(compat)));
      Tensor memory = Tensor::empty(dtype, {4, 6});
      for (int i = 0; i < 24; ++i) memory.data()[i] = static_cast<std::byte>(11 * i);  // NaNs among them
      StateDict state;
      state["w"] = ShardedTensor::whole("w", transposed(dtype, memory));
      save(state, path, {.compat = compat});
      const Tensor rows = Tensor::zeros(dtype, {4, 6});
      StateDict wanted;
      wanted["w"] = ShardedTensor::whole("w", transposed(dtype, rows));
      load(wanted, path);
      EXPECT_TRUE(equal(rows, memory)) << path;
    }
  }
}

TEST_F(SaveLoad, StoresAStridedTensorRowMajor) {
  const Tensor memory = arange({4, 6});
  StateDict state;
  state["w"] = ShardedTensor::whole("w", Tensor(DType::kFloat32, Shape{6, 4}, Shape{1, 6}, memory.data(), memory.owner()));
  save(state, checkpoint());
  const Tensor loaded = load_plain_tensors(checkpoint())["w"].as_tensor();
  EXPECT_EQ(reinterpret_cast<const float*>(loaded.data())[1], 6.0F) << "element (0, 1) of the transposed tensor";
}

TEST_F(SaveLoad, PrependedAxesBecomeLayersOfOneTensor) {
  save_on(2, [&](int rank) {
    StateDict state;
    state["layer"] = ShardedTensor::from_rank_offsets("layers.w", part_of_arange({2, 3, 4}, {{rank, 0, 0}, {1, 3, 4}}).view({3, 4}), {{.axis = 0, .rank = rank, .count = 2}},
                                                      {.prepend_axis_num = 1});
    return state;
  });
  EXPECT_TRUE(equal(load_plain_tensors(checkpoint())["layers.w"].as_tensor(), arange({2, 3, 4})));
  StateDict second;
  second["w"] = ShardedTensor::from_rank_offsets("layers.w", untouched({3, 4}), {{.axis = 0, .rank = 1, .count = 2}}, {.prepend_axis_num = 1});
  load(second, checkpoint(), {.validate_access_integrity = false});
  EXPECT_TRUE(equal(second["w"].as_tensor().view({1, 3, 4}), part_of_arange({2, 3, 4}, {{1, 0, 0}, {1, 3, 4}})));
}

/// Three data-parallel ranks share a (4, 6) tensor as flattened ranges; then two ranks with another grid load it.
void save_flattened(const std::filesystem::path& path, FlattenedForm form) {
  const std::vector<std::int64_t> cuts = {0, 5, 17, 24};
  run_ranks(3, [&](Communicator& comm) {
    const FlattenedRange range{cuts.at(static_cast<std::size_t>(comm.rank())), cuts.at(static_cast<std::size_t>(comm.rank()) + 1)};
    StateDict state;
    state["m"] = ShardedTensor::from_rank_offsets_flat("m", arange({24}).narrow(0, range.begin, range.end - range.begin), Shape{4, 6}, {}, range);
    save(state, path, {.flattened = form}, comm);
  });
}

TEST_F(SaveLoad, FlattenedRangesAreReshardedInBothForms) {
  for (const FlattenedForm form : {FlattenedForm::kBoxes, FlattenedForm::kMegatron}) {
    const auto path = checkpoint(form == FlattenedForm::kBoxes ? "boxes" : "megatron");
    save_flattened(path, form);
    EXPECT_TRUE(equal(load_plain_tensors(path)["m"].as_tensor(), arange({4, 6})));
    run_ranks(2, [&](Communicator& comm) {
      StateDict state;
      state["m"] = ShardedTensor::from_rank_offsets_flat("m", untouched({7}), Shape{4, 3}, {{.axis = 1, .rank = comm.rank(), .count = 2}}, {4, 11});
      load(state, path, {.validate_access_integrity = false}, comm);
      const Tensor half = part_of_arange({4, 6}, {{0, 3 * comm.rank()}, {4, 3}});
      EXPECT_TRUE(equal(state["m"].as_tensor(), half.view({12}).narrow(0, 4, 7)));
    });
  }
}

TEST_F(SaveLoad, UnevenAndEmptyShardsMakeOneTensor) {
  const std::vector<std::int64_t> cuts = {0, 5, 5, 12};
  save_on(3, [&](int rank) {
    const std::int64_t begin = cuts.at(static_cast<std::size_t>(rank));
    const std::int64_t size = cuts.at(static_cast<std::size_t>(rank) + 1) - begin;
    StateDict state;
    state["v"] = ShardedTensor::from_box("v", part_of_arange({12}, {{begin}, {size}}), {12}, {begin});
    return state;
  });
  EXPECT_TRUE(equal(load_plain_tensors(checkpoint())["v"].as_tensor(), arange({12})));
}

TEST_F(SaveLoad, ObjectsOfEveryRankAndTheCommonStateComeBack) {
  save_on(2, [](int rank) {
    StateDict state;
    state["rng"] = ShardedObject{.key = "rng", .data = Value::tuple({rank, "state"}), .global_shape = {2}, .global_offset = {rank}};
    state["iteration"] = 100 + rank;  // rank 0's is stored
    state["args"] = Value::dict({{"lr", 0.5}, {"betas", Value::tuple({0.9, 0.95})}, {7, nullptr}});
    return state;
  });
  run_ranks(2, [&](Communicator& comm) {
    StateDict state;
    state["rng"] = ShardedObject{.key = "rng", .global_shape = {2}, .global_offset = {comm.rank()}};
    load(state, checkpoint(), {}, comm);
    EXPECT_EQ(state["rng"].as_sharded_object().data, Value::tuple({comm.rank(), "state"}));
    EXPECT_EQ(state["iteration"], Value(100));
    EXPECT_EQ(state["args"][7], Value());
  });
}

TEST_F(SaveLoad, TheNewerFormKeepsTheCommonStateAsAnObject) {
  StateDict state;
  state["iteration"] = 3;
  state["w"] = ShardedTensor::whole("w", arange({2}));
  save(state, checkpoint(), {.compat = Compat::kMegatron019});
  EXPECT_FALSE(std::filesystem::exists(checkpoint() / "common.pt"));
  EXPECT_EQ(load_common_state(checkpoint())["iteration"], Value(3));
}

TEST_F(SaveLoad, FactoriesSplitBeforeSavingAndMergeAfterLoading) {
  const auto factory = [](const Tensor& data) {
    ShardedTensorFactory result;
    result.key = "fc1";
    result.data = data;
    result.build = [](const std::string& key, const Tensor& whole_data, const ReplicaId&, std::optional<FlattenedRange>) {
      return Value::list({ShardedTensor::whole(key + "_w", whole_data.narrow(0, 0, 2)), ShardedTensor::whole(key + "_v", whole_data.narrow(0, 2, 2))});
    };
    result.merge = [](const Value& parts) {
      const Tensor merged = Tensor::empty(DType::kFloat32, {4, 3});
      std::memcpy(merged.data(), parts.items()[0].as_tensor().data(), 24);
      std::memcpy(merged.data() + 24, parts.items()[1].as_tensor().data(), 24);
      return Value(merged);
    };
    return result;
  };
  StateDict state;
  state["mlp"]["fc1"] = factory(arange({4, 3}));
  save(state, checkpoint());
  EXPECT_TRUE(load_plain_tensors(checkpoint()).contains("fc1_v"));
  StateDict loaded;
  loaded["mlp"]["fc1"] = factory(untouched({4, 3}));
  load(loaded, checkpoint());
  EXPECT_TRUE(equal(loaded["mlp"]["fc1"].as_tensor(), arange({4, 3})));
}

TEST_F(SaveLoad, ShapeMismatchIsAnErrorUnlessTheShardAllowsIt) {
  StateDict state;
  state["embedding"] = ShardedTensor::whole("embedding", arange({3, 4}));
  save(state, checkpoint());
  const auto request = [](bool allow) {
    StateDict wanted;
    wanted["embedding"] = ShardedTensor::whole("embedding", untouched({5, 3}), {.allow_shape_mismatch = allow});
    return wanted;
  };
  StateDict rigid = request(false);
  EXPECT_THAT(error_of([&] { load(rigid, checkpoint()); }), HasSubstr("Global shape mismatch for loaded ((3, 4)) and expected ((5, 3)) tensor for key 'embedding'"));
  StateDict allowed = request(true);
  load(allowed, checkpoint());
  const auto* const values = reinterpret_cast<const float*>(allowed["embedding"].as_tensor().data());
  EXPECT_THAT(std::vector<float>(values, values + 15), ElementsAre(0, 1, 2, 4, 5, 6, 8, 9, 10, 0, 0, 0, 0, 0, 0));
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
  EXPECT_THAT(error_of([&] { load(wanted, checkpoint()); }), HasSubstr("dtype mismatch for loaded (float32) and expected (bfloat16)"));
}

TEST_F(SaveLoad, KeysShapesAndDtypesAreOneErrorThatSaysWhyAndWhatToDo) {
  StateDict state;
  state["e"] = ShardedTensor::whole("embedding.word_embeddings.weight", arange({8, 2}));
  state["w"] = ShardedTensor::whole("w", arange({2}));
  for (const char* const layer : {"layers.0.w", "layers.1.w"}) state[layer] = ShardedTensor::whole(layer, arange({3}));
  save(state, checkpoint());
  run_ranks(2, [&](Communicator& comm) {
    StateDict wanted;
    wanted["e"] = ShardedTensor::whole("embedding.word_embeddings.weight", untouched({12, 2}), {.replica_id = comm.rank()});
    if (comm.rank() == 1) {
      wanted["w"] = ShardedTensor::whole("w", Tensor::zeros(DType::kBFloat16, {2}));
      wanted["x"] = ShardedTensor::whole("ww", untouched({2}));
      for (const char* const layer : {"layers.0.w", "layers.1.w"}) wanted[layer] = ShardedTensor::whole(layer, untouched({4}));
    }
    EXPECT_EQ(testing::error_of([&] { load(wanted, checkpoint(), {}, comm); }).message(),
              "keys are asked for that the checkpoint does not have, on rank 1 of 2:\n"
              "  'ww': did you mean 'w'?\n"
              "the request does not fit what is stored, on all 2 ranks:\n"
              "  Global shape mismatch for loaded ((3,)) and expected ((4,)) tensor for key 'layers.*.w' (2 keys, e.g. 'layers.0.w'): axis 0 has 3 in the checkpoint, not 4; "
              "load.allow_shape_mismatch for this key reads the common part and pads the rest\n"
              "  Global shape mismatch for loaded ((8, 2)) and expected ((12, 2)) tensor for key 'embedding.word_embeddings.weight': axis 0 has 8 in the checkpoint, not 12, likely since "
              "the vocabulary is padded for another tensor-parallel size; load.allow_shape_mismatch for this key reads the common part and pads the rest\n"
              "  dtype mismatch for loaded (float32) and expected (bfloat16) tensor for key 'w': convert the destination, nothing is cast silently");
  });
}

struct StrictCase {
  Strict strict;
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

INSTANTIATE_TEST_SUITE_P(All, StrictModes,
                         ::testing::Values(StrictCase{Strict::kAssumeOkUnexpected, true, false, false}, StrictCase{Strict::kLogUnexpected, false, false, false},
                                           StrictCase{Strict::kLogAll, false, false, false}, StrictCase{Strict::kRaiseUnexpected, true, false, false},
                                           StrictCase{Strict::kRaiseAll, true, false, false}, StrictCase{Strict::kReturnUnexpected, false, true, false},
                                           StrictCase{Strict::kReturnAll, false, true, true}, StrictCase{Strict::kIgnoreAll, false, false, false}),
                         [](const auto& test) { return std::string(to_string(test.param.strict)); });

TEST_F(SaveLoad, APlainDcpDirectoryKeepsTheNestingOfTheStateDict) {
  StateDict state;
  state["model"]["w"] = arange({3, 2});
  state["model"]["blocks"] = Value::list({Value::dict({{"b", arange({4})}}), Value::dict({{"b", arange({5})}})});
  state["step"] = 12;
  save(state, checkpoint(), {.compat = Compat::kDcp});
  EXPECT_FALSE(std::filesystem::exists(checkpoint() / "metadata.json"));

  StateDict loaded;
  loaded["model"]["w"] = untouched({3, 2});
  loaded["model"]["blocks"] = Value::list({Value::dict({{"b", untouched({4})}}), Value::dict({{"b", untouched({5})}})});
  loaded["step"] = 0;
  load(loaded, checkpoint());
  EXPECT_TRUE(equal(loaded["model"]["w"].as_tensor(), arange({3, 2})));
  EXPECT_TRUE(equal(loaded["model"]["blocks"].items()[1].at("b").as_tensor(), arange({5})));
  EXPECT_EQ(loaded["step"], Value(12));
}

TEST_F(SaveLoad, APlainDcpDirectoryKnowsThePlacesOfWhatOnlyOneRankHas) {
  save_on(3, [](int rank) {
    StateDict state;
    state["shared"]["step"] = 7;
    state["rank." + std::to_string(rank)]["blocks"] = Value::list({Value::dict({{"w", arange({2})}})});
    state["rank." + std::to_string(rank)]["name"] = "own";
    return state;
  }, {.compat = Compat::kDcp});
  const auto reader = open_checkpoint(checkpoint());
  EXPECT_EQ(reader->metadata().paths.size(), 7U) << "each key once";
  EXPECT_THAT(reader->metadata().paths, Contains(std::pair("rank.2.blocks.0.w", KeyPath{"rank.2", "blocks", std::int64_t{0}, "w"})));
  EXPECT_THAT(reader->metadata().paths, Contains(std::pair("rank.1.name", KeyPath{"rank.1", "name"})));
}

TEST_F(SaveLoad, ShardsInADcpSaveKeepTheirKeysAndAreCutAnew) {
  const Shape shape{6, 4};
  save_on(3, [&](int rank) {
    StateDict state;
    state["model"]["w"] = ShardedTensor::from_rank_offsets("model.w", part_of_arange(shape, {{2 * rank, 0}, {2, 4}}), {{.axis = 0, .rank = rank, .count = 3}});
    return state;
  }, {.compat = Compat::kDcp});
  run_ranks(2, [&](Communicator& comm) {
    StateDict state;
    state["model"]["w"] = ShardedTensor::from_rank_offsets("model.w", untouched({6, 2}), {{.axis = 1, .rank = comm.rank(), .count = 2}});
    load(state, checkpoint(), {}, comm);
    EXPECT_TRUE(equal(state["model"]["w"].as_tensor(), part_of_arange(shape, {{0, 2 * comm.rank()}, {6, 2}})));
  });
}

TEST_F(SaveLoad, ReplicatedTensorsOfADcpSaveAreWrittenOnce) {
  save_on(4, [](int) {
    StateDict state;
    state["w"] = arange({256, 64});
    state["v"] = arange({256, 64});
    state["step"] = 1;
    return state;
  }, {.compat = Compat::kDcp});
  std::uintmax_t bytes = 0;
  for (const auto& entry : std::filesystem::directory_iterator(checkpoint())) bytes += entry.path().extension() == ".distcp" ? entry.file_size() : 0;
  EXPECT_LT(bytes, 3U * 256 * 64 * 4);
}

TEST_F(SaveLoad, ReplicasShareTheWritingWhenAsked) {
  const auto state = [](int rank) {
    StateDict held;
    for (const std::string key : {"a", "b", "c", "d"}) held[key] = ShardedTensor::whole(key, arange({64, 64}), {.replica_id = {0, rank}});
    return held;
  };
  save_on(4, state, {.parallel = {.enabled = true}});
  for (int rank = 0; rank < 4; ++rank) EXPECT_TRUE(std::filesystem::exists(checkpoint() / ("__" + std::to_string(rank) + "_0.distcp"))) << "rank " << rank << " wrote one of them";
  StateDict loaded = load_plain_tensors(checkpoint());
  for (const std::string key : {"a", "b", "c", "d"}) EXPECT_TRUE(equal(loaded[key].as_tensor(), arange({64, 64})));
}

TEST_F(SaveLoad, APlannerRemembersThePlanFromSaveToSave) {
  const SaveOptions options{.overwrite = true};
  run_ranks(3, [&](Communicator& comm) {
    SavePlanner planner = make_planner(options);
    const auto save_values = [&](float value, std::int64_t columns) {
      Tensor rows = Tensor::empty(DType::kFloat32, {2, columns});
      std::fill_n(reinterpret_cast<float*>(rows.data()), rows.numel(), value);
      StateDict state;
      state["w"] = ShardedTensor::from_rank_offsets("w", rows, {{.axis = 0, .rank = comm.rank(), .count = 3}});
      save(state, checkpoint(), options, comm, planner);
    };
    const auto first_value = [&] { return *reinterpret_cast<const float*>(load_plain_tensors(checkpoint())["w"].as_tensor().data()); };
    save_values(1, 4);
    EXPECT_FALSE(planner.was_hit());
    save_values(2, 4);
    EXPECT_EQ(planner.was_hit(), comm.rank() == 0) << "only the coordinator decides";
    EXPECT_EQ(first_value(), 2);
    comm.barrier();
    save_values(3, 5);
    EXPECT_FALSE(planner.was_hit()) << "the shape has changed";
    EXPECT_EQ(first_value(), 3);
  });
}

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
  load(state, checkpoint(), {.strict = Strict::kRaiseAll, .rename = {{"^module\\.", ""}}});
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
  EXPECT_THAT(error_of([&] { load(state, checkpoint(), {.rename = {{"^[ab]\\.", ""}}}); }), HasSubstr("'a.w' and 'b.w' both become 'w'"));
}

TEST_F(SaveLoad, WhatThisVersionCannotDoIsRefusedNotIgnored) {
  const auto state = [](int) { return StateDict(Value::dict()); };
  EXPECT_THAT(error_of([&] { save_on(1, state, {.io = {.engine = IoEngine::kUring}}); }), HasSubstr("engine"));
  EXPECT_FALSE(std::filesystem::exists(checkpoint()));
}

TEST_F(SaveLoad, AFailingRankFailsAllAndLeavesNothing) {
  const std::string message = error_of([&] {
    save_on(3, [](int rank) {
      StateDict state;
      state["w"] = ShardedTensor::from_rank_offsets("w", arange({4}), {{.axis = 0, .rank = rank, .count = 3}});
      if (rank == 1) state["w"].mutable_sharded_tensor().local_shape = {5};
      return state;
    });
  });
  EXPECT_THAT(message, HasSubstr("rank 1"));
  EXPECT_THAT(std::vector<std::filesystem::path>(std::filesystem::directory_iterator(directory_.path()), {}), IsEmpty());
}

TEST_F(SaveLoad, TheStrategyToLoadWithMustExistAndFit) {
  save_on(1, [](int) { return Value::dict({{"w", ShardedTensor::whole("w", arange({4}))}}); });
  StateDict wanted;
  EXPECT_THAT(error_of([&] { load(wanted, checkpoint(), {.strategy = "torch_dst"}); }), HasSubstr("no strategy reads backend 'torch_dst'; there are"));
  EXPECT_THAT(error_of([&] { load(wanted, checkpoint(), {.strategy = "zarr"}); }), HasSubstr("load.strategy asks for 'zarr'"));
}

TEST_F(SaveLoad, RanksThatWereGivenDifferentThingsAreNamedOnAllRanks) {
  const auto state_of = [](int rank) {
    StateDict state;
    state["w"] = ShardedTensor::from_rank_offsets("w", arange({4}), {{.axis = 0, .rank = rank, .count = 3}});
    return state;
  };
  const auto expect_on_all = [&](const std::string& text, const std::function<void(Communicator&)>& action) {
    run_ranks(3, [&](Communicator& comm) { EXPECT_THAT(error_of([&] { action(comm); }), HasSubstr(text)) << "on rank " << comm.rank(); });
  };
  expect_on_all("cannot save: the ranks were given different options: 'validate: true' on ranks 0, 2; 'validate: false' on rank 1", [&](Communicator& comm) {
    save(state_of(comm.rank()), checkpoint(), {.planner = {.validate = comm.rank() != 1}}, comm);
  });
  expect_on_all("different options: 'overwrite: false' on ranks 0, 2; 'overwrite: true' on rank 1",
                [&](Communicator& comm) { save(state_of(comm.rank()), checkpoint(), {.overwrite = comm.rank() == 1}, comm); });
  expect_on_all("cannot save: the ranks were given different directories",
                [&](Communicator& comm) { save(state_of(comm.rank()), checkpoint(comm.rank() == 2 ? "other" : "checkpoint"), {}, comm); });
  EXPECT_TRUE(std::filesystem::is_empty(directory_.path()));

  save_on(3, state_of);
  expect_on_all("cannot load: the ranks were given different options: 'strict: raise_all' on rank 0; 'strict: assume_ok_unexpected' on ranks 1, 2", [&](Communicator& comm) {
    StateDict wanted = state_of(comm.rank());
    load(wanted, checkpoint(), {.strict = comm.rank() == 0 ? Strict::kRaiseAll : Strict::kAssumeOkUnexpected}, comm);
  });
  std::filesystem::copy(checkpoint(), checkpoint("copy"));
  run_ranks(3, [&](Communicator& comm) {
    StateDict wanted = state_of(comm.rank());
    load(wanted, checkpoint(comm.rank() == 1 ? "copy" : "checkpoint"), {}, comm);
  });
  save(state_of(0), checkpoint("later"), {.planner = {.validate = false}});
  expect_on_all("cannot load: the ranks were given different checkpoints", [&](Communicator& comm) {
    StateDict wanted = state_of(0);
    load(wanted, checkpoint(comm.rank() == 1 ? "later" : "checkpoint"), {}, comm);
  });
}

TEST_F(SaveLoad, AHoleBetweenRanksIsReportedBeforeAnythingIsWritten) {
  const std::string message = error_of([&] {
    save_on(2, [](int rank) {
      StateDict state;
      if (rank == 0) state["w"] = ShardedTensor::from_rank_offsets("w", arange({4}), {{.axis = 0, .rank = 0, .count = 2}});
      state["x"] = ShardedTensor::from_rank_offsets("x", arange({4}), {{.axis = 0, .rank = rank, .count = 2}});
      return state;
    });
  });
  EXPECT_THAT(message, HasSubstr("'w'"));
  EXPECT_FALSE(std::filesystem::exists(checkpoint()));
}

TEST_F(SaveLoad, AnExistingCheckpointIsReplacedOnlyWhenAsked) {
  const auto state = [](double value) {
    StateDict result;
    result["value"] = value;
    return result;
  };
  save(state(1), checkpoint());
  EXPECT_THROW(save(state(2), checkpoint()), CheckpointError);
  EXPECT_EQ(load_common_state(checkpoint())["value"], Value(1));
  save(state(3), checkpoint(), {.overwrite = true});
  EXPECT_EQ(load_common_state(checkpoint())["value"], Value(3));
}

TEST_F(SaveLoad, ATrainingRootIsNeverReplacedByACheckpoint) {
  const StateDict state = Value::dict({{"w", ShardedTensor::whole("w", arange({4}))}});
  save(state, checkpoint("root") / "iter_0000100");
  const auto replace_root = [&] { save(state, checkpoint("root"), {.overwrite = true}); };
  EXPECT_THAT(error_of(replace_root), HasSubstr("refusing to replace a training root (it has iteration 100)"));
  std::filesystem::rename(checkpoint("root") / "iter_0000100", checkpoint("elsewhere"));
  std::ofstream(checkpoint("root") / "latest_checkpointed_iteration.txt") << 100;
  EXPECT_THAT(error_of(replace_root), HasSubstr("refusing to replace a training root"));
  EXPECT_TRUE(std::filesystem::exists(checkpoint("root") / "latest_checkpointed_iteration.txt"));
}

TEST_F(SaveLoad, OnlyCheckpointsAndEmptyDirectoriesAreReplaced) {
  const StateDict state = Value::dict({{"w", ShardedTensor::whole("w", arange({4}))}});
  const auto replace = [&] { save(state, checkpoint(), {.overwrite = true}); };
  std::filesystem::create_directory(checkpoint());
  replace();
  std::filesystem::remove(checkpoint() / "metadata.json");  // as an interrupted save of Megatron leaves it
  std::filesystem::remove(checkpoint() / ".metadata");
  replace();
  replace();
  std::filesystem::remove_all(checkpoint());
  std::filesystem::create_directory(checkpoint());
  std::ofstream(checkpoint() / "thesis.tex") << "chapter 1";
  EXPECT_THAT(error_of(replace), AllOf(HasSubstr("refusing to replace a directory that is no checkpoint (it holds 'thesis.tex')"), HasSubstr("choose another name")));
  EXPECT_TRUE(std::filesystem::exists(checkpoint() / "thesis.tex"));
}

TEST_F(SaveLoad, ADirectoryWithoutANameIsRefused) {
  for (const char* const nowhere : {"", "/"}) EXPECT_THAT(error_of([&] { save(Value::dict(), nowhere); }), ::testing::Not(HasSubstr("no error"))) << nowhere;
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

TEST_F(SaveLoad, MetadataLoadAsARequestForEverything) {
  StateDict state;
  state["w"] = ShardedTensor::whole("w", arange({4, 4}));
  state["o"] = ShardedObject{.key = "o", .data = "text"};
  save(state, checkpoint());
  StateDict request = load_sharded_metadata(checkpoint());
  load(request, checkpoint());
  EXPECT_TRUE(equal(request["w"].as_tensor(), arange({4, 4})));
  EXPECT_EQ(request["o/shard_0_1"].as_sharded_object().data, Value("text"));
}

TEST_F(SaveLoad, MetadataOfAPlainDcpDirectoryDoSoToo) {
  save(Value::dict({{"model", Value::dict({{"w", arange({4, 4})}})}, {"step", 12}}), checkpoint(), {.compat = Compat::kDcp});
  StateDict request = load_sharded_metadata(checkpoint());
  load(request, checkpoint());
  EXPECT_TRUE(equal(request["model.w"].as_tensor(), arange({4, 4})));
  EXPECT_EQ(request["step"], Value(12));
}

}  // namespace
}  // namespace dckpt
