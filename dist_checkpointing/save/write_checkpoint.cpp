#include "dist_checkpointing/save/write_checkpoint.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "dist_checkpointing/save/report_file.h"
#include "dist_checkpointing/training_root/foreign_entries.h"
#include "dist_checkpointing/training_root/removal.h"
#include "dist_checkpointing/training_root/root_lock.h"
#include "dist_checkpointing/training_root/staging_token.h"
#include "dist_checkpointing/training_root/target.h"
#include "dist_checkpointing/verify/integrity.h"
#include "mapping/base/bytes.h"
#include "mapping/base/error.h"
#include "mapping/base/hash.h"
#include "mapping/base/storage_name.h"
#include "strategies/registry/registry.h"
#include "strategies/storage/buffered_file.h"
#include "strategies/storage/counting.h"
#include "strategies/storage/hashing.h"

namespace dckpt {
namespace {

constexpr std::uint64_t kCopyPiece = std::uint64_t{1} << 20;

/// Counts written files and bytes, and hashes them for a manifest.
class Meter {
 public:
  /// `before` has the digests of files that already exist.
  explicit Meter(const WriteTarget& target, const ManifestDigests& before = {})
      : target_(target),
        storage_(counting_storage(
            target.integrity ? hashing_storage(target.storage, digests_) : target.storage,
            counters_, target.phases)) {
    for (const auto& [name, digest] : before)
      digests_->add(join_name(target.directory, name), digest);
  }

  Storage& storage() noexcept { return *storage_; }
  WrittenFiles written() const {
    return {counters_->files_created, counters_->bytes_written, counters_->direct_files,
            digests_->in(target_.directory)};
  }

 private:
  const WriteTarget& target_;
  const std::shared_ptr<FileDigests> digests_ = std::make_shared<FileDigests>();
  const std::shared_ptr<StorageCounters> counters_ = std::make_shared<StorageCounters>();
  const std::shared_ptr<Storage> storage_;
};

Publication::Options publication_options(const Location& target, const SaveOptions& options) {
  return {.overwrite = options.overwrite,
          .sync = options.io.fsync,
          .foreign = [target] { return foreign_entries(target); },
          .markers = marker_files(),
          .has_ended = made_by_ended_process};
}

[[noreturn]] void refuse_in_place(const Location& target) {
  throw_error(ErrorCode::kUnsupported, {.file = target.display()},
              "this format has no file that tells readers that it is complete, and this "
              "storage cannot rename a directory whose files are all there; save in "
              "another format, or to a file system");
}

/// Locks the checkpoint that is to be replaced, if there is one.
std::shared_ptr<const ChangeLock> lock_to_replace(const Location& target,
                                                  const SaveOptions& options) {
  const bool replaces = options.overwrite && target.storage()->capabilities().rename &&
                        target.is_directory() && !target.directory()->list("").empty();
  return replaces ? std::make_shared<const ChangeLock>(target.directory()) : nullptr;
}

/// Throws (unsupported) if nothing in this format would be complete in the target's storage.
void require_publishable(const Location& target, const SaveOptions& options) {
  if (target.storage()->capabilities().rename) return;
  const SaveStrategyEntry& format =
      find_save_strategy(options.strategy.name, options.strategy.version);
  if (!format.capabilities.marker) refuse_in_place(target);
}

}  // namespace

Publication begin_publication(const Location& target, const SaveOptions& options,
                              const std::function<void(const FileInfo&)>& may_replace) {
  require_publishable(target, options);
  if (options.overwrite) check_replaceable(target);
  remove_dead_attempts(target);  // first, as it may bring another directory back under this name
  Publication::Options replacing = publication_options(target, options);
  replacing.held = lock_to_replace(target, options);
  replacing.may_replace = may_replace;
  return Publication::begin(target.storage(), target.name(), staging_token(), std::move(replacing));
}

Publication begin_resumable(const Location& target, const SaveOptions& options,
                            const std::string& left, const std::string& token, bool locks) {
  require_publishable(target, options);
  if (options.overwrite) check_replaceable(target);
  remove_dead_attempts(target, left);
  Publication::Options kept = publication_options(target, options);
  kept.keep_unfinished = true;
  if (locks) kept.held = lock_to_replace(target, options);
  return left.empty()
             ? Publication::begin(target.storage(), target.name(), token, std::move(kept))
             : Publication::adopt(target.storage(), target.name(), left, token, std::move(kept));
}

WrittenData write_items(const WriteTarget& target, const SaveStrategy& strategy, int rank,
                        const SavePlan& items, ItemSource& source) {
  Meter meter(target);
  WrittenItems written =
      strategy.write_data(meter.storage(), target.directory, rank, items, source);
  return {std::move(written), meter.written()};
}

WrittenFiles copy_files(const WriteTarget& target, const Storage& from,
                        std::span<const std::string> names, bool sync) {
  Meter meter(target);
  for (const std::string& name : names) {
    if (const std::string folder = parent_name(name); !folder.empty())
      meter.storage().make_directory(join_name(target.directory, folder));
    const auto source = from.open(name);
    BufferedFile copy(meter.storage().create(join_name(target.directory, name),
                                             {.size_hint = source->size(), .durable = sync}));
    Bytes piece(std::min(source->size(), kCopyPiece));
    for (std::uint64_t at = 0; at < source->size(); at += piece.size()) {
      piece.resize(std::min(piece.size(), source->size() - at));
      source->read(at, piece);
      copy.append(piece);
    }
    copy.finish(sync);
  }
  return meter.written();
}

WrittenFiles publish_checkpoint(Publication publication, const WriteTarget& target,
                                const SaveStrategy& strategy, const CheckpointEnd& end) {
  Meter meter(target, end.digests);
  Storage& storage = meter.storage();
  strategy.write_index(storage, target.directory, end.metadata, end.common);
  const std::optional<MarkerFile> marker = strategy.marker(storage, end.metadata, end.common);
  if (!marker && !storage.capabilities().rename)
    refuse_in_place(Location(target.storage, target.directory));
  const auto write = [&](const std::string& name, ByteView bytes) {
    write_small_file(storage, join_name(target.directory, name), bytes, end.sync);
  };
  if (end.report) {
    WrittenFiles all = meter.written();
    all.count += marker ? 1 : 0;
    all.bytes += marker ? marker->content.size() : 0;
    write(kReportFile, as_bytes(end.report(all)));
  }
  if (target.integrity) {
    ManifestDigests listed = meter.written().digests;
    if (marker) listed[marker->name] = {sha256_hex(marker->content), marker->content.size()};
    write_manifest(storage, target.directory, listed, end.sync);
  }
  if (end.check) end.check();
  publication.commit([&] {
    if (marker) write(marker->name, marker->content);
  });
  return meter.written();
}

}  // namespace dckpt
