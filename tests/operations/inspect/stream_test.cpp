#include "operations/inspect/stream.h"

#include <gtest/gtest.h>

#include "tests/dist_checkpointing/fake_reader.h"
#include "tests/support/expect_error.h"
#include "tests/support/random.h"

namespace dckpt::stream_test {
namespace {

using testing::counting;
using testing::FakeReader;

/// Returns the position of a box's first element in the row-major order of the shape.
std::int64_t position(const Box& box, const Shape& shape) {
  const Shape strides = row_major_strides(shape);
  std::int64_t at = 0;
  for (std::size_t axis = 0; axis < shape.size(); ++axis) at += box.offsets[axis] * strides[axis];
  return at;
}

TEST(PieceWalker, PiecesFollowEachOtherAndStaySmall) {
  testing::Random random;
  for (int round = 0; round < 500; ++round) {
    SCOPED_TRACE(random.trace(round));
    Shape shape;
    for (std::int64_t axes = random.between(0, 4); axes > 0; --axes)
      shape.push_back(random.between(0, 6));
    const std::uint64_t limit = static_cast<std::uint64_t>(random.between(1, 200));
    PieceWalker pieces(shape, 4, limit);
    std::int64_t covered = 0;
    while (const auto box = pieces.next()) {
      ASSERT_TRUE(fits(*box, shape)) << to_string(*box) << " in " << to_string(shape);
      ASSERT_EQ(position(*box, shape), covered);
      ASSERT_TRUE(numel(box->sizes) == 1 ||
                  static_cast<std::uint64_t>(numel(box->sizes)) * 4 <= limit);
      // The box is contiguous in the tensor: only extents of 1 before the cut axis, whole axes
      // behind it.
      ASSERT_EQ(is_row_major(box->sizes, row_major_strides(shape)), true);
      covered += numel(box->sizes);
    }
    EXPECT_EQ(covered, numel(shape));
  }
}

TEST(PieceWalker, TakesWholeRowsWhereTheyFit) {
  PieceWalker pieces(Shape{5, 10}, 4, 100);
  EXPECT_EQ(pieces.next(), (Box{{0, 0}, {2, 10}}));
  EXPECT_EQ(pieces.next(), (Box{{2, 0}, {2, 10}}));
  EXPECT_EQ(pieces.next(), (Box{{4, 0}, {1, 10}}));
  EXPECT_EQ(pieces.next(), std::nullopt);
}

TEST(TensorStream, AssemblesTheTensorInOrder) {
  FakeReader reader;
  const auto elements = counting<float>(24);
  reader
      .tensor("w", DType::kFloat32, {4, 6}, elements,
              {{{0, 0}, {4, 2}}, {{0, 2}, {3, 4}}, {{3, 2}, {1, 4}}})
      .write();
  TensorStream stream(reader, 0, {.piece = 40});
  std::vector<float> seen;
  while (const auto piece = stream.next()) {
    EXPECT_LE(piece->nbytes(), 40u);
    const auto* const first = reinterpret_cast<const float*>(piece->data());
    seen.insert(seen.end(), first, first + piece->numel());
  }
  EXPECT_EQ(seen, elements);
}

TEST(TensorStream, RefusesATensorWithAHole) {
  FakeReader reader;
  reader
      .tensor("w", DType::kFloat32, {4, 6}, counting<float>(24),
              {{{0, 0}, {4, 2}}, {{0, 2}, {3, 4}}})
      .write();
  const CheckpointError error = testing::error_of([&] { TensorStream(reader, 0, {}); });
  EXPECT_EQ(error.code(), ErrorCode::kIncomplete);
  EXPECT_EQ(error.context().key, "w");
}

}  // namespace
}  // namespace dckpt::stream_test
