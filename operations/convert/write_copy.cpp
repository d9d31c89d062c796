#include "operations/convert/write_copy.h"

#include <algorithm>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "dist_checkpointing/save/write_checkpoint.h"
#include "dist_checkpointing/training_root/staging_token.h"
#include "mapping/base/error.h"
#include "mapping/base/parallel_for.h"
#include "operations/convert/workers/worker_pool.h"
#include "strategies/storage/memory.h"

namespace dckpt {
namespace {

/// Restores the source's order of keys, whichever ranks hold them now.
template <typename Entries>
void restore_order(Entries& entries, const Entries& source) {
  std::unordered_map<std::string_view, std::size_t> position;
  for (std::size_t i = 0; i < source.size(); ++i) position.emplace(source[i].key, i);
  const auto rank = [&](const auto& entry) {
    const auto found = position.find(entry.key);
    return found == position.end() ? source.size() : found->second;
  };
  std::stable_sort(entries.begin(), entries.end(),
                   [&](const auto& a, const auto& b) { return rank(a) < rank(b); });
  for (auto& entry : entries) {
    const auto found = position.find(entry.key);
    entry.order =
        (found == position.end() ? typename Entries::value_type() : source[found->second]).order;
  }
}

}  // namespace

void finish_copy(const CopyJob& job, CopySource& source, Publication publication, NotedCopy& noted,
                 const CopyEnd& end, ConvertReport& report) {
  const auto& [contents, target, folder, strategy, items, plan] = job.copy;
  source.goes_on_with(noted);
  const WriteTarget data_target{noted.storage(), publication.staging(), false};  // digests them
  const WriteTarget to{noted.storage(), publication.staging(), target.save.integrity};
  std::vector<WrittenItems> written(items.size());
  parallel_for(written.size(), job.memory.io.threads, [&](std::size_t rank) {
    written[rank] = write_items(data_target, *job.copy.strategy, static_cast<int>(rank),
                                job.copy.items[rank], source)
                        .items;
  });
  try {
    end.check_source();
  } catch (const CheckpointError& error) {
    if (end.discards && error.code() != ErrorCode::kCancelled) publication.discard_unfinished();
    throw;
  }

  Metadata metadata = metadata_of(plan, std::move(written));
  restore_order(metadata.tensors, contents.metadata.tensors);
  restore_order(metadata.objects, contents.metadata.objects);
  metadata.paths = contents.metadata.paths;
  metadata.common_paths = contents.metadata.common_paths;
  metadata.storage_meta = contents.metadata.storage_meta;
  metadata.version = contents.metadata.version;
  ManifestDigests all = noted.digests();
  if (!folder.files.empty())
    all.merge(copy_files(to, *folder.storage, folder.files, target.save.io.fsync).digests);
  publish_checkpoint(std::move(publication), to, *strategy,
                     {.metadata = metadata,
                      .common = contents.common_file ? &*contents.common_file : nullptr,
                      .digests = all,
                      .sync = target.save.io.fsync,
                      .check = [&] {
                        source.require_unchanged();
                        job.go_on();
                        end.check();
                      }});
  report.files = metadata.files.size();
}

void write_copy(const CopyJob& job, const std::string& left, ConvertReport& report) {
  const PlannedCopy& copy = job.copy;
  SourceCheck check(
      job.reader, job.checks.source,
      manifest_to_compare(job.reader, copy.contents, job.checks.source, job.checks.integrity),
      job.watch);
  if (job.dry_run) {
    if (job.checks.integrity) check.check_manifest(job.readers);
    return;
  }
  CopySource source(job.reader, copy.contents, check, *copy.target.format, job.memory, job.progress,
                    bytes_of(copy.items), job.go_on);
  const SaveOptions& save = copy.target.save;
  Publication publication =
      job.resume ? begin_resumable(job.destination, save, left, staging_token(), true)
                 : begin_publication(job.destination, save);
  const std::shared_ptr<Storage>& storage = job.destination.storage();
  // Nobody can go on in a storage that cannot rename.
  WorkerPool pool(
      storage->capabilities().rename ? storage->subtree(publication.staging()) : memory_storage(),
      job.facts, save.io.fsync);
  NotedCopy noted(pool, storage, publication.staging(), "", save.integrity);
  if (!left.empty()) noted.take_over(NotedCopy::Comparison::kDigest, job.memory.io.threads);
  report.kept_files = pool.done().size();
  finish_copy(job, source, std::move(publication), noted,
              {.check_source =
                   [&] {
                     check.check_rest(job.readers, job.go_on);
                     check.check_manifest(job.readers);
                   },
               .check = [&] { pool.remove_notes(); }},
              report);
}

}  // namespace dckpt
