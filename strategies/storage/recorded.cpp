#include "strategies/storage/recorded.h"

#include <algorithm>
#include <iterator>
#include <string_view>
#include <utility>

#include "mapping/base/checked.h"
#include "mapping/base/error.h"
#include "mapping/base/wire_fields.h"
#include "strategies/storage/forwarding.h"

namespace dckpt {
namespace {

/// Ends the name of a subtree in a key; no name contains it.
constexpr std::string_view kSubtreeEnd = "//";

bool is_same_file(const FileInfo& a, const FileInfo& b) {
  return a.kind == b.kind && a.size == b.size && a.modified == b.modified && a.modified > 0;
}

}  // namespace

// These are found where FileInfo is, by the functions of wire_fields.h.
static void write_to(WireWriter& writer, const FileInfo& info) {
  writer.text(info.name);
  writer.number(static_cast<std::uint64_t>(info.kind));
  writer.number(info.size);
  writer.number(static_cast<std::uint64_t>(std::max<std::int64_t>(info.modified, 0)));
}

static void read_from(WireReader& reader, FileInfo& info) {
  info.name = reader.text();
  info.kind = static_cast<FileInfo::Kind>(
      reader.number(static_cast<std::uint64_t>(FileInfo::Kind::kOther)));
  info.size = reader.number();
  info.modified = reader.signed_number();
}

StorageRecord::StorageRecord(ByteView head) : grows_(false) {
  WireReader reader(head, "what another rank has read (do all ranks run the same build?)");
  read_value(reader, entries_);
  read_value(reader, targets_);
  read_value(reader, lists_);
  for (std::size_t files = reader.count(); files > 0; --files) {
    const std::string key = reader.text();
    File& file = files_[key];
    read_from(reader, file.info);
    for (std::size_t ranges = reader.count(); ranges > 0; --ranges) {
      const std::uint64_t offset = reader.number(file.info.size);
      const std::uint64_t length = reader.number(file.info.size - offset);
      if (length > kMaxContents - kept_) reader.malformed("it has too many bytes");
      if (!file.ranges.try_emplace(offset, Range{.length = length}).second)
        reader.malformed("two ranges begin at one offset");
      kept_ += length;
    }
  }
  reader.finish();
}

Bytes StorageRecord::head() const {
  const std::lock_guard lock(mutex_);
  Bytes bytes;
  WireWriter writer(bytes);
  write_value(writer, entries_);
  write_value(writer, targets_);
  write_value(writer, lists_);
  writer.number(files_.size());
  for (const auto& [key, file] : files_) {
    writer.text(key);
    write_to(writer, file.info);
    writer.number(file.ranges.size());
    for (const auto& [offset, range] : file.ranges) {
      writer.number(offset);
      writer.number(range.length);
    }
  }
  return bytes;
}

std::uint64_t StorageRecord::contents_size() const {
  const std::lock_guard lock(mutex_);
  return kept_;
}

std::vector<MutableByteView> StorageRecord::contents() {
  const std::lock_guard lock(mutex_);
  std::vector<MutableByteView> views;
  for (auto& [key, file] : files_) {
    for (auto& [offset, range] : file.ranges) {
      range.bytes.resize(range.length);
      views.emplace_back(range.bytes);
    }
  }
  return views;
}

bool StorageRecord::is_of(const std::shared_ptr<Storage>& storage) const try {
  std::vector<std::pair<std::string, FileInfo>> files;  // the storage may use this record
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [key, file] : files_) files.emplace_back(key, file.info);
  }
  return !files.empty() && std::ranges::all_of(files, [&](const auto& entry) {
    std::string_view name = entry.first;
    std::shared_ptr<Storage> in = storage;
    for (std::size_t end = name.find(kSubtreeEnd); end != std::string_view::npos;
         end = name.find(kSubtreeEnd)) {
      in = in->subtree(std::string(name.substr(0, end)));
      name.remove_prefix(end + kSubtreeEnd.size());
    }
    const std::optional<FileInfo> found = in->stat(std::string(name));
    return found && is_same_file(*found, entry.second);
  });
} catch (const CheckpointError&) {  // a later open of the files reports it
  return false;
}

void StorageRecord::end() {
  const std::lock_guard lock(mutex_);
  ended_ = true;
  kept_ = 0;
  entries_.clear();
  targets_.clear();
  lists_.clear();
  files_.clear();
}

template <typename Answer>
Answer StorageRecord::answer(Answers<Answer>& known, const std::string& key,
                             const std::function<Answer()>& ask) {
  {
    const std::lock_guard lock(mutex_);
    if (const auto found = known.find(key); found != known.end()) return found->second;
  }
  Answer answer = ask();
  const std::lock_guard lock(mutex_);
  if (grows_ && !ended_) known.emplace(key, answer);
  return answer;
}

std::optional<FileInfo> StorageRecord::find_file(const std::string& key) const {
  const std::lock_guard lock(mutex_);
  const auto found = files_.find(key);
  return found == files_.end() ? std::nullopt : std::optional(found->second.info);
}

bool StorageRecord::grows() const {
  const std::lock_guard lock(mutex_);
  return grows_ && !ended_;
}

void StorageRecord::add_file(const std::string& key, const FileInfo& info) {
  const std::lock_guard lock(mutex_);
  if (grows_ && !ended_) files_.try_emplace(key, File{.info = info});
}

bool StorageRecord::find(const std::string& key, std::uint64_t offset, MutableByteView into) const {
  const std::lock_guard lock(mutex_);
  const auto file = files_.find(key);
  if (file == files_.end()) return false;
  // The last of all ranges that begin here or before reaches furthest, since no range is
  // inside another.
  const auto after = file->second.ranges.upper_bound(offset);
  if (after == file->second.ranges.begin()) return false;
  const auto& [begin, range] = *std::prev(after);
  if (!range_fits(offset - begin, into.size(), range.bytes.size())) return false;
  const ByteView bytes = ByteView(range.bytes).subspan(offset - begin, into.size());
  std::copy(bytes.begin(), bytes.end(), into.begin());
  return true;
}

void StorageRecord::add(const std::string& key, std::uint64_t offset, ByteView bytes) {
  const std::lock_guard lock(mutex_);
  const auto file = files_.find(key);
  if (!grows_ || file == files_.end() || bytes.empty() || bytes.size() > kMaxContents - kept_)
    return;
  auto& ranges = file->second.ranges;
  const std::uint64_t end = offset + bytes.size();
  const auto before = ranges.upper_bound(offset);
  if (before != ranges.begin()) {  // two threads may have read the same range
    const auto& [begin, range] = *std::prev(before);
    if (begin + range.length >= end) return;
  }
  for (auto inside = ranges.lower_bound(offset);
       inside != ranges.end() && inside->first + inside->second.length <= end;) {
    kept_ -= inside->second.length;
    inside = ranges.erase(inside);
  }
  ranges[offset] = {.length = bytes.size(), .bytes = Bytes(bytes.begin(), bytes.end())};
  kept_ += bytes.size();
}

/// Opens the file itself when bytes are read that the record does not have.
class RecordedFile final : public ReadableFile {
 public:
  RecordedFile(std::shared_ptr<const Storage> storage, std::string name, std::string key,
               std::uint64_t size, std::shared_ptr<StorageRecord> record)
      : storage_(std::move(storage)),
        name_(std::move(name)),
        path_(storage_->display_path(name_)),
        key_(std::move(key)),
        size_(size),
        record_(std::move(record)) {}

  const std::string& name() const noexcept override { return path_; }
  std::uint64_t size() const noexcept override { return size_; }

  void read(std::uint64_t offset, MutableByteView into) const override {
    if (record_->find(key_, offset, into)) return;
    file().read(offset, into);
    record_->add(key_, offset, into);
  }

  void prefetch(std::uint64_t offset, std::uint64_t length) const override {
    const std::lock_guard lock(mutex_);
    if (file_) file_->prefetch(offset, length);
  }

 private:
  const ReadableFile& file() const {
    const std::lock_guard lock(mutex_);
    if (!file_) {
      auto file = storage_->open(name_);
      if (file->size() != size_)
        throw_error(ErrorCode::kCorrupt, {.file = path_}, "the file has changed while it was read");
      file_ = std::move(file);
    }
    return *file_;
  }

  const std::shared_ptr<const Storage> storage_;
  const std::string name_;
  const std::string path_;
  const std::string key_;
  const std::uint64_t size_;
  const std::shared_ptr<StorageRecord> record_;
  mutable std::mutex mutex_{};
  mutable std::unique_ptr<ReadableFile> file_{};
};

class RecordedStorage final : public ForwardingStorage {
 public:
  RecordedStorage(std::shared_ptr<Storage> storage, std::shared_ptr<StorageRecord> record,
                  std::string prefix)
      : ForwardingStorage(std::move(storage)),
        record_(std::move(record)),
        prefix_(std::move(prefix)) {}

  std::vector<FileInfo> list(const std::string& directory) const override {
    return record_->answer<std::vector<FileInfo>>(record_->lists_, prefix_ + directory,
                                                  [&] { return storage_->list(directory); });
  }
  std::optional<FileInfo> stat(const std::string& name) const override {
    return record_->answer<std::optional<FileInfo>>(record_->entries_, prefix_ + name,
                                                    [&] { return storage_->stat(name); });
  }
  std::optional<FileInfo> stat_target(const std::string& name) const override {
    return record_->answer<std::optional<FileInfo>>(record_->targets_, prefix_ + name,
                                                    [&] { return storage_->stat_target(name); });
  }

  std::unique_ptr<ReadableFile> open(const std::string& name) const override {
    const std::string key = prefix_ + name;
    std::optional<FileInfo> info = record_->find_file(key);
    if (!info) {
      if (!record_->grows()) return storage_->open(name);
      info = stat(name);
      if (!info || info->kind != FileInfo::Kind::kRegular) return storage_->open(name);  // throws
      record_->add_file(key, *info);
    }
    return std::make_unique<RecordedFile>(storage_, name, key, info->size, record_);
  }

  std::shared_ptr<Storage> subtree(const std::string& name) override {
    return std::make_shared<RecordedStorage>(storage_->subtree(name), record_,
                                             prefix_ + name + std::string(kSubtreeEnd));
  }

 private:
  const std::shared_ptr<StorageRecord> record_;
  const std::string prefix_;  ///< prefix of keys: the subtrees above
};

std::shared_ptr<Storage> recorded_storage(std::shared_ptr<Storage> storage,
                                          std::shared_ptr<StorageRecord> record) {
  return std::make_shared<RecordedStorage>(std::move(storage), std::move(record), "");
}

}  // namespace dckpt
