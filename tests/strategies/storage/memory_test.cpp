#include "strategies/storage/memory.h"

#include <gtest/gtest.h>

namespace dckpt::memory_test {
namespace {

TEST(MemoryStorage, OpenFilesOutliveTheStorage) {
  auto storage = memory_storage();
  storage->create("a")->append(as_bytes("x"));
  const auto file = storage->open("a");
  storage.reset();
  EXPECT_EQ(as_text(read_file(*file, 1)), "x");
}

TEST(MemoryStorage, DescribesFilesByItsOwnName) {
  EXPECT_EQ(memory_storage("test:")->display_path("a/b"), "test:a/b");
}

}  // namespace
}  // namespace dckpt::memory_test
