// load.missing: the treatment of keys that the state requests and the checkpoint lacks.

#include <mutex>

#include "configs/policy/policy.h"
#include "mapping/base/log.h"
#include "mapping/state/sharded_tree.h"
#include "tests/dist_checkpointing/save_load.h"

namespace dckpt::missing_rules_test {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

class MissingRules : public SaveLoad, public ::testing::WithParamInterface<Compat> {
 protected:
  static StateDict state_of(int rank, bool grown) {
    StateDict state;
    const auto add = [&](const std::string& key) {
      state[key] =
          ShardedTensor::whole(key, Tensor::zeros(DType::kFloat32, {4}), {.replica_id = rank});
    };
    add("decoder.weight");
    if (grown) {
      add("decoder.lora_a");
      if (rank == 1) add("decoder.lora_b");
      add("head.weight");
      state["rng"] =
          ShardedObject{.key = "head.rng", .data = Value(3), .replica_id = rank, .has_data = true};
    }
    return state;
  }
  void SetUp() override {
    save_on(2, [](int rank) { return state_of(rank, false); }, {.compat = GetParam()});
    set_log_sink([this](LogLevel level, std::string_view message) {
      const std::lock_guard lock(mutex_);
      if (level == LogLevel::kWarning) warnings_.emplace_back(message);
    });
  }
  void TearDown() override { set_log_sink({}); }

  /// Returns the error, or rank 1's report.
  std::string outcome(const std::string& load_policy) {
    const LoadOptions options =
        Policy::from_text("version: 1\nload: {validate_access_integrity: false, " + load_policy +
                          "}")
            .load;
    warnings_.clear();
    return error_of([&] {
      run_ranks(2, [&](Communicator& comm) {
        StateDict state = state_of(comm.rank(), true);
        const LoadReport report = load(state, checkpoint(), options, comm);
        EXPECT_EQ(plain_state(state), plain_state(state_of(comm.rank(), true)))
            << "what is missing keeps its value";
        if (comm.rank() != 1) return;
        unexpected_ = report.unexpected;
        findings_ = report.findings;
      });
    });
  }

  std::mutex mutex_;
  std::vector<std::string> warnings_;
  std::vector<std::string> unexpected_;
  Findings findings_;
};

TEST_P(MissingRules, DecideByPatternWhatMayBeMissing) {
  EXPECT_THAT(outcome("missing: [{keys: '*lora*', action: keep}]"),
              AllOf(HasSubstr("head.weight"), Not(HasSubstr("lora"))));
  EXPECT_EQ(outcome("missing: [{keys: '*lora*', action: keep}, {keys: 'head.*', action: warn}]"),
            "no error");
  ASSERT_EQ(warnings_.size(), 1);
  EXPECT_THAT(warnings_[0],
              AllOf(HasSubstr("head.weight"), HasSubstr("load.missing"), Not(HasSubstr("lora"))));
  std::ranges::sort(unexpected_);
  EXPECT_EQ(unexpected_.size(), 4);
  EXPECT_EQ(unexpected_[0], "decoder.lora_a");
}

TEST_P(MissingRules, ThatWarnMakeFindingsWhichMayBeErrors) {
  const std::string rules =
      "missing: [{keys: head.weight, action: warn}, {keys: '*', action: keep}]";
  EXPECT_EQ(outcome(rules + ", error_on: [no-effect]"), "no error");
  ASSERT_EQ(findings_.size(), 1) << "rank 0's, on rank 1";
  EXPECT_EQ(findings_[0].code, FindingCode::kValuesKept);
  EXPECT_EQ(findings_[0].severity, Severity::kWarning);
  EXPECT_THAT(findings_[0].keys, ElementsAre("head.weight"));
  EXPECT_THAT(outcome(rules + ", error_on: [values-kept]"),
              AllOf(HasSubstr("(load.error_on), so nothing was loaded"),
                    HasSubstr("values-kept: the checkpoint does not have these keys")));
}

TEST_P(MissingRules, MatchObjectsByTheKeyThatTheyShare) {
  EXPECT_THAT(outcome("missing: [{keys: head.rng, action: keep}]"),
              AllOf(HasSubstr("head.weight"), Not(HasSubstr("head.rng"))));
}

TEST_P(MissingRules, TheFirstThatMatchesDecides) {
  EXPECT_THAT(outcome("missing: [{keys: head.weight, action: error}, {keys: '*', action: keep}]"),
              AllOf(HasSubstr("head.weight"), Not(HasSubstr("lora"))));
}

TEST_P(MissingRules, GoBeforeTheStrictMode) {
  EXPECT_THAT(outcome("strict: ignore_all, missing: [{keys: '*lora_b', action: error}]"),
              AllOf(HasSubstr("lora_b"), Not(HasSubstr("lora_a"))));
  EXPECT_THAT(outcome("strict: raise_unexpected, missing: [{keys: '*lora*', action: keep}]"),
              AllOf(HasSubstr("head.weight"), Not(HasSubstr("lora"))));
  EXPECT_EQ(outcome("strict: raise_unexpected, missing: [{keys: '*', action: keep}]"), "no error");
  EXPECT_THAT(warnings_, IsEmpty());
}

TEST_P(MissingRules, ThatRefuseSayHowToGoOn) {
  const std::string refused =
      outcome("missing: [{keys: '*lora*', action: error}, {keys: '*', action: keep}]");
  EXPECT_THAT(refused, AllOf(HasSubstr("load.missing"), HasSubstr("action: keep or warn")));
  EXPECT_THAT(refused, Not(AnyOf(HasSubstr("load.strict"), HasSubstr("allow_partial_load"))))
      << "neither decides about these keys";
  EXPECT_THAT(outcome("missing: [{keys: '*lora*', action: error}]"),
              AllOf(HasSubstr("action: keep or warn"), HasSubstr("head.weight")))
      << "all that is not stored is reported at once";
}

TEST_P(MissingRules, ThatMatchNoKeyGetAWarning) {
  EXPECT_EQ(outcome("missing: [{keys: '*', action: keep}, {keys: 'decodr.*', action: error}, "
                    "{keys: 'decoder.lora_b', action: error}]"),
            "no error");
  ASSERT_EQ(warnings_.size(), 1) << "that of rank 0, for all ranks";
  EXPECT_THAT(warnings_[0], AllOf(HasSubstr("load.missing"), HasSubstr("\n  'decodr.*'"),
                                  HasSubstr("'decoder.weight'")));
  EXPECT_EQ(std::ranges::count(warnings_[0], '\n'), 1) << "rank 1 asks for lora_b";
}

TEST_P(MissingRules, SayNothingOfWhatIsStored) {
  const LoadOptions options =
      Policy::from_text("version: 1\nload: {missing: [{keys: '*', action: error}]}").load;
  StateDict state = state_of(0, false);
  EXPECT_THAT(load(state, checkpoint(), options).unexpected, IsEmpty());
}

INSTANTIATE_TEST_SUITE_P(, MissingRules, ::testing::Values(Compat::kMegatron, Compat::kDcp),
                         [](const auto& of) {
                           return of.param == Compat::kDcp ? "PlainDcp" : "Megatron";
                         });

TEST(MissingRule, NeedsBothParts) {
  const auto problem = [](const std::string& rule) -> std::string {
    try {
      Policy::from_text("version: 1\nload: {missing: [" + rule + "]}");
    } catch (const CheckpointError& error) {
      return error.what();
    }
    return "no error";
  };
  EXPECT_THAT(problem("{keys: a}"),
              HasSubstr("'action' is missing; a rule is {keys: PATTERN, action: error, warn or "
                        "keep}"));
  EXPECT_THAT(problem("{keys: a, action: ignore}"), HasSubstr("error, warn"));
}

}  // namespace
}  // namespace dckpt::missing_rules_test
