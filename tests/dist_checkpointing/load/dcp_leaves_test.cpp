// Plain DCP directories whose state torch did not flatten (flatten_state_dict=False): each key of
// the top level is one object, an archive of torch.save. Objects with tensors inside are opened.

#include <gmock/gmock.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <utility>
#include <vector>

#include "dist_checkpointing/load/load.h"
#include "dist_checkpointing/open/open.h"
#include "operations/convert/convert.h"
#include "operations/inspect/verify.h"
#include "strategies/comm/threads.h"
#include "strategies/formats/dcp/metadata_writer.h"
#include "strategies/formats/torch_archive/torch_file.h"
#include "strategies/storage/counting.h"
#include "strategies/storage/posix.h"
#include "strategies/torch_dist/reader.h"
#include "tests/support/expect_error.h"
#include "tests/support/temp_dir.h"

namespace dckpt::dcp_leaves_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

Tensor filled(std::int64_t n, float value) {
  Tensor tensor = Tensor::empty(DType::kFloat32, {n});
  std::fill_n(reinterpret_cast<float*>(tensor.data()), n, value);
  return tensor;
}

/// Returns Adam's state dict of one parameter, keyed as in torch.
Value adam(const Value& key) {
  return Value::dict(
      {{"state", Value::dict({{key, Value::dict({{"step", 2},
                                                 {"exp_avg", filled(3, 1)},
                                                 {"exp_avg_sq", filled(3, 2)}})}})},
       {"param_groups", Value::list({Value::dict({{"lr", 0.1}, {"params", Value::list({0})}})})}});
}

class DcpLeaves : public ::testing::Test {
 protected:
  void write(const std::vector<std::pair<std::string, Bytes>>& objects) const {
    std::filesystem::create_directory(path_);
    Metadata metadata{.files = {"__0_0.distcp"}};
    std::ofstream file(path_ / "__0_0.distcp", std::ios::binary);
    std::uint64_t offset = 0;
    for (const auto& [key, bytes] : objects) {
      metadata.objects.push_back({key, {0, offset, bytes.size()}});
      file << as_text(bytes);
      offset += bytes.size();
    }
    std::ofstream(path_ / ".metadata", std::ios::binary) << as_text(write_dcp_metadata(metadata));
  }
  /// Saves the state as torch does without flattening it.
  void save_objects(const StateDict& state) const {
    std::vector<std::pair<std::string, Bytes>> objects;
    for (const auto& [key, value] : state.as_dict())
      objects.emplace_back(key.as_str(), save_torch_file(value));
    write(objects);
  }
  StateDict loaded(StateDict state, const LoadOptions& options = {}) const {
    load(state, path_, options);
    return state;
  }
  std::vector<std::string> opened_keys() const {
    return open_checkpoint(path_)->info().opened_keys;
  }

  TempDir directory_;
  std::filesystem::path path_ = directory_.path() / "checkpoint";
};

TEST_F(DcpLeaves, AnOptimizerWithoutMomentsGetsThoseThatAreStored) {
  save_objects(Value::dict({{"optim", adam(0)}, {"epoch", 5}}));
  const Value fresh =
      Value::dict({{"state", Value::dict()},
                   {"param_groups", Value::list({Value::dict({{"lr", 0.3}, {"new", true}})})}});
  const StateDict expected = Value::dict({{"optim", adam("0")}});
  for (const Value& optim : {Value(), Value::dict(), Value::list(), Value(1), fresh}) {
    EXPECT_EQ(loaded(Value::dict({{"optim", optim}})), expected);
    EXPECT_EQ(
        loaded(Value::dict({{"optim", optim}}), {.strict = StrictHandling::kReturnUnexpected}),
        expected);
  }
  EXPECT_EQ(loaded(Value::dict({{"epoch", 0}})), Value::dict({{"epoch", 5}})) << "nothing else";
}

TEST_F(DcpLeaves, TheCallersTensorsAreFilledAndWhatItLacksIsAdded) {
  save_objects(Value::dict({{"optim", adam(0)}}));
  const Tensor exp_avg = filled(3, 0);
  const StateDict some = Value::dict(
      {{"optim",
        Value::dict({{"state", Value::dict({{0, Value::dict({{"exp_avg", exp_avg}})}})}})}});
  EXPECT_EQ(loaded(some), Value::dict({{"optim", adam(0)}}))
      << "integer keys stay, no '0' beside 0";
  EXPECT_TRUE(equal(exp_avg, filled(3, 1)));
  StateDict full = Value::dict({{"optim", adam(0)}});
  full["optim"]["state"][Value(0)]["step"] = 0;
  EXPECT_EQ(loaded(full), Value::dict({{"optim", adam(0)}}));
}

TEST_F(DcpLeaves, ShardsAndLocalValuesOfTheCallerStayInTheirPlaces) {
  save_objects(Value::dict({{"optim", adam(0)}}));
  const Tensor part = filled(1, 0);
  StateDict state = Value::dict(
      {{"optim",
        Value::dict({{"shard", ShardedTensor::from_box("optim.state.0.exp_avg", part, {3}, {1})},
                     {"param_groups", LocalNonpersistentObject{"here"}}})}});
  load_plain(state, path_, {.validate_access_integrity = false});
  EXPECT_TRUE(equal(part, filled(1, 1)));
  EXPECT_EQ(state["optim"]["param_groups"], Value("here"));
  EXPECT_EQ(state["optim"]["state"]["0"], Value::dict({{"step", 2}, {"exp_avg_sq", filled(3, 2)}}));
}

TEST_F(DcpLeaves, ListsAreFilledUpToo) {
  const StateDict saved = Value::dict({{"views", Value::list({filled(1, 1), filled(2, 2), 3})}});
  save_objects(saved);
  for (const Value& views :
       {Value(), Value::list(), Value::list({filled(1, 0)}), Value::list({filled(1, 0), "text"})})
    EXPECT_EQ(loaded(Value::dict({{"views", views}})), saved);
  EXPECT_EQ(loaded(Value::dict({{"views", Value::dict({{1, filled(2, 0)}})}}))["views"],
            Value::dict({{1, filled(2, 2)}, {"0", filled(1, 1)}, {"2", 3}}));
}

TEST_F(DcpLeaves, PartsThatAreStoredInPiecesReplaceAValue) {
  const StateDict saved = Value::dict(
      {{"optim", Value::dict({{"w", filled(1, 1)},
                              {"param_groups",
                               Value::list({Value::dict({{"lr", filled(1, 2)}, {"eps", 1}})})}})}});
  save_objects(saved);
  for (const Value& groups : {Value::list({Value::dict({{"lr", 0.5}})}), Value::tuple({1})})
    EXPECT_EQ(loaded(Value::dict(
                  {{"optim", Value::dict({{"w", filled(1, 0)}, {"param_groups", groups}})}})),
              saved);
}

TEST_F(DcpLeaves, RenamedObjectsAreFoundUnderTheirNewNames) {
  save_objects(Value::dict({{"optim", adam(0)}}));
  const LoadOptions renamed{.rename = {{"^optim\\.", "job.optimizer."}, {"exp_avg$", "m"}}};
  Value expected = adam("0");
  Value& moments = expected["state"]["0"];
  moments = Value::dict({{"step", 2}, {"m", filled(3, 1)}, {"exp_avg_sq", filled(3, 2)}});
  EXPECT_EQ(loaded(Value::dict({{"job", Value()}}), renamed),
            Value::dict({{"job", Value::dict({{"optimizer", expected}})}}));
}

TEST_F(DcpLeaves, RanksShareTensorsInTuples) {
  const Value pair = Value::tuple({1, filled(300, 7), filled(5, 8)});
  const StateDict saved =
      Value::dict({{"mixed", Value::dict({{"x", filled(100, 1)}, {"pair", pair}})}});
  save_objects(saved);
  run_ranks(2, [&](Communicator& comm) {
    StateDict state = Value::dict({{"mixed", Value()}});
    load(state, path_, {.parallel = {.enabled = true}, .validate_access_integrity = false}, comm);
    EXPECT_EQ(state, saved);
  });
}

TEST_F(DcpLeaves, AnOddObjectStaysClosedAndTheOthersAreOpened) {
  const Value tensor_in_set =
      Value::dict({{"w", filled(1, 1)}, {"set", Value::frozen_set({filled(9, 2)})}});
  const Value tensor_in_key =
      Value::dict({{"w", filled(1, 1)},
                   {"pair", Value::tuple({Value::dict({{Value::tuple({filled(9, 2)}), 1}})})}});
  Bytes bad = save_torch_file(Value::dict({{"w", filled(1, 1)}}));
  bad.resize(bad.size() / 2);
  write({{"set", save_torch_file(tensor_in_set)},
         {"key", save_torch_file(tensor_in_key)},
         {"bad", bad},
         {"a", save_torch_file(Value::dict({{"b", filled(1, 1)}, {"c", 1}}))},
         {"a.b", save_torch_file(Value::dict({{"w", filled(1, 1)}}))},
         {"model", save_torch_file(Value::dict({{"w", filled(1, 3)}}))}});
  EXPECT_THAT(opened_keys(), ElementsAre("a.b", "model")) << "a.b is a name inside a";
  EXPECT_EQ(loaded(Value::dict({{"model", Value()}})),
            Value::dict({{"model", Value::dict({{"w", filled(1, 3)}})}}));
  EXPECT_TRUE(loaded(Value::dict({{"set", Value()}}))["set"].at("set").items()[0].is_tensor());
  EXPECT_EQ(testing::error_of([&] {
              loaded(Value::dict({{"bad", Value()}}));
            })
                .context()
                .key,
            "bad");
}

TEST_F(DcpLeaves, AMissingFileIsFoundByVerify) {
  save_objects(Value::dict({{"optim", adam(0)}}));
  std::filesystem::remove(path_ / "__0_0.distcp");
  EXPECT_THAT(opened_keys(), IsEmpty());
  const VerifyReport report = verify(*open_checkpoint(path_));
  ASSERT_FALSE(report.problems.empty());
  EXPECT_THAT(std::string(report.problems.front().what()), HasSubstr("__0_0.distcp"));
}

TEST_F(DcpLeaves, AFileIsOpenedOnceAndNotForCellsOfMegatronsObjects) {
  const auto opened_by = [&](const std::vector<std::string>& keys) {
    std::vector<std::pair<std::string, Bytes>> objects;
    for (const std::string& key : keys)
      objects.emplace_back(key, save_torch_file(Value::dict({{"w", filled(1, 1)}})));
    std::filesystem::remove_all(path_);
    write(objects);
    const auto counters = std::make_shared<StorageCounters>();
    open_torch_dist(counting_storage(posix_storage(path_), counters));
    return counters->files_opened.load();
  };
  EXPECT_EQ(opened_by({"rng/shard_0_2", "rng/shard_1_2"}), 1U) << ".metadata";
  EXPECT_EQ(opened_by({"a", "b", "c"}), 2U);
}

TEST_F(DcpLeaves, EmptyContainersAreKept) {
  const StateDict saved = Value::dict(
      {{"optim",
        Value::dict({{"w", filled(1, 1)}, {"extra", Value::dict()}, {"list", Value::list()}})}});
  save_objects(saved);
  EXPECT_EQ(load_state_dict(path_), saved);
  EXPECT_EQ(loaded(Value::dict({{"optim", Value()}})), saved);
  convert(path_, directory_ / "flattened");
  EXPECT_EQ(load_state_dict(directory_ / "flattened"), saved);
}

}  // namespace
}  // namespace dckpt::dcp_leaves_test
