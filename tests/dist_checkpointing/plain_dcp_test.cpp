// Plain DCP directories: every leaf under its path.

#include "mapping/state/sharded_tree.h"
#include "tests/dist_checkpointing/save_load.h"

#include "configs/policy/policy.h"
#include "configs/policy/policy_schema.h"
#include "dist_checkpointing/open/open.h"
#include "mapping/base/log.h"

namespace dckpt::plain_dcp_test {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;

TEST_F(SaveLoad, APlainDcpDirectoryKeepsTheNestingOfTheStateDict) {
  StateDict state;
  state["model"]["w"] = arange({3, 2});
  state["model"]["blocks"] =
      Value::list({Value::dict({{"b", arange({4})}}), Value::dict({{"b", arange({5})}})});
  state["step"] = 12;
  save(state, checkpoint(), {.compat = Compat::kDcp});
  EXPECT_FALSE(std::filesystem::exists(checkpoint() / "metadata.json"));

  StateDict loaded;
  loaded["model"]["w"] = untouched({3, 2});
  loaded["model"]["blocks"] =
      Value::list({Value::dict({{"b", untouched({4})}}), Value::dict({{"b", untouched({5})}})});
  loaded["step"] = 0;
  load(loaded, checkpoint());
  EXPECT_TRUE(equal(loaded["model"]["w"].as_tensor(), arange({3, 2})));
  EXPECT_TRUE(equal(loaded["model"]["blocks"].items()[1].at("b").as_tensor(), arange({5})));
  EXPECT_EQ(loaded["step"], Value(12));
}

TEST_F(SaveLoad, APlainDcpDirectoryThatIsNotFlattenedHasAnObjectForEachEntry) {
  const auto state_of = [](int rank, float fill) {
    const auto filled = [&](Shape shape) {
      return fill == 0 ? untouched(std::move(shape)) : arange(std::move(shape));
    };
    StateDict state;
    state["model"]["w"] = filled({3, 2});
    state["model"]["blocks"] = Value::list({Value::dict({{"b", filled({4})}})});
    state["empty"] = Value::dict();
    state["step"] = fill == 0 ? 0 : 12;
    state["rows"] = ShardedTensor::from_rank_offsets("rows", filled({2, 2}),
                                                     {{.axis = 0, .rank = rank, .count = 2}});
    return state;
  };
  save_on(
      2, [&](int rank) { return state_of(rank, 1); },
      Policy::from_text("version: 1\nsave: {compat: dcp, flatten: false}").save);
  const auto reader = open_checkpoint(checkpoint());
  EXPECT_EQ(reader->info().opened_keys, std::vector<std::string>{"model"});
  run_ranks(2, [&](Communicator& comm) {
    StateDict loaded = state_of(comm.rank(), 0);
    load(loaded, checkpoint(), {}, comm);
    EXPECT_EQ(plain_state(loaded), plain_state(state_of(comm.rank(), 1)));
  });
  EXPECT_EQ(load_state_dict(checkpoint()).at("model"), state_of(0, 1).at("model"));

  StateDict inside;
  inside["model"]["rows"] = ShardedTensor::whole("rows", arange({2}));
  EXPECT_THAT(error_of([&] {
                save(inside, checkpoint("inside"), {.compat = Compat::kDcp, .flatten = false});
              }),
              ::testing::AllOf(HasSubstr("model"), HasSubstr("put these at the top level")));
}

TEST_F(SaveLoad, APlainDcpDirectoryIsAStrategyOfItsOwnToo) {
  StateDict state = Value::dict({{"w", arange({3, 2})}, {"step", 12}});
  save(state, checkpoint(), {.strategy = {.name = "dcp"}});
  EXPECT_EQ(open_checkpoint(checkpoint())->info().format, "dcp");
  StateDict loaded = Value::dict({{"w", untouched({3, 2})}, {"step", 0}});
  load(loaded, checkpoint());
  EXPECT_TRUE(equal(loaded["w"].as_tensor(), arange({3, 2})));
  EXPECT_EQ(loaded["step"], Value(12));
  EXPECT_TRUE(check_policy("version: 1\nsave: {strategy: dcp, planner: {kind: default}}\n")
                  .problems.empty());
  EXPECT_THAT(error_of([&] {
                save(state, checkpoint("other"),
                     {.strategy = {.name = "dcp"}, .compat = Compat::kMegatron019});
              }),
              HasSubstr("it has one form only; leave out compat"));
}

TEST_F(SaveLoad, PlainLeavesThatDifferBetweenRanksAreNamedWithTheirValues) {
  std::string warnings;
  set_log_sink([&](LogLevel level, std::string_view text) {
    if (level == LogLevel::kWarning) warnings += text;
  });
  const auto saved = [&](const char* name, const std::function<Value(int)>& leaf) {
    warnings.clear();
    run_ranks(3, [&](Communicator& comm) {
      StateDict state = Value::dict({{"same", 5}, {"own" + std::to_string(comm.rank()), 1}});
      state["step"] = leaf(comm.rank());
      save(state, checkpoint(name), {.compat = Compat::kDcp}, comm);
    });
    return warnings;
  };
  EXPECT_EQ(saved("same", [](int) { return Value(arange({2})); }), "");
  EXPECT_THAT(saved("ints", [](int rank) { return Value(10 * (rank / 2 + 1)); }),
              HasSubstr("'step' (10 on rank 0, 20 on rank 2); describe"));
  EXPECT_THAT(
      saved("tensors", [](int rank) { return Value(rank == 1 ? untouched({2}) : arange({2})); }),
      HasSubstr("'step' (float32 (2,) that begins with 0 on rank 0, float32 (2,) that"));
  EXPECT_THAT(saved("kinds", [](int rank) { return rank == 0 ? Value("adam") : Value(); }),
              HasSubstr("'step' ('adam' on rank 0, None on rank 1)"));
  set_log_sink({});
}

TEST_F(SaveLoad, AValueOnOneRankAndADictOnAnotherAreNoCheckpoint) {
  const auto refused = [&](const Value& of_rank_0, const Value& of_rank_1) {
    return error_of([&] {
      run_ranks(2, [&](Communicator& comm) {
        save(Value::dict({{"a", comm.rank() == 0 ? of_rank_0 : of_rank_1}}), checkpoint(),
             {.compat = Compat::kDcp}, comm);
      });
    });
  };
  const Value dict = Value::dict({{"b", Value::list({1, arange({2})})}});
  EXPECT_THAT(refused(5, dict),
              HasSubstr("a value at 'a' and another a dict or list with 'a.b.0'"));
  EXPECT_THAT(refused(dict, 5),
              HasSubstr("a value at 'a' and another a dict or list with 'a.b.0'"));
  EXPECT_FALSE(std::filesystem::exists(checkpoint()));
}

TEST_F(SaveLoad, APlainDcpDirectoryKnowsThePlacesOfWhatOnlyOneRankHas) {
  save_on(3,
          [](int rank) {
            StateDict state;
            state["shared"]["step"] = 7;
            state["rank." + std::to_string(rank)]["blocks"] =
                Value::list({Value::dict({{"w", arange({2})}})});
            state["rank." + std::to_string(rank)]["name"] = "own";
            return state;
          },
          {.compat = Compat::kDcp});
  const auto reader = open_checkpoint(checkpoint());
  EXPECT_EQ(reader->metadata().paths.size(), 7U) << "each key once";
  EXPECT_THAT(
      reader->metadata().paths,
      Contains(std::pair("rank.2.blocks.0.w", KeyPath{"rank.2", "blocks", std::int64_t{0}, "w"})));
  EXPECT_THAT(reader->metadata().paths,
              Contains(std::pair("rank.1.name", KeyPath{"rank.1", "name"})));
}

TEST_F(SaveLoad, ShardsInADcpSaveKeepTheirKeysAndAreCutAnew) {
  const Shape shape{6, 4};
  save_on(3,
          [&](int rank) {
            StateDict state;
            state["model"]["w"] = ShardedTensor::from_rank_offsets(
                "model.w", part_of_arange(shape, {{2 * rank, 0}, {2, 4}}),
                {{.axis = 0, .rank = rank, .count = 3}});
            return state;
          },
          {.compat = Compat::kDcp});
  run_ranks(2, [&](Communicator& comm) {
    StateDict state;
    state["model"]["w"] = ShardedTensor::from_rank_offsets(
        "model.w", untouched({6, 2}), {{.axis = 1, .rank = comm.rank(), .count = 2}});
    load(state, checkpoint(), {}, comm);
    EXPECT_TRUE(equal(state["model"]["w"].as_tensor(),
                      part_of_arange(shape, {{0, 2 * comm.rank()}, {6, 2}})));
  });
}

TEST_F(SaveLoad, ReplicatedTensorsOfADcpSaveAreWrittenOnce) {
  save_on(4,
          [](int) {
            StateDict state;
            state["w"] = arange({256, 64});
            state["v"] = arange({256, 64});
            state["step"] = 1;
            return state;
          },
          {.compat = Compat::kDcp});
  std::uintmax_t bytes = 0;
  for (const auto& entry : std::filesystem::directory_iterator(checkpoint()))
    bytes += entry.path().extension() == ".distcp" ? entry.file_size() : 0;
  EXPECT_LT(bytes, 3U * 256 * 64 * 4);
}

TEST_F(SaveLoad, MetadataOfAPlainDcpDirectoryLoadAsARequestForEverything) {
  save(Value::dict({{"model", Value::dict({{"w", arange({4, 4})}})}, {"step", 12}}), checkpoint(),
       {.compat = Compat::kDcp});
  StateDict request = load_sharded_metadata(checkpoint());
  load(request, checkpoint());
  EXPECT_TRUE(equal(request["model.w"].as_tensor(), arange({4, 4})));
  EXPECT_EQ(request["step"], Value(12));
}

}  // namespace
}  // namespace dckpt::plain_dcp_test
