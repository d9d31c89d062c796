#include "strategies/storage/counting.h"

#include <utility>

#include "strategies/storage/forwarding.h"

namespace dckpt {
namespace {

class CountingReadableFile final : public ReadableFile {
 public:
  CountingReadableFile(std::unique_ptr<ReadableFile> file,
                       std::shared_ptr<StorageCounters> counters)
      : file_(std::move(file)), counters_(std::move(counters)) {}

  const std::string& name() const noexcept override { return file_->name(); }
  std::uint64_t size() const noexcept override { return file_->size(); }

  void read(std::uint64_t offset, MutableByteView into) const override {
    file_->read(offset, into);
    ++counters_->reads;
    counters_->bytes_read += into.size();
  }

  void prefetch(std::uint64_t offset, std::uint64_t length) const override {
    file_->prefetch(offset, length);
    ++counters_->prefetches;
  }

 private:
  std::unique_ptr<ReadableFile> file_;
  std::shared_ptr<StorageCounters> counters_;
};

class CountingSection final : public FileSection {
 public:
  CountingSection(std::unique_ptr<FileSection> section, std::shared_ptr<StorageCounters> counters)
      : section_(std::move(section)), counters_(std::move(counters)) {}

  void append(std::span<const ByteView> parts) override {
    const PhaseClock::Pause not_copying(Phase::kCopy);
    const std::uint64_t before = section_->position();
    section_->append(parts);
    ++counters_->appends;
    counters_->bytes_written += section_->position() - before;
  }
  std::uint64_t position() const noexcept override { return section_->position(); }
  void close() override {
    const PhaseClock::Pause not_copying(Phase::kCopy);
    section_->close();
  }

 private:
  std::unique_ptr<FileSection> section_;
  std::shared_ptr<StorageCounters> counters_;
};

class CountingWritableFile final : public ForwardingFile {
 public:
  CountingWritableFile(std::unique_ptr<WritableFile> file,
                       std::shared_ptr<StorageCounters> counters, PhaseClock* phases)
      : ForwardingFile(std::move(file)), counters_(std::move(counters)), phases_(phases) {}

  void append(std::span<const ByteView> parts) override {
    const PhaseClock::Pause not_copying(Phase::kCopy);
    const std::uint64_t before = file_->position();
    file_->append(parts);
    ++counters_->appends;
    counters_->bytes_written += file_->position() - before;
  }

  void sync() override {
    const PhaseClock::Pause not_copying(Phase::kCopy);
    const PhaseClock::Scope syncing(phases_, Phase::kSync);
    file_->sync();
    ++counters_->syncs;
  }

  std::unique_ptr<FileSection> section(std::uint64_t offset) override {
    auto section = file_->section(offset);
    return section ? std::make_unique<CountingSection>(std::move(section), counters_) : nullptr;
  }

 private:
  std::shared_ptr<StorageCounters> counters_;
  PhaseClock* const phases_;
};

class CountingStorage final : public ForwardingStorage {
 public:
  CountingStorage(std::shared_ptr<Storage> storage, std::shared_ptr<StorageCounters> counters,
                  PhaseClock* phases)
      : ForwardingStorage(std::move(storage)), counters_(std::move(counters)), phases_(phases) {}

  std::vector<FileInfo> list(const std::string& directory) const override {
    auto entries = storage_->list(directory);
    ++counters_->lookups;
    return entries;
  }

  std::optional<FileInfo> stat(const std::string& name) const override {
    auto info = storage_->stat(name);
    ++counters_->lookups;
    return info;
  }

  std::unique_ptr<ReadableFile> open(const std::string& name) const override {
    auto file = std::make_unique<CountingReadableFile>(storage_->open(name), counters_);
    ++counters_->files_opened;
    return file;
  }

  std::unique_ptr<WritableFile> create(const std::string& name,
                                       const CreateOptions& options) override {
    auto file =
        std::make_unique<CountingWritableFile>(storage_->create(name, options), counters_, phases_);
    ++counters_->files_created;
    if (file->engine() == IoEngine::kDirect) ++counters_->direct_files;
    return file;
  }

  void make_directory(const std::string& name) override {
    storage_->make_directory(name);
    ++counters_->directory_changes;
  }

  void rename(const std::string& from, const std::string& to) override {
    storage_->rename(from, to);
    ++counters_->directory_changes;
  }

  bool exchange(const std::string& a, const std::string& b) override {
    const bool done = storage_->exchange(a, b);
    if (done) ++counters_->directory_changes;
    return done;
  }

  void remove_all(const std::string& name) override {
    storage_->remove_all(name);
    ++counters_->directory_changes;
  }

  void sync_directory(const std::string& directory) override {
    const PhaseClock::Scope syncing(phases_, Phase::kSync);
    storage_->sync_directory(directory);
    ++counters_->syncs;
  }

  std::optional<FileInfo> stat_target(const std::string& name) const override {
    auto info = storage_->stat_target(name);
    ++counters_->lookups;
    return info;
  }

  std::shared_ptr<Storage> subtree(const std::string& name) override {
    return counting_storage(storage_->subtree(name), counters_, phases_);
  }

 private:
  std::shared_ptr<StorageCounters> counters_;
  PhaseClock* const phases_;
};

}  // namespace

std::shared_ptr<Storage> counting_storage(std::shared_ptr<Storage> storage,
                                          std::shared_ptr<StorageCounters> counters,
                                          PhaseClock* phases) {
  return std::make_shared<CountingStorage>(std::move(storage), std::move(counters), phases);
}

}  // namespace dckpt
