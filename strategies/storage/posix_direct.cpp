// Writing without the page cache (O_DIRECT).
//
// Appended data is copied into one of two blocks. The file's thread writes a full block while the
// other one fills, so the disk is always busy, no copy stays in the page cache, and fsync only has
// to wait for the file's own entry. Only multiples of kAlignment are written directly. The
// remainder goes through the page cache when the file is synced or closed, and also stays in its
// block, so that appending can continue.

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <mutex>
#include <new>
#include <system_error>
#include <thread>

#include "strategies/storage/posix_write.h"

namespace dckpt::posix {
namespace {

constexpr std::size_t kBlock = std::size_t{4} << 20;
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
        reserved_(reserve(fd_, path_, options.size_hint)) {
    if (!filling_.memory || !writing_.memory) throw std::bad_alloc();
  }

  ~DirectFile() override {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    changed_.notify_all();
    if (writer_.joinable()) writer_.join();
  }

  const std::string& name() const noexcept override { return path_; }
  std::uint64_t position() const noexcept override { return filling_.offset + filling_.size; }

  void append(std::span<const ByteView> parts) override {
    for (ByteView part : parts) {
      while (!part.empty()) {
        const std::size_t count = std::min(part.size(), kBlock - filling_.size);
        std::memcpy(filling_.memory.get() + filling_.size, part.data(), count);
        filling_.size += count;
        part = part.subspan(count);
        if (filling_.size == kBlock) hand_over();
      }
    }
  }

  void sync() override {
    write_rest();
    sync_file(fd_, path_);
  }

  IoEngine engine() const noexcept override { return IoEngine::kDirect; }

  void close() override {
    if (!fd_) return;
    write_rest();
    close_file(fd_, path_, position(), reserved_);
  }

 private:
  /// The lock under which the writer has nothing to do; throws what it met.
  std::unique_lock<std::mutex> wait_for_writer() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return !busy_; });
    if (failure_) std::rethrow_exception(failure_);
    return lock;
  }

  void hand_over() {
    const auto lock = wait_for_writer();
    std::swap(filling_, writing_);
    filling_.offset = writing_.offset + writing_.size;
    filling_.size = 0;
    busy_ = true;
    changed_.notify_all();
    if (writer_.joinable()) return;
    try {
      writer_ = std::thread([this] { run(); });
    } catch (const std::system_error&) {  // no thread to be had: written here and now
      busy_ = false;
      try {
        write(writing_.memory.get(), writing_.size, writing_.offset);
      } catch (...) {
        failure_ = std::current_exception();  // for whatever follows, as if a thread had met it
      }
    }
  }

  void run() {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [&] { return busy_ || stopping_; });
      if (!busy_) return;
      lock.unlock();
      std::exception_ptr failure;
      try {
        write(writing_.memory.get(), writing_.size, writing_.offset);
      } catch (...) {
        failure = std::current_exception();
      }
      lock.lock();
      failure_ = failure;
      busy_ = false;
      changed_.notify_all();
    }
  }

  void write_rest() {
    const auto lock = wait_for_writer();
    const std::size_t whole = filling_.size / kAlignment * kAlignment;
    const std::size_t rest = filling_.size - whole;
    if (whole > 0) {
      write(filling_.memory.get(), whole, filling_.offset);
      std::memmove(filling_.memory.get(), filling_.memory.get() + whole, rest);
      filling_.offset += whole;
      filling_.size = rest;
    }
    if (rest == 0) return;
    const bool was_direct = set_direct(false);
    write(filling_.memory.get(), rest, filling_.offset);
    if (was_direct) set_direct(true);
  }

  void write(std::byte* data, std::size_t size, std::uint64_t offset) {
    for (std::uint64_t at = offset;;) {
      iovec part{data + (at - offset), size - static_cast<std::size_t>(at - offset)};
      const int error = write_parts(fd_, {&part, 1}, at);
      if (error == 0) return;
      // The file system requires a different alignment, or a short write left us unaligned.
      if (error != EINVAL || !set_direct(false))
        throw write_error(fd_, path_, offset + size - at, error, at);
    }
  }

  /// Whether that is a change.
  bool set_direct(bool direct) {
    const int flags = ::fcntl(fd_.get(), F_GETFL);
    if (flags >= 0 && ((flags & O_DIRECT) != 0) == direct) return false;
    if (flags < 0 || ::fcntl(fd_.get(), F_SETFL, flags ^ O_DIRECT) != 0)
      throw system_error("cannot turn direct writing on or off", errno, path_);
    return true;
  }

  Fd fd_;
  std::string path_;
  std::uint64_t reserved_;
  Block filling_;
  std::mutex mutex_;
  std::condition_variable changed_;
  Block writing_;
  bool busy_ = false;  ///< `writing_` is the writer's
  bool stopping_ = false;
  std::exception_ptr failure_;
  std::thread writer_;
};

}  // namespace

std::unique_ptr<WritableFile> direct_file(Fd fd, std::string path, const CreateOptions& options) {
  return std::make_unique<DirectFile>(std::move(fd), std::move(path), options);
}

}  // namespace dckpt::posix
