#include "tests/strategies/storage/storage_conformance.h"

#include "strategies/storage/counting.h"
#include "strategies/storage/memory.h"
#include "strategies/storage/posix.h"
#include "tests/support/faulty_storage.h"
#include "tests/support/simulated_disk.h"
#include "tests/support/temp_dir.h"

namespace dckpt {
namespace {

/// Keeps its directory as long as the storage is used.
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

const StorageWorld kWorlds[] = {
    {"posix", storage_in_temp_dir},
    {"memory", [] { return memory_storage(); }},
    {"counting",
     [] { return counting_storage(memory_storage(), std::make_shared<StorageCounters>()); }},
    {"faulty_without_faults", [] { return std::make_shared<FaultyStorage>(memory_storage()); }},
    {"simulated_disk", [] { return std::make_shared<SimulatedDisk>(); }},
    {"subtree", [] { return with_root(memory_storage()->subtree("a/b")); }, "a/b"},
    {"subtree_of_posix", subtree_in_temp_dir},
};

INSTANTIATE_TEST_SUITE_P(All, StorageConformance, testing::ValuesIn(kWorlds), name_of_storage);

}  // namespace
}  // namespace dckpt
