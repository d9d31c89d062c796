// Replicas that have drifted apart: named by a save, or by check_replicas() between saves.

#include "dist_checkpointing/save/replica_comparison.h"

#include "configs/policy/policy.h"
#include "dist_checkpointing/save/check_replicas.h"
#include "dist_checkpointing/save/save_async.h"
#include "tests/dist_checkpointing/save_load.h"
#include "tests/dist_checkpointing/training_run.h"

namespace dckpt::testing::replica_comparison_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

using StateOfRank = std::function<StateDict(int rank)>;

Tensor filled(const Shape& shape, float value) {
  Tensor tensor = Tensor::empty(DType::kFloat32, shape);
  std::fill_n(tensor.data<float>(), tensor.numel(), value);
  return tensor;
}

StateDict whole(const std::string& key, const Tensor& data, int rank) {
  StateDict state = Value::dict();
  state[key] = ShardedTensor::whole(key, data, {.replica_id = rank});
  return state;
}

/// Returns a replica whose value is that of `drifted` on rank 1.
StateOfRank norm(float drifted) {
  return [drifted](int rank) { return whole("norm", filled({8}, rank == 1 ? drifted : 1), rank); };
}

SaveOptions options_of(const std::string& save) {
  SaveOptions options = Policy::from_text("version: 1\nsave: {" + save + "}").save;
  options.overwrite = true;
  return options;
}

class ReplicaComparison : public SaveLoad {
 protected:
  /// Saves on some ranks. Returns the findings, which are the same on all.
  Findings findings_of(const StateOfRank& state, const std::string& save = "", int ranks = 2) {
    const Warnings warnings;
    std::vector<Findings> findings(static_cast<std::size_t>(ranks));
    run_ranks(ranks, [&](Communicator& comm) {
      findings[static_cast<std::size_t>(comm.rank())] =
          dckpt::save(state(comm.rank()), checkpoint(), options_of(save), comm).findings;
    });
    for (const Findings& of_rank : findings) EXPECT_EQ(of_rank, findings[0]);
    for (const Finding& finding : findings[0])
      EXPECT_THAT(warnings.text(), HasSubstr(finding.message));
    return findings[0];
  }
};

TEST_F(ReplicaComparison, ThatDifferAreNamedInEveryForm) {
  struct Case {
    std::string what;
    std::string save;
    StateOfRank state;
    std::string key;
  };
  const auto strided = [](int rank) {
    return whole("norm", filled({4, 6}, 1.0F + static_cast<float>(rank)).narrow(1, 1, 2), rank);
  };
  const auto object = [](int rank) {
    StateDict state = norm(1)(rank);
    state["rng"] = ShardedObject{.key = "rng", .data = Value(100 + rank), .replica_id = rank};
    return state;
  };
  const auto flattened = [](int rank) {
    StateDict state = Value::dict();
    state["m"] = ShardedTensor::from_rank_offsets_flat(
        "m", filled({7}, 1.0F + static_cast<float>(rank)), {4, 3}, {}, FlattenedRange{5, 12},
        {.replica_id = rank});
    state["n"] = ShardedTensor::from_rank_offsets_flat("m", filled({5}, 1), {4, 3}, {},
                                                       FlattenedRange{0, 5}, {.replica_id = rank});
    return state;
  };
  const auto large = [](int rank) {
    return whole("w", filled({5 << 20}, 1.0F + static_cast<float>(rank)), rank);
  };
  const auto twice_here = [](int rank) {
    StateDict state = Value::dict();
    if (rank == 0) state["head"] = ShardedTensor::whole("tied", filled({8}, 1));
    if (rank == 0)
      state["embedding"] = ShardedTensor::whole("tied", filled({8}, 2), {.replica_id = 1});
    return state;
  };
  for (const Case& test : std::vector<Case>{
           {"a tensor", "", norm(1.001F), "norm"},
           {"with strides", "", strided, "norm"},
           {"a flattened range", "", flattened, "m"},
           {"shared writing", "parallel: {enabled: true}", norm(2), "norm"},
           {"split, so that what is stored mixes both",
            "parallel: {enabled: true}, planner: {split_replicas: true}", large, "w"},
           {"an object", "", object, "rng/shard_0_1"},
           {"an object, plain DCP", "compat: dcp", object, "rng/shard_0_1"},
           {"Megatron 0.19", "compat: megatron-0.19", norm(2), "norm"},
           {"plain DCP", "compat: dcp, planner: {kind: default}", norm(2), "norm"},
           {"HyperParallel", "compat: dcp, planner: {kind: standard}", norm(2), "norm"},
           {"twice on one rank", "", twice_here, "tied"},
           {"without other checks", "planner: {validate: false}", norm(2), "norm"},
       }) {
    SCOPED_TRACE(test.what + ", " + test.save);
    const Findings findings = findings_of(test.state, test.save);
    ASSERT_THAT(findings, SizeIs(1));
    EXPECT_EQ(findings[0].code, FindingCode::kRanksDiffer);
    EXPECT_THAT(findings[0].keys, ::testing::ElementsAre(test.key));
    EXPECT_THAT(findings[0].message, HasSubstr("replicas differ between ranks"));
    EXPECT_THAT(findings_of(test.state,
                            test.save + (test.save.empty() ? "" : ", ") + "check_replicas: off"),
                IsEmpty());
  }
}

TEST_F(ReplicaComparison, EqualOnesAreNoFinding) {
  for (const char* const save : {"", "compat: dcp", "check_replicas: all"})
    EXPECT_THAT(findings_of(norm(1), save), IsEmpty()) << save;
  EXPECT_THAT(findings_of([](int rank) {
                // A replica without data holds nothing that could differ.
                StateDict state = norm(1)(rank);
                if (rank == 1) state["norm"].mutable_sharded_tensor().data.reset();
                return state;
              }),
              IsEmpty());
}

TEST_F(ReplicaComparison, KeysAndRanksAreNamed) {
  const Findings findings = findings_of(
      [](int rank) {
        StateDict state = Value::dict();
        for (int layer = 0; layer < 12; ++layer) {
          const std::string key = "layers." + std::to_string(layer) + ".norm";
          state[key] = ShardedTensor::whole(key, filled({8}, static_cast<float>(rank % 2)),
                                            {.replica_id = rank});
        }
        state["bias"] = ShardedTensor::whole("bias", filled({8}, static_cast<float>(rank)),
                                             {.replica_id = rank});
        return state;
      },
      "", 4);
  ASSERT_THAT(findings, SizeIs(1));
  EXPECT_THAT(findings[0].keys, SizeIs(13));
  EXPECT_THAT(
      findings[0].message,
      AllOf(HasSubstr("ranks 0, 2 and ranks 1, 3 differ in:"),
            HasSubstr("'layers.*.norm' (12 keys, e.g. 'layers.0.norm')"),
            HasSubstr("rank 0 and rank 1 and rank 2 and rank 3 differ in:"), HasSubstr("'bias'")));
}

TEST_F(ReplicaComparison, APolicyMakesThemAnErrorBeforeAnythingIsWritten) {
  std::vector<std::string> errors(2);
  run_ranks(2, [&](Communicator& comm) {
    errors[static_cast<std::size_t>(comm.rank())] = error_of([&] {
      save(norm(2)(comm.rank()), checkpoint(), options_of("error_on: [ranks-differ]"), comm);
    });
  });
  EXPECT_THAT(errors[0], AllOf(HasSubstr("so nothing was written"), HasSubstr("'norm'")));
  EXPECT_EQ(errors[1], errors[0]);
  EXPECT_TRUE(std::filesystem::is_empty(directory_.path()));
}

TEST_F(ReplicaComparison, AllElementsAreComparedOnRequest) {
  const auto state = [](int rank) {
    Tensor large = filled({1 << 20}, 1);
    large.data<float>()[100'001] = static_cast<float>(rank);  // between two samples
    return whole("w", large, rank);
  };
  const auto plain = [&](int rank) {
    return Value::dict({{"w", *state(rank).at("w").as_sharded_tensor().data}});
  };
  EXPECT_THAT(findings_of(state, "check_replicas: sample"), IsEmpty());
  EXPECT_THAT(findings_of(state, "check_replicas: all"), SizeIs(1));
  EXPECT_THAT(findings_of(plain, "compat: dcp"), IsEmpty());
  EXPECT_THAT(findings_of(plain, "compat: dcp, check_replicas: all"), SizeIs(1));
}

TEST_F(ReplicaComparison, PlansThatAreReusedAreComparedToo) {
  const Warnings warnings;
  run_ranks(2, [&](Communicator& comm) {
    SavePlanCache cache;
    const auto findings = [&](float drifted, const std::string& save) {
      const SaveReport report =
          dckpt::save(norm(drifted)(comm.rank()), checkpoint(), options_of(save), comm, cache);
      return std::pair(report.findings.size(), report.plan_cached);
    };
    EXPECT_EQ(findings(2, "check_replicas: off"), std::pair(std::size_t{0}, false));
    EXPECT_EQ(findings(1, ""), std::pair(std::size_t{0}, true));
    EXPECT_EQ(findings(2, ""), std::pair(std::size_t{1}, true));
    EXPECT_EQ(findings(2, "check_replicas: off"), std::pair(std::size_t{0}, true));
    EXPECT_EQ(findings(2, ""), std::pair(std::size_t{1}, true));
  });
}

TEST_F(ReplicaComparison, ABackgroundSaveComparesWhatTheCallSaw) {
  const Warnings warnings;
  for (const char* const snapshot : {"eager", "lazy"}) {
    run_ranks(2, [&](Communicator& comm) {
      AsyncSaver saver(options_of(std::string("async: {snapshot: ") + snapshot + "}"), comm);
      StateDict state = norm(2)(comm.rank());
      PendingSave pending = saver.save(state, checkpoint());
      pending.wait_staged();
      Tensor mine = *state["norm"].as_sharded_tensor().data;
      std::fill_n(mine.data<float>(), 8, 1.0F);
      EXPECT_THAT(pending.wait().findings, SizeIs(1));
    });
  }
}

TEST_F(ReplicaComparison, TrainersMayCompareBetweenSaves) {
  const auto findings_of = [](const StateOfRank& state, const std::string& save) {
    const Warnings warnings;
    std::vector<Findings> findings(3);
    run_ranks(3, [&](Communicator& comm) {
      findings[static_cast<std::size_t>(comm.rank())] =
          check_replicas(state(comm.rank()), options_of(save), comm);
    });
    EXPECT_EQ(findings[1], findings[0]);
    EXPECT_EQ(findings[2], findings[0]);
    return findings[0];
  };
  for (const char* const save : {"", "compat: dcp", "check_replicas: off", "check_replicas: all"}) {
    SCOPED_TRACE(save);
    EXPECT_THAT(findings_of(norm(1), save), IsEmpty());
    const Findings findings = findings_of(norm(2), save);
    ASSERT_THAT(findings, SizeIs(1));
    EXPECT_THAT(findings[0].message, HasSubstr("ranks 0, 2 and rank 1 differ in:\n  'norm'"));
  }
  run_ranks(3, [&](Communicator& comm) {
    const std::string error = error_of([&] {
      (void)check_replicas(norm(1)(comm.rank()),
                           options_of(comm.rank() == 1 ? "check_replicas: all" : ""), comm);
    });
    EXPECT_THAT(error, HasSubstr("different options"));
  });
}

}  // namespace
}  // namespace dckpt::testing::replica_comparison_test
