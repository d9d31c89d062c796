#include "mapping/state/sharded_tensor.h"

#include <gmock/gmock.h>

#include <limits>
#include <numeric>

#include "tests/mapping/state/recorded.h"
#include "tests/support/expect_error.h"

namespace dckpt::sharded_tensor_test {
namespace {

using ::testing::ElementsAre;
using testing::error_of;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::Json;

/// Returns the elements 0, 1, 2, …
Tensor counting(Shape shape, std::int64_t first = 0) {
  Tensor tensor = Tensor::empty(DType::kFloat32, std::move(shape));
  auto* const data = reinterpret_cast<float*>(tensor.data());
  std::iota(data, data + tensor.numel(), static_cast<float>(first));
  return tensor;
}

std::vector<float> values(const Tensor& tensor) {
  const Tensor dense = tensor.contiguous();
  const auto* const data = reinterpret_cast<const float*>(dense.data());
  return {data, data + dense.numel()};
}

Shape shape_of(const Json& json) {
  Shape shape;
  for (const Json& extent : json) shape.push_back(extent.get<std::int64_t>());
  return shape;
}

void expect_fields(const ShardedTensor& shard, const Json& expected) {
  shard.validate();
  EXPECT_EQ(shard.local_shape, shape_of(expected["local_shape"]));
  EXPECT_EQ(shard.global_shape, shape_of(expected["global_shape"]));
  EXPECT_EQ(shard.global_offset, shape_of(expected["global_offset"]));
  EXPECT_EQ(shard.axis_fragmentations, shape_of(expected["axis_fragmentations"]));
  EXPECT_EQ(shard.flattened_range.has_value(), !expected["range"].is_null());
  if (shard.flattened_range) {
    EXPECT_EQ(shard.flattened_range->begin, expected["range"][0].get<std::int64_t>());
    EXPECT_EQ(shard.flattened_range->end, expected["range"][1].get<std::int64_t>());
  }
  const Json& chunk = expected["chunk"];
  EXPECT_TRUE(chunk.is_null() || shard.chunk_coordinates() == shape_of(chunk));
  EXPECT_EQ(values(*shard.data), expected["data"].get<std::vector<float>>());
}

ShardedTensor make(const Json& expected) {
  std::vector<RankOffset> offsets;
  for (const Json& offset : expected["offsets"])
    offsets.push_back({offset[0], offset[1], offset[2]});
  const Shape shape = shape_of(expected["shape"]);
  const ShardedTensorOptions options{.prepend_axis_num = expected["prepended"]};
  if (expected["range"].is_null())
    return ShardedTensor::from_rank_offsets("key", counting(shape), offsets, options);
  const FlattenedRange range{expected["range"][0], expected["range"][1]};
  return ShardedTensor::from_rank_offsets_flat(
      "key", counting({range.end - range.begin}, range.begin), shape, offsets, range, options);
}

TEST(ShardedTensor, ConstructionAndNarrowingAgreeWithMegatron) {
  int refused = 0;
  for (const Json& expected : testing::recorded("sharded.json", "tensors")) {
    SCOPED_TRACE(expected.dump());
    const Json& made = expected["made"];
    if (made.contains("error")) {
      EXPECT_EQ(error_of([&] { make(expected); }).message(), made["message"].get<std::string>());
      ++refused;
      continue;
    }
    const ShardedTensor shard = make(expected);
    expect_fields(shard, made["result"]);
    for (const Json& narrowed : expected["narrowed"]) {
      SCOPED_TRACE(narrowed.dump());
      const Json& arguments = narrowed["arguments"];
      const auto narrow = [&] { return shard.narrow(arguments[0], arguments[1], arguments[2]); };
      if (narrowed.contains("error")) {
        EXPECT_EQ(error_of(narrow).message(), narrowed["message"].get<std::string>());
        ++refused;
        continue;
      }
      const auto parts = narrow();
      ASSERT_EQ(parts.size(), narrowed["result"].size());
      for (std::size_t i = 0; i < parts.size(); ++i) expect_fields(parts[i], narrowed["result"][i]);
    }
  }
  EXPECT_GT(refused, 10);
}

// The numbers are those of Megatron's own unit tests.

TEST(ShardedTensor, RankOffsetsGiveGlobalShapeAndOffset) {
  const auto shard =
      ShardedTensor::from_rank_offsets("key", counting({1, 3, 7, 9}), {{0, 0, 10}, {2, 3, 6}});
  EXPECT_THAT(shard.global_shape, ElementsAre(10, 3, 42, 9));
  EXPECT_THAT(shard.global_offset, ElementsAre(0, 0, 21, 0));
  EXPECT_THAT(*shard.axis_fragmentations, ElementsAre(10, 1, 6, 1));
  const auto first = shard.narrow(1, 1, 2).at(0);
  EXPECT_THAT(first.local_shape, ElementsAre(1, 2, 7, 9));
  EXPECT_THAT(first.global_shape, ElementsAre(10, 2, 42, 9));
  EXPECT_THAT(first.global_offset, ElementsAre(0, 0, 21, 0));
  const auto second = shard.narrow(2, 3, 2).at(0);
  EXPECT_THAT(second.local_shape, ElementsAre(1, 3, 2, 9));
  EXPECT_THAT(second.global_shape, ElementsAre(10, 3, 12, 9));
  EXPECT_THAT(second.global_offset, ElementsAre(0, 0, 6, 0));
}

TEST(ShardedTensor, FlattenedPiecesNarrowAlongTheFirstAxis) {
  const auto shard = ShardedTensor::from_rank_offsets_flat("key", counting({5}, 4), {4, 7},
                                                           {{0, 1, 2}, {1, 3, 5}}, {4, 9});
  EXPECT_THAT(shard.global_shape, ElementsAre(8, 35));
  EXPECT_THAT(shard.global_offset, ElementsAre(4, 21));
  const auto row = shard.narrow(0, 0, 1).at(0);
  EXPECT_THAT(values(*row.data), ElementsAre(4, 5, 6));
  EXPECT_THAT(row.local_shape, ElementsAre(1, 7));
  EXPECT_THAT(row.global_shape, ElementsAre(2, 35));
  EXPECT_THAT(row.global_offset, ElementsAre(1, 21));
  const auto rows = shard.narrow(0, 0, 3).at(0);
  EXPECT_THAT(values(*rows.data), ElementsAre(4, 5, 6, 7, 8));
  EXPECT_THAT(rows.global_shape, ElementsAre(6, 35));
  EXPECT_THAT(rows.global_offset, ElementsAre(3, 21));
  EXPECT_THAT(shard.narrow(0, 2, 1), IsEmpty());
}

class ShardedTensorValidation : public ::testing::Test {
 protected:
  /// Returns the message for a sound shard after `damage`.
  template <typename Damage>
  static std::string refusal(Damage&& damage) {
    auto shard =
        ShardedTensor::from_rank_offsets("key", counting({1, 3, 7, 9}), {{0, 0, 10}, {2, 3, 6}});
    damage(shard);
    const CheckpointError error = error_of([&] { shard.validate(); });
    EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
    EXPECT_EQ(error.context().key, "key");
    return error.message();
  }
};

TEST_F(ShardedTensorValidation, UsesMegatronsWords) {
  EXPECT_THAT(
      refusal([](auto& shard) {
        shard.local_shape = {1, 2, 7, 9};
      }),
      HasSubstr("Data shape should match `local_shape` attribute for ShardedTensor 'key': "));
  EXPECT_THAT(refusal([](auto& shard) { shard.dtype = DType::kBFloat16; }),
              HasSubstr("Data dtype should match `dtype` attribute for"));
  EXPECT_THAT(refusal([](auto& shard) {
                shard.global_offset = {0, 0, 21};
              }),
              HasSubstr("Global offset dimensions should be equal to global shape dimensions for"));
  EXPECT_THAT(refusal([](auto& shard) { shard.prepend_axis_num = 1; }),
              HasSubstr("Local shape together with `prepend_axis_num` dimensions should be equal "
                        "to global shape dimensions for"));
  EXPECT_THAT(refusal([](auto& shard) { shard.global_offset[2] = 20; }),
              HasSubstr("Global offset (20) must be divisible by local shape (7) for"));
  EXPECT_THAT(refusal([](auto& shard) {
                shard.flattened_range = FlattenedRange{0, 189};
              }),
              HasSubstr("Data should be 1D for a flattened ShardedTensor"));
  EXPECT_THAT(refusal([](auto& shard) {
                shard.data = counting({5});
                shard.flattened_range = FlattenedRange{0, 6};
              }),
              HasSubstr("Data shape (5,) doesnt match expected (6,) for"));
}

TEST_F(ShardedTensorValidation, FindsWhatMegatronDoesNotLookFor) {
  EXPECT_THAT(refusal([](auto& shard) { shard.global_offset[2] = 42; }),
              HasSubstr("does not lie inside"));
  EXPECT_THAT(refusal([](auto& shard) { shard.global_offset[2] = -7; }),
              HasSubstr("does not lie inside"));
  EXPECT_THAT(refusal([](auto& shard) {
                shard.axis_fragmentations = Shape{10, 1, 3, 1};
              }),
              HasSubstr("beyond the 3 pieces"));
  EXPECT_THAT(refusal([](auto& shard) {
                shard.axis_fragmentations = Shape{10, 1, 6};
              }),
              HasSubstr("`axis_fragmentations`"));
  EXPECT_THAT(refusal([](auto& shard) {
                shard.axis_fragmentations = Shape{10, 1, 6, 0};
              }),
              HasSubstr("`axis_fragmentations`"));
  EXPECT_THAT(refusal([](auto& shard) { shard.prepend_axis_num = -1; }),
              HasSubstr("`prepend_axis_num`"));
  EXPECT_THAT(refusal([](auto& shard) { shard.global_shape[0] = INT64_MAX; }),
              HasSubstr("64 bits"));
  EXPECT_THAT(refusal([](auto& shard) {
                shard.data.reset();
                shard.flattened_range = FlattenedRange{0, 190};
              }),
              HasSubstr("flattened range [0, 190)"));
}

TEST_F(ShardedTensorValidation, RefusesGlobalShapesThatOverflow) {
  EXPECT_THAT(error_of([] {
                ShardedTensor::from_rank_offsets("key", counting({2}), {{0, 0, INT64_MAX}});
              }).message(),
              HasSubstr("64 bits"));
  EXPECT_THAT(error_of([] {
                ShardedTensor::from_rank_offsets("key", counting({2}), {},
                                                 {.prepend_axis_num = 64});
              }).message(),
              HasSubstr("limit: 64"));
}

TEST_F(ShardedTensorValidation, FlattenedConstructorChecksTheSlice) {
  EXPECT_EQ(error_of([] {
              ShardedTensor::from_rank_offsets_flat("key", counting({2, 2}), {4, 7}, {}, {0, 4});
            }).message(),
            "Flattened ShardedTensor requires 1D data, got shape: (2, 2)");
  EXPECT_EQ(error_of([] {
              ShardedTensor::from_rank_offsets_flat("key", counting({5}), {4, 7}, {}, {4, 8});
            }).message(),
            "Flattened ShardedTensor data length (5) must meet the slice length: 4");
  EXPECT_THAT(error_of([] {
                ShardedTensor::from_rank_offsets_flat("key", counting({5}), {4, 7}, {}, {24, 29});
              }).message(),
              HasSubstr("flattened range [24, 29)"));
}

TEST(ShardedTensor, PiecesAnywhereAreIrregularUnlessTheyFitAGrid) {
  EXPECT_THAT(*ShardedTensor::from_box("k", counting({2, 3}), {8, 3}, {4, 0}).axis_fragmentations,
              ElementsAre(4, 1));
  const auto uneven = ShardedTensor::from_box("k", counting({3}), {8}, {5});
  EXPECT_EQ(uneven.axis_fragmentations, std::nullopt);
  EXPECT_EQ(error_of([&] { uneven.chunk_coordinates(); }).code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(ShardedTensor::from_box("k", counting({0}), {8}, {8}).axis_fragmentations, std::nullopt)
      << "an empty shard at the end";
  EXPECT_EQ(error_of([] { ShardedTensor::from_box("k", counting({3}), {8}, {6}); }).code(),
            ErrorCode::kInvalidArgument);
}

TEST(ShardedTensor, PrependedAxesStandInTheGlobalBox) {
  const auto shard = ShardedTensor::from_rank_offsets("k", counting({3, 4}), {{0, 2, 5}, {2, 1, 2}},
                                                      {.prepend_axis_num = 1});
  EXPECT_THAT(shard.global_shape, ElementsAre(5, 3, 8));
  EXPECT_EQ(shard.global_box(), (Box{{2, 0, 4}, {1, 3, 4}}));
  EXPECT_THAT(shard.chunk_coordinates(), ElementsAre(2, 0, 1));
}

TEST(ShardedTensor, FlatRangeKnowsItsElements) {
  const auto shard =
      ShardedTensor::from_flat_range("k", counting({5}, 4), {4, 7}, {8, 35}, {4, 21}, {4, 9});
  EXPECT_EQ(shard.numel(), 5);
  EXPECT_THAT(shard.data_shape(), ElementsAre(5));
  EXPECT_THAT(*shard.axis_fragmentations, ElementsAre(2, 5));
}

TEST(ShardedTensor, NarrowsWithoutData) {
  const auto shard =
      ShardedTensor::from_rank_offsets("k", counting({4}), {{0, 1, 2}}).without_data();
  EXPECT_EQ(shard.data, std::nullopt);
  EXPECT_THAT(shard.narrow(0, 1, 2).at(0).global_shape, ElementsAre(4));
}

TEST(ShardedTensor, NarrowRefusesWhatIsNotThere) {
  const auto shard = ShardedTensor::from_rank_offsets("k", counting({4}), {{0, 1, 2}});
  for (const auto& [axis, start, length] :
       {std::tuple(1, 0, 1), {-1, 0, 1}, {0, 3, 2}, {0, -1, 1}, {0, 0, -1}}) {
    EXPECT_EQ(error_of([&, a = axis, s = start, n = length] { shard.narrow(a, s, n); }).code(),
              ErrorCode::kInvalidArgument);
  }
  EXPECT_EQ(error_of([&] { shard.narrow(0, 1, INT64_MAX); }).code(), ErrorCode::kInvalidArgument);
  const auto uneven = ShardedTensor::from_box("k", counting({3}), {8}, {5});
  EXPECT_THAT(
      error_of([&] { uneven.narrow(0, 0, 1); }).message(),
      HasSubstr(
          "Only regular grid of local tensors is supported for narrowing, got: ShardedTensor"));
}

TEST(ShardedTensor, AMessageShowsWhatDecidesThePlace) {
  EXPECT_EQ(error_of([] { ShardedTensor::from_box("k", counting({3}), {8}, {-1}); }).message(),
            "The local tensor does not lie inside the global one for ShardedTensor 'k': float32 "
            "(3,) at (-1,) of (8,)");
  EXPECT_EQ(to_string(ShardedTensor::from_rank_offsets_flat(
                "a'b", counting({5}), {4, 7}, {{0, 1, 2}}, {4, 9}, {.replica_id = {0, 1}})),
            "ShardedTensor 'a\\'b': float32 (4, 7) at (4, 0) of (8, 7), elements [4, 9)");
}

TEST(ReplicaId, MainIsAllZero) {
  for (const ReplicaId& main : {ReplicaId(0), ReplicaId{0}, ReplicaId{0, 0}, ReplicaId(Shape{})})
    EXPECT_TRUE(main.is_main()) << to_string(main);
  for (const ReplicaId& other :
       {ReplicaId(1), ReplicaId(2), ReplicaId{1}, ReplicaId{1, 0}, ReplicaId{1, 1, 1}})
    EXPECT_FALSE(other.is_main()) << to_string(other);
}

TEST(ReplicaId, TupleAndNumberAreDifferent) {
  EXPECT_EQ(to_string(ReplicaId(3)), "3");
  EXPECT_EQ(to_string(ReplicaId{3}), "(3,)");
  EXPECT_NE(ReplicaId(3), ReplicaId{3});
}

TEST(ShardedTensor, GivesItsElementsByTypeAndNamesTheKeyIfTheyAreOthers) {
  ShardedTensor shard = ShardedTensor::whole("w", Tensor::zeros(DType::kFloat32, {2}));
  shard.local_data<float>()[1] = 2.0F;
  EXPECT_EQ(shard.local_data<const float>()[1], 2.0F);
  const CheckpointError error = error_of([&] { shard.local_data<double>(); });
  EXPECT_EQ(error.code(), ErrorCode::kMismatch);
  EXPECT_EQ(error.context().key, "w");
  shard.data.reset();
  EXPECT_EQ(error_of([&] { shard.local_data<float>(); }).code(), ErrorCode::kInvalidArgument);
}

}  // namespace
}  // namespace dckpt::sharded_tensor_test
