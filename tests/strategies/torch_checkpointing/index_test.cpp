#include "strategies/torch_checkpointing/index.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "strategies/formats/pickle/value.h"
#include "tests/support/expect_error.h"

namespace dckpt::index_test {
namespace {

using ::testing::ElementsAre;
using testing::error_of;
using ::testing::HasSubstr;
using ::testing::Key;
using ::testing::Pair;

Value shape(std::initializer_list<Value> extents) {
  return Value::list(extents);
}

Value shard(int dim) {
  return Value::dict({{"type", "Shard"}, {"dim", dim}});
}

/// Returns a DTensor of 6 × 4 float32 on a mesh of these ranks.
Value group(ValueList ranks, Value placement) {
  const auto count = static_cast<std::int64_t>(ranks.size());
  return Value::dict(
      {{"sharding_metadata",
        Value::dict(
            {{"type", "DTensorShardingMetadata"},
             {"data", Value::dict({{"global_shape", shape({6, 4})},
                                   {"dtype", "torch.float32"},
                                   {"stride", shape({4, 1})},
                                   {"placements", Value::list({std::move(placement)})},
                                   {"mesh_spec", Value::dict({{"device_type", "cpu"},
                                                              {"mesh_shape", Value::tuple({count})},
                                                              {"mesh_data", Value::tuple(ranks)},
                                                              {"mesh_dim_names", Value()}})}})}})},
       {"ranks", Value::tuple(ranks)}});
}

/// An index with one item, "model", of two ranks.
struct Index {
  Value groups = Value::list({group({0, 1}, shard(0))});
  Value files = Value::dict({{0, Value()}, {1, Value()}});
  Value path = R"(["layers.0","w"])";
  Value version = "2.0";
  Value world_size = 2;

  ItemIndex read() const {
    const Value item = Value::dict({{"nested_path_to_metadata", Value::dict({{path, groups}})},
                                    {"rank_to_layout_info", files}});
    return read_item_index(
        pickle::write_pickle(Value::dict({{"metadata", Value::dict({{"model", item}})},
                                          {"world_size", world_size},
                                          {"version", version}}),
                             {.protocol = 4}));
  }
};

Value layout(const std::string& file, const std::string& type) {
  return Value::dict(
      {{"file_path", file}, {"serialization_format", Value::dict({{"type", type}})}});
}

TEST(ItemIndex, SaysWhichRankHoldsWhat) {
  Index index;
  index.files =
      Value::dict({{0, Value()}, {1, layout("r1/m.safetensors", "SafetensorsSerialization")}});
  const ItemIndex read = index.read();
  ASSERT_EQ(read.items.size(), 1U);
  const Item& item = read.items[0];
  EXPECT_EQ(item.files[0].name, "model_0.pt");
  EXPECT_EQ(item.files[1].name, "r1/m.safetensors");
  EXPECT_EQ(item.files[1].form, ItemForm::kSafetensors);
  const ItemTensor& tensor = item.tensors[0];
  EXPECT_THAT(tensor.path, ElementsAre(PathElement("layers.0"), PathElement("w")));
  EXPECT_EQ(tensor.global_shape, (Shape{6, 4}));
  ASSERT_THAT(tensor.parts, ElementsAre(Key(0), Key(1)));
  EXPECT_EQ(tensor.parts.at(1).pieces[0].box, (Box{{3, 0}, {3, 4}}));
}

TEST(ItemIndex, CopiesAreLeftOut) {
  Index index;
  index.groups = Value::list({group({0, 1}, Value::dict({{"type", "Replicate"}}))});
  EXPECT_THAT(index.read().items[0].tensors[0].parts, ElementsAre(Key(0)));
  index.groups = Value::list({group({1}, shard(0)), group({0}, shard(1))});
  EXPECT_THAT(index.read().items[0].tensors[0].parts, ElementsAre(Key(0)))
      << "each mesh has all of it";
}

TEST(ItemIndex, ListedShards) {
  const auto listed = [](int begin, int rank) {
    return Value::dict(
        {{"sharding_metadata",
          Value::dict({{"type", "default_tensor_v1"},
                       {"data", Value::dict({{"global_shape", shape({4})},
                                             {"global_offsets", Value::list({shape({begin})})},
                                             {"local_offsets", Value::list({shape({1})})},
                                             {"local_sizes", Value::list({shape({2})})},
                                             {"dtype", "torch.int64"}})}})},
         {"ranks", Value::tuple({rank})}});
  };
  Index index;
  index.groups = Value::list({listed(2, 0), listed(0, 1)});
  const ItemTensor tensor = index.read().items[0].tensors[0];
  ASSERT_THAT(tensor.parts, ElementsAre(Key(0), Key(1)));
  EXPECT_EQ(tensor.parts.at(0).pieces[0].box, (Box{{2}, {2}}));
  EXPECT_EQ(tensor.parts.at(0).shape, Shape{3});
}

TEST(ItemIndex, BeforeVersion2) {
  const ItemIndex index = read_item_index(pickle::write_pickle(Value::dict(
      {{"metadata", Value::dict({{R"(["model",1])", Value::list({group({0, 1}, shard(0))})}})},
       {"rank_to_layout_info_mappings",
        Value::dict({{0, Value::dict({{"model", Value()}})},
                     {1, Value::dict({{"model", layout("m", "TorchSerialization")}})}})},
       {"world_size", 2}})));
  EXPECT_EQ(index.version, "1.0");
  EXPECT_EQ(index.items[0].name, "model");
  EXPECT_EQ(index.items[0].files[1].name, "m");
  EXPECT_THAT(index.items[0].tensors[0].path, ElementsAre(PathElement(1)));
}

struct Lie {
  const char* name;
  std::function<void(Index&)> tell;
  const char* message;
  ErrorCode code = ErrorCode::kCorrupt;
  friend void PrintTo(const Lie& lie, std::ostream* out) { *out << lie.name; }
};

class ItemIndexLies : public ::testing::TestWithParam<Lie> {};

TEST_P(ItemIndexLies, AreRefused) {
  Index index;
  GetParam().tell(index);
  const CheckpointError error = error_of([&] { index.read(); });
  EXPECT_EQ(error.code(), GetParam().code) << error.what();
  EXPECT_THAT(error.what(), HasSubstr(GetParam().message));
  EXPECT_EQ(error.context().file, "metadata.pkl");
}

Value two_files(const std::string& first, const std::string& second) {
  return Value::dict(
      {{0, layout(first, "TorchSerialization")}, {1, layout(second, "TorchSerialization")}});
}

INSTANTIATE_TEST_SUITE_P(
    All, ItemIndexLies,
    ::testing::Values(
        Lie{"RankTooMany",
            [](Index& i) {
              i.groups = Value::list({group({0, 7}, shard(0))});
            },
            "rank 7 holds the tensor twice, or is not one of the 2 ranks"},
        Lie{"RankTwice",
            [](Index& i) {
              i.groups = Value::list({group({0}, shard(0)), group({0}, shard(0))});
            },
            "rank 0 holds the tensor twice"},
        Lie{"MeshRankTwice",
            [](Index& i) {
              i.groups = Value::list({group({1, 1}, shard(0))});
            },
            "rank 1"},
        Lie{"DimOutside",
            [](Index& i) {
              i.groups = Value::list({group({0, 1}, shard(5))});
            },
            "5"},
        Lie{"NoGroups", [](Index& i) { i.groups = Value::list({}); }, "no rank holds the tensor"},
        Lie{"UnknownPlacement",
            [](Index& i) {
              i.groups = Value::list({group({0, 1}, Value::dict({{"type", "Partial"}}))});
            },
            "placement 'Partial'", ErrorCode::kUnsupported},
        Lie{"FileLeaves", [](Index& i) { i.files = two_files("../m", "n"); }, "'..'"},
        Lie{"FileAbsolute", [](Index& i) { i.files = two_files("/m", "n"); }, "absolute"},
        Lie{"FileTwice", [](Index& i) { i.files = two_files("m", "m"); },
            "two entries have the file 'm'"},
        Lie{"FileOfUnknownForm",
            [](Index& i) {
              i.files = Value::dict({{0, layout("m", "Zip")}, {1, Value()}});
            },
            "'Zip'", ErrorCode::kUnsupported},
        Lie{"RankWithoutFile",
            [](Index& i) {
              i.files = Value::dict({{0, Value()}});
            },
            "files of 1 rank (expected: 2)"},
        Lie{"WorldSize", [](Index& i) { i.world_size = -1; }, "world_size is -1"},
        Lie{"HugeWorld", [](Index& i) { i.world_size = INT64_MAX; }, "world_size is"},
        Lie{"PathIsNoJson", [](Index& i) { i.path = "layers"; }, "JSON"},
        Lie{"PathOfFloats", [](Index& i) { i.path = "[0.5]"; }, "a step of a path is float"}),
    [](const auto& instance) { return std::string(instance.param.name); });

}  // namespace
}  // namespace dckpt::index_test
