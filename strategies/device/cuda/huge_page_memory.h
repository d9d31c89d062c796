#pragma once

#include <cstddef>
#include <map>
#include <mutex>

namespace dckpt::cuda {

/// Page-locked memory for copies of all GPUs, in huge pages: CUDA's own allocation takes several
/// times as long, because it gets and registers small pages in one thread. Safe to use from several
/// threads.
class HugePageMemory {
 public:
  /// Returns null if the system has no more, or CUDA does not register it. The calling thread's
  /// current GPU must be one that the process uses. Forks of the process do not inherit the memory:
  /// a page that they share would be replaced at the next write, behind the GPU's back.
  std::byte* allocate(std::size_t bytes);
  /// Returns whether the memory is from allocate(), and then frees it.
  bool free(std::byte* memory) noexcept;

 private:
  std::mutex mutex_;
  std::map<std::byte*, std::size_t> sizes_;
};

}  // namespace dckpt::cuda
