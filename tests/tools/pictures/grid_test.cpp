#include "tools/dckpt/pictures/grid.h"

#include <gtest/gtest.h>

#include <vector>

#include "tests/tools/pictures/picture_text.h"

namespace dckpt::tool::grid_test {
namespace {

using testing::kAscii;
using testing::kNarrow;
using testing::kWide;
using testing::text_of;
using testing::widest;

/// Returns a tensor cut into equal pieces, each of a different rank.
std::vector<GridPiece> cut(const Shape& shape, const Shape& pieces) {
  std::vector<GridPiece> all;
  const std::int64_t count = numel(pieces);
  for (std::int64_t i = 0; i < count; ++i) {
    Box box{Shape(shape.size()), Shape(shape.size())};
    std::int64_t rest = i;
    for (std::size_t axis = shape.size(); axis-- > 0;) {
      box.sizes[axis] = shape[axis] / pieces[axis];
      box.offsets[axis] = rest % pieces[axis] * box.sizes[axis];
      rest /= pieces[axis];
    }
    all.push_back({box, std::to_string(i)});
  }
  return all;
}

TEST(Grid, RowsAndColumnsOfAMatrix) {
  EXPECT_EQ(text_of(grid(Shape{4096, 1536}, cut({4096, 1536}, {2, 3}), kWide)), R"(
       0    512  1024 1536
       ┌────┬────┬────┐
     0 │ 0  │ 1  │ 2  │
       ├────┼────┼────┤
  2048 │ 3  │ 4  │ 5  │
       └────┴────┴────┘
  2 x 3 cells: rows along axis 0, columns along axis 1.
)");
  EXPECT_EQ(text_of(grid(Shape{4096, 1024}, cut({4096, 1024}, {2, 2}), kAscii)), R"(
       0    512  1024
       +----+----+
     0 | 0  | 1  |
       +----+----+
  2048 | 2  | 3  |
       +----+----+
  2 x 2 cells: rows along axis 0, columns along axis 1.
)");
}

TEST(Grid, AStripOfAVector) {
  EXPECT_EQ(text_of(grid(Shape{1024}, cut({1024}, {4}), kNarrow)), R"(
  0    256  512  768  1024
  ┌────┬────┬────┬────┐
  │ 0  │ 1  │ 2  │ 3  │
  └────┴────┴────┴────┘
  4 cells along axis 0.
)");
}

TEST(Grid, OfManyCellsTheFirstAndTheLast) {
  const std::vector<GridPiece> pieces = cut({32000, 8192}, {32, 16});
  EXPECT_EQ(text_of(grid(Shape{32000, 8192}, pieces, kWide)), R"(
        0     512   1024  1536  2048  2560      5632  6144  6656  7168  7680
        ┌─────┬─────┬─────┬─────┬─────┬─────┬───┬─────┬─────┬─────┬─────┬─────┐
      0 │  0  │  1  │  2  │  3  │  4  │  5  │ … │ 11  │ 12  │ 13  │ 14  │ 15  │
   1000 │ 16  │ 17  │ 18  │ 19  │ 20  │ 21  │ … │ 27  │ 28  │ 29  │ 30  │ 31  │
   2000 │ 32  │ 33  │ 34  │ 35  │ 36  │ 37  │ … │ 43  │ 44  │ 45  │ 46  │ 47  │
   3000 │ 48  │ 49  │ 50  │ 51  │ 52  │ 53  │ … │ 59  │ 60  │ 61  │ 62  │ 63  │
        │  ⋮  │  ⋮  │  ⋮  │  ⋮  │  ⋮  │  ⋮  │ ⋮ │  ⋮  │  ⋮  │  ⋮  │  ⋮  │  ⋮  │
  28000 │ 448 │ 449 │ 450 │ 451 │ 452 │ 453 │ … │ 459 │ 460 │ 461 │ 462 │ 463 │
  29000 │ 464 │ 465 │ 466 │ 467 │ 468 │ 469 │ … │ 475 │ 476 │ 477 │ 478 │ 479 │
  30000 │ 480 │ 481 │ 482 │ 483 │ 484 │ 485 │ … │ 491 │ 492 │ 493 │ 494 │ 495 │
  31000 │ 496 │ 497 │ 498 │ 499 │ 500 │ 501 │ … │ 507 │ 508 │ 509 │ 510 │ 511 │
        └─────┴─────┴─────┴─────┴─────┴─────┴───┴─────┴─────┴─────┴─────┴─────┘
  32 x 16 cells, first and last shown: rows along axis 0, columns along axis 1.
)");
  EXPECT_EQ(text_of(grid(Shape{32000, 8192}, pieces, kNarrow)), R"(
        0     512       7168  7680  8192
        ┌─────┬─────┬───┬─────┬─────┐
      0 │  0  │  1  │ … │ 14  │ 15  │
   1000 │ 16  │ 17  │ … │ 30  │ 31  │
   2000 │ 32  │ 33  │ … │ 46  │ 47  │
   3000 │ 48  │ 49  │ … │ 62  │ 63  │
        │  ⋮  │  ⋮  │ ⋮ │  ⋮  │  ⋮  │
  28000 │ 448 │ 449 │ … │ 462 │ 463 │
  29000 │ 464 │ 465 │ … │ 478 │ 479 │
  30000 │ 480 │ 481 │ … │ 494 │ 495 │
  31000 │ 496 │ 497 │ … │ 510 │ 511 │
        └─────┴─────┴───┴─────┴─────┘
  32 x 16 cells, first and last shown:
  rows along axis 0, columns along axis
  1.
)");
}

TEST(Grid, SaysWhereFurtherAxesAreLookedAt) {
  EXPECT_EQ(
      text_of(grid(Shape{2, 8, 4, 6}, cut({2, 8, 4, 6}, {1, 2, 2, 2}), kNarrow, Shape{0, 0, 0, 3})),
      R"(
    0   2   4
    ┌───┬───┐
  0 │ 1 │ 3 │
    ├───┼───┤
  4 │ 5 │ 7 │
    └───┴───┘
  2 x 2 cells: rows along axis 1,
  columns along axis 2. Axis 3 is cut in
  2 pieces, too; these are the cells at
  3.
)");
}

TEST(Grid, ShowsHolesAndOverlaps) {
  std::vector<GridPiece> pieces = cut({8, 8}, {2, 2});
  pieces[1].box = {{0, 2}, {4, 6}};
  pieces.pop_back();
  EXPECT_EQ(text_of(grid(Shape{8, 8}, pieces, kWide)), R"(
    0    2    4    8
    ┌────┬────┬────┐
  0 │ 0  │0+1 │ 1  │
    ├────┼────┼────┤
  4 │ 2  │ 2  │hole│
    └────┴────┴────┘
  2 x 3 cells: rows along axis 0, columns along axis 1.
)");
  EXPECT_NE(text_of(grid(Shape{8, 8}, pieces, {.color = true})).find("\x1b[31mhole\x1b[0m"),
            std::string::npos);
}

TEST(Grid, ShowsAHoleAmongManyCells) {
  std::vector<GridPiece> pieces = cut({640}, {64});
  pieces.erase(pieces.begin() + 30);
  EXPECT_EQ(text_of(grid(Shape{640}, pieces, kNarrow, Shape{300})), R"(
      280  290  300  310  320      640
  ┌───┬────┬────┬────┬────┬────┬───┐
  │ … │ 28 │ 29 │hole│ 31 │ 32 │ … │
  └───┴────┴────┴────┴────┴────┴───┘
  64 cells along axis 0, some shown.
)");
}

TEST(Grid, OneCellAndNone) {
  EXPECT_EQ(text_of(grid(Shape{3, 2}, cut({3, 2}, {1, 1}), kWide)), R"(
    0   2
    ┌───┐
  0 │ 0 │
    └───┘
  1 x 1 cells: rows along axis 0, columns along axis 1.
)");
  EXPECT_TRUE(grid(Shape{0, 4}, std::vector<GridPiece>{{{{0, 0}, {0, 4}}, "0"}}, kWide).empty());
  EXPECT_TRUE(grid(Shape{}, std::vector<GridPiece>{{{}, "0"}}, kWide).empty());
  EXPECT_TRUE(grid(Shape{4}, {}, kWide).empty());
}

TEST(Grid, StaysInsideTheTerminalWithTenThousandRanks) {
  const std::vector<GridPiece> strip = cut({10'000 * 64}, {10'000});
  const std::vector<GridPiece> matrix = cut({1000, 8192}, {100, 100});
  EXPECT_EQ(text_of(grid(Shape{640'000}, strip, kNarrow)), R"(
  0      64         639872 639936 640000
  ┌──────┬──────┬───┬──────┬──────┐
  │  0   │  1   │ … │ 9998 │ 9999 │
  └──────┴──────┴───┴──────┴──────┘
  10,000 cells along axis 0, first and
  last shown.
)");
  for (const bool unicode : {true, false}) {
    for (std::size_t columns = 20; columns < 130; ++columns) {
      const PictureStyle style{columns, unicode, true};
      EXPECT_LE(widest(grid(Shape{640'000}, strip, style)), columns);
      EXPECT_LE(widest(grid(Shape{1000, 8192}, matrix, style)), columns);
      EXPECT_LE(widest(grid(Shape{1000, 8192}, matrix, style, Shape{500, 5000})), columns);
    }
  }
}

TEST(Grid, BoxesThatAreNotInTheTensorAreCut) {
  const std::vector<GridPiece> pieces = {{{{0}, {100}}, "0"}, {{{50}, {INT64_MAX}}, "1"}};
  EXPECT_EQ(text_of(grid(Shape{60}, pieces, kWide)), R"(
  0   50  60
  ┌───┬───┐
  │ 0 │0+1│
  └───┴───┘
  2 cells along axis 0.
)");
  const std::vector<GridPiece> other_axes = {{{{0, 0}, {1, 1}}, "0"}};
  EXPECT_TRUE(grid(Shape{60}, other_axes, kWide).empty());
}

}  // namespace
}  // namespace dckpt::tool::grid_test
