#include "strategies/storage/direct_io.h"

#include <sys/mman.h>
#include <sys/vfs.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <mutex>
#include <new>
#include <utility>
#include <vector>

#include "mapping/base/huge_pages.h"

namespace dckpt::posix {
namespace {

// The numbers of ext4 and XFS in statfs(2). Network file systems batch better than a program with
// few requests in flight, and files in memory have no disk.
constexpr unsigned long kDirectFileSystems[] = {0xEF53, 0x58465342};

constexpr std::size_t kMapped = HugeBlock::kSize + kHugePage;

class Pool {
 public:
  static Pool& of_process() {
    static auto* const pool = new Pool;  // outlives every writer while the process ends
    return *pool;
  }

  std::unique_ptr<HugeBlock> take() {
    const std::lock_guard lock(mutex_);
    if (kept_.empty()) return nullptr;
    std::unique_ptr<HugeBlock> block = std::move(kept_.back());
    kept_.pop_back();
    return block;
  }

  void give_back(std::unique_ptr<HugeBlock> block) noexcept {
    const std::lock_guard lock(mutex_);
    if (kept_.size() < kKept) kept_.push_back(std::move(block));
  }

 private:
  static constexpr std::size_t kKept = 4;

  Pool() { kept_.reserve(kKept); }

  std::mutex mutex_;
  std::vector<std::unique_ptr<HugeBlock>> kept_;
};

}  // namespace

bool profits_from_direct(const Fd& fd) noexcept {
  struct statfs system {};
  return ::fstatfs(fd.get(), &system) == 0 &&
         std::ranges::find(kDirectFileSystems, static_cast<unsigned long>(system.f_type)) !=
             std::end(kDirectFileSystems);
}

HugeBlock::HugeBlock() {
  mapping_ = ::mmap(nullptr, kMapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapping_ == MAP_FAILED) throw std::bad_alloc();
  const std::size_t misplaced = reinterpret_cast<std::uintptr_t>(mapping_) % kHugePage;
  memory_ = static_cast<std::byte*>(mapping_) + (kHugePage - misplaced) % kHugePage;
  prefer_huge_pages(memory_, kSize);
}

HugeBlock::~HugeBlock() {
  ::munmap(mapping_, kMapped);
}

HugeBlock::Taken HugeBlock::take() {
  std::unique_ptr<HugeBlock> kept = Pool::of_process().take();
  return Taken(kept ? kept.release() : new HugeBlock);
}

void HugeBlock::GiveBack::operator()(HugeBlock* block) const noexcept {
  Pool::of_process().give_back(std::unique_ptr<HugeBlock>(block));
}

}  // namespace dckpt::posix
