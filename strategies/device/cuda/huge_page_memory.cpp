#include "strategies/device/cuda/huge_page_memory.h"

#include <cuda_runtime_api.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdint>

#include "mapping/base/huge_pages.h"
#include "mapping/base/parallel_for.h"

namespace dckpt::cuda {
namespace {

constexpr std::size_t kSmallPage = 4096;
constexpr int kThreads = 4;
constexpr std::size_t kBytesPerThread = std::size_t{16} << 20;  // starting one costs less

std::size_t rounded(std::size_t bytes) {
  return (bytes + kHugePage - 1) / kHugePage * kHugePage;
}

/// Maps memory that begins with a huge page, or returns null. `size` is a multiple of a huge page.
std::byte* map(std::size_t size) {
  void* const mapped =
      ::mmap(nullptr, size + kHugePage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) return nullptr;
  auto* const begin = static_cast<std::byte*>(mapped);
  const std::size_t before =
      rounded(reinterpret_cast<std::uintptr_t>(begin)) - reinterpret_cast<std::uintptr_t>(begin);
  if (before > 0) ::munmap(begin, before);
  if (before < kHugePage) ::munmap(begin + before + size, kHugePage - before);
  return begin + before;
}

/// Makes the system provide the pages, which would otherwise happen in one thread.
void touch(std::byte* memory, std::size_t size) {
  parallel_for((size + kBytesPerThread - 1) / kBytesPerThread, kThreads, [&](std::size_t part) {
    const std::size_t end = std::min(size, (part + 1) * kBytesPerThread);
    for (std::size_t at = part * kBytesPerThread; at < end; at += kSmallPage)
      *static_cast<volatile std::byte*>(memory + at) = std::byte{};
  });
}

}  // namespace

std::byte* HugePageMemory::allocate(std::size_t bytes) {
  const std::size_t size = rounded(bytes);
  std::byte* const memory = map(size);
  if (memory == nullptr) return nullptr;
  prefer_huge_pages(memory, size);
  if (::madvise(memory, size, MADV_DONTFORK) == 0) {
    touch(memory, size);
    if (cudaHostRegister(memory, size, cudaHostRegisterPortable) == cudaSuccess) {
      const std::lock_guard lock(mutex_);
      sizes_[memory] = size;
      return memory;
    }
    cudaGetLastError();  // the caller has another way
  }
  ::munmap(memory, size);
  return nullptr;
}

bool HugePageMemory::free(std::byte* memory) noexcept {
  std::size_t size = 0;
  {
    const std::lock_guard lock(mutex_);
    const auto found = sizes_.find(memory);
    if (found == sizes_.end()) return false;
    size = found->second;
    sizes_.erase(found);
  }
  if (cudaHostUnregister(memory) == cudaSuccess)
    ::munmap(memory, size);
  else
    cudaGetLastError();  // the GPU may still reach it
  return true;
}

}  // namespace dckpt::cuda
