// load.cast: allow. mapping/geometry/cast_test.cpp shows that single elements are converted as in
// torch.

#include <gmock/gmock.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <vector>

#include "dist_checkpointing/load/load.h"
#include "mapping/geometry/cast.h"
#include "tests/dist_checkpointing/save_load.h"

namespace dckpt::casts_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr std::int64_t kRows = 600, kColumns = 1024;  // in float32 more than the staging memory

Bytes cast(const Tensor& values, DType to) {
  const Tensor dense = values.contiguous();
  Bytes result(static_cast<std::size_t>(values.numel()) * item_size(to));
  cast_elements(dense.dtype(), dense.data(), to, result.data(),
                static_cast<std::size_t>(values.numel()));
  return result;
}

void expect_cast(const Tensor& loaded, const Tensor& values) {
  const Tensor dense = loaded.contiguous();
  const Bytes expected = cast(values, loaded.dtype());
  EXPECT_TRUE(std::ranges::equal(dense.bytes(), expected)) << to_string(loaded);
}

/// Returns a tensor stored column by column.
Tensor transposed(DType dtype, std::int64_t rows, std::int64_t columns) {
  const Tensor memory = Tensor::zeros(dtype, {columns, rows});
  return Tensor(dtype, {rows, columns}, {1, rows}, memory.mutable_data(),
                std::make_shared<Tensor>(memory));
}

class Casts : public SaveLoad, public ::testing::WithParamInterface<bool> {
 protected:
  /// Saves halves of "w" and ranges of "flat" on two ranks.
  void save_both() {
    save_on(2, [&](int rank) {
      const std::int64_t half = kRows / 2 * rank;
      return Value::dict(
          {{"w",
            ShardedTensor::from_box("w", part_of_arange(shape_, {{half, 0}, {kRows / 2, kColumns}}),
                                    shape_, {half, 0})},
           {"flat", ShardedTensor::from_flat_range("flat", arange({6}), {3, 4}, {3, 4}, {0, 0},
                                                   {6 * rank, 6 * rank + 6})}});
    });
  }

  LoadOptions options() const {
    return {.parallel = {.enabled = GetParam()},
            .cast = Cast::kAllow,
            .validate_access_integrity = false,
            .staging = std::uint64_t{1} << 20};
  }

  const Shape shape_{kRows, kColumns};
};

TEST_P(Casts, EachRankGetsTheDtypeThatItRequests) {
  save_both();
  run_ranks(3, [&](Communicator& comm) {
    const std::array dtypes{DType::kBFloat16, DType::kFloat32, DType::kFloat64};
    const DType dtype = dtypes[static_cast<std::size_t>(comm.rank())];
    const Tensor w = transposed(dtype, kRows, kColumns);
    const Tensor part = Tensor::zeros(DType::kFloat16, {5});
    StateDict state = Value::dict(
        {{"w", ShardedTensor::whole("w", w)},
         {"flat", ShardedTensor::from_flat_range("flat", part, {3, 4}, {3, 4}, {0, 0}, {4, 9})}});
    const LoadReport report = load(state, checkpoint(), options(), comm);
    expect_cast(w, arange(shape_));
    const std::vector<float> expected{4, 5, 0, 1, 2};  // both ranks saved 0 to 5
    Tensor floats = Tensor::empty(DType::kFloat32, {5});
    std::memcpy(floats.data(), expected.data(), floats.nbytes());
    expect_cast(part, floats);
    EXPECT_EQ(state.at("w").as_sharded_tensor().dtype, dtype);
    EXPECT_THAT(report.casts, ElementsAre(CastTensor{"w", DType::kFloat32, DType::kBFloat16},
                                          CastTensor{"flat", DType::kFloat32, DType::kFloat16},
                                          CastTensor{"w", DType::kFloat32, DType::kFloat64}))
        << "the same on all ranks";
    EXPECT_EQ(report.bytes_unchecked, 0U) << "what is cast is compared with its checksum too";
  });
}

TEST_P(Casts, NothingIsReportedWhereNothingDiffers) {
  save_both();
  StateDict state = Value::dict({{"w", ShardedTensor::whole("w", untouched(shape_))}});
  EXPECT_THAT(load(state, checkpoint(), options()).casts, IsEmpty());
}

TEST_P(Casts, PaddingIsOfTheRequestedDtype) {
  save_both();
  LoadOptions padded = options();
  padded.padding = Padding::kReplicate;
  const Tensor w = Tensor::zeros(DType::kBFloat16, {kRows + 1, kColumns});
  StateDict state =
      Value::dict({{"w", ShardedTensor::whole("w", w, {.allow_shape_mismatch = true})}});
  load(state, checkpoint(), padded);
  const Bytes stored = cast(arange(shape_), DType::kBFloat16);
  const std::size_t row = std::size_t{kColumns} * 2;
  EXPECT_TRUE(std::ranges::equal(w.bytes().first(stored.size()), stored));
  EXPECT_TRUE(std::ranges::equal(w.bytes().last(row), ByteView(stored).last(row)));
}

INSTANTIATE_TEST_SUITE_P(AloneAndTogether, Casts, ::testing::Bool());

TEST_F(SaveLoad, LeavesOfPlainDcpAreCastIntoTheCallersTensors) {
  save(Value::dict({{"model", Value::dict({{"w", arange({3, 4})}})}}), checkpoint(),
       {.compat = Compat::kDcp});
  const Tensor w = Tensor::zeros(DType::kBFloat16, {3, 4});
  StateDict state = Value::dict({{"model", Value::dict({{"w", w}})}});
  const LoadReport report = load(state, checkpoint(), {.cast = Cast::kAllow});
  expect_cast(w, arange({3, 4}));
  EXPECT_THAT(report.casts, ElementsAre(CastTensor{"model.w", DType::kFloat32, DType::kBFloat16}));
}

TEST_F(SaveLoad, AFloatIsNotCastToAnInteger) {
  save(Value::dict({{"w", ShardedTensor::whole("w", arange({4}))}}), checkpoint());
  StateDict state =
      Value::dict({{"w", ShardedTensor::whole("w", Tensor::zeros(DType::kInt64, {4}))}});
  EXPECT_THAT(error_of([&] { load(state, checkpoint(), {.cast = Cast::kAllow}); }),
              HasSubstr("dtype mismatch for loaded (float32) and expected (int64) tensor for key "
                        "'w': convert the destination; load.cast converts floating types into "
                        "each other, and integers into wider ones, but not these"));
}

}  // namespace
}  // namespace dckpt::casts_test
