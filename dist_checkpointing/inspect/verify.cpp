#include "dist_checkpointing/inspect/verify.h"

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>

#include "dist_checkpointing/inspect/run_facts.h"
#include "dist_checkpointing/inspect/stats.h"
#include "dist_checkpointing/integrity.h"
#include "mapping/base/checked.h"
#include "mapping/base/counted.h"
#include "mapping/base/error_boundary.h"
#include "mapping/base/format.h"
#include "mapping/base/hash.h"
#include "mapping/base/parallel_for.h"
#include "mapping/base/text.h"
#include "mapping/planning/rearrange.h"
#include "mapping/planning/validate.h"
#include "strategies/formats/torch_archive/torch_file.h"
#include "strategies/storage/hashed_file.h"
#include "strategies/storage/read_ahead_file.h"

namespace dckpt {
namespace {

/// Chunks and stored bytes that one thread checks as one task, with the file opened once.
constexpr std::size_t kTaskChunks = 4096;
constexpr std::uint64_t kTaskBytes = std::uint64_t{256} << 20;

using Problems = std::vector<CheckpointError>;

/// Runs one check; a CheckpointError becomes a problem. Returns whether there was none.
template <typename Check>
bool attempt(Problems& problems, const ErrorContext& context, Check&& check) {
  try {
    check();
    return true;
  } catch (const CheckpointError& error) {
    problems.push_back(error.with(context));
    return false;
  }
}

/// Compares integrity.json with the files that it lists.
class ManifestCheck {
 public:
  /// Reads the manifest and adds its problems to `problems`.
  ManifestCheck(const CheckpointReader& reader, Problems& problems) : reader_(reader) {
    const Storage& storage = reader_.storage();
    std::optional<IntegrityManifest> manifest;
    attempt(problems, {.file = kIntegrityFile},
            [&] { manifest = find_integrity_manifest(storage); });
    manifest_ = manifest.value_or(IntegrityManifest{});
    for (const IntegrityManifest::Entry& entry : manifest_.files) {
      const std::optional<FileInfo> file = storage.stat(entry.name);
      if (file) bytes_ += file->size;
      listed_.insert(entry.name);
    }
    if (manifest)
      attempt(problems, {.file = kIntegrityFile},
              [&] { entries_of(manifest_, files_of(reader_)); });
  }

  std::size_t size() const noexcept { return manifest_.files.size(); }
  std::uint64_t bytes() const noexcept { return bytes_; }  ///< size of the listed files
  bool lists(const std::string& file) const { return listed_.contains(file); }
  /// Adds the SHA-256 of a file that was read for its checksums.
  void add_digest(const std::string& file, const std::string& digest) {
    digests_.emplace(file, digest);
  }

  /// Checks that the files exist with their sizes and, if deep, with their digests.
  void check(const VerifyOptions& options, ProgressCounter& progress, Problems& all) const {
    std::vector<Problems> problems(manifest_.files.size());
    parallel_for(manifest_.files.size(), options.threads, [&](std::size_t i) {
      const IntegrityManifest::Entry& entry = manifest_.files[i];
      attempt(problems[i], {.file = entry.name}, [&] {
        const std::unique_ptr<ReadableFile> file = reader_.storage().open(entry.name);
        if (entry.size && *entry.size != file->size())
          throw CheckpointError(
              ErrorCode::kCorrupt,
              str_format("size mismatch: integrity.json expects {} bytes, the file has {}",
                         grouped(*entry.size), grouped(file->size())));
        if (!options.deep) return;
        const auto known = digests_.find(entry.name);
        const std::string found = known == digests_.end() ? file_sha256(*file) : known->second;
        progress.add(file->size());
        if (found == entry.sha256) return;
        throw CheckpointError(
            ErrorCode::kCorrupt,
            str_format("hash mismatch: integrity.json expects SHA-256 {}…, the file has {}…",
                       entry.sha256.substr(0, 16), found.substr(0, 16)));
      });
    });
    for (Problems& found : problems) std::ranges::move(found, std::back_inserter(all));
  }

 private:
  const CheckpointReader& reader_;
  IntegrityManifest manifest_;  // empty if there is none
  std::uint64_t bytes_ = 0;
  std::set<std::string> listed_;                // names in the manifest
  std::map<std::string, std::string> digests_;  // for files read for their checksums
};

struct ChunkRef {
  std::uint32_t tensor;
  std::uint32_t chunk;
};

class Verifier {
 public:
  Verifier(const CheckpointReader& reader, const VerifyOptions& options)
      : reader_(reader), metadata_(reader.metadata()), options_(options) {}

  VerifyReport run() {
    report_.format = reader_.info().format;
    report_.deep = options_.deep;
    report_.tensors = metadata_.tensors.size();
    report_.objects = metadata_.objects.size();
    check_files();
    check_coverage();
    if (const auto problem = problem_of_paths(metadata_)) report_.problems.push_back(*problem);
    check_ranges_apart();
    manifest_.emplace(reader_, report_.problems);
    report_.manifest_files = manifest_->size();
    progress_.emplace(options_.progress, total_bytes());
    check_chunks();
    check_objects();
    check_common();
    manifest_->check(options_, *progress_, report_.problems);
    return std::move(report_);
  }

 private:
  /// Checks that every data file is a regular file; remembers their sizes.
  void check_files() {
    report_.files = static_cast<std::size_t>(std::ranges::count_if(
        metadata_.files, [](const std::string& name) { return is_stored_file(name); }));
    file_sizes_.resize(metadata_.files.size());
    for (std::size_t i = 0; i < metadata_.files.size(); ++i) {
      const std::string& name = metadata_.files[i];
      attempt(report_.problems, {.file = name},
              [&] { file_sizes_[i] = reader_.storage().open(name)->size(); });
    }
  }

  void check_coverage() {
    for (const TensorStorageMetadata& tensor : metadata_.tensors) {
      for (const CoverageProblem& problem : validate_coverage(tensor)) {
        const ErrorCode code = problem.code == FindingCode::kElementsMissing
                                   ? ErrorCode::kIncomplete
                                   : ErrorCode::kCorrupt;
        report_.problems.emplace_back(code, problem.message, ErrorContext{.key = tensor.key});
      }
    }
  }

  /// Checks that records do not share bytes. Other formats may store two tensors in one place.
  void check_ranges_apart() {
    if (!reader_.info().conventions.records) return;
    struct Range {
      StorageInfo place;
      const std::string* key;
    };
    std::vector<Range> ranges;
    for (const TensorStorageMetadata& tensor : metadata_.tensors) {
      for (const StorageInfo& place : tensor.places) ranges.push_back({place, &tensor.key});
    }
    for (const BytesStorageMetadata& object : metadata_.objects)
      ranges.push_back({object.place, &object.key});
    static const std::string kCommonState = "the common state";
    for (const StorageInfo& place : reader_.info().common_places)
      ranges.push_back({place, &kCommonState});
    std::ranges::sort(ranges, {}, [](const Range& range) {
      return std::pair(range.place.file, range.place.offset);
    });
    for (std::size_t i = 1; i < ranges.size(); ++i) {
      const Range& before = ranges[i - 1];
      const Range& after = ranges[i];
      if (before.place.file != after.place.file ||
          after.place.offset - before.place.offset >= before.place.length ||
          after.place.length == 0)
        continue;
      report_.problems.emplace_back(
          ErrorCode::kCorrupt, "its record shares bytes with the record of " + quote(*before.key),
          ErrorContext{.key = *after.key,
                       .file = metadata_.files[after.place.file],
                       .offset = after.place.offset});
    }
  }

  bool file_is_there(const StorageInfo& place) const { return file_sizes_[place.file].has_value(); }

  void check_inside_file(const StorageInfo& place) const {
    const std::uint64_t size = *file_sizes_[place.file];
    if (range_fits(place.offset, place.length, size)) return;
    throw CheckpointError(
        ErrorCode::kCorrupt,
        str_format("its {} bytes reach beyond the end of the file, which has {}; was it truncated?",
                   grouped(place.length), grouped(size)));
  }

  /// Checks chunks in the order of their files and offsets, in tasks of bounded size.
  void check_chunks() {
    std::vector<std::vector<ChunkRef>> by_file(metadata_.files.size());
    for (std::uint32_t t = 0; t < metadata_.tensors.size(); ++t) {
      const auto& places = metadata_.tensors[t].places;
      report_.chunks += places.size();
      for (std::uint32_t c = 0; c < places.size(); ++c) {
        if (file_is_there(places[c])) by_file[places[c].file].push_back({t, c});
      }
    }
    const auto place = [&](const ChunkRef& ref) -> const StorageInfo& {
      return metadata_.tensors[ref.tensor].places[ref.chunk];
    };
    std::vector<std::span<const ChunkRef>> tasks;
    for (std::vector<ChunkRef>& refs : by_file) {
      std::ranges::sort(refs, {}, [&](const ChunkRef& ref) { return place(ref).offset; });
      std::size_t begin = 0;
      std::uint64_t bytes = 0;
      for (std::size_t i = 0; i < refs.size(); ++i) {
        bytes += std::min(place(refs[i]).length, kTaskBytes);
        const bool full = i + 1 - begin >= kTaskChunks || bytes >= kTaskBytes;
        if (i + 1 < refs.size() && (!full || hashes(metadata_.files[place(refs[i]).file])))
          continue;
        tasks.emplace_back(refs.data() + begin, i + 1 - begin);
        begin = i + 1;
        bytes = 0;
      }
    }
    std::vector<Problems> problems(tasks.size());
    std::vector<std::size_t> unchecked(tasks.size());
    std::vector<std::string> digests(tasks.size());
    parallel_for(tasks.size(), options_.threads, [&](std::size_t i) {
      const std::string& name = metadata_.files[place(tasks[i].front()).file];
      attempt(problems[i], {.file = name}, [&] {
        const std::shared_ptr<const ReadableFile> opened = reader_.storage().open(name);
        const auto check = [&](const ReadableFile& whole) {
          const ReadAheadFile file(whole);
          for (const ChunkRef& ref : tasks[i]) {
            const TensorStorageMetadata& tensor = metadata_.tensors[ref.tensor];
            attempt(problems[i], {.key = tensor.key, .file = name, .offset = place(ref).offset},
                    [&] { unchecked[i] += check_chunk(ref, file) ? 0 : 1; });
            if (&ref == tasks[i].data() || place(*(&ref - 1)) != place(ref))
              progress_->add(place(ref).length);
          }
        };
        if (!hashes(name)) return check(*opened);
        PassingHash hash;
        check(HashedFile(opened, hash));
        digests[i] = hash.finish_hex(*opened);
      });
    });
    for (std::size_t i = 0; i < tasks.size(); ++i) {
      if (!digests[i].empty())
        manifest_->add_digest(metadata_.files[place(tasks[i].front()).file], digests[i]);
    }
    for (Problems& found : problems) std::ranges::move(found, std::back_inserter(report_.problems));
    for (const std::size_t count : unchecked) report_.chunks_without_checksum += count;
  }

  /// Returns whether a file is compared with the manifest: it is then read once, for all checksums,
  /// from front to back.
  bool hashes(const std::string& file) const { return options_.deep && manifest_->lists(file); }

  /// Returns false if a deep check found no checksum.
  bool check_chunk(const ChunkRef& ref, const ReadableFile& file) const {
    const TensorStorageMetadata& tensor = metadata_.tensors[ref.tensor];
    check_inside_file(tensor.places[ref.chunk]);
    const ChunkPayload payload = reader_.locate(ref.tensor, ref.chunk, file);
    if (payload.dtype != tensor.properties.dtype) {
      throw CheckpointError(
          ErrorCode::kCorrupt,
          str_format("the metadata say {}, the chunk holds {}", to_string(tensor.properties.dtype),
                     to_string(payload.dtype)));
    }
    return !options_.deep || reader_.check_chunk(ref.tensor, ref.chunk, file);
  }

  void check_objects() {
    for (std::size_t i = 0; i < metadata_.objects.size(); ++i) {
      const BytesStorageMetadata& object = metadata_.objects[i];
      if (!file_is_there(object.place)) continue;
      attempt(report_.problems,
              {.key = object.key,
               .file = metadata_.files[object.place.file],
               .offset = object.place.offset},
              [&] {
                check_inside_file(object.place);
                reader_.object(i);
                if (options_.deep && !reader_.check_object(i)) ++report_.objects_without_checksum;
              });
      progress_->add(object.place.length);
    }
  }

  void check_common() {
    const CheckpointInfo& info = reader_.info();
    const auto in = [&](const StorageInfo& place) {
      return ErrorContext{
          .key = "common state", .file = metadata_.files[place.file], .offset = place.offset};
    };
    ErrorContext context{.file = info.common_file};
    if (info.common_places.size() == 1) context = in(info.common_places.front());
    const bool readable = attempt(report_.problems, context, [&] {
      reader_.common_state();
      if (std::string conflict = iteration_conflict(reader_); !conflict.empty())
        report_.findings.push_back({FindingCode::kIterationConflict,
                                    std::move(conflict),
                                    {},
                                    context.file,
                                    context.offset});
    });
    if (!readable || !options_.deep) return;
    const auto check = [&](const std::string& name, std::uint64_t offset,
                           std::optional<std::uint64_t> length) {
      const std::unique_ptr<ReadableFile> file = reader_.storage().open(name);
      if (!check_torch_file(*file, offset, length.value_or(file->size())))
        ++report_.objects_without_checksum;
    };
    if (info.common_file)
      attempt(report_.problems, context, [&] { check(*info.common_file, 0, {}); });
    for (const StorageInfo& place : info.common_places)
      attempt(report_.problems, in(place),
              [&] { check(metadata_.files[place.file], place.offset, place.length); });
  }

  std::uint64_t total_bytes() {
    // Rearranged tensors have several chunks in one place.
    std::vector<std::tuple<std::uint32_t, std::uint64_t, std::uint64_t>> places;
    const auto add = [&](const StorageInfo& place) {
      if (is_stored_file(metadata_.files[place.file]))
        places.emplace_back(place.file, place.offset, place.length);
    };
    for (const TensorStorageMetadata& tensor : metadata_.tensors)
      std::ranges::for_each(tensor.places, add);
    for (const BytesStorageMetadata& object : metadata_.objects) add(object.place);
    std::ranges::sort(places);
    places.erase(std::unique(places.begin(), places.end()), places.end());
    for (const auto& [file, offset, length] : places) report_.bytes += length;
    return report_.bytes + (options_.deep ? manifest_->bytes() : 0);
  }

  const CheckpointReader& reader_;
  const Metadata& metadata_;
  const VerifyOptions& options_;
  VerifyReport report_;
  std::vector<std::optional<std::uint64_t>> file_sizes_;  // empty for files that cannot be opened
  std::optional<ManifestCheck> manifest_;
  std::optional<ProgressCounter> progress_;
};

/// Adds a problem for each tensor with elements that are not finite.
void find_special(const CheckpointReader& reader, const VerifyOptions& options,
                  VerifyReport& report) {
  if (!report.ok()) {
    report.findings.push_back({FindingCode::kNoEffect,
                               "no elements were searched for NaN, as the checkpoint has other "
                               "problems"});
    return;
  }
  attempt(report.problems, {}, [&] {
    const StatsReport found =
        stats(reader, {.threads = options.threads, .progress = options.progress});
    const auto special = std::ranges::find(found.findings, FindingCode::kNotFinite, &Finding::code);
    if (special == found.findings.end()) return;
    for (const TensorStats& tensor : found.tensors) {
      if (std::ranges::find(special->keys, tensor.key) == special->keys.end()) continue;
      report.problems.emplace_back(
          ErrorCode::kCorrupt,
          str_format("of {}, {} NaN and {} infinite", counted(tensor.elements->count, "element"),
                     counted(tensor.elements->nan, "is", "are"),
                     grouped(tensor.elements->infinite)),
          ErrorContext{.key = tensor.key});
    }
  });
}

}  // namespace

VerifyReport verify(const CheckpointReader& reader, const VerifyOptions& options) try {
  VerifyReport report = Verifier(reader, options).run();
  if (options.nan) find_special(reader, options, report);
  return report;
} catch (...) {
  throw_checkpoint_error();
}

}  // namespace dckpt
