#include "strategies/tensor_io/open_files.h"

#include <string>
#include <utility>

#include "strategies/storage/mappable_file.h"
#include "strategies/storage/uncached_file.h"

namespace dckpt {
namespace {

/// Counts its reads and adds them to the totals when it is closed: one counter for all threads and
/// reads would be the busiest cache line of the job.
class CountedFile final : public ReadableFile, public MappableFile, public UncachedFile {
 public:
  CountedFile(std::unique_ptr<ReadableFile> file, std::atomic<std::uint64_t>& total,
              std::atomic<std::uint64_t>& total_direct)
      : file_(std::move(file)),
        mappable_(dynamic_cast<const MappableFile*>(file_.get())),
        uncached_(dynamic_cast<const UncachedFile*>(file_.get())),
        total_(total),
        total_direct_(total_direct) {}
  ~CountedFile() override {
    total_ += bytes_ + direct_;
    total_direct_ += direct_;
  }
  const std::string& name() const noexcept override { return file_->name(); }
  std::uint64_t size() const noexcept override { return file_->size(); }
  void read(std::uint64_t offset, MutableByteView into) const override {
    file_->read(offset, into);
    bytes_.fetch_add(into.size(), std::memory_order_relaxed);
  }
  void prefetch(std::uint64_t offset, std::uint64_t length) const override {
    file_->prefetch(offset, length);
  }
  bool with_mapped(std::uint64_t offset, std::uint64_t length,
                   const std::function<void(const std::byte*)>& copy) const override {
    return mappable_ != nullptr && mappable_->with_mapped(offset, length, copy);
  }
  bool is_cold(std::uint64_t offset, std::uint64_t length) const override {
    return uncached_ != nullptr && uncached_->is_cold(offset, length);
  }
  bool read_past_cache(std::uint64_t offset, std::uint64_t length,
                       const std::function<void(ByteView)>& take) const override {
    if (uncached_ == nullptr || !uncached_->read_past_cache(offset, length, take)) return false;
    direct_.fetch_add(length, std::memory_order_relaxed);
    return true;
  }

 private:
  std::unique_ptr<ReadableFile> file_;
  const MappableFile* mappable_;
  const UncachedFile* uncached_;
  mutable std::atomic<std::uint64_t> bytes_ = 0;
  mutable std::atomic<std::uint64_t> direct_ = 0;
  std::atomic<std::uint64_t>& total_;
  std::atomic<std::uint64_t>& total_direct_;
};

}  // namespace

std::shared_ptr<const ReadableFile> OpenFiles::get(std::uint32_t file) {
  const std::lock_guard lock(mutex_);
  Entry& entry = files_.at(file);
  if (!entry.file)
    entry.file = std::make_shared<CountedFile>(open_(file), bytes_read_, bytes_direct_);
  return entry.file;
}

void OpenFiles::done(std::uint32_t file) {
  const std::lock_guard lock(mutex_);
  Entry& entry = files_.at(file);
  if (--entry.jobs == 0) entry.file.reset();
}

}  // namespace dckpt
