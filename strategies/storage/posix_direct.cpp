// Writing without the page cache (O_DIRECT).
//
// Appended data is copied into a block. Threads of the file write full blocks while the next ones
// fill, so the disk is always busy, no copy stays in the page cache, and fsync only has to wait for
// the file's own entry. Blocks lie in huge pages, of which a disk takes more in one request.
//
// Only multiples of kAlignment are written directly. Where two sections meet inside a page of that
// size, the section that comes second writes the page with the bytes that the other has left. An
// incomplete last page goes through the page cache when the file is synced or closed; if the file
// is appended to, it also stays in its block, so that appending can continue.
//
// File systems let only one thread at a time write beyond the end of a file. The file therefore has
// its expected size from the beginning, and gets its real size before it is synced or closed.

#include <fcntl.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "strategies/storage/direct_io.h"
#include "strategies/storage/posix_write.h"

namespace dckpt::posix {
namespace {

constexpr std::size_t kBlock = HugeBlock::kSize;
// The number of blocks on their way to the disk, and of threads that write them, if fewer sections
// are open.
constexpr std::size_t kInFlight = 2;
constexpr std::size_t kAlignment = kDirectAlignment;

/// The bytes of a range of the file, in memory.
class Block {
 public:
  std::byte* memory() const noexcept { return taken_->memory(); }

  std::uint64_t offset = 0;  ///< offset in the file, a multiple of kAlignment
  std::size_t begin = 0;     ///< the bytes before it belong to another section
  std::size_t size = 0;

 private:
  HugeBlock::Taken taken_ = HugeBlock::take();
};

/// A page of the file in which sections meet.
struct SharedPage {
  alignas(kAlignment) std::array<std::byte, kAlignment> bytes;
  std::vector<std::pair<std::size_t, std::size_t>> filled{};  ///< begin and end of disjoint ranges

  bool has(std::size_t begin, std::size_t end) const {
    std::size_t count = 0;
    for (const auto& [from, to] : filled) {
      if (from >= begin && to <= end) count += to - from;
    }
    return count == end - begin;
  }
};

/// The pages in which sections meet, each with the bytes that the sections have left so far.
class SharedPages {
 public:
  using Completed = std::vector<std::pair<std::uint64_t, std::unique_ptr<SharedPage>>>;

  /// Leaves only whole pages in the block. Shares the bytes at its ends that do not fill a page,
  /// unless other sections have left the rest of the last page.
  void leave_ends(Block& block, Completed& completed) {
    if (block.begin > 0) {
      const std::size_t end = std::min(block.size, kAlignment);
      share(block.offset, block.begin, end, block.memory(), completed);
      block.begin = end;
      if (end < kAlignment) return;
    }
    const std::size_t rest = block.size % kAlignment;
    if (rest == 0) return;
    std::byte* page = block.memory() + (block.size - rest);
    const std::uint64_t offset = block.offset + block.size - rest;
    if (take(offset, rest, kAlignment, page)) {
      block.size += kAlignment - rest;
    } else {
      share(offset, 0, rest, page, completed);
      block.size -= rest;
    }
  }

  /// Moves [begin, end) of the page at `offset` into `page` if other sections have left all of it.
  bool take(std::uint64_t offset, std::size_t begin, std::size_t end, std::byte* page) {
    const auto shared = pages_.find(offset);
    if (shared == pages_.end() || !shared->second->has(begin, end)) return false;
    const auto bytes = shared->second->bytes.begin();
    std::copy(bytes + begin, bytes + end, page + begin);
    auto& filled = shared->second->filled;
    std::erase_if(filled,
                  [&](const auto& part) { return part.first >= begin && part.second <= end; });
    if (filled.empty()) pages_.erase(shared);
    return true;
  }

  /// Returns the pages that are still incomplete.
  const auto& rest() const noexcept { return pages_; }

 private:
  /// Leaves [begin, end) of the page at `offset` to the section that has the rest.
  void share(std::uint64_t offset, std::size_t begin, std::size_t end, const std::byte* page,
             Completed& completed) {
    std::unique_ptr<SharedPage>& shared = pages_[offset];
    if (!shared) shared = std::make_unique<SharedPage>();
    std::copy(page + begin, page + end, shared->bytes.begin() + begin);
    shared->filled.emplace_back(begin, end);
    if (!shared->has(0, kAlignment)) return;
    completed.emplace_back(offset, std::move(shared));
    pages_.erase(offset);
  }

  std::map<std::uint64_t, std::unique_ptr<SharedPage>> pages_;  ///< by their offsets
};

class DirectFile final : public WritableFile {
 public:
  DirectFile(Fd fd, std::string path, const CreateOptions& options)
      : fd_(std::move(fd)),
        path_(std::move(path)),
        reserved_(reserve(fd_, path_, options.size_hint, Reserved::kSize)) {}

  ~DirectFile() override {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    changed_.notify_all();
  }

  const std::string& name() const noexcept override { return path_; }
  std::uint64_t position() const noexcept override { return all_.position(); }
  void append(std::span<const ByteView> parts) override { all_.append(parts); }
  std::unique_ptr<FileSection> section(std::uint64_t offset) override {
    return std::make_unique<Section>(*this, offset);
  }

  void sync() override {
    write_rest();
    sync_file(fd_, path_);
  }

  IoEngine engine() const noexcept override { return IoEngine::kDirect; }

  void close() override {
    if (!fd_) return;
    write_rest();
    close_file(fd_, path_);
  }

 private:
  class Section final : public FileSection {
   public:
    Section(DirectFile& file, std::uint64_t offset) : file_(file), position_(offset) {}
    ~Section() override {
      if (filling_ != nullptr) file_.put_back(filling_);
    }

    std::uint64_t position() const noexcept override { return position_; }

    void append(std::span<const ByteView> parts) override {
      for (ByteView part : parts) {
        while (!part.empty()) {
          if (filling_ == nullptr) filling_ = file_.take_block(position_);
          const std::size_t count = std::min(part.size(), kBlock - filling_->size);
          std::memcpy(filling_->memory() + filling_->size, part.data(), count);
          filling_->size += count;
          position_ += count;
          part = part.subspan(count);
          if (filling_->size == kBlock) file_.hand_over(std::exchange(filling_, nullptr));
        }
      }
    }

    void close() override {
      if (filling_ != nullptr) file_.hand_over(std::exchange(filling_, nullptr));
      file_.ends_at(position_);
    }

    /// Writes the appended bytes, and keeps those that do not fill a page.
    void write_rest() {
      if (filling_ == nullptr) return;
      const std::size_t whole = filling_->size / kAlignment * kAlignment;
      const std::size_t rest = filling_->size - whole;
      if (whole > 0) {
        file_.write(filling_->memory(), whole, filling_->offset);
        std::memmove(filling_->memory(), filling_->memory() + whole, rest);
        filling_->offset += whole;
        filling_->size = rest;
      }
      if (rest > 0) file_.write_indirectly(filling_->memory(), rest, filling_->offset);
    }

   private:
    DirectFile& file_;
    std::uint64_t position_;
    Block* filling_ = nullptr;
  };

  std::size_t in_flight_limit() const { return std::max(kInFlight, fillers_); }

  /// Returns a free block for data that begins at `position`. Throws the error of a writer, if any.
  Block* take_block(std::uint64_t position) {
    std::unique_lock lock(mutex_);
    ++fillers_;
    try {
      changed_.wait(
          lock, [&] { return !free_.empty() || blocks_.size() < fillers_ + in_flight_limit(); });
      if (failure_) wait_for_writers(lock);
      if (free_.empty()) {
        free_.reserve(blocks_.size() + 1);
        free_.push_back(blocks_.emplace_back(std::make_unique<Block>()).get());
      }
    } catch (...) {
      --fillers_;
      throw;
    }
    Block* block = free_.back();
    free_.pop_back();
    block->begin = block->size = position % kAlignment;
    block->offset = position - block->size;
    if (block->begin > 0 && shared_.take(block->offset, 0, block->begin, block->memory()))
      block->begin = 0;
    return block;
  }

  void put_back(Block* block) {
    const std::lock_guard lock(mutex_);
    --fillers_;
    free_.push_back(block);
    changed_.notify_all();
  }

  /// Hands a full block, or the last one of a section, to the writers.
  void hand_over(Block* block) {
    SharedPages::Completed completed;
    {
      std::unique_lock lock(mutex_);
      --fillers_;
      shared_.leave_ends(*block, completed);
      if (block->begin == block->size) {
        free_.push_back(block);
      } else {
        ++in_flight_;
        full_.push_back(block);
        start_writer(lock);
      }
    }
    changed_.notify_all();
    for (const auto& [offset, page] : completed) write(page->bytes.data(), kAlignment, offset);
  }

  void start_writer(std::unique_lock<std::mutex>& lock) {
    if (writers_.size() == std::min(in_flight_, in_flight_limit())) return;
    try {
      writers_.emplace_back([this] { run(); });
    } catch (const std::system_error&) {  // no thread is available
      if (writers_.empty()) write_full(lock);
    }
  }

  /// Waits until nothing is being written. Throws the error of a writer, if any.
  void wait_for_writers(std::unique_lock<std::mutex>& lock) {
    changed_.wait(lock, [&] { return in_flight_ == 0; });
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

  /// Writes a full block. Releases `lock` meanwhile.
  void write_full(std::unique_lock<std::mutex>& lock) {
    Block* block = full_.front();
    full_.pop_front();
    lock.unlock();
    std::exception_ptr failure;
    try {
      write(block->memory() + block->begin, block->size - block->begin,
            block->offset + block->begin);
    } catch (...) {
      failure = std::current_exception();
    }
    lock.lock();
    if (failure && (!failure_ || block->offset < failed_at_)) {
      failure_ = failure;
      failed_at_ = block->offset;
    }
    free_.push_back(block);
    --in_flight_;
    changed_.notify_all();
  }

  void ends_at(std::uint64_t position) {
    const std::lock_guard lock(mutex_);
    size_ = std::max(size_, position);
  }

  /// Writes the bytes that the writers have not written, and sets the file's size. No section may
  /// be open.
  void write_rest() {
    {
      std::unique_lock lock(mutex_);
      wait_for_writers(lock);
    }
    all_.write_rest();
    for (const auto& [offset, page] : shared_.rest()) {
      for (const auto& [begin, end] : page->filled)
        write_indirectly(page->bytes.data() + begin, end - begin, offset + begin);
    }
    give_back(fd_, path_, std::max(size_, position()), std::exchange(reserved_, 0));
  }

  void write_indirectly(std::byte* data, std::size_t size, std::uint64_t offset) {
    const bool was_direct = direct_;
    set_direct(false);
    write(data, size, offset);
    set_direct(was_direct);
  }

  void write(std::byte* data, std::size_t size, std::uint64_t offset) {
    for (std::uint64_t at = offset;;) {
      const bool direct = direct_;
      iovec part{data + (at - offset), size - static_cast<std::size_t>(at - offset)};
      const int error = write_parts(fd_, {&part, 1}, at);
      if (error == 0) return;
      // The file system requires a different alignment, or the offset is unaligned after a short
      // write.
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
  std::mutex mutex_;  ///< guards everything below except the bytes of blocks
  std::condition_variable changed_;
  std::vector<std::unique_ptr<Block>> blocks_;
  std::vector<Block*> free_;
  std::deque<Block*> full_;
  std::size_t fillers_ = 0;    ///< sections that have a block or wait for one
  std::size_t in_flight_ = 0;  ///< blocks that are full or being written
  bool stopping_ = false;
  std::exception_ptr failure_;  ///< the error of the failed block that is first in the file
  std::uint64_t failed_at_ = 0;
  SharedPages shared_;
  std::uint64_t size_ = 0;  ///< the end of the furthest section
  Section all_{*this, 0};   ///< data appended front to back
  std::vector<std::jthread> writers_;
};

}  // namespace

std::unique_ptr<WritableFile> direct_file(Fd fd, std::string path, const CreateOptions& options) {
  return std::make_unique<DirectFile>(std::move(fd), std::move(path), options);
}

}  // namespace dckpt::posix
