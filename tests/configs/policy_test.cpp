#include "configs/policy/policy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "configs/yaml/yaml.h"
#include "mapping/base/finding.h"
#include "tests/support/expect_error.h"
#include "tests/support/temp_dir.h"

namespace dckpt::policy_test {
namespace {

using ::testing::ElementsAre;
using testing::error_of;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;

/// Returns everything that is wrong with a policy, as messages in p.yaml. The line `version: 1`
/// comes first.
std::vector<std::string> problems_of(const std::string& yaml) {
  std::vector<std::string> lines;
  for (const ConfigProblem& problem : check_policy("version: 1\n" + yaml).problems)
    lines.push_back(to_string(problem, "p.yaml"));
  return lines;
}

Policy policy_of(const std::string& yaml) {
  return Policy::from_text("version: 1\n" + yaml);
}

TEST(Policy, AnEmptyFileIsTheDefault) {
  EXPECT_EQ(Policy::from_text(""), Policy{});
  EXPECT_EQ(Policy::from_text("# all defaults\n"), Policy{});
  EXPECT_EQ(policy_of(""), Policy{});
  EXPECT_EQ(policy_of("save:\nload:\n  parallel:\n"), Policy{});
}

TEST(Policy, EveryFieldIsReadFromItsPlace) {
  const Policy policy = policy_of(R"(
save:
  backend: {name: torch_dist, version: 1}
  compat: megatron-0.19
  flattened: megatron
  planner: {kind: mcore, dedup: lowest_rank, cache: false, validate: false}
  parallel: {enabled: true}
  async: {enabled: false, snapshot: lazy, staging_memory: 1.5GiB, when_busy: skip}
  separation_hint: "optimizer."
  io: {engine: buffered, threads: 7, files_per_rank: 3, fsync: false, checksums: false, page_aligned: true}
  timeout: 90 min
  integrity: sha256
  report: true
  check_replicas: all
  error_on: []
load:
  strategy: auto
  strict: raise_all
  parallel: {enabled: true, exchange: all_to_all}
  allow_shape_mismatch: ["*.word_embeddings.weight", head]
  allow_unloaded: ["optimizer.*"]
  padding: replicate
  map: {name: llama, set: [vocab_size=32000]}
  rename: [{from: "^module\\.(.*)$", to: "\\1"}, {from: x, to: ""}]
  objects: [{keys: "data*", when_resharded: drop}]
  engine: direct
  threads: 9
  staging: 128 MiB
  error_on: [values-kept, no-effect]
retention: {keep_last: 3, keep_every: 1000, keep: [2500, "15*"]}
)");
  EXPECT_EQ(policy.save.strategy, (StrategySpec{"torch_dist", 1}));
  EXPECT_EQ(policy.save.compat, Compat::kMegatron019);
  EXPECT_EQ(policy.save.flattened, FlattenedForm::kMegatron);
  EXPECT_EQ(policy.save.planner, (PlannerOptions{.kind = PlannerKind::kMegatron,
                                                 .dedup = Dedup::kLowestRank,
                                                 .cache = false,
                                                 .validate = false}));
  EXPECT_EQ(policy.save.parallel, (ParallelSaveOptions{true}));
  EXPECT_EQ(policy.save.async, (AsyncOptions{.enabled = false,
                                             .snapshot = Snapshot::kLazy,
                                             .staging_memory = std::uint64_t{3} << 29,
                                             .when_busy = WhenBusy::kSkip}));
  EXPECT_EQ(policy.save.separation_hint, "optimizer.");
  EXPECT_EQ(policy.save.io, (WriteOptions{IoEngine::kBuffered, 7, 3, false, false, true}));
  EXPECT_EQ(policy.save.timeout, std::chrono::minutes(90));
  EXPECT_TRUE(policy.save.integrity);
  EXPECT_TRUE(policy.save.report);
  EXPECT_EQ(policy.save.check_replicas, CheckReplicas::kAll);
  EXPECT_EQ(policy.load.strict, StrictHandling::kRaiseAll);
  EXPECT_EQ(policy.load.parallel, (ParallelOptions{true, Exchange::kAllToAll}));
  EXPECT_THAT(policy.load.allow_shape_mismatch, ElementsAre("*.word_embeddings.weight", "head"));
  EXPECT_THAT(policy.load.allow_unloaded, ElementsAre("optimizer.*"));
  EXPECT_EQ(policy.load.padding, Padding::kReplicate);
  EXPECT_EQ(policy.load.map, (KeyMapOptions{"llama", {"vocab_size=32000"}}));
  EXPECT_THAT(policy.load.rename,
              ElementsAre(RenameRule{"^module\\.(.*)$", "\\1"}, RenameRule{"x", ""}));
  EXPECT_THAT(policy.load.objects, ElementsAre(ObjectRule{"data*", WhenResharded::kDrop}));
  EXPECT_EQ(policy.load.engine, ReadEngine::kDirect);
  EXPECT_EQ(policy.load.threads, 9);
  EXPECT_EQ(policy.load.staging, std::uint64_t{128} << 20);
  EXPECT_THAT(policy.load.error_on, ElementsAre(FindingCode::kValuesKept, FindingCode::kNoEffect));
  EXPECT_EQ(policy.retention, (Retention{3, 1000, {"2500", "15*"}}));
  EXPECT_EQ(Policy::from_text(to_yaml(policy)), policy);
}

TEST(Policy, TheWordsOfMegatronForAnExchangeMeanAllToAll) {
  for (const char* const word : {"gather", "broadcast"}) {
    const Policy policy =
        policy_of(std::string("load: {parallel: {enabled: true, exchange: ") + word + "}}");
    EXPECT_EQ(policy.load.parallel.exchange, Exchange::kAllToAll);
    EXPECT_THAT(to_yaml(policy), HasSubstr("exchange: all_to_all\n"));
  }
}

TEST(Policy, SavingHandsNothingOver) {
  EXPECT_THAT(
      problems_of("save:\n  parallel: {enabled: true, exchange: gather}\n"),
      ElementsAre(HasSubstr("p.yaml:3:39: save.parallel.exchange does not apply to saves")));
}

TEST(Policy, TheStandardPlannerLetsTheLowestRankWrite) {
  EXPECT_EQ(
      policy_of("save: {compat: dcp, planner: {kind: standard}}").save.planner.effective_dedup(),
      Dedup::kLowestRank);
  EXPECT_EQ(policy_of("save: {compat: dcp, planner: {dedup: balanced, kind: standard}}")
                .save.planner.effective_dedup(),
            Dedup::kBalanced);
}

TEST(Policy, TheEffectiveOneSaysEverything) {
  EXPECT_EQ(to_yaml(Policy{}), R"(version: 1
save:
  strategy: torch_dist
  compat: megatron
  flattened: boxes
  flatten: true
  planner:
    kind: mcore
    dedup: balanced
    cache: true
    validate: true
    split_replicas: false
  parallel:
    enabled: false
  async:
    enabled: false
    snapshot: eager
    staging_memory: 8GiB
    when_busy: wait
  separation_hint: null
  io:
    engine: auto
    threads: 2
    files_per_rank: 1
    fsync: true
    checksums: true
    page_aligned: false
  timeout: none
  integrity: none
  report: false
  check_replicas: sample
  error_on: []
load:
  strategy: auto
  strict: assume_ok_unexpected
  missing: []
  allow_partial_load: false
  parallel:
    enabled: false
    exchange: auto
  allow_shape_mismatch: []
  allow_truncation: []
  allow_unloaded: []
  padding: zero
  cast: forbid
  planner: null
  map: null
  rename: []
  objects: [{keys: rng_state, when_resharded: keep}, {keys: rerun_state_machine_state, when_resharded: keep}, {keys: "*._extra_state", when_resharded: keep}]
  validate_access_integrity: true
  verify: crc
  engine: auto
  threads: 2
  staging: 64MiB
  timeout: none
  error_on: []
retention:
  keep_last: 0
  keep_every: 0
  keep: []
resume:
  allow_dropped_keys: false
)");
  EXPECT_EQ(Policy::from_text(to_yaml(Policy{})), Policy{});
}

TEST(Policy, TextThatSteersTerminalsIsEscaped) {
  Policy policy;
  policy.save.separation_hint = "a\u202Eb\u00E4";
  EXPECT_THAT(to_yaml(policy), HasSubstr("separation_hint: \"a\\u202eb\u00E4\""));
  EXPECT_EQ(Policy::from_text(to_yaml(policy)), policy);
}

TEST(Policy, TimesHaveAUnit) {
  EXPECT_EQ(policy_of("save: {timeout: 1500ms}").save.timeout, std::chrono::milliseconds(1500));
  EXPECT_EQ(policy_of("save: {timeout: 8760h}").save.timeout, std::chrono::hours(8760));
  EXPECT_EQ(policy_of("save: {timeout: none}").save.timeout, std::chrono::milliseconds(0));
  for (const char* const bad :
       {"30", "0s", "8761h", "-1s", "1.5h", "1 week", "99999999999999999999s", "\"\""}) {
    EXPECT_THAT(problems_of("save: {timeout: " + std::string(bad) + "}\n"),
                ElementsAre(HasSubstr(
                    "expected none, or a time with its unit (ms, s, min, h), for example 30min")))
        << bad;
  }
}

TEST(Policy, AllNamesOfAllEnumerationsAreReadAndShown) {
  for (const auto& [value, name] : kCompatNames)
    EXPECT_EQ(policy_of("save: {compat: " + std::string(name) + "}").save.compat, value);
  for (const auto& [value, name] : kStrictNames)
    EXPECT_EQ(policy_of("load: {strict: " + std::string(name) + "}").load.strict, value);
  for (const auto& [value, name] : kDedupNames)
    EXPECT_EQ(
        policy_of("save: {parallel: {enabled: true}, planner: {dedup: " + std::string(name) + "}}")
            .save.planner.dedup,
        value);
  for (const auto& [value, name] : kExchangeNames)
    EXPECT_EQ(policy_of("load: {parallel: {enabled: true, exchange: " + std::string(name) + "}}")
                  .load.parallel.exchange,
              value);
}

// Complete messages that users may get.

TEST(PolicyMessages, UnknownField) {
  EXPECT_THAT(
      problems_of("save:\n  integrty: none\n"),
      ElementsAre(
          "p.yaml:3:3: save has no field 'integrty' (did you mean 'integrity'?); it has strategy, "
          "backend, compat, flattened, flatten, planner, parallel, async, separation_hint, io, "
          "timeout, integrity, report, check_replicas and error_on"));
  EXPECT_THAT(problems_of("speed: fast\n"),
              ElementsAre("p.yaml:2:1: the file has no field 'speed'; it has version, extends, "
                          "save, load, retention and resume"));
  EXPECT_THAT(problems_of("load: {rename: [{from: a, to: b, too: c}]}\n"),
              ElementsAre("p.yaml:2:34: load.rename[0] has no field 'too' (did you mean 'to'?); it "
                          "has from and to"));
}

TEST(PolicyMessages, WrongType) {
  EXPECT_THAT(problems_of("save: {io: {fsync: yes}}\n"),
              ElementsAre("p.yaml:2:20: save.io.fsync: found 'yes', expected true or false"));
  EXPECT_THAT(
      problems_of("save: {io: {fsync: \"true\"}}\n"),
      ElementsAre("p.yaml:2:20: save.io.fsync: found the text 'true', expected true or false"));
  EXPECT_THAT(problems_of("save: {io: fast}\n"),
              ElementsAre("p.yaml:2:12: save.io: found 'fast', expected a mapping with engine, "
                          "threads, files_per_rank, fsync, checksums and page_aligned"));
  EXPECT_THAT(problems_of("load: {map: {name: llama, set: [a=1, vocab_size]}}\n"),
              ElementsAre("p.yaml:2:38: load.map.set[1]: found 'vocab_size', expected "
                          "NAME=VALUE"));
  EXPECT_THAT(problems_of("load: {allow_shape_mismatch: head}\n"),
              ElementsAre("p.yaml:2:30: load.allow_shape_mismatch: found 'head', expected a list "
                          "of patterns, for example [\"*.word_embeddings.weight\"]"));
  EXPECT_THAT(
      problems_of("load: {allow_shape_mismatch: [a, [b]]}\n"),
      ElementsAre(
          "p.yaml:2:34: load.allow_shape_mismatch[1]: found a list, expected a pattern of keys"));
  EXPECT_THAT(
      problems_of("save: {compat: {a: 1}}\n"),
      ElementsAre(
          "p.yaml:2:16: save.compat: found a mapping, expected megatron, megatron-0.19 or dcp"));
  EXPECT_THAT(
      problems_of("save: {compat: }\n"),
      ElementsAre(
          "p.yaml:2:16: save.compat: found nothing, expected megatron, megatron-0.19 or dcp"));
}

TEST(PolicyMessages, UnknownNameOfAnEnumeration) {
  EXPECT_THAT(problems_of("save: {compat: megatorn}\n"),
              ElementsAre("p.yaml:2:16: save.compat: found 'megatorn', expected megatron, "
                          "megatron-0.19 or dcp (did you mean 'megatron'?)"));
  EXPECT_THAT(problems_of("save: {flattened: x}\n"),
              ElementsAre("p.yaml:2:19: save.flattened: found 'x', expected boxes or megatron"));
}

TEST(PolicyMessages, UnknownCodeOfAFinding) {
  EXPECT_THAT(problems_of("save: {error_on: [no-effect, ranks-difer]}\n"),
              ElementsAre(AllOf(
                  HasSubstr("p.yaml:2:30: save.error_on[1]: found 'ranks-difer', expected keys-ch"),
                  HasSubstr("(did you mean 'ranks-differ'?)"))));
  EXPECT_THAT(problems_of("load: {error_on: no-effect}\n"),
              ElementsAre("p.yaml:2:18: load.error_on: found 'no-effect', expected a list of "
                          "codes, for example [no-effect]"));
}

TEST(PolicyMessages, NumbersOutOfRange) {
  EXPECT_THAT(
      problems_of("save: {io: {threads: many}}\n"),
      ElementsAre(
          "p.yaml:2:22: save.io.threads: found 'many', expected an integer from 1 to 1024"));
  for (const char* const threads :
       {"0", "-1", "1025", "2.0", "0x2", "+2", "99999999999999999999", "''", "\"2\""}) {
    EXPECT_THAT(problems_of(std::string("save: {io: {threads: ") + threads + "}}\n"),
                ElementsAre(HasSubstr("expected an integer from 1 to 1024")))
        << threads;
  }
  EXPECT_EQ(policy_of("save: {io: {threads: 1}}").save.io.threads, 1);
  EXPECT_EQ(policy_of("save: {io: {threads: 1024}}").save.io.threads, 1024);
  EXPECT_THAT(
      problems_of("retention: {keep_last: -1}\n"),
      ElementsAre(HasSubstr("retention.keep_last: found '-1', expected an integer from 0 to ")));
}

TEST(PolicyMessages, SizesCarryTheirUnit) {
  EXPECT_THAT(problems_of("load: {staging: 64}\n"),
              ElementsAre("p.yaml:2:17: load.staging: found '64', expected a size with its unit, "
                          "from 1MiB to 1TiB, for example 512MiB"));
  for (const char* const staging :
       {"64 parsecs", "MiB", "-1MiB", "1023KiB", "2TiB", "nan", "inf MiB", "1e30GiB", "0"}) {
    EXPECT_THAT(problems_of(std::string("load: {staging: ") + staging + "}\n"),
                ElementsAre(HasSubstr("expected a size with its unit")))
        << staging;
  }
  EXPECT_EQ(policy_of("load: {staging: 1MiB}").load.staging, std::uint64_t{1} << 20);
  EXPECT_EQ(policy_of("load: {staging: 1TiB}").load.staging, std::uint64_t{1} << 40);
  EXPECT_EQ(policy_of("load: {staging: 1048577 B}").load.staging, (std::uint64_t{1} << 20) + 1);
}

TEST(PolicyMessages, Versions) {
  const auto only_problem = [](const std::string& yaml) {
    const ConfigProblems problems = check_policy(yaml).problems;
    return problems.size() == 1 ? to_string(problems.front(), "p.yaml")
                                : std::to_string(problems.size()) + " problems";
  };
  EXPECT_EQ(only_problem("save: {compat: dcp}\n"),
            "p.yaml:1:1: the version of the schema is missing; begin with the line 'version: 1'");
  EXPECT_EQ(only_problem("{}"),
            "p.yaml:1:1: the version of the schema is missing; begin with the line 'version: 1'");
  EXPECT_EQ(only_problem("version: 2\n"),
            "p.yaml:1:10: version: this release reads policies of version 1, not of version 2");
  EXPECT_EQ(only_problem("version: one\n"),
            "p.yaml:1:10: version: found 'one', expected an integer from 1 to 2147483647");
  EXPECT_EQ(only_problem("[version, 1]"),
            "p.yaml:1:1: the file: found a list, expected a mapping with version, extends, save, "
            "load, retention and resume");
  EXPECT_EQ(error_of([] { Policy::from_text("version: 2"); }).code(), ErrorCode::kUnsupported);
}

TEST(PolicyMessages, StrategyAndBackendExcludeEachOther) {
  EXPECT_THAT(
      problems_of("save:\n  strategy: torch_dist\n  backend: {name: torch_dist}\n"),
      ElementsAre("p.yaml:4:12: save: strategy and backend say the same thing; keep one of them"));
}

TEST(PolicyMessages, SeparationHintsBecomeFileNames) {
  EXPECT_EQ(policy_of("save: {separation_hint: ~}").save.separation_hint, "");
  EXPECT_THAT(problems_of("save: {separation_hint: a/b}\n"),
              ElementsAre("p.yaml:2:25: save.separation_hint: 'a/b' has a slash, a backslash or a "
                          "control character; it is the beginning of file names"));
  EXPECT_THAT(problems_of("save: {separation_hint: ''}\n"),
              ElementsAre("p.yaml:2:25: save.separation_hint: found the text '', expected a prefix "
                          "of keys, or null"));
}

TEST(PolicyMessages, PlannersOfDcpSaveDcpOnly) {
  EXPECT_EQ(policy_of("save: {compat: dcp, planner: {kind: standard}}").save.planner.kind,
            PlannerKind::kHyperParallel);
  EXPECT_THAT(problems_of("save: {planner: {kind: default}}\n"),
              ElementsAre("p.yaml:2:24: save.planner.kind: default saves plain DCP directories, "
                          "but compat is megatron; say compat: dcp, or kind: mcore"));
}

TEST(Policy, OptionsOfAStrategyAreKeptForIt) {
  const Policy policy = policy_of(
      "save: {backend: {name: mine, options: {level: 3, mode: Fast, names: [a, \"b, c\"], deep: "
      "{x: true}}}}");
  EXPECT_EQ(policy.save.strategy.name, "mine");
  EXPECT_EQ(policy.save.strategy.options.value("level"), "3");
  EXPECT_EQ(Policy::from_text(to_yaml(policy)), policy) << to_yaml(policy);
  EXPECT_THAT(problems_of("save: {backend: {name: mine, options: 3}}\n"),
              ElementsAre("p.yaml:2:39: save.backend.options: found '3', expected a mapping of the "
                          "strategy's own options"));
}

TEST(Policy, AStrategyToLoadWithHasALongFormToo) {
  EXPECT_EQ(policy_of("load: {strategy: mine}"), policy_of("load: {backend: {name: mine}}"));
  const Policy policy = policy_of("load: {backend: {name: mine, version: 2, options: {level: 3}}}");
  EXPECT_EQ(policy.load.strategy.name, "mine");
  EXPECT_EQ(policy.load.strategy.version, 2);
  EXPECT_EQ(policy.load.strategy.options.value("level"), "3");
  EXPECT_EQ(Policy::from_text(to_yaml(policy)), policy) << to_yaml(policy);
  EXPECT_EQ(policy_of("load: {backend: {name: auto}}").load, LoadOptions());
  EXPECT_THAT(problems_of("load: {strategy: auto, backend: {name: mine}}\n"),
              ElementsAre("p.yaml:2:33: load: strategy and backend say the same thing; keep one "
                          "of them"));
  EXPECT_THAT(problems_of("load: {backend: {version: 1}}\n"),
              ElementsAre("p.yaml:2:17: load.strategy: a version or options are those of one "
                          "strategy; add its name"));
  EXPECT_THAT(problems_of("load: {backend: {nam: mine}}\n"),
              ElementsAre(HasSubstr("load.backend has no field 'nam' (did you mean 'name'?)")));
}

TEST(PolicyMessages, RulesThatCannotRename) {
  EXPECT_THAT(
      problems_of("load:\n  rename:\n  - {from: \"(a\", to: b}\n  - {from: a, to: \"\\\\1\"}\n  - "
                  "{from: a}\n"),
      ElementsAre(
          StartsWith("p.yaml:4:5: load.rename[0]: 'from' is no regular expression: "),
          "p.yaml:5:5: load.rename[1]: 'to' refers to group \\1, but 'from' has no groups",
          "p.yaml:6:5: load.rename[2]: 'to' is missing; a rule is {from: REGEX, to: REPLACEMENT}"));
}

TEST(PolicyProblems, RulesForObjectsNameKeysAndWhatToDo) {
  EXPECT_THAT(
      problems_of("load:\n  objects:\n  - {keys: rng}\n  - {keys: rng, when_resharded: kep}\n"),
      ElementsAre("p.yaml:4:5: load.objects[0]: 'when_resharded' is missing; a rule is {keys: "
                  "PATTERN, when_resharded: error, keep, reinit, drop or gather}",
                  HasSubstr("(did you mean 'keep'?)")));
}

TEST(PolicyMessages, AFieldThatIsGoneIsToBeRemoved) {
  EXPECT_THAT(problems_of("save: {planner: {keep_plans: off}}\n"),
              ElementsAre("p.yaml:2:30: save.planner.keep_plans is gone: each job plans its first "
                          "save itself; remove this field"));
}

TEST(PolicyMessages, AnEngineThatThereIsNotIsRefusedWithThoseThatThereAre) {
  EXPECT_THAT(problems_of("save: {io: {engine: uring}}\n"),
              ElementsAre("p.yaml:2:21: save.io.engine: found 'uring', expected auto, buffered "
                          "or direct"));
}

TEST(Policy, AllProblemsOfAFileAreReportedTogetherInItsOrder) {
  const CheckpointError error = error_of([] {
    Policy::from_text(
        "version: 1\nsave: {io: {engine: uring, threads: 0}}\nload: &x {}\nsave: {}\nspeed: 1\n",
        "p.yaml");
  });
  EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
  EXPECT_THAT(
      error.message(),
      StartsWith("5 problems in 'p.yaml':\n"
                 "  p.yaml:2:21: save.io.engine: found 'uring', expected auto, buffered or "
                 "direct\n"
                 "  p.yaml:2:37: save.io.threads: found '0', expected an integer from 1 to 1024\n"
                 "  p.yaml:3:7: the anchor '&x' is refused"));
  EXPECT_THAT(error.message(), HasSubstr("\n  p.yaml:4:1: field 'save' is given twice, first at "
                                         "line 2\n  p.yaml:5:1: the file has no field 'speed'"));
}

TEST(Policy, AFloodOfProblemsIsCutShort) {
  std::string yaml;
  for (int i = 0; i < 1000; ++i) yaml += "field" + std::to_string(i) + ": x\n";
  const std::string message = error_of([&] { policy_of(yaml); }).message();
  EXPECT_THAT(message, StartsWith("1,000 problems in 'policy':"));
  EXPECT_THAT(message, HasSubstr("\n  … and 980 more"));
  EXPECT_LT(message.size(), 10'000u);
}

TEST(Policy, TextFromTheFileIsHarmlessInMessages) {
  EXPECT_THAT(problems_of("\"\\e[2J\": 1\n"), ElementsAre(HasSubstr("no field '\\x1b[2J'")));
}

TEST(Policy, FilesNameThemselvesInErrors) {
  const TempDir directory;
  const std::filesystem::path file = directory / "run.yaml";
  std::ofstream(file) << "version: 1\nsave:\n  compat: dpc\n";
  EXPECT_THAT(error_of([&] { Policy::from_file(file); }).message(),
              StartsWith(file.string() + ":3:11: save.compat: found 'dpc'"));
  std::ofstream(file) << "version: 1\nload: {threads: 5}\n";
  EXPECT_EQ(Policy::from_file(file).load.threads, 5);
  EXPECT_EQ(error_of([&] { Policy::from_file(directory / "absent.yaml"); }).code(), ErrorCode::kIo);
  EXPECT_EQ(error_of([&] { Policy::from_file(directory.path()); }).code(), ErrorCode::kIo);
  std::ofstream(file) << std::string(kMaxYamlBytes + 1, '#');
  EXPECT_THAT(error_of([&] { Policy::from_file(file); }).message(),
              HasSubstr("more than 256.0 KiB"));
}

class ExtendedPolicy : public ::testing::Test {
 protected:
  std::filesystem::path write(const std::string& name, const std::string& yaml) const {
    const std::filesystem::path file = directory_.path() / name;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << "version: 1\n" << yaml;
    return file;
  }
  TempDir directory_;
};

TEST_F(ExtendedPolicy, BeginsWithAShippedOneOrAFileBesideItAndOverridesFieldByField) {
  write("site/base.yaml", "extends: production\nload: {threads: 9, objects: []}\n");
  const Policy policy =
      Policy::find(write("run.yaml", "extends: site/base.yaml\nload: {threads: 7}\n").string());
  Policy expected = Policy::shipped("production");
  expected.load.threads = 7;
  expected.load.objects.clear();
  EXPECT_EQ(policy, expected);
  EXPECT_EQ(Policy::from_text(to_yaml(policy)), policy) << "what is printed is the effective one";
  EXPECT_EQ(Policy::find("production"), Policy::shipped("production"));
}

TEST_F(ExtendedPolicy, ProblemsNameTheFileThatTheyAreIn) {
  const auto base = write("base.yaml", "load: {treads: 9}\n");
  const auto run = write("run.yaml", "extends: base.yaml\nload: {threads: many}\n");
  EXPECT_THAT(error_of([&] { Policy::from_file(run); }).message(),
              AllOf(HasSubstr(base.string() + ":2:8: load has no field 'treads'"),
                    HasSubstr(run.string() + ":3:17: load.threads: found 'many'")));
}

TEST_F(ExtendedPolicy, CyclesLongChainsAndMissingOnesAreRefusedWhereTheyAreNamed) {
  const auto one = write("one.yaml", "extends: two.yaml\n");
  write("two.yaml", "extends: one.yaml\n");
  EXPECT_THAT(error_of([&] { Policy::from_file(one); }).message(), HasSubstr("extends itself"));
  for (int i = 0; i < 12; ++i)
    write(std::to_string(i) + ".yaml", "extends: " + std::to_string(i + 1) + ".yaml\n");
  EXPECT_THAT(error_of([&] { Policy::from_file(directory_.path() / "0.yaml"); }).message(),
              HasSubstr("more than 8 policies"));
  std::ofstream(directory_.path() / "notes.txt") << "root: secret\nmore: secret\n";
  const auto foreign = write("foreign.yaml", "extends: notes.txt\n");
  const std::string message = error_of([&] { Policy::from_file(foreign); }).message();
  EXPECT_THAT(message, HasSubstr("notes.txt:1:1: the version of the schema is missing"));
  EXPECT_THAT(message, Not(HasSubstr("secret"))) << message;

  const auto typo = write("typo.yaml", "extends: producton\n");
  EXPECT_THAT(error_of([&] { Policy::from_file(typo); }).message(),
              AllOf(HasSubstr("typo.yaml:2:10: extends: 'producton'"),
                    HasSubstr("did you mean 'production'?")));
  EXPECT_THAT(
      error_of([&] { Policy::from_text("version: 1\nextends: " + one.string() + "\n"); }).message(),
      HasSubstr("is shipped"))
      << "no file is read for a text";
}

/// Returns a list as it is printed: on one line.
std::string shown_list(const YamlNode& node) {
  YamlNode map;
  map.kind = YamlNode::Kind::kMap;
  map.keys.push_back(YamlNode::plain("x"));
  map.values.push_back(node);
  std::string text = to_yaml_text(map);
  while (text.ends_with('\n')) text.pop_back();
  return text.substr(3);
}

/// Collects the leaves of a policy as "save.io.threads", with the value as it is shown.
void collect_leaves(const YamlNode& node, const std::string& path,
                    std::vector<std::pair<std::string, std::string>>& leaves) {
  if (node.kind != YamlNode::Kind::kMap) {
    leaves.emplace_back(path, node.kind == YamlNode::Kind::kList   ? shown_list(node)
                              : node.kind == YamlNode::Kind::kNull ? "null"
                                                                   : node.text);
    return;
  }
  for (std::size_t i = 0; i < node.keys.size(); ++i)
    collect_leaves(node.values[i],
                   path.empty() ? node.keys[i].text : path + "." + node.keys[i].text, leaves);
}

TEST(Policy, TheDocumentationListsEveryFieldWithItsDefault) {
  std::ostringstream page;
  page << std::ifstream("docs/policies.md").rdbuf();
  ConfigProblems problems;
  std::vector<std::pair<std::string, std::string>> leaves;
  collect_leaves(*parse_yaml(to_yaml(Policy{}), problems), "", leaves);
  ASSERT_EQ(leaves.size(), 53u);
  for (const auto& [path, value] : leaves)
    EXPECT_THAT(page.str(), HasSubstr("\n| `" + path + "` | `" + value + "` |"));
}

}  // namespace
}  // namespace dckpt::policy_test
