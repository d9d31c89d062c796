#pragma once

#include <cstddef>
#include <deque>
#include <memory>
#include <mutex>
#include <utility>

namespace dckpt {

/// The most recently read pieces of tensors, for all threads.
template <typename Key, typename Tile>
class RecentTiles {
 public:
  explicit RecentTiles(std::size_t most) : most_(most) {}

  /// Returns a tile. `make` is called without a lock: two threads may both make a tile, and one of
  /// them is used.
  template <typename Make>
  std::shared_ptr<const Tile> get(const Key& key, const Make& make) {
    {
      const std::lock_guard lock(mutex_);
      for (const auto& [known, tile] : tiles_) {
        if (known == key) return tile;
      }
    }
    auto made = std::make_shared<const Tile>(make());
    const std::lock_guard lock(mutex_);
    tiles_.emplace_back(key, made);
    if (tiles_.size() > most_) tiles_.pop_front();
    return made;
  }

 private:
  std::size_t most_;
  std::mutex mutex_;
  std::deque<std::pair<Key, std::shared_ptr<const Tile>>> tiles_;
};

}  // namespace dckpt
