#include <fcntl.h>

#include <algorithm>
#include <array>
#include <climits>
#include <mutex>

#include "strategies/storage/posix_write.h"

namespace dckpt::posix {
namespace {

// The maximum number of parts handed over in one system call.
constexpr std::size_t kMaxBatch = std::min(IOV_MAX, 256);
// Data that will be synced is sent to the disk in pieces of about this size. Otherwise Linux waits
// until a tenth of the memory is dirty and leaves all the waiting to fsync.
constexpr std::uint64_t kWriteback = std::uint64_t{8} << 20;

class BufferedFile final : public WritableFile {
 public:
  BufferedFile(Fd fd, std::string path, const CreateOptions& options)
      : fd_(std::move(fd)),
        path_(std::move(path)),
        durable_(options.durable),
        reserved_(reserve(fd_, path_, options.size_hint, Reserved::kBlocks)) {}

  const std::string& name() const noexcept override { return path_; }
  std::uint64_t position() const noexcept override { return all_.position(); }
  void append(std::span<const ByteView> parts) override { all_.append(parts); }
  std::unique_ptr<FileSection> section(std::uint64_t offset) override {
    return std::make_unique<Section>(*this, offset);
  }

  void sync() override { sync_file(fd_, path_); }
  void close() override {
    if (!fd_) return;
    all_.close();
    give_back(fd_, path_, size_, reserved_);
    close_file(fd_, path_);
  }
  IoEngine engine() const noexcept override { return IoEngine::kBuffered; }

 private:
  class Section final : public FileSection {
   public:
    Section(BufferedFile& file, std::uint64_t offset)
        : file_(file), position_(offset), handed_over_(offset) {}

    std::uint64_t position() const noexcept override { return position_; }

    void append(std::span<const ByteView> parts) override {
      std::array<iovec, kMaxBatch> batch;
      for (std::size_t next = 0; next < parts.size();) {
        std::size_t count = 0;
        std::uint64_t end = position_;
        for (; next < parts.size() && count < batch.size(); ++next) {
          if (parts[next].empty()) continue;
          batch[count++] = {const_cast<std::byte*>(parts[next].data()),
                            parts[next].size()};  // only read by the call
          end += parts[next].size();
        }
        if (const int error = write_parts(file_.fd_, {batch.data(), count}, position_))
          throw write_error(file_.fd_, file_.path_, end - position_, error, position_);
        if (file_.durable_) start_writeback();
      }
    }

    void close() override {
      const std::lock_guard lock(file_.mutex_);
      file_.size_ = std::max(file_.size_, position_);
    }

   private:
    /// Only requests it; data that cannot be written back this way (not every file system can) is
    /// left to sync().
    void start_writeback() {
      if (position_ - handed_over_ < kWriteback) return;
      ::sync_file_range(file_.fd_.get(), static_cast<off_t>(handed_over_),
                        static_cast<off_t>(position_ - handed_over_), SYNC_FILE_RANGE_WRITE);
      handed_over_ = position_;
    }

    BufferedFile& file_;
    std::uint64_t position_;
    std::uint64_t handed_over_;  ///< the end of the data that the disk was asked to write
  };

  Fd fd_;
  std::string path_;
  bool durable_;
  std::uint64_t reserved_;
  Section all_{*this, 0};  ///< data appended front to back
  std::mutex mutex_;
  std::uint64_t size_ = 0;  ///< the end of the furthest section
};

}  // namespace

std::unique_ptr<WritableFile> buffered_file(Fd fd, std::string path, const CreateOptions& options) {
  return std::make_unique<BufferedFile>(std::move(fd), std::move(path), options);
}

}  // namespace dckpt::posix
