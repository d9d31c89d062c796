#include <gtest/gtest.h>

#include "strategies/storage/memory.h"
#include "tests/support/code_of.h"
#include "tests/support/faulty_storage.h"
#include "tests/support/simulated_disk.h"

// Tests of the simulated disk and the faults that other tests rely on.
namespace dckpt::fault_injection_test {
namespace {

TEST(SimulatedDisk, LosesWhatWasNotSynced) {
  SimulatedDisk disk;
  const auto file = disk.create("a");
  file->append(as_bytes("synced"));
  file->sync();
  file->append(as_bytes(" and not"));
  const PowerCut cut{PowerCut::Kind::kLosesUnsynced};
  EXPECT_FALSE(disk.after(cut)->stat("a")) << "its name is not durable";
  disk.sync_directory("");
  EXPECT_EQ(as_text(read_file(*disk.after(cut)->open("a"), 100)), "synced");
  disk.rename("a", "b");
  EXPECT_TRUE(disk.after(cut)->stat("a"));
  EXPECT_TRUE(disk.after({PowerCut::Kind::kKeepsUnsynced})->stat("b"));
}

TEST(FaultyStorage, FailsOnceOrIsDeadFromThenOn) {
  for (const Fault::Kind kind :
       {Fault::Kind::kError, Fault::Kind::kErrorAfterEffect, Fault::Kind::kCrash}) {
    FaultyStorage storage(memory_storage(), {kind, 2});
    storage.make_directory("a");
    EXPECT_EQ(code_of([&] { storage.make_directory("b"); }), "io");
    EXPECT_EQ(code_of([&] { storage.make_directory("c"); }),
              kind == Fault::Kind::kCrash ? "io" : "no error");
    EXPECT_TRUE(storage.fired());
    EXPECT_EQ(storage.operations(), 3u);
    if (kind == Fault::Kind::kCrash) continue;
    EXPECT_EQ(storage.stat("b").has_value(), kind == Fault::Kind::kErrorAfterEffect);
  }
}

}  // namespace
}  // namespace dckpt::fault_injection_test
