#include "conformance/strategy_conformance.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "configs/policy/policy.h"
#include "dist_checkpointing/load/load.h"
#include "dist_checkpointing/open/open.h"
#include "dist_checkpointing/save/save.h"
#include "examples/raw_strategy/raw_index.h"
#include "examples/raw_strategy/raw_strategy.h"
#include "operations/convert/convert.h"
#include "operations/inspect/diff.h"
#include "operations/inspect/verify.h"
#include "strategies/comm/threads.h"
#include "strategies/registry/registry.h"
#include "strategies/torch_dist/save_strategy.h"
#include "tests/support/expect_error.h"
#include "tests/support/golden.h"
#include "tests/support/temp_dir.h"

namespace dckpt::strategy_conformance_test {
namespace {

using dckpt::testing::error_of;
using ::testing::Contains;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

class StrategyConformance : public ::testing::Test {
 protected:
  std::vector<std::string> problems_of(const SaveOptions& options) const {
    return check_strategy(options, directory_ / "conformance").problems;
  }
  TempDir directory_;
};

TEST_F(StrategyConformance, TorchDistInEachOfItsForms) {
  for (const Compat compat : {Compat::kMegatron, Compat::kMegatron019, Compat::kDcp}) {
    SCOPED_TRACE(to_string(compat));
    EXPECT_THAT(problems_of({.compat = compat, .io = {.files_per_rank = 2}}), IsEmpty());
  }
  EXPECT_THAT(problems_of({.flattened = FlattenedForm::kMegatron}), IsEmpty());
}

TEST_F(StrategyConformance, SafetensorsInOneFileAndInMany) {
  EXPECT_THAT(problems_of({.strategy = {.name = "hf"}}), IsEmpty());
  const Policy policy = Policy::from_text(
      "version: 1\nsave: {backend: {name: safetensors, options: {max_file_size: 1MiB}}}");
  EXPECT_THAT(problems_of(policy.save), IsEmpty());
}

TEST_F(StrategyConformance, TheExampleOfAStrategy) {
  raw::register_strategy();
  EXPECT_THAT(problems_of(Policy::from_file("examples/raw_strategy/run.yaml").save), IsEmpty());
}

/// torch_dist with a mistake in it.
class Mistaken final : public SaveStrategy {
 public:
  enum class Mistake { kFlipsAByte, kForgetsATensor, kForgetsTheCommonState, kGivesAPlaceTwice };
  Mistaken(Mistake mistake, const SaveOptions& options)
      : mistake_(mistake), inner_(make_torch_dist_save_strategy(options)) {}

  WrittenItems write_data(Storage& storage, const std::string& directory, int rank,
                          const SavePlan& plan, ItemSource& source) const override {
    Flipping flipping(source);
    WrittenItems written = inner_->write_data(
        storage, directory, rank, plan,
        mistake_ == Mistake::kFlipsAByte ? static_cast<ItemSource&>(flipping) : source);
    if (mistake_ == Mistake::kGivesAPlaceTwice && written.places.size() > 1)
      written.places[0] = written.places[1];
    return written;
  }

  void write_index(Storage& storage, const std::string& directory, const Metadata& metadata,
                   const CommonState* common) const override {
    inner_->write_index(storage, directory, metadata, remembered(common));
  }
  std::optional<MarkerFile> marker(const Storage& storage, const Metadata& metadata,
                                   const CommonState* common) const override {
    Metadata changed = metadata;
    if (mistake_ == Mistake::kForgetsATensor && !changed.tensors.empty())
      changed.tensors.pop_back();
    return inner_->marker(storage, changed, remembered(common));
  }

 private:
  struct Flipping final : ItemSource {
    explicit Flipping(ItemSource& from) : inner(from) {}
    Bytes object(const WriteItem& item) override { return inner.object(item); }
    void tensor(const WriteItem& item, const std::function<void(ByteView)>& sink) override {
      inner.tensor(item, [&](ByteView part) {
        Bytes bytes(part.begin(), part.end());
        if (!bytes.empty()) bytes.back() ^= std::byte{1};
        sink(bytes);
      });
    }
    ItemSource& inner;
  };

  const CommonState* remembered(const CommonState* common) const {
    return mistake_ == Mistake::kForgetsTheCommonState ? &none_ : common;
  }

  Mistake mistake_;
  std::unique_ptr<SaveStrategy> inner_;
  const CommonState none_ = CommonState(Value::dict());
};

TEST_F(StrategyConformance, MistakesAreFound) {
  using Mistake = Mistaken::Mistake;
  for (const auto& [mistake, finding] : std::vector<std::pair<Mistake, std::string>>{
           {Mistake::kFlipsAByte, "differs from what was saved"},
           {Mistake::kForgetsATensor, "instead of"},
           {Mistake::kForgetsTheCommonState, "the common state differs from what was saved"},
           {Mistake::kGivesAPlaceTwice, "shards of any type and shape"}}) {
    register_strategy(SaveStrategyEntry{.name = "mistaken",
                                        .about = "for this test",
                                        .make = [mistake = mistake](SaveOptions options) {
                                          options.strategy = {};
                                          return std::make_unique<Mistaken>(mistake, options);
                                        }});
    EXPECT_THAT(problems_of({.strategy = {.name = "mistaken"}}), Contains(HasSubstr(finding)));
  }
}

TEST_F(StrategyConformance, WhatAStrategyDoesNotStoreIsRefused) {
  raw::register_strategy();
  SaveStrategyEntry tensors_only = find_save_strategy("raw");
  tensors_only.name = "tensors_only";
  tensors_only.capabilities = {.objects = false, .common_state = false};
  register_strategy(tensors_only);
  const SaveOptions options{.strategy = {.name = "tensors_only"}};
  EXPECT_THAT(problems_of(options), IsEmpty());
  StateDict state;
  state["iteration"] = 5;
  const CheckpointError error = error_of([&] { save(state, directory_ / "checkpoint", options); });
  EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
  EXPECT_THAT(error.what(),
              HasSubstr("strategy 'tensors_only' does not store values that are not sharded"));
  EXPECT_EQ(error.context().key, "iteration");
  state = Value::dict({{"rng", ShardedObject{.key = "rng", .data = 1}}});
  EXPECT_THAT(error_of([&] { save(state, directory_ / "checkpoint", options); }).what(),
              HasSubstr("does not store objects"));
  EXPECT_FALSE(std::filesystem::exists(directory_ / "checkpoint"));
}

TEST_F(StrategyConformance, CutTensorsAreRefusedBeforeAnythingIsWritten) {
  run_ranks(2, [&](Communicator& comm) {
    StateDict state;
    state["w"] =
        ShardedTensor::from_rank_offsets("w", Tensor::zeros(DType::kFloat32, {2}),
                                         {{.axis = 0, .rank = comm.rank(), .count = comm.size()}});
    const CheckpointError error =
        error_of([&] { save(state, directory_ / "model", {.strategy = {.name = "hf"}}, comm); });
    EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
    EXPECT_EQ(error.context().key, "w");
    EXPECT_THAT(error.what(), HasSubstr("dckpt convert --to hf"));
  });
  EXPECT_TRUE(std::filesystem::is_empty(std::filesystem::path(directory_ / "model").parent_path()));
}

TEST_F(StrategyConformance, ARegisteredFormatIsConvertedToAndFromLikeABuiltInOne) {
  raw::register_strategy();
  const std::filesystem::path source = testing::golden("mcore-0.16-synthetic");
  const auto raw = directory_ / "raw";
  const ConvertReport dry =
      convert(source, raw, {.target = {.strategy = "raw", .ranks = 3}, .dry_run = true});
  const ConvertReport report = convert(source, raw, {.target = {.strategy = "raw", .ranks = 3}});
  EXPECT_EQ(report.to, "raw");
  EXPECT_EQ(report.files, 3u);
  EXPECT_THAT(messages_of(report.findings), Each(Not(HasSubstr("loads in"))))
      << "no Megatron or torch does";
  EXPECT_GT(dry.disk_bytes, 0u) << "though nothing tells how many files there will be";
  EXPECT_TRUE(verify(*open_checkpoint(raw), {.deep = true}).ok());
  convert(raw, directory_ / "back", {.target = {.strategy = "torch_dist"}});
  for (const auto& result : {raw, directory_ / "back"})
    EXPECT_THAT(diff(*open_checkpoint(source), *open_checkpoint(result)).differences, IsEmpty());
  convert(source, directory_ / "listed", {.target = {.integrity = true}});
  EXPECT_THAT(messages_of(convert(directory_ / "listed", directory_ / "not_listed",
                                  {.target = {.strategy = "raw"}})
                              .findings),
              Contains(HasSubstr("the source has a manifest")));
  const CheckpointError other = error_of([&] {
    convert(source, directory_ / "no",
            {.target = {.strategy = "raw", .compat = Compat::kMegatron019}});
  });
  EXPECT_THAT(other.what(), HasSubstr("it has one form only; leave out compat"));
}

TEST_F(StrategyConformance, RubbishInTheIndexOfTheExampleIsAnError) {
  raw::register_strategy();
  StateDict state;
  state["w"] = ShardedTensor::whole("w", Tensor::zeros(DType::kFloat32, {4, 4}));
  save(state, directory_ / "checkpoint", {.strategy = {.name = "raw"}});
  std::ifstream file(directory_ / "checkpoint" / raw::kIndexFile, std::ios::binary);
  const Bytes index = to_bytes(std::string(std::istreambuf_iterator<char>(file), {}));
  raw::decode(index, "index");
  for (std::size_t at = 0; at < index.size(); ++at) {
    EXPECT_EQ(error_of([&] { raw::decode(ByteView(index).first(at), "index"); }).code(),
              ErrorCode::kCorrupt)
        << "cut at " << at;
    Bytes flipped = index;
    flipped[at] ^= std::byte{0x40};
    try {
      raw::decode(flipped, "index");
    } catch (const CheckpointError&) {
    }
  }
}

}  // namespace
}  // namespace dckpt::strategy_conformance_test
