#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "mapping/base/bytes.h"
#include "strategies/storage/storage.h"

namespace dckpt {

/// The answers of a storage while something was opened: the entries, and the bytes read of files.
/// With it, another process opens the same thing without asking the storage again. It is sent as
/// head() and then the contents(), one after the other. Safe to use from several threads.
class StorageRecord {
 public:
  /// The maximum number of bytes kept; the rest is read from the files again.
  static constexpr std::uint64_t kMaxContents = std::uint64_t{1} << 30;

  /// An empty record; a recorded storage adds its answers.
  StorageRecord() = default;
  /// Another process's record, complete except for its contents(). Throws CheckpointError
  /// (corrupt).
  explicit StorageRecord(ByteView head);

  Bytes head() const;
  std::uint64_t contents_size() const;
  /// Returns the bytes read, in an order that follows from the head. The first call allocates the
  /// memory.
  std::vector<MutableByteView> contents();
  /// Returns whether the storage has the files that were read, as far as sizes and times tell: a
  /// copy made elsewhere is another file. False if no file was read, or if the storage has no
  /// times.
  bool is_of(const std::shared_ptr<Storage>& storage) const;
  /// Forgets everything. The storages that use it pass everything through afterwards.
  void end();

 private:
  friend class RecordedStorage;
  friend class RecordedFile;

  struct Range {
    std::uint64_t length = 0;
    Bytes bytes{};
  };
  struct File {
    FileInfo info{};
    std::map<std::uint64_t, Range> ranges{};  ///< by offset; no range is inside another
  };
  template <typename Answer>
  using Answers = std::map<std::string, Answer>;

  /// Returns the known answer, or else that of `ask`, which is remembered.
  template <typename Answer>
  Answer answer(Answers<Answer>& known, const std::string& key, const std::function<Answer()>& ask);
  std::optional<FileInfo> find_file(const std::string& key) const;
  bool grows() const;
  void add_file(const std::string& key, const FileInfo& info);
  /// Copies the bytes to `into` if they are known; otherwise returns false.
  bool find(const std::string& key, std::uint64_t offset, MutableByteView into) const;
  void add(const std::string& key, std::uint64_t offset, ByteView bytes);

  mutable std::mutex mutex_{};
  bool grows_ = true;
  bool ended_ = false;
  std::uint64_t kept_ = 0;  ///< total bytes of all ranges
  Answers<std::optional<FileInfo>> entries_{};
  Answers<std::optional<FileInfo>> targets_{};
  Answers<std::vector<FileInfo>> lists_{};
  std::map<std::string, File> files_{};
};

/// Returns a view of `storage` that answers from the record where it can; a new record learns the
/// other answers. Writing passes through.
std::shared_ptr<Storage> recorded_storage(std::shared_ptr<Storage> storage,
                                          std::shared_ptr<StorageRecord> record);

}  // namespace dckpt
