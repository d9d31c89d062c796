#include "strategies/tensor_io/staging_pool.h"

namespace dckpt {

std::vector<std::byte*> StagingPool::acquire(std::size_t count) {
  std::vector<std::byte*> taken;
  taken.reserve(count);
  while (taken.size() < count) {
    if (free_.empty())
      free_.push_back(
          blocks_.emplace_back(std::make_unique_for_overwrite<std::byte[]>(kBlockBytes)).get());
    taken.push_back(free_.back());
    free_.pop_back();
  }
  return taken;
}

}  // namespace dckpt
