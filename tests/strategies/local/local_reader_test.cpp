#include "strategies/local/local_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "mapping/base/storage_name.h"
#include "strategies/formats/torch_archive/torch_file.h"
#include "strategies/storage/memory.h"
#include "strategies/tensor_io/read_tensors.h"
#include "tests/support/arange.h"
#include "tests/support/expect_error.h"

namespace dckpt::local_reader_test {
namespace {

using testing::error_of;
using ::testing::HasSubstr;

constexpr const char* kMapping = "megatron.core.dist_checkpointing.mapping";

Value object(const std::string& module, const std::string& name, Value state) {
  Opaque made{.form = Opaque::Form::kNew, .callable = Global{module, name}};
  made.states.push_back(std::move(state));
  return made;
}

Value slice(int begin, int end) {
  return Opaque{.callable = Global{"builtins", "slice"},
                .args = Value::tuple({begin, end, Value()})};
}

struct Shard {
  std::string key = "w";
  Value data{};
  Value local_shape = Value::tuple({2});
  Value global_shape = Value::tuple({4});
  Value global_offset = Value::tuple({0});
  Value axis_fragmentations = Value::tuple({2});
  Value flattened_range{};

  Value value() const {
    return object(kMapping, "ShardedTensor",
                  Value::dict({{"key", key},
                               {"data", data},
                               {"local_shape", local_shape},
                               {"global_shape", global_shape},
                               {"global_offset", global_offset},
                               {"axis_fragmentations", axis_fragmentations},
                               {"flattened_range", flattened_range}}));
  }
};

Value state(Value sharded, bool hollow = false, Value common = Value::dict({{"iteration", 10}})) {
  return object("megatron.core.dist_checkpointing.tensor_aware_state_dict",
                "MCoreTensorAwareStateDict",
                Value::dict({{"common", std::move(common)},
                             {"sharded_state_dict", Value::dict({{"model", std::move(sharded)}})},
                             {"_is_hollow", hollow}}));
}

void add(Storage& storage, const std::string& name, const Value& value) {
  if (!parent_name(name).empty()) storage.make_directory(parent_name(name));
  const auto file = storage.create(name);
  file->append(save_torch_file(value));
  file->close();
}

std::vector<float> values(const CheckpointReader& reader, const Box& box) {
  const Tensor tensor = read_box(reader, 0, box);
  const auto* first = tensor.data<const float>();
  return {first, first + tensor.numel()};
}

TEST(LocalCheckpoint, RanksAreJoined) {
  const auto storage = memory_storage();
  add(*storage, "0/iter_0000010_0_local.pt", state(Shard{.data = arange({2})}.value()));
  add(*storage, "1/iter_0000010_1_local.pt",
      state(Value::list({Shard{.data = arange({2}), .global_offset = Value::tuple({2})}.value(),
                         Shard{}.value()})));
  add(*storage, "1/iter_0000010_0_local.pt", 1);  // a redundant copy
  const auto reader = open_local(storage);
  EXPECT_EQ(values(*reader, whole(Shape{4})), (std::vector<float>{0, 1, 0, 1}));
  EXPECT_EQ(reader->common_state().at("iteration").as_int(), 10);
  EXPECT_TRUE(reader->check_chunk(0, 0, *storage->open("0/iter_0000010_0_local.pt")));
}

TEST(LocalCheckpoint, TheNewestCompleteIterationCounts) {
  const auto storage = memory_storage();
  for (const char* rank : {"0", "1"})
    add(*storage, std::string(rank) + "/iter_0000010_" + rank + "_local.pt",
        state(Value::list({})));
  add(*storage, "0/iter_0000020_0_local.pt", 1);
  EXPECT_EQ(open_local(storage)->common_state().at("iteration").as_int(), 10);
  storage->remove_all("0/iter_0000010_0_local.pt");
  const CheckpointError error = error_of([&] { open_local(storage); });
  EXPECT_EQ(error.code(), ErrorCode::kIncomplete);
  EXPECT_THAT(error.what(), HasSubstr("iteration 20 has files of 1 of 2 ranks, the first that is "
                                      "missing is rank 1's"));
}

/// The run continued with fewer ranks: each iteration has as many as its args say.
TEST(LocalCheckpoint, AnIterationHasTheRanksOfItsArgs) {
  const auto storage = memory_storage();
  const auto save = [&](int iteration, int ranks) {
    for (int rank = 0; rank < ranks; ++rank)
      add(*storage,
          "0/iter_" + std::to_string(iteration) + "_" + std::to_string(rank) + "_local.pt",
          state(Value::list({}), false,
                Value::dict(
                    {{"iteration", iteration}, {"args", Value::dict({{"world_size", ranks}})}})));
  };
  const auto opened = [&](std::optional<std::uint64_t> asked = std::nullopt) {
    return open_local(storage, asked)->common_state().at("iteration").as_int();
  };
  save(10, 4);
  save(20, 2);
  EXPECT_EQ(opened(), 20);
  EXPECT_EQ(opened(10), 10);
  EXPECT_THAT(error_of([&] { opened(15); }).what(),
              HasSubstr("no files for iteration 15; found those of '10', '20'"));
  storage->remove_all("0/iter_10_2_local.pt");
  EXPECT_EQ(opened(), 20);
  EXPECT_THAT(error_of([&] { opened(10); }).what(),
              HasSubstr("iteration 10 has files of 3 of 4 ranks, the first that is missing is rank "
                        "2's; copy"));
}

TEST(LocalCheckpoint, FlattenedRangesAreReformulated) {
  const auto storage = memory_storage();
  const auto fragment = [](int rank) {
    return Shard{.data = arange({3}),
                 .local_shape = Value::tuple({2, 3}),
                 .global_shape = Value::tuple({2, 3}),
                 .global_offset = Value::tuple({0, 0}),
                 .axis_fragmentations = Value::tuple({1, 1}),
                 .flattened_range = slice(3 * rank, 3 * rank + 3)}
        .value();
  };
  add(*storage, "0/iter_0000001_0_local.pt", state(fragment(0)));
  add(*storage, "1/iter_0000001_1_local.pt", state(fragment(1)));
  const auto reader = open_local(storage);
  const TensorStorageMetadata& tensor = reader->metadata().tensors[0];
  EXPECT_EQ(tensor.size, (Shape{1, 1, 6}));
  EXPECT_EQ(tensor.flattened_shape, (Shape{2, 3}));
  EXPECT_EQ(values(*reader, whole(Shape{2, 3})), (std::vector<float>{0, 1, 2, 0, 1, 2}));
}

struct Lie {
  const char* name;
  Value value;
  const char* message;
  ErrorCode code = ErrorCode::kCorrupt;
  friend void PrintTo(const Lie& lie, std::ostream* out) { *out << lie.name; }
};

class LocalLies : public ::testing::TestWithParam<Lie> {};

TEST_P(LocalLies, AreRefused) {
  const auto storage = memory_storage();
  add(*storage, "iter_0000001_0_local.pt", GetParam().value);
  const CheckpointError error = error_of([&] { open_local(storage); });
  EXPECT_EQ(error.code(), GetParam().code) << error.what();
  EXPECT_THAT(error.what(), HasSubstr(GetParam().message));
  EXPECT_EQ(error.context().rank, 0);
}

INSTANTIATE_TEST_SUITE_P(
    All, LocalLies,
    ::testing::Values(
        Lie{"OtherClass", Value::dict({}), "holds no MCoreTensorAwareStateDict",
            ErrorCode::kUnsupported},
        Lie{"Hollow", state(Value::list({}), true), "the state dict is hollow",
            ErrorCode::kUnsupported},
        Lie{"UnknownLeaf", state(5), "holds 'int'", ErrorCode::kUnsupported},
        Lie{"OutsideTheTensor",
            state(Shard{.data = arange({2}), .global_offset = Value::tuple({3})}.value()),
            "is not inside the tensor"},
        Lie{"OtherShape", state(Shard{.data = arange({3})}.value()),
            "the shard of shape (2,) holds a tensor of shape (3,)"},
        Lie{"TooManyAxes",
            state(Shard{.data = arange({2}), .local_shape = Value::tuple({1, 2})}.value()),
            "different numbers of axes"},
        Lie{"NegativeExtent",
            state(Shard{.data = arange({2}), .global_shape = Value::tuple({-4})}.value()),
            "'global_shape' is no shape"},
        Lie{"RangeOutside",
            state(Shard{.data = arange({2}), .flattened_range = slice(1, 3)}.value()),
            "a flattened range does not fit"},
        Lie{"OtherTensorOfThatKey",
            state(Value::list(
                {Shard{.data = arange({2})}.value(),
                 Shard{.data = arange({2}), .global_shape = Value::tuple({6})}.value()})),
            "ranks disagree about the tensor"}),
    [](const auto& instance) { return std::string(instance.param.name); });

}  // namespace
}  // namespace dckpt::local_reader_test
