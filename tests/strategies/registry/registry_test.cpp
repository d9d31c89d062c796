#include "strategies/registry/registry.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "configs/policy/policy.h"
#include "configs/policy/strategy_options.h"
#include "migration/registration/register_formats.h"
#include "tests/support/expect_error.h"

namespace dckpt::registry_test {
namespace {

using dckpt::testing::error_of;
using ::testing::AllOf;
using ::testing::HasSubstr;

struct DummyOptions {
  int level = 1;
  bool fast = false;
};

/// Writes nothing, and remembers the options that it was made with.
class Dummy final : public SaveStrategy {
 public:
  explicit Dummy(const DummyOptions& given) : options(given) {}
  WrittenItems write_data(Storage&, const std::string&, int, const SavePlan&,
                          ItemSource&) const override {
    return {};
  }
  std::optional<MarkerFile> marker(const Storage&, const Metadata&,
                                   const CommonState*) const override {
    return std::nullopt;
  }
  const DummyOptions options;
};

SaveStrategyEntry dummy(int version, Capabilities capabilities = {}) {
  const config::Schema<DummyOptions> schema{{
      config::field("level", &DummyOptions::level, config::integer(1, 9)),
      config::field("fast", &DummyOptions::fast, config::flag()),
  }};
  return {.name = "dummy",
          .version = version,
          .about = "for this test",
          .capabilities = capabilities,
          .make = [schema](const SaveOptions& options) {
            return std::make_unique<Dummy>(read_options(schema, options.strategy));
          }};
}

class StrategyRegistry : public ::testing::Test {
 protected:
  StrategyRegistry() {
    register_strategy(dummy(1));
    register_strategy(dummy(3));
    register_strategy(dummy(2));
  }

  static SaveOptions asking_for(const std::string& backend) {
    return Policy::from_text("version: 1\nsave:\n  backend: " + backend).save;
  }
};

TEST_F(StrategyRegistry, HoldsTheBuiltInOnes) {
  EXPECT_EQ(find_save_strategy("torch_dist").version, 1);
  for (const char* const name : {"torch_dist", "dcp", "zarr", "torch"})
    EXPECT_EQ(find_load_strategy(name).name, name);
}

TEST_F(StrategyRegistry, TheNewestVersionIsTakenUnlessOneIsNamed) {
  EXPECT_EQ(find_save_strategy("dummy").version, 3);
  EXPECT_EQ(find_save_strategy("dummy", 1).version, 1);
  EXPECT_EQ(find_load_strategy("torch_dist", 1).name, "torch_dist");
}

TEST_F(StrategyRegistry, AnEntryOfTheSameNameAndVersionIsReplaced) {
  const std::size_t before = save_strategies().size();
  SaveStrategyEntry again = dummy(2);
  again.about = "another one";
  register_strategy(again);
  EXPECT_EQ(save_strategies().size(), before);
  EXPECT_EQ(find_save_strategy("dummy", 2).about, "another one");
}

TEST_F(StrategyRegistry, AnErrorListsWhatExistsAndSuggests) {
  const CheckpointError error = error_of([] { find_save_strategy("torch_dits"); });
  EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
  EXPECT_THAT(error.message(),
              AllOf(HasSubstr("no strategy saves with backend 'torch_dits'; there "
                              "are: 'torch_dist version 1', 'dcp version 1', "),
                    HasSubstr(", 'dummy version 1'"), HasSubstr("(did you mean 'torch_dist'?)")));
  EXPECT_THAT(error_of([] { find_save_strategy("dummy", 7); }).message(),
              HasSubstr("no strategy saves with backend 'dummy' version 7; there are:"));
  EXPECT_THAT(error_of([] { find_load_strategy("tensorstore"); }).message(),
              HasSubstr("no strategy reads backend 'tensorstore'"));
}

TEST_F(StrategyRegistry, AStrategyReadsItsOwnOptionsFromThePolicy) {
  const auto strategy =
      make_save_strategy(asking_for("{name: dummy, options: {level: 4, fast: true}}"));
  EXPECT_EQ(dynamic_cast<const Dummy&>(*strategy).options.level, 4);
  EXPECT_TRUE(dynamic_cast<const Dummy&>(*strategy).options.fast);
  EXPECT_EQ(
      dynamic_cast<const Dummy&>(*make_save_strategy(asking_for("{name: dummy}"))).options.level,
      1);
}

TEST_F(StrategyRegistry, OptionsThatDoNotFitAreAllReportedWithTheirPlaces) {
  const CheckpointError error = error_of(
      [] { make_save_strategy(asking_for("{name: dummy, options: {level: 10, levl: 2}}")); });
  EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
  EXPECT_THAT(error.message(),
              AllOf(HasSubstr("options of strategy dummy:3:43: save.backend.options.level: found "
                              "'10', expected an integer from 1 to 9"),
                    HasSubstr("save.backend.options has no field 'levl' (did you mean 'level'?)")));
  EXPECT_THAT(
      error_of([] {
        make_save_strategy(asking_for("{name: torch_dist, options: {level: 1}}"));
      }).message(),
      HasSubstr(
          "strategy 'torch_dist' has no options of its own, but save.backend.options has 'level'"));
}

TEST_F(StrategyRegistry, WhatAStrategyCannotDoIsRefused) {
  const auto refusal = [](SaveOptions options) {
    options.strategy.name = "dummy";
    return error_of([&] { make_save_strategy(options); }).message();
  };
  EXPECT_THAT(refusal({.flattened = FlattenedForm::kMegatron}),
              HasSubstr("stores flattened tensors as boxes only"));
  EXPECT_THAT(refusal({.compat = Compat::kDcp}), HasSubstr("it has one form only"));
  EXPECT_THAT(refusal({.integrity = true}), HasSubstr("it writes no integrity manifest"));
  EXPECT_EQ(refusal({.planner = {.kind = PlannerKind::kHyperParallel}}),
            "save.planner.kind: standard saves plain DCP directories, but compat is megatron; say "
            "kind: mcore");
}

TEST_F(StrategyRegistry, AFactoryThatMakesNothingIsAnError) {
  register_strategy(SaveStrategyEntry{
      .name = "empty", .make = [](const SaveOptions&) { return std::unique_ptr<SaveStrategy>(); }});
  register_strategy(
      LoadStrategyEntry{.name = "empty", .open = [](std::shared_ptr<Storage>, const OpenHints&) {
                          return std::unique_ptr<CheckpointReader>();
                        }});
  SaveOptions options;
  options.strategy.name = "empty";
  EXPECT_THAT(error_of([&] { make_save_strategy(options); }).what(),
              HasSubstr("factory of strategy 'empty' returned null"));
  EXPECT_THAT(error_of([&] { find_load_strategy("empty").open(nullptr, {}); }).what(),
              HasSubstr("factory of strategy 'empty' returned null"));
}

TEST_F(StrategyRegistry, EntriesNeedANameAndAFactory) {
  EXPECT_EQ(error_of([] { register_strategy(SaveStrategyEntry{.name = "x"}); }).code(),
            ErrorCode::kInvalidArgument);
  EXPECT_EQ(
      error_of([] {
        register_strategy(LoadStrategyEntry{.open = [](std::shared_ptr<Storage>, const OpenHints&) {
          return std::unique_ptr<CheckpointReader>();
        }});
      }).code(),
      ErrorCode::kInvalidArgument);
}

std::vector<std::string> names_of_loads() {
  std::vector<std::string> names;
  for (const LoadStrategyEntry& strategy : load_strategies()) names.push_back(strategy.name);
  return names;
}

TEST(FormatsOfDckpt, KeepTheirPlaceAndReplaceNothingOfTheProgram) {
  const std::vector<std::string> before = names_of_loads();
  EXPECT_THAT(before, ::testing::IsSupersetOf({"torch_dist", "zarr", "torch", "local",
                                               "torch_checkpointing", "dcp", "safetensors"}));
  EXPECT_EQ(missing_formats(), "");
  const LoadStrategyEntry shipped = find_load_strategy("zarr");
  LoadStrategyEntry own = shipped;
  own.about = "of this program";
  register_strategy(own);
  register_formats();
  EXPECT_EQ(find_load_strategy("zarr").about, "of this program");
  EXPECT_EQ(names_of_loads(), before);
  register_strategy(shipped);
}

}  // namespace
}  // namespace dckpt::registry_test
