#include "strategies/comm/sockets/handshake.h"

#include <gmock/gmock.h>

#include <random>

namespace dckpt::sockets::handshake_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

JobKey key() {
  JobKey key{};
  for (std::size_t i = 0; i < key.size(); ++i) key[i] = static_cast<std::byte>(i + 1);
  return key;
}

TEST(Handshake, WhatARankSaysIsUnderstood) {
  const Hello hello{"a secret\0with a zero byte", 7, 1024, "10.0.0.3:41233"};
  EXPECT_EQ(decode_hello(encode(hello)), hello);

  const Greeting greeting{key(), 7, 2};
  EXPECT_EQ(decode_greeting(encode(greeting)), greeting);

  const Answer answer = decode_answer(encode(Answer{{}, key(), {"a:1", "[::1]:2"}}), 2);
  EXPECT_FALSE(answer.refusal);
  EXPECT_EQ(answer.key, key());
  EXPECT_THAT(answer.addresses, ElementsAre("a:1", "[::1]:2"));

  const Answer refused = decode_answer(
      encode(Answer{.refusal = CheckpointError(ErrorCode::kUnavailable, "rank 3 is missing")}), 2);
  ASSERT_TRUE(refused.refusal);
  EXPECT_EQ(refused.refusal->code(), ErrorCode::kUnavailable);
  EXPECT_EQ(refused.refusal->message(), "rank 3 is missing");
}

TEST(Handshake, EveryCutOrChangedHelloIsNoHelloOrOfAnotherVersion) {
  const Bytes bytes = encode(Hello{"token", 1, 2, "10.0.0.3:1"});
  for (std::size_t length = 0; length < bytes.size(); ++length)
    EXPECT_FALSE(decode_hello(ByteView(bytes).first(length))) << length;
  Bytes longer = bytes;
  longer.push_back(std::byte{0});
  EXPECT_FALSE(decode_hello(longer));

  Bytes newer = bytes;
  newer[13] = std::byte{'2'};  // the last digit of the version
  try {
    (void)decode_hello(newer);
    FAIL() << "a newer hello was taken";
  } catch (const CheckpointError& error) {
    EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
    EXPECT_THAT(error.message(), HasSubstr("version 02 of the protocol, this one 01"));
  }
}

TEST(Handshake, TheTokenIsKnownInEveryVersion) {
  Bytes newer = encode(Hello{"token", 1, 2, "10.0.0.3:1"});
  newer[13] = std::byte{'2'};
  newer.resize(newer.size() - 3);  // whatever follows
  EXPECT_EQ(token_in(newer), "token");
  EXPECT_EQ(token_in(ByteView(newer).first(16)), std::nullopt);
}

TEST(Handshake, GreetingsOfOthersAreNone) {
  const auto greeting = encode(Greeting{key(), 7, 2});
  EXPECT_FALSE(decode_greeting(ByteView(greeting).first(kGreetingBytes - 1)));
  auto changed = greeting;
  changed[0] ^= std::byte{1};
  EXPECT_FALSE(decode_greeting(changed));
}

TEST(Handshake, AnAnswerToAnotherNumberOfRanksIsAnError) {
  const Bytes bytes = encode(Answer{{}, key(), {"a:1", "b:2"}});
  for (const int size : {1, 3}) EXPECT_THROW((void)decode_answer(bytes, size), CheckpointError);
  for (std::size_t length = 0; length < bytes.size(); ++length)
    EXPECT_THROW((void)decode_answer(ByteView(bytes).first(length), 2), CheckpointError) << length;
}

TEST(Handshake, AnswersFitTheirLimit) {
  const std::string longest(kMostAddress, 'a');
  for (const int size : {1, 1000}) {
    const std::vector<std::string> all(static_cast<std::size_t>(size), longest);
    EXPECT_LE(encode(Answer{{}, key(), all}).size(), most_answer(size));
  }
  const CheckpointError error(
      ErrorCode::kIo, std::string(1 << 20, 'x'),
      {.key = std::string(1 << 20, 'k'), .file = std::string(1 << 20, 'f')});
  EXPECT_LE(encode(Answer{.refusal = error}).size(), most_answer(1));
}

}  // namespace
}  // namespace dckpt::sockets::handshake_test
