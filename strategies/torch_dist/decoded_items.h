#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include "mapping/base/readable_file.h"
#include "mapping/planning/metadata.h"

namespace dckpt {

/// The decoded content of compressed items, each in memory as a whole. An item is decoded once for
/// all who use it at the same time, and once for those who use it one after the other, as the
/// pieces of a large chunk are read; the last one stays in memory. Safe to use from several
/// threads.
class DecodedItems {
 public:
  /// The item at `place` of `file`. `likely` and `limit` are those of zstd_decode, whose errors are
  /// thrown.
  std::shared_ptr<const ReadableFile> get(const ReadableFile& file, const StorageInfo& place,
                                          std::uint64_t likely, std::uint64_t limit) const;

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
