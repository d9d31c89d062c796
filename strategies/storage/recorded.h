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

/// What a storage has answered while something was opened: what is where, and the bytes read of
/// files. With it, another process opens the same without asking the storage again. It travels as
/// head() and, one after the other, contents(). Safe to use from several threads.
class StorageRecord {
 public:
  /// More bytes are not kept: whoever needs the rest reads the files.
  static constexpr std::uint64_t kMaxContents = std::uint64_t{1} << 30;

  /// Empty; a storage that is recorded adds its answers.
  StorageRecord() = default;
  /// Another process's record, complete but for its contents(). Throws CheckpointError (corrupt).
  explicit StorageRecord(ByteView head);

  Bytes head() const;
  std::uint64_t contents_size() const;
  /// The bytes read, in an order that follows from the head; the first call takes the memory.
  std::vector<MutableByteView> contents();
  /// Whether the storage has the files that were read, as far as sizes and times tell: a copy made
  /// elsewhere is another file. False if no file was read, or if there are no times.
  bool is_of(const std::shared_ptr<Storage>& storage) const;
  /// Forgets everything. The storages that use it pass everything through from now on.
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
    std::map<std::uint64_t, Range> ranges{};  ///< by offset; none is inside another
  };
  template <typename Answer>
  using Answers = std::map<std::string, Answer>;

  /// The answer that is known, or else that of `ask`, which is remembered.
  template <typename Answer>
  Answer answer(Answers<Answer>& known, const std::string& key, const std::function<Answer()>& ask);
  std::optional<FileInfo> find_file(const std::string& key) const;
  bool grows() const;
  void add_file(const std::string& key, const FileInfo& info);
  /// Whether these bytes are known; then `into` has them.
  bool find(const std::string& key, std::uint64_t offset, MutableByteView into) const;
  void add(const std::string& key, std::uint64_t offset, ByteView bytes);

  mutable std::mutex mutex_{};
  bool grows_ = true;
  bool ended_ = false;
  std::uint64_t kept_ = 0;  ///< bytes of all ranges
  Answers<std::optional<FileInfo>> entries_{};
  Answers<std::optional<FileInfo>> targets_{};
  Answers<std::vector<FileInfo>> lists_{};
  std::map<std::string, File> files_{};
};

/// A view of `storage` that answers from the record what is in there; a new record learns the rest.
/// What is written passes through.
std::shared_ptr<Storage> recorded_storage(std::shared_ptr<Storage> storage,
                                          std::shared_ptr<StorageRecord> record);

}  // namespace dckpt
