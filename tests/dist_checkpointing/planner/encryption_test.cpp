#include "examples/planners/encryption.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>

#include "configs/policy/policy.h"
#include "conformance/planner_conformance.h"
#include "mapping/state/sharded_tree.h"
#include "operations/convert/convert.h"
#include "tests/dist_checkpointing/save_load.h"

namespace dckpt::testing::encryption_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

class Encryption : public SaveLoad {
 protected:
  static void SetUpTestSuite() { example::register_encryption(); }
  void SetUp() override {
    write_key("key", 'k');
    write_key("other_key", 'o');
  }
  void write_key(const std::string& name, char byte) {
    std::ofstream(directory_.path() / name) << std::string(32, byte);
  }
  Policy with_key(const std::string& name) const {
    const std::string planner =
        "{planner: {kind: encrypted, options: {key_file: " + (directory_.path() / name).string() +
        "}}}";
    return Policy::from_text("version: 1\nsave: " + planner + "\nload: " + planner);
  }

  static LoadOptions with(const std::string& load) {
    return Policy::from_text("version: 1\nload: {" + load + "}").load;
  }

  /// Returns a tensor whose elements are all `value`, which is encrypted differently at each place
  /// of the key stream.
  template <typename T>
  static Tensor constant(DType dtype, const Shape& shape, T value) {
    Tensor tensor = Tensor::empty(dtype, shape);
    std::fill_n(tensor.data<T>(), tensor.numel(), value);
    return tensor;
  }
  /// Returns a state with columns of `w`, rows of `b`, and a flattened range of `m`.
  static StateDict state_of(int rank, int ranks, float value) {
    const auto begin = [&](std::int64_t extent) { return extent * rank / ranks; };
    const auto end = [&](std::int64_t extent) { return extent * (rank + 1) / ranks; };
    StateDict state = Value::dict();
    state["w"] = ShardedTensor::from_box(
        "w", constant(DType::kFloat32, {3, end(10) - begin(10)}, value), {3, 10}, {0, begin(10)});
    state["b"] = ShardedTensor::from_box(
        "b", constant(DType::kFloat64, {end(7) - begin(7), 2, 3}, double{value}), {7, 2, 3},
        {begin(7), 0, 0});
    state["m"] =
        ShardedTensor::from_flat_range("m", constant(DType::kFloat32, {end(12) - begin(12)}, value),
                                       {3, 4}, {3, 4}, {0, 0}, {begin(12), end(12)});
    state["steps"] = ShardedTensor::whole("steps", constant(DType::kInt64, {2}, std::int64_t{5}),
                                          {.replica_id = rank});
    return state;
  }
  void save_encrypted(const std::string& name = "checkpoint", const std::string& key = "key") {
    run_ranks(4, [&](Communicator& comm) {
      save(state_of(comm.rank(), 4, 1.5F), checkpoint(name), with_key(key).save, comm);
    });
  }
  void load_on(int ranks, const std::filesystem::path& from, LoadOptions options) {
    for (const bool parallel : {false, true}) {
      options.parallel.enabled = parallel;
      run_ranks(ranks, [&](Communicator& comm) {
        StateDict state = state_of(comm.rank(), ranks, 0);
        load(state, from, options, comm);
        EXPECT_EQ(plain_state(state), plain_state(state_of(comm.rank(), ranks, 1.5F)))
            << ranks << (parallel ? " together" : "");
      });
    }
  }
  static std::string bytes_of(const std::filesystem::path& folder) {
    std::string all;
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
      std::ifstream file(entry.path(), std::ios::binary);
      all.append(std::istreambuf_iterator<char>(file), {});
    }
    return all;
  }
};

TEST_F(Encryption, HidesNumbersFromEverybodyButWhoHasTheKey) {
  save_encrypted();
  const float one_and_a_half = 1.5F;
  std::string two_numbers(reinterpret_cast<const char*>(&one_and_a_half), sizeof(float));
  two_numbers += two_numbers;
  EXPECT_THAT(bytes_of(checkpoint()), Not(HasSubstr(two_numbers)));
  save_on(4, [](int rank) { return state_of(rank, 4, 1.5F); }, {.overwrite = true});
  EXPECT_THAT(bytes_of(checkpoint()), HasSubstr(two_numbers));
}

TEST_F(Encryption, IsUndoneInEveryLayout) {
  save_encrypted();
  for (const int ranks : {4, 1, 3}) load_on(ranks, checkpoint(), with_key("key").load);
  load_on(1, checkpoint(), with_key("key").load);
}

TEST_F(Encryption, SurvivesAConversionToOtherRanks) {
  save_encrypted();
  ConvertOptions options;
  options.target.ranks = 2;
  options.source.planner.name = kStoredPlanner;
  convert(checkpoint(), checkpoint("copy"), options);
  load_on(3, checkpoint("copy"), with_key("key").load);
}

TEST_F(Encryption, IsAnotherOneInEverySave) {
  save_encrypted("a");
  save_encrypted("b");
  const auto stored = [&](const char* name) {
    const StateDict state = load_state_dict(checkpoint(name), {}, with("planner: {kind: stored}"));
    for (const auto& [key, value] : state.as_dict()) {
      if (key.as_str().starts_with("w.aes-")) return value.as_tensor();
    }
    throw std::runtime_error("w is not encrypted");
  };
  EXPECT_EQ(stored("a").dtype(), DType::kInt32);
  EXPECT_FALSE(equal(stored("a"), stored("b")));
}

TEST_F(Encryption, AnotherKeyIsAnError) {
  save_encrypted();
  StateDict state = state_of(0, 1, 0);
  EXPECT_THAT(error_of([&] { load(state, checkpoint(), with_key("other_key").load); }),
              AllOf(HasSubstr("'w'"), HasSubstr("w.aes-")));
  EXPECT_THAT(error_of([&] { load(state, checkpoint()); }),
              AllOf(HasSubstr("'encrypted'"), HasSubstr("name it in load.planner")));
  write_key("short_key", 'k');
  std::filesystem::resize_file(directory_.path() / "short_key", 31);
  EXPECT_THAT(error_of([&] { load(state, checkpoint(), with_key("short_key").load); }),
              AllOf(HasSubstr("32 bytes"), HasSubstr("short_key")));
}

TEST_F(Encryption, ConformsInLoads) {
  EXPECT_THAT(check_load_planner(with_key("key"), checkpoint()).problems, IsEmpty());
}

}  // namespace
}  // namespace dckpt::testing::encryption_test
