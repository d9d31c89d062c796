#include "dist_checkpointing/save/save_messages.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "mapping/base/error.h"
#include "tests/support/code_of.h"

namespace dckpt::save_messages_test {
namespace {

const WrittenByRank kWritten{
    .items = {.files = {"__3_0.distcp", "__3_1.distcp"},
              .places = {{1, 4096, 700}, {0, 0, 12, StorageCodec::kZstd, 0xFFFFFFFF}}},
    .digests = {{"__3_0.distcp", {std::string(64, 'a'), 5'000'000'000}}},
    .paths = {{"layers.2.w", {"layers", std::int64_t{2}, "w"}}, {"b under another name", {"b"}}},
    .report = {.bytes = 712, .files = 2, .engine = "direct"}};

TEST(SaveMessages, WhatARankWroteArrivesAsItIs) {
  const WrittenByRank arrived = decode_written(encode(kWritten));
  EXPECT_EQ(arrived.items.files, kWritten.items.files);
  EXPECT_EQ(arrived.items.places, kWritten.items.places);
  EXPECT_EQ(arrived.digests, kWritten.digests);
  EXPECT_EQ(arrived.report, kWritten.report);
  EXPECT_EQ(arrived.paths, kWritten.paths);
}

TEST(SaveMessages, ACutMessageIsRefusedWhereverItIsCut) {
  const Bytes whole = encode(kWritten);
  for (std::size_t length = 0; length < whole.size(); ++length)
    EXPECT_EQ(code_of([&] { decode_written(ByteView(whole).first(length)); }), "corrupt") << length;
  const Bytes assignment =
      encode(RankAssignment{".c.saving-1", "id", to_bytes("answer"), {1, 2, 5}});
  EXPECT_THAT(decode_assignment(assignment, 6).compared, ::testing::ElementsAre(1, 2, 5));
  EXPECT_EQ(code_of([&] { decode_assignment(assignment, 5); }), "corrupt") << "no such item";
  for (std::size_t length = 0; length < assignment.size(); ++length)
    EXPECT_EQ(code_of([&] { decode_assignment(ByteView(assignment).first(length), 6); }),
              "corrupt");
}

TEST(SaveMessages, APlaceIsInOneOfTheFiles) {
  WrittenByRank written = kWritten;
  written.items.places.push_back({2, 0, 1});
  EXPECT_EQ(code_of([&] { decode_written(encode(written)); }), "corrupt");
}

}  // namespace
}  // namespace dckpt::save_messages_test
