#include "mapping/planning/validate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <random>

namespace dckpt::validate_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

TensorStorageMetadata tensor_of(Shape size, const std::vector<Box>& boxes) {
  TensorStorageMetadata tensor;
  tensor.key = "w";
  tensor.size = std::move(size);
  tensor.chunks = BoxList(tensor.size.size());
  for (const Box& box : boxes) tensor.chunks.push_back(box);
  return tensor;
}

std::uint64_t test_seed() {
  const char* given = std::getenv("DCKPT_TEST_SEED");
  const std::uint64_t seed =
      given != nullptr ? std::strtoull(given, nullptr, 10) : std::random_device()();
  ::testing::Test::RecordProperty("seed", std::to_string(seed));
  return seed;
}

/// Counts the boxes that hold each element.
std::vector<int> counts(const TensorStorageMetadata& tensor) {
  std::vector<int> out(static_cast<std::size_t>(numel(tensor.size)), 0);
  const Shape strides = row_major_strides(tensor.size);
  for (std::size_t element = 0; element < out.size(); ++element) {
    for (std::size_t i = 0; i < tensor.chunks.size(); ++i) {
      const Box box = tensor.chunks[i];
      bool inside = true;
      for (std::size_t axis = 0; axis < box.dims(); ++axis) {
        const std::int64_t at =
            static_cast<std::int64_t>(element) / strides[axis] % tensor.size[axis];
        inside = inside && at >= box.offsets[axis] && at < box.offsets[axis] + box.sizes[axis];
      }
      out[element] += inside ? 1 : 0;
    }
  }
  return out;
}

/// Cuts a box at random places until pieces are small or luck stops it: a cover that is not a grid.
void cut(std::mt19937_64& random, const Box& box, std::vector<Box>& out) {
  const std::size_t axis = box.dims() == 0 ? 0 : random() % box.dims();
  if (box.dims() == 0 || box.sizes[axis] < 2 || random() % 4 == 0) {
    out.push_back(box);
    return;
  }
  const std::int64_t first =
      1 + static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(box.sizes[axis] - 1));
  Box low = box;
  Box high = box;
  low.sizes[axis] = first;
  high.offsets[axis] += first;
  high.sizes[axis] -= first;
  cut(random, low, out);
  cut(random, high, out);
}

TEST(ValidateCoverage, AcceptsGridsUnevenCutsScalarsAndEmptyChunks) {
  EXPECT_THAT(validate_coverage(tensor_of({4, 6}, {{{0, 0}, {2, 6}}, {{2, 0}, {2, 6}}})),
              IsEmpty());
  EXPECT_THAT(validate_coverage(
                  tensor_of({10}, {{{0}, {7}}, {{7}, {0}}, {{8}, {2}}, {{7}, {1}}, {{10}, {0}}})),
              IsEmpty());
  EXPECT_THAT(validate_coverage(tensor_of({}, {{{}, {}}})), IsEmpty());
  EXPECT_THAT(validate_coverage(tensor_of({0, 4}, {})), IsEmpty());
  EXPECT_THAT(validate_coverage(tensor_of({0, 4}, {{{0, 0}, {0, 4}}})), IsEmpty());
}

TEST(ValidateCoverage, NamesTheBoxesThatOverlap) {
  const auto problems = validate_coverage(tensor_of({8, 6}, {{{0, 0}, {4, 6}}, {{3, 0}, {5, 6}}}));
  ASSERT_THAT(problems, SizeIs(1));
  EXPECT_EQ(problems[0].code, FindingCode::kElementsOverlap);
  EXPECT_THAT(problems[0].keys, ElementsAre("w"));
  EXPECT_EQ(problems[0].message,
            "chunks [0:4, 0:6] and [3:8, 0:6] overlap: element (3, 0) is in 2 chunks");
}

TEST(ValidateCoverage, SeesAnOverlapThatAHoleMakesUpFor) {
  const auto problems = validate_coverage(tensor_of({8, 6}, {{{0, 0}, {4, 6}}, {{0, 0}, {4, 6}}}));
  ASSERT_THAT(problems, SizeIs(1));
  EXPECT_EQ(problems[0].code, FindingCode::kElementsOverlap);
}

TEST(ValidateCoverage, NamesTheFirstElementThatIsMissing) {
  const auto problems =
      validate_coverage(tensor_of({4, 4}, {{{0, 0}, {2, 2}}, {{0, 2}, {2, 2}}, {{2, 2}, {2, 2}}}));
  ASSERT_THAT(problems, SizeIs(1));
  EXPECT_EQ(problems[0].code, FindingCode::kElementsMissing);
  EXPECT_EQ(problems[0].message,
            "element (2, 0) is in no chunk; the chunks hold 12 of 16 elements");
  EXPECT_EQ(validate_coverage(tensor_of({5}, {})).at(0).message,
            "no chunk holds any of the 5 elements");
}

TEST(ValidateCoverage, ReportsBoxesOutsideTheTensorAndOverflowingOnes) {
  EXPECT_THAT(validate_coverage(tensor_of({8, 6}, {{{6, 0}, {4, 6}}})).at(0).message,
              HasSubstr("chunk [6:10, 0:6] is not inside the tensor of size (8, 6)"));
  EXPECT_THAT(validate_coverage(tensor_of({8, 6}, {{{INT64_MAX, 0}, {4, 6}}})), SizeIs(1));
  EXPECT_THAT(validate_coverage(tensor_of({8, 6}, {{{-4, 0}, {4, 6}}})), SizeIs(1));
  EXPECT_THAT(validate_coverage(tensor_of({INT64_MAX, INT64_MAX}, {})), SizeIs(1));
  EXPECT_THAT(validate_coverage(tensor_of({INT64_MAX, INT64_MAX, 0}, {})), SizeIs(1));
}

TEST(ValidateCoverage, LimitsTheNumberOfMessagesAndSaysHowManyAreLeft) {
  const std::vector<Box> outside(100, Box{{9}, {1}});
  const auto problems = validate_coverage(tensor_of({8}, outside));
  ASSERT_THAT(problems, SizeIs(kMaxProblemsOfAKind));
  EXPECT_THAT(problems.back().message, HasSubstr("and 92 more"));
}

TEST(ValidateCoverage, ComparesTheOriginalShapeOfFlattenedTensors) {
  TensorStorageMetadata tensor =
      tensor_of({2, 1, 24}, {{{0, 0, 0}, {1, 1, 24}}, {{1, 0, 0}, {1, 1, 24}}});
  tensor.flattened_shape = Shape{8, 6};
  EXPECT_THAT(validate_coverage(tensor), IsEmpty());
  for (const Shape& wrong :
       {Shape{7, 6}, Shape{}, Shape{2, 2, 2, 6}, Shape{-8, 6}, Shape{INT64_MAX, INT64_MAX}}) {
    tensor.flattened_shape = wrong;
    EXPECT_THAT(validate_coverage(tensor), SizeIs(1)) << to_string(ShapeView(wrong));
  }
}

TEST(ValidateCoverage, AgreesWithCountingOnRandomCovers) {
  const std::uint64_t seed = test_seed();
  SCOPED_TRACE("DCKPT_TEST_SEED=" + std::to_string(seed));
  std::mt19937_64 random(seed);
  int bad = 0;
  for (int round = 0; round < 3000; ++round) {
    Shape size(random() % 5, 0);
    for (auto& extent : size)
      extent = 1 + static_cast<std::int64_t>(random() % (size.size() > 3 ? 4 : 7));
    std::vector<Box> boxes;
    cut(random, whole(size), boxes);
    std::shuffle(boxes.begin(), boxes.end(), random);
    if (random() % 2 == 0) {  // damages some of them
      for (std::size_t times = 1 + random() % 3; times > 0 && !size.empty(); --times) {
        Box& box = boxes[random() % boxes.size()];
        const std::size_t axis = random() % size.size();
        box.offsets[axis] =
            static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(size[axis]));
        box.sizes[axis] = static_cast<std::int64_t>(
            random() % static_cast<std::uint64_t>(size[axis] - box.offsets[axis] + 1));
      }
    }
    const TensorStorageMetadata tensor = tensor_of(size, boxes);
    const std::vector<int> expected = counts(tensor);
    const auto first_wrong =
        std::find_if(expected.begin(), expected.end(), [](int count) { return count != 1; });
    const auto problems = validate_coverage(tensor);
    ASSERT_EQ(problems.empty(), first_wrong == expected.end())
        << "round " << round << ", size " << to_string(ShapeView(size));
    if (problems.empty()) continue;
    ++bad;
    const bool all_missing = std::all_of(boxes.begin(), boxes.end(),
                                         [](const Box& box) { return numel(box.sizes) == 0; });
    if (!all_missing) {
      ASSERT_EQ(problems[0].code,
                *first_wrong == 0 ? FindingCode::kElementsMissing : FindingCode::kElementsOverlap);
    }
  }
  EXPECT_GT(bad, 100);
}

TEST(ValidateCoverage, CountsCutsThatAreFarTooManyForAnArray) {
  // Each row is cut at other places, so that a grid of all cuts would have 10^9 cells.
  constexpr std::int64_t kRows = 30'000;
  std::vector<Box> boxes;
  for (std::int64_t row = 0; row < kRows; ++row) {
    boxes.push_back({{row, 0}, {1, row + 1}});
    boxes.push_back({{row, row + 1}, {1, kRows + 1 - (row + 1)}});
  }
  EXPECT_THAT(validate_coverage(tensor_of({kRows, kRows + 1}, boxes)), IsEmpty());
  boxes[40'001].sizes[1] -= 1;
  EXPECT_THAT(validate_coverage(tensor_of({kRows, kRows + 1}, boxes)).at(0).message,
              HasSubstr("element (20000, 30000) is in no chunk"));
}

TEST(ValidateCoverage, CountsAQuarterMillionChunksOfEitherOrientation) {
  for (const auto& [rows, columns] : {std::pair<std::int64_t, std::int64_t>{512, 512},
                                      {262'144, 1},
                                      {1, 262'144},
                                      {4, 65'536},
                                      {65'536, 4}}) {
    std::vector<Box> boxes;
    for (std::int64_t column = 0; column < columns; ++column) {
      for (std::int64_t row = 0; row < rows; ++row)
        boxes.push_back({{row * 2, column * 3}, {2, 3}});
    }
    TensorStorageMetadata tensor = tensor_of({rows * 2, columns * 3}, boxes);
    EXPECT_THAT(validate_coverage(tensor), IsEmpty());
    boxes.back() = boxes.front();
    EXPECT_THAT(validate_coverage(tensor_of({rows * 2, columns * 3}, boxes)), SizeIs(1));
  }
}

TEST(ValidateCoverage, RefusesToGuessAboutIrregularCutsAlongManyAxes) {
  const Shape size(24, 3);
  std::vector<Box> boxes{whole(size), whole(size)};
  std::fill(boxes[0].sizes.begin(), boxes[0].sizes.end(), 2);
  std::fill(boxes[1].offsets.begin(), boxes[1].offsets.end(), 2);
  std::fill(boxes[1].sizes.begin(), boxes[1].sizes.end(), 1);
  const auto problems = validate_coverage(tensor_of(size, boxes));
  ASSERT_THAT(problems, SizeIs(1));
  EXPECT_THAT(problems[0].message, HasSubstr("cannot be checked"));
}

}  // namespace
}  // namespace dckpt::validate_test
