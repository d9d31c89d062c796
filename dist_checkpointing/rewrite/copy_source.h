#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "configs/options.h"
#include "dist_checkpointing/registry.h"
#include "dist_checkpointing/rewrite/conversion_journal.h"
#include "dist_checkpointing/rewrite/copy_contents.h"
#include "dist_checkpointing/rewrite/source_check.h"
#include "mapping/base/progress.h"
#include "strategies/contract/reader.h"
#include "strategies/contract/save_strategy.h"

namespace dckpt {

/// What each writer of a conversion may take, so that all together stay within a limit.
struct CopyMemory {
  WriteOptions io{};          ///< as many writers as there is memory for
  std::uint64_t piece = 0;    ///< bytes of a tensor that a writer holds
  std::uint64_t staging = 0;  ///< bytes that reading it may take
};

/// As many writers as the limit is enough for, and the largest pieces that it allows them: a writer
/// has a piece, as much for reading it, its buffers, and what decodes compressed items of `source`.
/// `staging`: for all reads together. Throws CheckpointError (invalid argument) if it is too small
/// for one.
CopyMemory share_memory(const WriteOptions& io, std::uint64_t limit, std::uint64_t staging,
                        const Metadata& source);

/// Feeds a writer from another checkpoint, a piece at a time. An item's source is a position in the
/// contents' tensors, or in their `object_of`. What it refers to must outlive it.
class CopySource final : public ItemSource {
 public:
  /// `format`: of the result. `total`: bytes of all items. `go_on` is called before each piece; it
  /// throws to stop the copy.
  CopySource(const CheckpointReader& reader, const CopyContents& contents, SourceCheck& check,
             const SaveStrategyEntry& format, const CopyMemory& memory, Progress progress,
             std::uint64_t total, std::function<void()> go_on);

  Bytes object(const WriteItem& item) override;
  void tensor(const WriteItem& item, const std::function<void(ByteView)>& sink) override;
  std::optional<std::vector<StorageInfo>> written(const PlannedFile& file) override;
  void wrote(const PlannedFile& file, std::span<const StorageInfo> places) override;

  /// What knows the files that are there already; before anything is written.
  void goes_on_with(ConversionJournal& journal) { journal_ = &journal; }

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
  ConversionJournal* journal_ = nullptr;
};

}  // namespace dckpt
