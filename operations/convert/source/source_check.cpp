#include "operations/convert/source/source_check.h"

#include <algorithm>
#include <set>
#include <tuple>
#include <utility>

#include "mapping/base/error.h"
#include "mapping/base/parallel_for.h"
#include "mapping/planning/rearrange.h"

namespace dckpt {
namespace {

constexpr std::string_view kRepeat =
    "the result would mix two states, so nothing was published: convert again when no job writes "
    "there";

/// Returns the files that hold the copied data, and the indexes.
std::vector<std::string> files_read(const CheckpointReader& reader, const CopyContents& contents) {
  const CheckpointInfo& info = reader.info();
  std::set<std::uint32_t> data_files;
  for (const std::size_t tensor : contents.tensor_of) {
    for (const StorageInfo& place : reader.metadata().tensors[tensor].places)
      data_files.insert(place.file);
  }
  for (std::size_t i = 0; i < contents.metadata.objects.size(); ++i) {
    if (!contents.object_of[i].bytes) data_files.insert(contents.metadata.objects[i].place.file);
  }
  for (const StorageInfo& place : info.common_places) data_files.insert(place.file);
  std::vector<std::string> files = info.index_files;
  if (info.common_file) files.push_back(*info.common_file);
  for (const std::uint32_t file : data_files) {
    const std::string& name = reader.metadata().files[file];
    if (is_stored_file(name)) files.push_back(name);
  }
  return files;
}

}  // namespace

IntegrityManifest manifest_to_compare(const CheckpointReader& reader, const CopyContents& contents,
                                      bool checksums, bool integrity) {
  if (integrity) return require_manifest(reader);
  if (!checksums) return {};
  const auto manifest = find_integrity_manifest(reader.storage());
  return manifest ? entries_of(*manifest, files_read(reader, contents)) : IntegrityManifest{};
}

SourceCheck::SourceCheck(const CheckpointReader& reader, bool checksums, IntegrityManifest manifest,
                         std::shared_ptr<FileWatch> watch)
    : reader_(reader),
      checksums_(checksums),
      records_(reader.metadata()),
      watch_(std::move(watch)) {
  if (!manifest.files.empty()) manifest_.emplace(reader.storage(), std::move(manifest));
}

std::unique_ptr<ReadableFile> SourceCheck::open(const std::string& name) {
  return manifest_ && is_stored_file(name) ? manifest_->open(name) : reader_.storage().open(name);
}

void SourceCheck::check_rest(int threads, const std::function<void()>& go_on) {
  if (!checksums_) return;
  const Metadata& source = reader_.metadata();
  const auto place = [&](const ChunkNumber& chunk) -> const StorageInfo& {
    return source.tensors[chunk.tensor].places[chunk.chunk];
  };
  std::vector<ChunkNumber> chunks = records_.unchecked();
  std::ranges::sort(chunks, {}, [&](const ChunkNumber& chunk) {
    return std::tie(place(chunk).file, place(chunk).offset);
  });
  // One task per file: each file is opened once, and read from front to back.
  std::vector<std::size_t> starts;
  for (std::size_t i = 0; i < chunks.size(); ++i) {
    if (i == 0 || place(chunks[i]).file != place(chunks[i - 1]).file) starts.push_back(i);
  }
  parallel_for(starts.size(), threads, [&](std::size_t task) {
    const std::size_t end = task + 1 < starts.size() ? starts[task + 1] : chunks.size();
    const auto file = open(source.files[place(chunks[starts[task]]).file]);
    for (std::size_t i = starts[task]; i < end; ++i) {
      go_on();
      with_context({.key = source.tensors[chunks[i].tensor].key},
                   [&] { reader_.check_chunk(chunks[i].tensor, chunks[i].chunk, *file); });
    }
  });
}

void SourceCheck::check_manifest(int threads) {
  if (manifest_) manifest_->finish(threads);
}

void SourceCheck::require_unchanged_since_last() {
  watch_->require_unchanged_since_last(kRepeat);
}

void SourceCheck::require_unchanged() const {
  watch_->require_unchanged(kRepeat);
}

}  // namespace dckpt
