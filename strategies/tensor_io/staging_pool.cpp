#include "strategies/tensor_io/staging_pool.h"

#include <algorithm>
#include <mutex>
#include <new>
#include <utility>
#include <vector>

#include "mapping/base/format.h"
#include "mapping/base/huge_pages.h"
#include "mapping/base/log.h"
#include "mapping/base/text.h"
#include "strategies/device/copy_event.h"
#include "strategies/device/registry.h"

namespace dckpt {

namespace {

constexpr std::size_t kMaxSlabBlocks = 64;

std::byte* allocate_ordinary(std::size_t bytes) {
  auto* const memory = static_cast<std::byte*>(::operator new(bytes, std::align_val_t(kHugePage)));
  prefer_huge_pages(memory, bytes);
  return memory;
}

/// Keeps memory for good: a copy that hangs would overwrite the next contents.
void keep(std::byte* memory) noexcept {
  static std::mutex mutex;
  static auto* const kept = new std::vector<std::byte*>;  // within reach of checkers for leaks
  try {
    const std::lock_guard lock(mutex);
    kept->push_back(memory);
  } catch (const std::bad_alloc&) {  // it is kept all the same
  }
}

}  // namespace

StagingPool::~StagingPool() {
  reclaim();
  for (Slab& slab : slabs_) {
    if (is_abandoned(slab)) keep(slab.memory.release());
  }
}

bool StagingPool::is_abandoned(const Slab& slab) const {
  const std::byte* const begin = slab.memory.get();
  return std::ranges::any_of(abandoned_, [&](const Abandoned& lost) {
    return lost.block >= begin && lost.block < begin + slab.blocks * kBlockBytes;
  });
}

void StagingPool::lock_pages_for(const Device& device) {
  const auto registered = find_device(device.kind);
  if (registered == nullptr || registered->runtime == runtime_) return;
  reclaim();
  std::erase_if(slabs_, [&](const Slab& slab) {
    if (is_abandoned(slab)) return false;
    allocated_ -= slab.blocks;
    return true;
  });
  free_.clear();
  runtime_ = registered->runtime;
  device_ = device.index;
  exhausted_ = false;
}

StagingPool::Slab StagingPool::allocate(std::size_t blocks) {
  const std::size_t bytes = blocks * kBlockBytes;
  if (runtime_ != nullptr && !exhausted_) {
    if (std::byte* const memory = runtime_->allocate_page_locked(device_, bytes)) {
      return {{memory, [runtime = runtime_](std::byte* slab) { runtime->free_page_locked(slab); }},
              blocks};
    }
    if (blocks > 1) return allocate(blocks / 2);
    exhausted_ = true;
    log(LogLevel::kWarning,
        str_format("{} page-locked memory is exhausted: {} of the staging memory of background "
                   "saves are page-locked, the rest is ordinary memory, which is slower",
                   runtime_->name(), human_bytes(allocated_ * kBlockBytes)));
  }
  return {{allocate_ordinary(bytes),
           [](std::byte* slab) { ::operator delete(slab, std::align_val_t(kHugePage)); }},
          blocks};
}

/// Grows by about the allocated size, so that small states take little.
void StagingPool::grow(std::size_t wanted) {
  const std::size_t blocks = std::max(wanted, std::min(allocated_, kMaxSlabBlocks));
  const Slab& slab = slabs_.emplace_back(allocate(std::min(blocks, capacity_ - allocated_)));
  allocated_ += slab.blocks;
  free_.reserve(allocated_);
  for (std::size_t i = slab.blocks; i-- > 0;) free_.push_back(slab.memory.get() + i * kBlockBytes);
}

std::vector<std::byte*> StagingPool::acquire(std::size_t count) {
  while (free_.size() < count) grow(count - free_.size());
  std::vector<std::byte*> taken(free_.rbegin(),
                                free_.rbegin() + static_cast<std::ptrdiff_t>(count));
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
