#include "mapping/base/wire.h"

#include <gtest/gtest.h>

#include "mapping/base/error.h"

namespace dckpt::wire_test {
namespace {

TEST(Wire, ReadsBackWhatWasWritten) {
  Bytes bytes;
  WireWriter writer(bytes);
  writer.number(300);
  writer.text("key");
  WireReader reader(bytes, "a message");
  EXPECT_EQ(reader.number(), 300U);
  EXPECT_EQ(reader.text(), "key");
  EXPECT_NO_THROW(reader.finish());
}

TEST(Wire, ACountIsComparedWithTheBytesBehindIt) {
  const Bytes one_thing_but_nothing_follows{std::byte{1}};
  EXPECT_THROW(WireReader(one_thing_but_nothing_follows, "a message").count(), CheckpointError);
  EXPECT_THROW(WireReader(one_thing_but_nothing_follows, "a message").text(), CheckpointError);
}

}  // namespace
}  // namespace dckpt::wire_test
