// The expected bytes are those of Python's pickle.dumps for the same object, if Python writes it in
// the same way.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "strategies/formats/pickle/writer.h"
#include "tests/strategies/formats/pickle/pickle_files.h"

namespace dckpt::pickle::writer_test {
namespace {

using namespace std::string_literals;

std::string text_of(PickleWriter& writer) {
  return std::string(as_text(writer.finish()));
}

template <typename Body>
std::string emitted(int protocol, Body&& body) {
  PickleWriter writer(protocol);
  body(writer);
  return text_of(writer).substr(2);  // after PROTO
}

TEST(PickleWriter, WritesADictAsPythonDoes) {
  // pickle.dumps({"a": (1, 2), "b": [1.5, None, True]}, 2)
  PickleWriter writer;
  writer.empty_dict();
  writer.put();
  writer.mark();
  writer.text("a");
  writer.integer(1);
  writer.integer(2);
  writer.tuple(2);
  writer.put();
  writer.text("b");
  writer.empty_list();
  writer.put();
  writer.mark();
  writer.real(1.5);
  writer.none();
  writer.boolean(true);
  writer.append_items();
  writer.set_items();
  EXPECT_EQ(text_of(writer),
            "\x80\x02}q\0(X\1\0\0\0aq\1K\1K\2\x86q\2X\1\0\0\0bq\3]q\4(G?\xF8\0\0\0\0\0\0N\x88"
            "eu."s);
}

TEST(PickleWriter, IntegersTakeTheShortestForm) {
  const auto integer = [](std::int64_t value) {
    return emitted(2, [&](PickleWriter& writer) { writer.integer(value); });
  };
  EXPECT_EQ(integer(255), "K\xFF.");
  EXPECT_EQ(integer(256), "M\0\1."s);
  EXPECT_EQ(integer(65536), "J\0\0\1\0."s);
  EXPECT_EQ(integer(-1), "J\xFF\xFF\xFF\xFF.");
  EXPECT_EQ(integer(INT64_C(1) << 31), "\x8A\5\0\0\0\x80\0."s);
  EXPECT_EQ(integer(-(INT64_C(1) << 31) - 1), "\x8A\5\xFF\xFF\xFF\x7F\xFF.");
  EXPECT_EQ(integer(INT64_MIN), "\x8A\x08\0\0\0\0\0\0\0\x80."s);
  EXPECT_EQ(integer(INT64_MAX), "\x8A\x08\xFF\xFF\xFF\xFF\xFF\xFF\xFF\x7F.");
}

TEST(PickleWriter, RepeatedTextsAndGlobalsAreReferredTo) {
  EXPECT_EQ(emitted(2,
                    [](PickleWriter& writer) {
                      writer.text("ab");
                      writer.text("ab");
                      writer.global("m", "f");
                      writer.global("m", "f");
                    }),
            "X\2\0\0\0abq\0h\0cm\nf\nq\1h\1."s);
  EXPECT_EQ(emitted(4,
                    [](PickleWriter& writer) {
                      writer.text("m");
                      writer.global("m", "f");
                      writer.global("m", "f");
                    }),
            "\x8C\1m\x94h\0\x8C\1f\x94\x93\x94h\2."s);
}

TEST(PickleWriter, MemoSlotsBeyondAByte) {
  const std::string pickle = emitted(2, [](PickleWriter& writer) {
    for (int i = 0; i < 257; ++i) {
      writer.none();
      writer.put();
    }
    writer.get(256);
  });
  EXPECT_THAT(pickle, ::testing::EndsWith("Nq\xFFNr\0\1\0\0j\0\1\0\0."s));
}

TEST(PickleWriter, DottedNamesOfProtocol2AreGetattrCalls) {
  // pickle.dumps(Outer.Inner, 2), with builtins for Python 2's __builtin__
  EXPECT_EQ(emitted(2, [](PickleWriter& writer) { writer.global("m", "Outer.Inner"); }),
            "cbuiltins\ngetattr\nq\0cm\nOuter\nq\1X\5\0\0\0Innerq\2\x86R."s);
  const std::string deep = emitted(2, [](PickleWriter& writer) { writer.global("m", "A.B.C"); });
  const Value value = load("\x80\x02" + deep);
  EXPECT_EQ(value.as_opaque().args.items()[1], Value("C"));
  EXPECT_EQ(value.as_opaque().args.items()[0].as_opaque().args,
            Value::tuple({Global{"m", "A"}, "B"}));
}

TEST(PickleWriter, WhatCannotBeWrittenIsRefused) {
  PickleWriter writer(2);
  EXPECT_EQ(error_of([&] { writer.global("m\nos", "system"); }).code(),
            ErrorCode::kInvalidArgument);
  EXPECT_EQ(error_of([&] { writer.global("", "f"); }).code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(error_of([&] { writer.global("dbm", "open"); }).code(),
            ErrorCode::kInvalidArgument);  // Python reads dbm.ndbm at protocol 2
  EXPECT_EQ(error_of([] { PickleWriter wrong(3); }).code(), ErrorCode::kInvalidArgument);
}

TEST(WritePickle, RefusesObjectsThatNoReaderWouldTake) {
  const auto error = error_of([] {
    write_pickle(Opaque{.callable = Global{"m", "C"}, .args = Value::list({1})});
  });
  EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
  EXPECT_THAT(error.message(), ::testing::HasSubstr("arguments are not a tuple"));
}

}  // namespace
}  // namespace dckpt::pickle::writer_test
