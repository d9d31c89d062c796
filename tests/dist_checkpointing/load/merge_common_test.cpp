#include "dist_checkpointing/load/merge_common.h"

#include <gmock/gmock.h>

#include "mapping/base/error.h"
#include "mapping/state/sharded_tensor.h"
#include "mapping/state/tree.h"
#include "tests/support/arange.h"
#include "tests/support/expect_error.h"

namespace dckpt::merge_common_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

Value shard() {
  return ShardedTensor::whole("w", arange({2}));
}

TEST(MergeCommon, StoredValuesReplaceTheCallersAndAddToThem) {
  const Value w = shard();
  const MergedCommon merged =
      merge_common(Value::dict({{"w", w}, {"step", 0}, {"groups", Value::list({1, 2, 3})}}),
                   Value::dict({{"step", 7}, {"groups", Value::list({4})}, {"args", "new"}}));
  EXPECT_EQ(merged.state,
            Value::dict({{"w", w}, {"step", 7}, {"groups", Value::list({4})}, {"args", "new"}}));
  EXPECT_THAT(merged.kept, IsEmpty());
}

TEST(MergeCommon, PlainTensorsAreFilledInPlaceWhereTheyFit) {
  const Tensor fits = Tensor::zeros(DType::kFloat32, {2});
  const Tensor strided = Tensor::zeros(DType::kFloat32, {2, 3}).narrow(1, 0, 2);
  const Tensor other_shape = Tensor::zeros(DType::kFloat32, {3});
  const Tensor other_dtype = Tensor::zeros(DType::kInt32, {2});
  const Value state = Value::dict(
      {{"l", Value::list({fits})}, {"s", strided}, {"shape", other_shape}, {"dtype", other_dtype}});
  const MergedCommon merged = merge_common(state, Value::dict({{"l", Value::list({arange({2})})},
                                                               {"s", arange({2, 2})},
                                                               {"shape", arange({2})},
                                                               {"dtype", arange({2})}}));
  EXPECT_TRUE(equal(fits, arange({2})));
  EXPECT_TRUE(equal(strided.contiguous(), arange({2, 2})));
  EXPECT_EQ(merged.state.at("l").items()[0].as_tensor().data(), fits.data());
  EXPECT_TRUE(equal(other_shape, Tensor::zeros(DType::kFloat32, {3})));
  for (const char* const key : {"shape", "dtype"})
    EXPECT_TRUE(equal(merged.state.at(key).as_tensor(), arange({2}))) << key;
}

TEST(MergeCommon, OneMemoryTakesOneValue) {
  const Tensor memory = Tensor::zeros(DType::kFloat32, {4});
  const auto merge = [&](const Value& state, const Tensor& p, const Tensor& q) {
    return merge_common(state, Value::dict({{"p", p}, {"q", q}}));
  };
  const Tensor first = memory.narrow(0, 0, 2), last = memory.narrow(0, 2, 2);
  merge(Value::dict({{"p", first}, {"q", last}}), arange({2}), Tensor::zeros(DType::kFloat32, {2}));
  merge(Value::dict({{"p", first}, {"q", first}}), arange({2}), arange({2}));
  const Value tied = Value::dict({{"p", first}, {"q", first}});
  EXPECT_THAT(testing::error_of([&] {
                merge(tied, arange({2}), Tensor::zeros(DType::kFloat32, {2}));
              }).what(),
              HasSubstr("'p' and 'q' are loaded into one memory, but other values are stored"));
  const Value overlapping = Value::dict({{"p", memory.narrow(0, 0, 3)}, {"q", last}});
  EXPECT_EQ(testing::error_of([&] { merge(overlapping, arange({3}), arange({2})); }).code(),
            ErrorCode::kMismatch);
  const Value sharded =
      Value::dict({{"p", first}, {"w", ShardedTensor::whole("w", memory.narrow(0, 1, 2))}});
  EXPECT_THAT(testing::error_of([&] { merge(sharded, arange({2}), arange({2})); }).what(),
              HasSubstr("only one of them is sharded"));
  const Tensor matrix = Tensor::zeros(DType::kFloat32, {2, 2});
  const Value columns = Value::dict(
      {{"p", matrix.narrow(1, 0, 1)}, {"w", ShardedTensor::whole("w", matrix.narrow(1, 1, 1))}});
  merge(columns, arange({2, 1}), arange({2}));
  EXPECT_TRUE(equal(matrix.narrow(1, 0, 1).contiguous(), arange({2, 1})));
}

TEST(MergeCommon, NamesTheTensorsThatAreNotFilled) {
  const auto zeros = [](Shape shape, DType dtype = DType::kFloat32) {
    return Value(Tensor::zeros(dtype, shape));
  };
  const Tensor in_list = Tensor::zeros(DType::kFloat32, {2});
  const Value state = Value::dict({{"number", zeros({1})},
                                   {"shape", zeros({3})},
                                   {"dtype", zeros({2}, DType::kFloat64)},
                                   {"longer", Value::list({zeros({2})})},
                                   {"dicts", Value::list({Value::dict({{"a", in_list}})})},
                                   {"meta", Tensor::meta(DType::kFloat32, {1})}});
  const Value common = Value::dict({{"number", 3.0},
                                    {"shape", arange({2})},
                                    {"dtype", arange({2})},
                                    {"longer", Value::list({1, 2})},
                                    {"dicts", Value::list({Value::dict({{"a", arange({2})}})})},
                                    {"meta", 1}});
  const MergedCommon merged = merge_common(state, common);
  EXPECT_EQ(merged.state.at("number"), Value(3.0));
  EXPECT_THAT(merged.replaced, ElementsAre(ReplacedTensor{"number", "float"},
                                           ReplacedTensor{"shape", "float32 tensor of shape (2,)"},
                                           ReplacedTensor{"dtype", "float32 tensor of shape (2,)"},
                                           ReplacedTensor{"longer.0", "list"}));
  EXPECT_TRUE(equal(in_list, arange({2}))) << "dicts in a list are merged as others are";
}

TEST(MergeCommon, CastsWhereThatIsAllowed) {
  const Tensor wide = Tensor::zeros(DType::kFloat64, {2});
  const Tensor integers = Tensor::zeros(DType::kInt32, {2});
  const MergedCommon merged =
      merge_common(Value::dict({{"wide", wide}, {"integers", integers}}),
                   Value::dict({{"wide", arange({2})}, {"integers", arange({2})}}), Cast::kAllow);
  EXPECT_EQ(wide.data<double>()[1], 1.0);
  EXPECT_THAT(merged.casts, ElementsAre(CastTensor{"wide", DType::kFloat32, DType::kFloat64}));
  EXPECT_THAT(merged.replaced,
              ElementsAre(ReplacedTensor{"integers", "float32 tensor of shape (2,)"}));
}

TEST(MergeCommon, ATensorWhoseElementsShareTheirMemoryIsNotFilled) {
  const Tensor row = Tensor::zeros(DType::kFloat32, {3});
  const Tensor expanded(DType::kFloat32, {2, 3}, {0, 1}, row.mutable_data(), row.owner());
  const auto merge = [](const Tensor& into, const Tensor& stored) {
    merge_common(Value::dict({{"bias", into}}), Value::dict({{"bias", stored}}));
  };
  EXPECT_THAT(testing::error_of([&] {
                merge(expanded, arange({2, 3}));
              }).what(),
              HasSubstr("cannot merge the common state at 'bias': the state's tensor has the "
                        "shape (2, 3) and the strides (0, 1): several elements share their memory; "
                        "load into a tensor of its own"));
  EXPECT_TRUE(equal(row, Tensor::zeros(DType::kFloat32, {3})));
  merge(expanded, arange({3, 2}));  // does not fit: the stored tensor replaces it
}

TEST(MergeCommon, PlainValuesThatAreNotStoredAreKeptAndReported) {
  const MergedCommon merged = merge_common(
      Value::dict({{"w", shard()}, {"new", Value::dict({{"rate", 0.5}})}}), Value::dict());
  EXPECT_EQ(merged.state.at("new").at("rate"), Value(0.5));
  EXPECT_THAT(merged.kept, ElementsAre(KeyPath{"new", "rate"}));
}

TEST(MergeCommon, StoredItemsOfAListTakeThePlacesBetweenShardedOnes) {
  const Value w = shard();
  const Value list = Value::list({w, Value::dict({{"w", w}, {"lr", 0}}), 0});
  const MergedCommon merged = merge_common(
      Value::dict({{"l", list}}), Value::dict({{"l", Value::list({Value::dict({{"lr", 1}}), 2})}}));
  EXPECT_EQ(merged.state.at("l"), Value::list({w, Value::dict({{"w", w}, {"lr", 1}}), 2}));
  const auto too_few = [&] {
    merge_common(Value::dict({{"l", list}}), Value::dict({{"l", Value::list({1})}}));
  };
  EXPECT_THAT(testing::error_of(too_few).what(), HasSubstr("but 1 is stored"));
}

TEST(MergeCommon, AShardedLeafIsNeverReplacedByAStoredValue) {
  const auto of_w = [](const Value& w) { return Value::dict({{"a", Value::dict({{"w", w}})}}); };
  EXPECT_THAT(testing::error_of([&] { merge_common(of_w(shard()), of_w(arange({2}))); }).what(),
              HasSubstr("'a.w'"));
}

}  // namespace
}  // namespace dckpt::merge_common_test
