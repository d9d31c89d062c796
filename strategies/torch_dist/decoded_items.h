#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include "mapping/base/readable_file.h"
#include "mapping/planning/metadata.h"

namespace dckpt {

/// The largest decoded item that is held in memory as a whole. Of larger ones every user has a
/// decoder instead, which takes less.
inline constexpr std::uint64_t kWholeDecodedItem = std::uint64_t{4} << 20;

/// The decoded content of compressed items. A small one is decoded once for all who use it at the
/// same time, and once for those who use it one after the other; the last one stays in memory. A
/// large one is decoded anew for those who read other parts of it than those that follow. Safe to
/// use from several threads.
class DecodedItems {
 public:
  using Open = std::function<std::unique_ptr<ReadableFile>()>;

  /// The item at `place` of `file`, which `open` opens again. `likely` and `limit` are those of
  /// zstd_decode, whose errors are thrown.
  std::shared_ptr<const ReadableFile> get(const ReadableFile& file, const Open& open,
                                          const StorageInfo& place, std::uint64_t likely,
                                          std::uint64_t limit) const;

 private:
  struct Item {
    std::mutex mutex;
    std::weak_ptr<const ReadableFile> content;
  };

  mutable std::mutex mutex_;
  mutable std::map<std::pair<std::uint32_t, std::uint64_t>, std::shared_ptr<Item>> items_;
  mutable std::shared_ptr<const ReadableFile> last_;
};

}  // namespace dckpt
