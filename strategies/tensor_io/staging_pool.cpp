#include "strategies/tensor_io/staging_pool.h"

#include <algorithm>
#include <utility>

#include "mapping/base/format.h"
#include "mapping/base/log.h"
#include "mapping/base/text.h"
#include "strategies/device/copy_event.h"
#include "strategies/device/registry.h"

namespace dckpt {

StagingPool::~StagingPool() {
  reclaim();
  for (const Abandoned& lost : abandoned_) {
    // A copy that hangs would overwrite what the memory is used for next.
    std::ranges::find(blocks_, lost.block, &Block::get)->release();
  }
}

void StagingPool::lock_pages_for(const Device& device) {
  const auto registered = find_device(device.kind);
  if (registered == nullptr || registered->runtime == runtime_) return;
  reclaim();
  std::erase_if(blocks_, [&](const Block& block) {
    return std::ranges::find(abandoned_, block.get(), &Abandoned::block) == abandoned_.end();
  });
  free_.clear();
  runtime_ = registered->runtime;
  device_ = device.index;
  exhausted_ = false;
}

StagingPool::Block StagingPool::allocate() {
  if (runtime_ != nullptr && !exhausted_) {
    if (std::byte* const memory = runtime_->allocate_page_locked(device_, kBlockBytes))
      return {memory, [runtime = runtime_](std::byte* block) { runtime->free_page_locked(block); }};
    exhausted_ = true;
    log(LogLevel::kWarning,
        str_format("{} page-locked memory is exhausted: {} of the staging memory of background "
                   "saves are page-locked, the rest is ordinary memory, which is slower",
                   runtime_->name(), human_bytes(blocks_.size() * kBlockBytes)));
  }
  return {std::make_unique_for_overwrite<std::byte[]>(kBlockBytes).release(),
          [](const std::byte* block) { delete[] block; }};
}

std::vector<std::byte*> StagingPool::acquire(std::size_t count) {
  while (free_.size() < count) free_.push_back(blocks_.emplace_back(allocate()).get());
  std::vector<std::byte*> taken(free_.end() - static_cast<std::ptrdiff_t>(count), free_.end());
  free_.resize(free_.size() - count);
  return taken;
}

void StagingPool::abandon(std::byte* block,
                          std::vector<std::shared_ptr<const CopyEvent>> free_when) {
  abandoned_.push_back({block, std::move(free_when)});
}

void StagingPool::reclaim() {
  std::erase_if(abandoned_, [&](const Abandoned& lost) {
    if (!std::ranges::all_of(lost.free_when, [](const auto& event) { return has_ended(*event); }))
      return false;
    free_.push_back(lost.block);
    return true;
  });
}

}  // namespace dckpt
