#include "mapping/planning/load/distribution.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <numeric>

#include "mapping/base/error.h"
#include "tests/support/expect_error.h"
#include "tests/support/random.h"

namespace dckpt::distribution_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

/// Returns float tensors of (rows, 16), each in `chunks` chunks of equal rows.
Metadata stored(int tensors, std::int64_t rows, std::int64_t chunks = 1) {
  Metadata metadata;
  metadata.files = {"data"};
  for (int i = 0; i < tensors; ++i) {
    TensorStorageMetadata tensor{
        .key = "t" + std::to_string(i), .size = {rows, 16}, .chunks = BoxList(2)};
    for (std::int64_t chunk = 0; chunk < chunks; ++chunk) {
      tensor.chunks.push_back(Box{{chunk * rows / chunks, 0}, {rows / chunks, 16}});
      tensor.places.push_back({0, 0, 0});
    }
    metadata.tensors.push_back(std::move(tensor));
  }
  return metadata;
}

/// Returns a rank's request: boxes of tensors.
WantedParts parts_of(const Metadata& metadata,
                     const std::vector<std::pair<std::uint32_t, Box>>& boxes) {
  std::vector<WantedShard> wanted;
  for (const auto& [tensor, box] : boxes) wanted.push_back({.tensor = tensor, .box = box});
  return WantedParts(plan_reads(metadata, wanted));
}

std::uint64_t bytes_of(std::int64_t elements) {
  return static_cast<std::uint64_t>(elements) * 4;
}

constexpr PartLimits kAnySize{
    .smallest = 1, .largest = std::uint64_t{1} << 20, .short_run = 0, .small_chunk = 0};

TEST(LoadDistribution, WhatOnlyOneRankWantsItReads) {
  const Metadata metadata = stored(1, 8);
  const std::vector<WantedParts> wanted = {parts_of(metadata, {{0, {{0, 0}, {4, 16}}}}),
                                           parts_of(metadata, {{0, {{4, 0}, {4, 16}}}})};
  const LoadDistribution plan = distribute_load(metadata, wanted, 1, kAnySize);
  EXPECT_THAT(plan.shared, IsEmpty());
  ASSERT_EQ(plan.own.size(), 1U);
  EXPECT_EQ(plan.own[0].box, (Box{{4, 0}, {4, 16}}));
  EXPECT_EQ(plan.saved_bytes, 0U);
}

TEST(LoadDistribution, ALargePartIsCutForAllWhoWantIt) {
  const Metadata metadata = stored(1, 4096);
  const std::vector<WantedParts> wanted(4, parts_of(metadata, {{0, {{0, 0}, {4096, 16}}}}));
  const LoadDistribution plan = distribute_load(metadata, wanted, 0, kAnySize);
  EXPECT_THAT(plan.read_bytes, ::testing::Each(bytes_of(1024 * 16)));
  EXPECT_EQ(plan.saved_bytes, 3 * bytes_of(4096 * 16));
}

TEST(LoadDistribution, PartsWithFewReadersAreGivenOutFirst) {
  const Metadata metadata = stored(3, 8);
  const Box all{{0, 0}, {8, 16}};
  // Tensor 0 is wanted by all, tensors 1 and 2 only by ranks 0 and 1, so rank 2 has to take what it
  // can.
  const std::vector<WantedParts> wanted = {parts_of(metadata, {{0, all}, {1, all}, {2, all}}),
                                           parts_of(metadata, {{0, all}, {1, all}, {2, all}}),
                                           parts_of(metadata, {{0, all}})};
  const LoadDistribution plan = distribute_load(metadata, wanted, 0);
  EXPECT_THAT(plan.read_bytes, ElementsAre(512, 512, 512));
}

TEST(LoadDistribution, WhatARankMustReadAnywayCounts) {
  const Metadata metadata = stored(2, 8);
  const Box all{{0, 0}, {8, 16}};
  const std::vector<WantedParts> wanted = {parts_of(metadata, {{0, all}, {1, all}}),
                                           parts_of(metadata, {{1, all}})};
  EXPECT_THAT(distribute_load(metadata, wanted, 0).read_bytes, ElementsAre(512, 512));
}

TEST(LoadDistribution, EveryWantedElementHasOneReaderAmongThoseWhoWantItAndReachesAllOfThem) {
  testing::Random random;
  for (int round = 0; round < 60; ++round) {
    SCOPED_TRACE(random.trace(round));
    const int tensors = static_cast<int>(random.between(1, 3));
    const Metadata metadata = stored(tensors, 12, random.between(1, 2) * 2);
    const auto ranks = static_cast<std::uint32_t>(random.between(1, 5));
    std::vector<WantedParts> wanted;
    // Counts how often rank r wants element i of tensor t: its entries that hold the element.
    std::vector<std::vector<int>> wishes(
        ranks, std::vector<int>(static_cast<std::size_t>(tensors) * 12 * 16));
    const auto at = [](std::uint32_t tensor, std::int64_t row, std::int64_t column) {
      return static_cast<std::size_t>((tensor * 12 + row) * 16 + column);
    };
    const auto for_each_element = [&](std::uint32_t tensor, const Box& box, auto&& visit) {
      for (std::int64_t row = 0; row < box.sizes[0]; ++row) {
        for (std::int64_t column = 0; column < box.sizes[1]; ++column)
          visit(at(tensor, box.offsets[0] + row, box.offsets[1] + column));
      }
    };
    for (std::uint32_t rank = 0; rank < ranks; ++rank) {
      std::vector<std::pair<std::uint32_t, Box>> boxes;
      for (std::int64_t count = random.between(0, 4); count > 0; --count) {
        const std::int64_t row = random.between(0, 11), column = random.between(0, 15);
        boxes.push_back(
            {static_cast<std::uint32_t>(random.between(0, tensors - 1)),
             {{row, column}, {random.between(1, 12 - row), random.between(1, 16 - column)}}});
        for_each_element(boxes.back().first, boxes.back().second,
                         [&](std::size_t i) { ++wishes[rank][i]; });
      }
      wanted.push_back(parts_of(metadata, boxes));
    }
    std::vector<std::uint64_t> read(ranks);
    std::vector<int> readers(wishes[0].size());
    auto got = std::vector(ranks, std::vector<int>(wishes[0].size()));
    const auto count = [&](const LoadDistribution& plan, const LoadDistribution::Part& part) {
      const auto uses = plan.uses_of(part);
      EXPECT_TRUE(std::any_of(uses.begin(), uses.end(), [&](const auto& use) {
        return use.rank == part.holder;
      })) << "the holder wants it itself";
      if (part.slab == LoadDistribution::kNoSlab) {
        EXPECT_EQ(part.holder, part.reader);
        read[part.reader] += part.bytes;
      }
      for_each_element(part.tensor, part.box, [&](std::size_t i) {
        ++readers[i];
        for (const auto& use : uses) ++got[use.rank][i];
      });
      for (const auto& use : uses) {
        EXPECT_EQ(wanted[use.rank].tensor(use.entry), part.tensor);
        EXPECT_EQ(intersect(wanted[use.rank].box(use.entry), part.box), part.box);
      }
    };
    const bool slabs = random.chance(60);
    const auto largest = static_cast<std::uint64_t>(random.between(1, 800));
    const PartLimits limits{.smallest = 1,
                            .largest = largest,
                            .largest_slab = largest,
                            .short_run = slabs ? 64U : 0U,
                            .small_chunk = slabs && random.chance(50) ? 400U : 0U};
    for (std::uint32_t rank = 0; rank < ranks; ++rank) {
      const LoadDistribution plan = distribute_load(metadata, wanted, rank, limits);
      for (const auto& part : plan.own) count(plan, part);
      if (rank > 0) continue;
      for (const auto& part : plan.shared) count(plan, part);
      std::uint64_t in_slabs = 0, of_parts = 0;
      for (std::uint32_t index = 0; index < plan.slabs.size(); ++index) {
        const auto& slab = plan.slabs[index];
        read[slab.reader] += slab.bytes;
        in_slabs += slab.bytes;
        bool reader_wants_some = false;
        for (const auto& part : std::span(plan.shared).subspan(slab.first_part, slab.part_count)) {
          of_parts += part.bytes;
          EXPECT_EQ(part.slab, index);
          EXPECT_EQ(part.reader, slab.reader);
          EXPECT_EQ(intersect(slab.box, part.box), part.box);
          const auto uses = plan.uses_of(part);
          reader_wants_some |= std::any_of(
              uses.begin(), uses.end(), [&](const auto& use) { return use.rank == slab.reader; });
        }
        EXPECT_TRUE(reader_wants_some);
      }
      EXPECT_LE(in_slabs, of_parts + of_parts / 20);
    }
    EXPECT_EQ(read, distribute_load(metadata, wanted, 0, limits).read_bytes);
    EXPECT_EQ(got, wishes);
    for (std::size_t i = 0; i < readers.size(); ++i) {
      const bool is_wanted =
          std::any_of(wishes.begin(), wishes.end(), [&](const auto& wish) { return wish[i] > 0; });
      EXPECT_EQ(readers[i], is_wanted ? 1 : 0);
    }
  }
}

TEST(LoadDistribution, ColumnsOfSeveralRanksAreReadAsRowsByThoseWhoWantSomeOfThem) {
  const Metadata metadata = stored(1, 1024);
  std::vector<WantedParts> wanted;
  for (std::int64_t rank = 0; rank < 4; ++rank)
    wanted.push_back(parts_of(metadata, {{0, {{0, rank * 4}, {1024, 4}}}}));
  const LoadDistribution plan = distribute_load(metadata, wanted, 0, {.smallest = 1});
  EXPECT_THAT(plan.own, IsEmpty());
  EXPECT_THAT(plan.read_bytes, ::testing::Each(bytes_of(1024 * 4)));
  for (const auto& slab : plan.slabs) EXPECT_EQ(slab.box.sizes[1], 16) << "whole rows";
}

TEST(LoadDistribution, LongRunsBesideShortOnesAreReadStraightIntoTheirPlace) {
  const Metadata metadata = stored(1, 4096);
  const std::vector<WantedParts> wanted = {
      parts_of(metadata, {{0, {{0, 0}, {2048, 16}}}, {0, {{2048, 0}, {2048, 8}}}}),
      parts_of(metadata, {{0, {{2048, 8}, {2048, 8}}}})};
  const LoadDistribution plan = distribute_load(metadata, wanted, 0, {.small_chunk = 0});
  ASSERT_EQ(plan.own.size(), 1U);
  EXPECT_EQ(plan.own[0].box, (Box{{0, 0}, {2048, 16}}));
  ASSERT_EQ(plan.slabs.size(), 1U);
  EXPECT_EQ(plan.slabs[0].box, (Box{{2048, 0}, {2048, 16}}));
}

TEST(LoadDistribution, AChunkThatCanOnlyBeReadAsAWholeIsGivenToOneRank) {
  const Metadata metadata = stored(2, 4096);
  std::vector<WantedParts> wanted;
  for (std::int64_t rank = 0; rank < 4; ++rank)
    wanted.push_back(
        parts_of(metadata, {{0, {{rank * 1024, 0}, {1024, 16}}}, {1, {{0, 0}, {4096, 16}}}}));
  const auto splits = distribute_load(metadata, wanted, 0, kAnySize).split_chunks;
  ASSERT_EQ(splits.size(), 2U);
  const LoadDistribution plan =
      distribute_load(metadata, wanted, 0, kAnySize, std::vector{splits[0].chunk, splits[1].chunk});
  EXPECT_THAT(plan.split_chunks, IsEmpty());
  ASSERT_EQ(plan.slabs.size(), 1U) << "of the first tensor";
  EXPECT_EQ(plan.slabs[0].box, (Box{{0, 0}, {4096, 16}}));
  EXPECT_EQ(plan.shared.size(), 5U)
      << "four parts of the slab, and the second tensor, which all want";
}

TEST(LoadDistribution, SmallNeighborsInAFileAreReadByTheSameRank) {
  Metadata metadata = stored(256, 8);
  std::uint64_t offset = 0;
  std::vector<std::pair<std::uint32_t, Box>> boxes;
  for (std::uint32_t tensor = 0; tensor < 256; ++tensor) {
    metadata.tensors[tensor].places[0] = {0, std::exchange(offset, offset + 512), 512};
    boxes.push_back({tensor, {{0, 0}, {8, 16}}});
  }
  const LoadDistribution plan =
      distribute_load(metadata, std::vector(2, parts_of(metadata, boxes)), 0);
  EXPECT_THAT(plan.read_bytes, ::testing::Each(128 * 512));
  int changes = 0;
  for (std::size_t i = 1; i < plan.shared.size(); ++i)
    changes += plan.shared[i].reader != plan.shared[i - 1].reader;
  EXPECT_LE(changes, 32) << "of 255: sixteen shares for each rank";
}

TEST(LoadDistribution, ThousandsOfReplicasArePlannedAndBalanced) {
  constexpr std::uint32_t kRanks = 2048;
  const Metadata metadata = stored(200, 64);
  std::vector<std::pair<std::uint32_t, Box>> boxes;
  for (std::uint32_t tensor = 0; tensor < 200; ++tensor)
    boxes.push_back({tensor, {{0, 0}, {64, 16}}});
  const std::vector<WantedParts> wanted(kRanks, parts_of(metadata, boxes));
  const LoadDistribution plan = distribute_load(metadata, wanted, 7, kAnySize);
  EXPECT_EQ(std::accumulate(plan.read_bytes.begin(), plan.read_bytes.end(), std::uint64_t{0}),
            200 * bytes_of(64 * 16));
  EXPECT_LE(*std::max_element(plan.read_bytes.begin(), plan.read_bytes.end()),
            2 * 200 * bytes_of(64 * 16) / kRanks);
}

TEST(WantedParts, ComeBackFromTheWire) {
  const Metadata metadata = stored(2, 8, 2);
  const WantedParts parts = parts_of(metadata, {{1, {{2, 3}, {5, 6}}}, {0, {{0, 0}, {8, 16}}}});
  const WantedParts decoded = WantedParts::decode(parts.encode(), metadata);
  ASSERT_EQ(decoded.size(), 4U);
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(decoded.tensor(i), parts.tensor(i));
    EXPECT_EQ(decoded.chunk(i), parts.chunk(i));
    EXPECT_EQ(decoded.box(i), parts.box(i));
  }
}

TEST(WantedParts, OfOtherCheckpointsAreRefused) {
  const Metadata large = stored(2, 8, 2);
  const Bytes bytes = parts_of(large, {{1, {{0, 0}, {8, 16}}}}).encode();
  EXPECT_THAT(testing::error_of([&] { WantedParts::decode(bytes, stored(1, 8, 2)); }).message(),
              HasSubstr("a tensor's number is out of range"));
  EXPECT_THAT(testing::error_of([&] { WantedParts::decode(bytes, stored(2, 8, 1)); }).message(),
              HasSubstr("a chunk's number is out of range"));
  EXPECT_THAT(testing::error_of([&] { WantedParts::decode(bytes, stored(2, 6, 2)); }).message(),
              HasSubstr("a part lies outside its tensor"));
  for (std::size_t length = 0; length < bytes.size(); ++length) {
    EXPECT_EQ(testing::error_of([&] {
                WantedParts::decode(ByteView(bytes).first(length), large);
              }).code(),
              ErrorCode::kCorrupt)
        << length;
  }
}

}  // namespace
}  // namespace dckpt::distribution_test
