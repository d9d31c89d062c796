// The tracker of a training root, and the names of its entries. Accepted names lead only to
// directories of the root.

#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "dist_checkpointing/open/tracker.h"
#include "dist_checkpointing/training_root/staging_token.h"
#include "mapping/base/error.h"
#include "strategies/storage/hidden_sibling.h"
#include "strategies/storage/memory.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto root = dckpt::memory_storage();
  root->put(dckpt::kTrackerFile, dckpt::as_bytes(text));
  try {
    const auto directory = dckpt::read_tracker(*root);
    if (!directory ||
        (*directory != dckpt::kReleaseDirectory && !dckpt::parse_iteration_directory(*directory)))
      std::abort();
  } catch (const dckpt::CheckpointError&) {
  }
  const auto iteration = dckpt::parse_iteration_directory(text);
  if (iteration && dckpt::iteration_directory(*iteration) != text) std::abort();
  const auto sibling = dckpt::parse_hidden_sibling(text);
  if (sibling && to_string(*sibling) != text) std::abort();
  dckpt::made_by_running_process(text);
  return 0;
}
