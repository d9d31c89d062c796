#include "strategies/comm/rounds.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <map>
#include <random>
#include <string>

namespace dckpt::rounds_test {
namespace {

using ::testing::ElementsAre;

std::vector<std::string> rounds(std::vector<std::size_t> lengths) {
  std::vector<std::string> lines;
  for (const std::vector<TransferPiece>& round : plan_rounds(lengths, 512, 1024)) {
    std::string& line = lines.emplace_back();
    for (const TransferPiece& piece : round) {
      line += (line.empty() ? "" : " ") + std::to_string(piece.message) + "[" +
              std::to_string(piece.offset) + "+" + std::to_string(piece.length) + "]@" +
              std::to_string(piece.place);
    }
  }
  return lines;
}

TEST(Rounds, NothingTakesNone) {
  EXPECT_THAT(rounds({}), ElementsAre());
}

TEST(Rounds, ShortMessagesShareARound) {
  EXPECT_THAT(rounds({16, 300, 1}), ElementsAre("0[0+16]@0 1[0+300]@256 2[0+1]@768"));
}

TEST(Rounds, ALongMessageHasOnePieceInEach) {
  EXPECT_THAT(rounds({1025}), ElementsAre("0[0+512]@0", "0[512+512]@0", "0[1024+1]@0"));
}

TEST(Rounds, SecondPiecesFollowAllFirstOnes) {
  EXPECT_THAT(rounds({513, 512, 700}),
              ElementsAre("0[0+512]@0 1[0+512]@512", "2[0+512]@0", "0[512+1]@0 2[512+188]@256"));
}

TEST(Rounds, EveryByteTravelsOnceAndNothingOverlaps) {
  std::mt19937 random(1);
  for (int turn = 0; turn < 200; ++turn) {
    std::vector<std::size_t> lengths(1 + random() % 20);
    for (std::size_t& length : lengths) length = 1 + random() % 3000;
    std::map<std::size_t, std::size_t> sent;
    for (const std::vector<TransferPiece>& round : plan_rounds(lengths, 512, 1024)) {
      std::size_t end = 0;
      for (const TransferPiece& piece : round) {
        EXPECT_EQ(piece.offset, sent[piece.message]);
        EXPECT_GE(piece.place, end);
        EXPECT_EQ(piece.place % kPieceAlignment, 0u);
        EXPECT_EQ(piece.length, std::min<std::size_t>(512, lengths[piece.message] - piece.offset));
        sent[piece.message] += piece.length;
        end = piece.place + piece.length;
      }
      EXPECT_LE(end, 1024u);
    }
    for (std::size_t i = 0; i < lengths.size(); ++i) EXPECT_EQ(sent[i], lengths[i]);
  }
}

}  // namespace
}  // namespace dckpt::rounds_test
