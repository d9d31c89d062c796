#include "mapping/planning/chunk_index.h"

#include <gtest/gtest.h>

#include "tests/support/random.h"

namespace dckpt::chunk_index_test {
namespace {

using testing::Random;

Box random_box(Random& random, std::size_t dims) {
  Box box;
  for (std::size_t axis = 0; axis < dims; ++axis) {
    box.offsets.push_back(random.between(0, 20));
    box.sizes.push_back(random.between(0, 8));
  }
  return box;
}

TEST(ChunkIndex, FindsWhatComparingEveryChunkFinds) {
  Random random;
  for (int round = 0; round < 200; ++round) {
    SCOPED_TRACE(random.trace(round));
    const auto dims = static_cast<std::size_t>(random.between(0, 4));
    BoxList chunks(dims);
    for (std::int64_t i = random.between(0, 60); i > 0; --i)
      chunks.push_back(random_box(random, dims));
    ChunkIndex index(chunks);
    std::vector<std::uint32_t> found;
    for (int question = 0; question < 20; ++question) {
      const Box box = random_box(random, dims);
      std::vector<std::uint32_t> expected;
      for (std::uint32_t i = 0; i < chunks.size(); ++i) {
        if (intersect(box, chunks[i])) expected.push_back(i);
      }
      index.find(box, found);
      EXPECT_EQ(found, expected) << to_string(box);
    }
  }
}

}  // namespace
}  // namespace dckpt::chunk_index_test
