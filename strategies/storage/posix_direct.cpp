// Writing without the page cache (O_DIRECT).
//
// Appended data is copied into a block. Two threads of the file write full blocks while the next
// one fills, so the disk is always busy, no copy stays in the page cache, and fsync only has to
// wait for the file's own entry. Only multiples of kAlignment are written directly. The remainder
// goes through the page cache when the file is synced or closed, and also stays in its block, so
// that appending can continue.
//
// File systems let only one thread at a time write beyond the end of a file. It therefore has its
// expected size from the beginning, and its real one before it is synced or closed.

#include <fcntl.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <exception>
#include <mutex>
#include <new>
#include <system_error>
#include <thread>
#include <vector>

#include "strategies/storage/posix_write.h"

namespace dckpt::posix {
namespace {

constexpr std::size_t kBlock = std::size_t{4} << 20;
constexpr std::size_t kBlocks = 3;
constexpr std::size_t kWriters = 2;
// Of offsets, lengths and memory: what disks and file systems ask for at most.
constexpr std::size_t kAlignment = 4096;

struct Freed {
  void operator()(std::byte* memory) const noexcept { std::free(memory); }
};

struct Block {
  std::unique_ptr<std::byte, Freed> memory{
      static_cast<std::byte*>(std::aligned_alloc(kAlignment, kBlock))};
  std::uint64_t offset = 0;  ///< in the file, a multiple of kAlignment
  std::size_t size = 0;
};

class DirectFile final : public WritableFile {
 public:
  DirectFile(Fd fd, std::string path, const CreateOptions& options)
      : fd_(std::move(fd)),
        path_(std::move(path)),
        reserved_(reserve(fd_, path_, options.size_hint, Reserved::kSize)) {
    filling_ = &blocks_.front();
    for (Block& block : blocks_) {
      if (!block.memory) throw std::bad_alloc();
      if (&block != filling_) free_.push_back(&block);
    }
  }

  ~DirectFile() override {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    changed_.notify_all();
  }

  const std::string& name() const noexcept override { return path_; }
  std::uint64_t position() const noexcept override { return filling_->offset + filling_->size; }

  void append(std::span<const ByteView> parts) override {
    for (ByteView part : parts) {
      while (!part.empty()) {
        const std::size_t count = std::min(part.size(), kBlock - filling_->size);
        std::memcpy(filling_->memory.get() + filling_->size, part.data(), count);
        filling_->size += count;
        part = part.subspan(count);
        if (filling_->size == kBlock) hand_over();
      }
    }
  }

  void sync() override {
    write_rest();
    trim();
    sync_file(fd_, path_);
  }

  IoEngine engine() const noexcept override { return IoEngine::kDirect; }

  void close() override {
    if (!fd_) return;
    write_rest();
    trim();
    close_file(fd_, path_);
  }

 private:
  /// The filled block to the writers, and a free one to be filled.
  void hand_over() {
    std::unique_lock lock(mutex_);
    full_.push_back(filling_);
    if (writers_.size() < kWriters) {
      try {
        writers_.emplace_back([this] { run(); });
      } catch (const std::system_error&) {  // no thread to be had
        if (writers_.empty()) write_full(lock);
      }
    }
    changed_.notify_all();
    changed_.wait(lock, [&] { return !free_.empty(); });
    const std::uint64_t end = position();
    filling_ = free_.back();
    free_.pop_back();
    filling_->offset = end;
    filling_->size = 0;
    if (failure_) wait_for_writers(lock);
  }

  /// Until nothing is being written; throws what the writers met.
  void wait_for_writers(std::unique_lock<std::mutex>& lock) {
    changed_.wait(lock, [&] { return free_.size() + 1 == kBlocks; });
    if (failure_) std::rethrow_exception(failure_);
  }

  void run() {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [&] { return !full_.empty() || stopping_; });
      if (full_.empty()) return;
      write_full(lock);
    }
  }

  /// Writes a full block, with `lock` released meanwhile.
  void write_full(std::unique_lock<std::mutex>& lock) {
    Block* block = full_.front();
    full_.pop_front();
    lock.unlock();
    std::exception_ptr failure;
    try {
      write(block->memory.get(), block->size, block->offset);
    } catch (...) {
      failure = std::current_exception();
    }
    lock.lock();
    if (failure && (!failure_ || block->offset < failed_at_)) {
      failure_ = failure;
      failed_at_ = block->offset;
    }
    free_.push_back(block);
    changed_.notify_all();
  }

  void write_rest() {
    {
      std::unique_lock lock(mutex_);
      wait_for_writers(lock);
    }
    const std::size_t whole = filling_->size / kAlignment * kAlignment;
    const std::size_t rest = filling_->size - whole;
    if (whole > 0) {
      write(filling_->memory.get(), whole, filling_->offset);
      std::memmove(filling_->memory.get(), filling_->memory.get() + whole, rest);
      filling_->offset += whole;
      filling_->size = rest;
    }
    if (rest == 0) return;
    const bool was_direct = direct_;
    set_direct(false);
    write(filling_->memory.get(), rest, filling_->offset);
    set_direct(was_direct);
  }

  void trim() {
    give_back(fd_, path_, position(), reserved_);
    reserved_ = 0;
  }

  void write(std::byte* data, std::size_t size, std::uint64_t offset) {
    for (std::uint64_t at = offset;;) {
      const bool direct = direct_;
      iovec part{data + (at - offset), size - static_cast<std::size_t>(at - offset)};
      const int error = write_parts(fd_, {&part, 1}, at);
      if (error == 0) return;
      // The file system requires a different alignment, or a short write left us unaligned.
      if (error != EINVAL || !direct) throw write_error(fd_, path_, offset + size - at, error, at);
      set_direct(false);
    }
  }

  void set_direct(bool direct) {
    const int flags = ::fcntl(fd_.get(), F_GETFL);
    if (flags < 0 ||
        ::fcntl(fd_.get(), F_SETFL, direct ? flags | O_DIRECT : flags & ~O_DIRECT) != 0)
      throw system_error("cannot turn direct writing on or off", errno, path_);
    direct_ = direct;
  }

  Fd fd_;
  std::string path_;
  std::uint64_t reserved_;
  std::atomic<bool> direct_{true};
  std::array<Block, kBlocks> blocks_;
  Block* filling_ = nullptr;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Block*> free_;
  std::deque<Block*> full_;  ///< in the order of the file
  bool stopping_ = false;
  std::exception_ptr failure_;  ///< of the first block of the file that failed
  std::uint64_t failed_at_ = 0;
  std::vector<std::jthread> writers_;
};

}  // namespace

std::unique_ptr<WritableFile> direct_file(Fd fd, std::string path, const CreateOptions& options) {
  return std::make_unique<DirectFile>(std::move(fd), std::move(path), options);
}

}  // namespace dckpt::posix
