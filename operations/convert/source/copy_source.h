#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "configs/policy/options.h"
#include "mapping/base/progress.h"
#include "operations/convert/copy_contents.h"
#include "operations/convert/noted_copy.h"
#include "operations/convert/source/source_check.h"
#include "strategies/contract/reader.h"
#include "strategies/contract/save_strategy.h"
#include "strategies/registry/registry.h"

namespace dckpt {

/// The memory that each writer of a conversion may use, so that all together stay within a limit.
struct CopyMemory {
  WriteOptions io{};          ///< with as many writers as the memory allows
  std::uint64_t piece = 0;    ///< bytes of a tensor that a writer holds
  std::uint64_t staging = 0;  ///< bytes that reading it may take
};

/// Returns as many writers as the limit allows, with the largest possible pieces. Each writer needs
/// one piece, as much again for reading it, its buffers, and memory to decode compressed items of
/// `source`. `staging` is for all reads together. Throws CheckpointError (invalid argument) if the
/// limit is too small for one writer.
CopyMemory share_memory(const WriteOptions& io, std::uint64_t limit, std::uint64_t staging,
                        const Metadata& source);

/// Feeds a writer from another checkpoint, a piece at a time. An item's source is a position in the
/// contents' tensors, or in their `object_of`. The arguments must outlive it.
class CopySource final : public ItemSource {
 public:
  /// `format` is that of the result, `total` the bytes of all items. `go_on` is called before each
  /// piece and throws to stop the copy.
  CopySource(const CheckpointReader& reader, const CopyContents& contents, SourceCheck& check,
             const SaveStrategyEntry& format, const CopyMemory& memory, Progress progress,
             std::uint64_t total, std::function<void()> go_on);

  Bytes object(const WriteItem& item) override;
  void tensor(const WriteItem& item, const std::function<void(ByteView)>& sink) override;
  std::optional<std::vector<StorageInfo>> written(const PlannedFile& file) override;
  void wrote(const PlannedFile& file, std::span<const StorageInfo> places) override;

  /// Sets the copy, which may have finished files. Call it before anything is written.
  void goes_on_with(NotedCopy& copy) { copy_ = &copy; }
  /// Adds to the progress what others have written.
  void count(std::uint64_t bytes) { progress_.add(bytes); }
  /// Throws CheckpointError (aborted) if a file of the source was replaced since it was opened.
  void require_unchanged() const { check_.require_unchanged(); }
  /// Returns whether all data copied into the file agreed with its checksums.
  bool checked(const PlannedFile& file);

 private:
  Bytes record_bytes(const StorageInfo& place);
  std::vector<ReadItem> reads_of(const WriteItem& item) const;

  const CheckpointReader& reader_;
  const CopyContents& contents_;
  SourceCheck& check_;
  const SaveStrategyEntry& format_;
  const CopyMemory memory_;
  ProgressCounter progress_;
  std::function<void()> go_on_;
  NotedCopy* copy_ = nullptr;
};

}  // namespace dckpt
