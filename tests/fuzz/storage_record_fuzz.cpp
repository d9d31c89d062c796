// The record of another rank's reads while it opened a checkpoint.

#include <cstdint>
#include <cstdlib>
#include <memory>

#include "mapping/base/error.h"
#include "strategies/storage/memory.h"
#include "strategies/storage/recorded.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  constexpr std::uint64_t kMostContents = std::uint64_t{1} << 20;
  try {
    const auto record = std::make_shared<dckpt::StorageRecord>(
        dckpt::ByteView(reinterpret_cast<const std::byte*>(data), size));
    if (dckpt::StorageRecord(record->head()).contents_size() != record->contents_size())
      std::abort();
    if (record->contents_size() > kMostContents) return 0;
    record->contents();
    const auto storage = dckpt::recorded_storage(dckpt::memory_storage(), record);
    record->is_of(storage);
    for (const dckpt::FileInfo& entry : storage->list("")) storage->stat(entry.name);
    const auto file = storage->open("a");
    dckpt::Bytes into(file->size() < 64 ? file->size() : 64);
    file->read(0, into);
  } catch (const dckpt::CheckpointError&) {
  }
  return 0;
}
