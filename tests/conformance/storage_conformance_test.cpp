#include "conformance/storage_conformance.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "strategies/storage/counting.h"
#include "strategies/storage/memory.h"
#include "strategies/storage/posix.h"
#include "tests/support/faulty_storage.h"
#include "tests/support/object_store.h"
#include "tests/support/simulated_disk.h"
#include "tests/support/temp_dir.h"

namespace dckpt::storage_conformance_test {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;

/// Returns a storage that keeps its directory as long as it is used.
std::shared_ptr<Storage> storage_in_temp_dir() {
  const auto directory = std::make_shared<TempDir>();
  const auto storage = posix_storage(directory->path());
  return {storage.get(), [directory, storage](Storage*) {}};
}

std::shared_ptr<Storage> with_root(std::shared_ptr<Storage> storage) {
  storage->make_directory("");
  return storage;
}

std::shared_ptr<Storage> subtree_in_temp_dir() {
  const auto above = storage_in_temp_dir();
  const auto subtree = with_root(above->subtree("a/b"));
  return {subtree.get(), [above, subtree](Storage*) {}};
}

struct World {
  std::string name;
  std::function<std::shared_ptr<Storage>()> make;  ///< returns a new, empty storage
  std::string above = {};  ///< name of the root in another storage, which counts toward the length
                           ///< of names
};

const World kWorlds[] = {
    {"posix", storage_in_temp_dir},
    {"memory", [] { return memory_storage(); }},
    {"counting",
     [] { return counting_storage(memory_storage(), std::make_shared<StorageCounters>()); }},
    {"faulty_without_faults", [] { return std::make_shared<FaultyStorage>(memory_storage()); }},
    {"simulated_disk", [] { return std::make_shared<SimulatedDisk>(); }},
    {"objects", [] { return std::make_shared<ObjectStore>(ObjectStore::Pace{}); }},
    {"late_objects",
     [] {
       using Milliseconds = ObjectStore::Milliseconds;
       return std::make_shared<ObjectStore>(ObjectStore::Pace{Milliseconds(1), Milliseconds(20)});
     }},
    {"subtree", [] { return with_root(memory_storage()->subtree("a/b")); }, "a/b"},
    {"subtree_of_posix", subtree_in_temp_dir},
};

TEST(StorageConformance, OurStoragesConform) {
  for (const World& world : kWorlds) {
    const ConformanceReport report = check_storage(world.make, world.above);
    EXPECT_THAT(report.problems, ::testing::IsEmpty()) << world.name;
    EXPECT_GT(report.checks, 25);
  }
}

TEST(StorageConformance, MistakesAreReported) {
  struct Mistaken final : FaultyStorage {
    Mistaken() : FaultyStorage(memory_storage()) {}
    std::unique_ptr<WritableFile> create(const std::string& name,
                                         const CreateOptions& options) override {
      remove_all(name);  // replaces what must be refused
      return FaultyStorage::create(name, options);
    }
    std::vector<FileInfo> list(const std::string& directory) const override {
      auto entries = FaultyStorage::list(directory);
      std::ranges::reverse(entries);
      return entries;
    }
  };
  const auto problems = check_storage([] { return std::make_shared<Mistaken>(); }).problems;
  EXPECT_THAT(problems,
              Contains(AllOf(HasSubstr("create refuses an existing file"),
                             HasSubstr("expected the error already-exists, found no error"))));
  EXPECT_THAT(problems, Contains(HasSubstr("list is in name order with kinds and sizes")));
}

}  // namespace
}  // namespace dckpt::storage_conformance_test
