// Ranks as threads save under one layout and load under another.

#include "tests/dist_checkpointing/save_load.h"

#include "dist_checkpointing/open/open.h"

namespace dckpt::save_load_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST_F(SaveLoad, RowsOfFourRanksBecomeColumnsOfThree) {
  const Shape shape{8, 9};
  save_on(4, [&](int rank) {
    StateDict state;
    state["model"]["w"] =
        ShardedTensor::from_rank_offsets("w", part_of_arange(shape, {{2 * rank, 0}, {2, 9}}),
                                         {{.axis = 0, .rank = rank, .count = 4}});
    return state;
  });
  run_ranks(3, [&](Communicator& comm) {
    const Box mine{{0, 3 * comm.rank()}, {8, 3}};
    const Tensor destination = untouched({8, 3});
    StateDict state;
    state["elsewhere"] = ShardedTensor::from_rank_offsets(
        "w", destination, {{.axis = 1, .rank = comm.rank(), .count = 3}});
    load(state, checkpoint(), {}, comm);
    EXPECT_TRUE(equal(destination, part_of_arange(shape, mine))) << "filled in place";
    EXPECT_EQ(state["elsewhere"].as_tensor().data(), destination.data());
  });
}

TEST_F(SaveLoad, KeysWithTheSeparationHintHaveFilesOfTheirOwn) {
  save_on(2,
          [&](int rank) {
            StateDict state;
            for (const char* const key : {"model.w", "optimizer.w"}) {
              state[key] = ShardedTensor::from_rank_offsets(
                  key, part_of_arange({4, 3}, {{2 * rank, 0}, {2, 3}}),
                  {{.axis = 0, .rank = rank, .count = 2}});
            }
            return state;
          },
          {.separation_hint = "optimizer"});
  const auto reader = open_checkpoint(checkpoint());
  EXPECT_THAT(reader->metadata().files,
              ::testing::UnorderedElementsAre("__0_0.distcp", "optimizer__0_1.distcp",
                                              "__1_0.distcp", "optimizer__1_1.distcp"));
  StateDict wanted;
  wanted["w"] = ShardedTensor::whole("optimizer.w", untouched({4, 3}));
  load(wanted, checkpoint());
  EXPECT_TRUE(equal(wanted["w"].as_tensor(), arange({4, 3})));
}

TEST_F(SaveLoad, ASeparationHintThatIsNoFileNameIsRefusedBeforeAnythingIsWritten) {
  StateDict state;
  state["w"] = ShardedTensor::whole("w", arange({2}));
  EXPECT_THAT(error_of([&] { save(state, checkpoint(), {.separation_hint = "a/../b"}); }),
              HasSubstr("the separation hint 'a/../b' has a slash"));
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
  const Tensor transposed(DType::kFloat32, shape, Shape{1, 6}, memory.mutable_data(),
                          memory.owner());
  StateDict wanted;
  wanted["w"] = ShardedTensor::whole("w", transposed);
  load(wanted, checkpoint());
  EXPECT_TRUE(equal(transposed, arange(shape)));
}

TEST_F(SaveLoad, Float8GoesFromAndToStridedTensors) {
  // Torch cannot copy such a tensor that is not contiguous; here its elements are bytes like any
  // others.
  const auto transposed = [](DType dtype, const Tensor& memory) {
    return Tensor(dtype, Shape{6, 4}, Shape{1, 6}, memory.mutable_data(), memory.owner());
  };
  for (const DType dtype : {DType::kFloat8E4M3FN, DType::kFloat8E4M3FNUZ, DType::kFloat8E5M2,
                            DType::kFloat8E5M2FNUZ, DType::kFloat8E8M0FNU}) {
    for (const Compat compat : {Compat::kMegatron, Compat::kDcp}) {
      const auto path =
          checkpoint(std::string(to_string(dtype)) + "-" + std::string(to_string(compat)));
      Tensor memory = Tensor::empty(dtype, {4, 6});
      for (int i = 0; i < 24; ++i)
        memory.data()[i] = static_cast<std::byte>(11 * i);  // including NaNs
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
  state["w"] = ShardedTensor::whole("w", Tensor(DType::kFloat32, Shape{6, 4}, Shape{1, 6},
                                                memory.mutable_data(), memory.owner()));
  save(state, checkpoint());
  const Tensor loaded = load_plain_tensors(checkpoint())["w"].as_tensor();
  EXPECT_EQ(reinterpret_cast<const float*>(loaded.data())[1], 6.0F)
      << "element (0, 1) of the transposed tensor";
}

TEST_F(SaveLoad, PrependedAxesBecomeLayersOfOneTensor) {
  save_on(2, [&](int rank) {
    StateDict state;
    state["layer"] = ShardedTensor::from_rank_offsets(
        "layers.w", part_of_arange({2, 3, 4}, {{rank, 0, 0}, {1, 3, 4}}).view({3, 4}),
        {{.axis = 0, .rank = rank, .count = 2}}, {.prepend_axis_num = 1});
    return state;
  });
  EXPECT_TRUE(equal(load_plain_tensors(checkpoint())["layers.w"].as_tensor(), arange({2, 3, 4})));
  StateDict second;
  second["w"] = ShardedTensor::from_rank_offsets(
      "layers.w", untouched({3, 4}), {{.axis = 0, .rank = 1, .count = 2}}, {.prepend_axis_num = 1});
  load(second, checkpoint(), {.validate_access_integrity = false});
  EXPECT_TRUE(equal(second["w"].as_tensor().view({1, 3, 4}),
                    part_of_arange({2, 3, 4}, {{1, 0, 0}, {1, 3, 4}})));
}

TEST_F(SaveLoad, ZarrTakesShardsOfOneSize) {
  const auto save_zarr = [&](std::int64_t cut) {
    run_ranks(2, [&](Communicator& comm) {
      const int rank = comm.rank();
      const Box rows = rank == 0 ? Box{{0, 0}, {cut, 6}} : Box{{cut, 0}, {4 - cut, 6}};
      StateDict state;
      state["w"] = ShardedTensor::from_box("w", part_of_arange({4, 6}, rows), {4, 6}, rows.offsets);
      state["rng"] = ShardedObject{
          .key = "rng", .data = 10 + rank, .global_shape = {2}, .global_offset = {rank}};
      state["step"] = 7;
      save(state, checkpoint(), {.strategy = {.name = "zarr"}}, comm);
    });
  };
  EXPECT_THAT(error_of([&] { save_zarr(3); }), HasSubstr("parts of different sizes"));
  save_zarr(2);
  StateDict wanted;
  wanted["w"] = ShardedTensor::whole("w", untouched({4, 6}));
  wanted["rng"] = ShardedObject{.key = "rng", .global_shape = {2}, .global_offset = {1}};
  load(wanted, checkpoint(), {.validate_access_integrity = false});
  EXPECT_TRUE(equal(wanted["w"].as_tensor(), arange({4, 6})));
  EXPECT_EQ(wanted["rng"].as_sharded_object().data, Value(11));
  EXPECT_EQ(wanted["step"], Value(7));
}

TEST_F(SaveLoad, ZarrTakesShardsWithoutElementsOfSeveralRanks) {
  const auto state_of = [](int rank) {
    StateDict state;
    state["w"] = ShardedTensor::from_rank_offsets("w", Tensor::zeros(DType::kFloat32, {2, 0}),
                                                  {{.axis = 0, .rank = rank, .count = 3}});
    return state;
  };
  save_on(3, state_of, {.strategy = {.name = "zarr"}});
  run_ranks(3, [&](Communicator& comm) {
    StateDict wanted = state_of(comm.rank());
    load(wanted, checkpoint(), {}, comm);
  });
  EXPECT_EQ(load_plain_tensors(checkpoint())["w"].as_tensor().shape(), (Shape{6, 0}));
}

/// Saves a (4, 6) tensor as flattened ranges of three data-parallel ranks; then two ranks with
/// another grid load it.
void save_flattened(const std::filesystem::path& path, FlattenedForm form) {
  const std::vector<std::int64_t> cuts = {0, 5, 17, 24};
  run_ranks(3, [&](Communicator& comm) {
    const FlattenedRange range{cuts.at(static_cast<std::size_t>(comm.rank())),
                               cuts.at(static_cast<std::size_t>(comm.rank()) + 1)};
    StateDict state;
    state["m"] = ShardedTensor::from_rank_offsets_flat(
        "m", arange({24}).narrow(0, range.begin, range.end - range.begin), Shape{4, 6}, {}, range);
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
      state["m"] = ShardedTensor::from_rank_offsets_flat(
          "m", untouched({7}), Shape{4, 3}, {{.axis = 1, .rank = comm.rank(), .count = 2}},
          {4, 11});
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
    state["v"] =
        ShardedTensor::from_box("v", part_of_arange({12}, {{begin}, {size}}), {12}, {begin});
    return state;
  });
  EXPECT_TRUE(equal(load_plain_tensors(checkpoint())["v"].as_tensor(), arange({12})));
}

TEST_F(SaveLoad, ARankMayHaveNothingToSave) {
  for (const Compat compat : {Compat::kMegatron, Compat::kDcp}) {
    SaveOptions options;
    options.compat = compat;
    options.overwrite = true;
    save_on(
        2,
        [](int rank) {
          StateDict state;
          if (rank == 0) state["v"] = ShardedTensor::whole("v", arange({12}));
          return state;
        },
        options);
    EXPECT_TRUE(equal(load_plain_tensors(checkpoint())["v"].as_tensor(), arange({12})));
  }
}

TEST_F(SaveLoad, ObjectsOfEveryRankAndTheCommonStateComeBack) {
  save_on(2, [](int rank) {
    StateDict state;
    state["rng"] = ShardedObject{.key = "rng",
                                 .data = Value::tuple({rank, "state"}),
                                 .global_shape = {2},
                                 .global_offset = {rank}};
    state["iteration"] = 100 + rank;  // rank 0's value is stored
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
    result.build = [](const std::string& key, const Tensor& whole_data, const ReplicaId&,
                      std::optional<FlattenedRange>) {
      return Value::list({ShardedTensor::whole(key + "_w", whole_data.narrow(0, 0, 2)),
                          ShardedTensor::whole(key + "_v", whole_data.narrow(0, 2, 2))});
    };
    result.merge = [](const Value& parts) {
      const Tensor merged = Tensor::empty(DType::kFloat32, {4, 3});
      std::memcpy(merged.mutable_data(), parts.items()[0].as_tensor().data(), 24);
      std::memcpy(merged.mutable_data() + 24, parts.items()[1].as_tensor().data(), 24);
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

TEST_F(SaveLoad, ReplicasShareTheWritingWhenAsked) {
  const auto state = [](int rank) {
    StateDict held;
    for (const std::string key : {"a", "b", "c", "d"})
      held[key] = ShardedTensor::whole(key, arange({64, 64}), {.replica_id = {0, rank}});
    return held;
  };
  save_on(4, state, {.parallel = {.enabled = true}});
  for (int rank = 0; rank < 4; ++rank)
    EXPECT_TRUE(std::filesystem::exists(checkpoint() / ("__" + std::to_string(rank) + "_0.distcp")))
        << "rank " << rank << " wrote one of them";
  StateDict loaded = load_plain_tensors(checkpoint());
  for (const std::string key : {"a", "b", "c", "d"})
    EXPECT_TRUE(equal(loaded[key].as_tensor(), arange({64, 64})));
}

TEST_F(SaveLoad, TheStandardPlannerCanStoreEveryCopy) {
  for (const auto& [dedup, files] : std::map<std::string, int>{{"off", 3}, {"lowest_rank", 1}}) {
    SaveOptions options{
        .compat = Compat::kDcp,
        .planner = {.kind = PlannerKind::kHyperParallel, .dedup = parse_dedup(dedup)},
        .overwrite = true};
    run_ranks(3, [&](Communicator& comm) {
      StateDict state;
      state["w"] = arange({64, 64});
      state["step"] = 7;
      save(state, checkpoint(), options, comm);
    });
    int found = 0;
    for (int rank = 0; rank < 3; ++rank)
      found += std::filesystem::exists(checkpoint() / ("__" + std::to_string(rank) + "_0.distcp"));
    EXPECT_EQ(found, files);
    EXPECT_TRUE(equal(load_plain_tensors(checkpoint())["w"].as_tensor(), arange({64, 64})));
  }
}

TEST_F(SaveLoad, APlanCacheRemembersThePlanFromSaveToSave) {
  const SaveOptions options{.overwrite = true};
  run_ranks(3, [&](Communicator& comm) {
    SavePlanCache cache;
    const auto save_values = [&](float value, std::int64_t columns) {
      Tensor rows = Tensor::empty(DType::kFloat32, {2, columns});
      std::fill_n(reinterpret_cast<float*>(rows.data()), rows.numel(), value);
      StateDict state;
      state["w"] = ShardedTensor::from_rank_offsets("w", rows,
                                                    {{.axis = 0, .rank = comm.rank(), .count = 3}});
      return save(state, checkpoint(), options, comm, cache);
    };
    const auto first_value = [&] {
      return *reinterpret_cast<const float*>(
          load_plain_tensors(checkpoint())["w"].as_tensor().data());
    };
    EXPECT_FALSE(save_values(1, 4).plan_cached);
    EXPECT_TRUE(save_values(2, 4).plan_cached);
    EXPECT_EQ(first_value(), 2);
    comm.barrier();
    EXPECT_FALSE(save_values(3, 5).plan_cached) << "the shape has changed";
    EXPECT_EQ(first_value(), 3);
  });
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
  StateDict tensors = load_tensors_metadata(checkpoint());
  EXPECT_EQ(tensors.size(), 1U);
  load(tensors, checkpoint());
  EXPECT_TRUE(equal(tensors["w"].as_tensor(), arange({4, 4})));
}

}  // namespace
}  // namespace dckpt::save_load_test
