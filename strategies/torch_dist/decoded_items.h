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

/// The largest decoded item, in bytes, that is held in memory as a whole. Users of a larger one
/// have a decoder each instead, which takes less.
inline constexpr std::uint64_t kWholeDecodedItem = std::uint64_t{4} << 20;

/// The decoded content of compressed items. A small item is decoded once for all who use it at the
/// same time or right after each other, since the last one stays in memory. A large item is decoded
/// again for parts that its decoders have already passed. Safe to use from several threads.
class DecodedItems {
 public:
  using Open = std::function<std::unique_ptr<ReadableFile>()>;

  /// Returns the item at `place` of `file`, which `open` opens again. `likely` and `limit` are
  /// those of zstd_decode, whose errors are thrown.
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
