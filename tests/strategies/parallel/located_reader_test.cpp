#include "strategies/parallel/located_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "mapping/base/error.h"
#include "mapping/base/wire.h"
#include "tests/dist_checkpointing/fake_reader.h"
#include "tests/support/expect_error.h"

namespace dckpt::located_reader_test {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using SplitChunk = LoadDistribution::SplitChunk;

class LocatedReaderTest : public ::testing::Test {
 protected:
  LocatedReaderTest() {
    base_.tensor("a", DType::kFloat32, {4, 8}, testing::counting<float>(32),
                 {{{0, 0}, {2, 8}}, {{2, 0}, {2, 8}}});
    base_.write();
  }

  static Bytes answer(std::initializer_list<std::uint64_t> numbers) {
    Bytes bytes;
    WireWriter writer(bytes);
    for (const std::uint64_t number : numbers) writer.number(number);
    return bytes;
  }

  testing::FakeReader base_;
  const std::vector<SplitChunk> chunks_ = {{{0, 0}, 1}, {{0, 1}, 0}};
};

TEST_F(LocatedReaderTest, KnowsWhatAllRanksHaveFound) {
  LocatedReader reader(base_);
  const std::vector<Bytes> answers = {LocatedReader::look_for(base_, chunks_, 0),
                                      LocatedReader::look_for(base_, chunks_, 1)};
  EXPECT_THAT(reader.learn(chunks_, answers), IsEmpty());
  const auto file = base_.storage().open("data");
  for (std::size_t chunk = 0; chunk < 2; ++chunk) {
    const ChunkPayload payload = reader.locate(0, chunk, *file);
    EXPECT_EQ(payload.offset, chunk * 64);
    EXPECT_EQ(payload.strides, (Shape{8, 1}));
    EXPECT_TRUE(payload.contiguous);
  }
}

TEST_F(LocatedReaderTest, NamesChunksWhoseElementsDoNotLieRowMajor) {
  LocatedReader reader(base_);
  EXPECT_THAT(reader.learn(chunks_, std::vector{answer({1, 0, 0, 0}), answer({0})}),
              ::testing::ElementsAre(ChunkNumber{0, 0}));
}

TEST_F(LocatedReaderTest, RefusesAnswersOutsideTheChunkAndMalformedOnes) {
  const auto refusal = [&](const std::vector<Bytes>& answers) {
    return testing::error_of([&] { LocatedReader(base_).learn(chunks_, answers); }).message();
  };
  EXPECT_THAT(refusal({answer({2, 0, 0, 0}), answer({1, 0, 0, 0})}),
              HasSubstr("rank 0's places of chunks"));
  EXPECT_THAT(refusal({answer({1, 0, 0, 0}), answer({UINT64_MAX, 0, 0, 0})}),
              HasSubstr("rank 1's places of chunks"));
  EXPECT_THAT(refusal({answer({1, 1, 64, 0}), answer({1, 0, 0, 0})}),
              HasSubstr("rank 0's places of chunks"))
      << "its record, too";
  EXPECT_THAT(refusal({answer({1, 0, 0, 0}), {}}), HasSubstr("rank 1's places of chunks"));
  EXPECT_THAT(refusal({answer({1, 0, 0, 0, 1}), answer({1, 0, 0, 0})}),
              HasSubstr("rank 0's places of chunks"));
}

}  // namespace
}  // namespace dckpt::located_reader_test
