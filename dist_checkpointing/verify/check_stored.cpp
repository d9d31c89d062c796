#include "dist_checkpointing/verify/check_stored.h"

#include <algorithm>
#include <iterator>
#include <memory>
#include <numeric>
#include <optional>
#include <span>
#include <string>

#include "dist_checkpointing/ranks/shared_work.h"
#include "dist_checkpointing/verify/iteration_conflict.h"
#include "dist_checkpointing/verify/listed_files.h"
#include "dist_checkpointing/verify/metadata_problems.h"
#include "dist_checkpointing/verify/problems.h"
#include "dist_checkpointing/verify/still_files.h"
#include "mapping/base/checked.h"
#include "mapping/base/counted.h"
#include "mapping/base/error_boundary.h"
#include "mapping/base/error_wire.h"
#include "mapping/base/format.h"
#include "mapping/base/hash.h"
#include "mapping/base/text.h"
#include "mapping/planning/rearrange.h"
#include "strategies/formats/torch_archive/torch_file.h"
#include "strategies/storage/hashed_file.h"
#include "strategies/storage/read_ahead_file.h"

namespace dckpt {
namespace {

/// Chunks and stored bytes that one thread checks as one task, with the file opened once.
constexpr std::size_t kTaskChunks = 4096;
constexpr std::uint64_t kTaskBytes = std::uint64_t{256} << 20;

/// The findings in a part of the checkpoint, which travel between ranks.
struct Checked {
  Problems problems{};
  Findings findings{};
  std::size_t without_checksum = 0;  ///< chunks, or objects
  std::string digest{};              ///< of the file, if it is compared with the manifest
};
constexpr auto fields(const Checked*) {
  return std::tuple(Field(&Checked::problems), Field(&Checked::findings),
                    Field(&Checked::without_checksum), Field(&Checked::digest));
}

struct ChunkRef {
  std::uint32_t tensor;
  std::uint32_t chunk;
};

class Verifier {
 public:
  Verifier(const CheckpointReader& reader, const StoredCheck& options, Communicator& comm)
      : reader_(reader),
        metadata_(reader.metadata()),
        options_(options),
        still_(reader),
        work_(comm, "verifying the checkpoint", options.threads, options.progress) {}

  VerifyReport run() {
    work_.on_all_ranks([&] { check_metadata(); });
    work_.require_same("files", [&] {
      std::string sizes;
      for (std::size_t i = 0; i < file_sizes_.size(); ++i)
        sizes += str_format("{}: {}\n", metadata_.files[i],
                            file_sizes_[i] ? grouped(*file_sizes_[i]) : "missing");
      return sizes;
    });
    const std::size_t objects = tasks_.size();
    const std::size_t common = objects + metadata_.objects.size();
    std::vector<std::uint64_t> sizes = task_sizes_;
    for (const BytesStorageMetadata& object : metadata_.objects)
      sizes.push_back(object.place.length);
    sizes.push_back(0);  // the common state
    std::vector<Checked> found = work_.share<Checked>(sizes, [&](std::size_t i) {
      return i < objects  ? check_task(tasks_[i])
             : i < common ? check_object(i - objects)
                          : check_common();
    });
    for (std::size_t i = 0; i < found.size(); ++i) {
      if (!found[i].digest.empty()) manifest_->add_digest(file_of(tasks_[i]), found[i].digest);
      (i < objects ? report_.chunks_without_checksum : report_.objects_without_checksum) +=
          found[i].without_checksum;
      append(report_.findings, std::move(found[i].findings));
      std::ranges::move(found[i].problems, std::back_inserter(report_.problems));
    }
    found = work_.share<Checked>(manifest_->unread(options_.deep), [&](std::size_t i) {
      Checked file;
      manifest_->check(i, options_.deep, work_, file.problems);
      return file;
    });
    for (Checked& file : found)
      std::ranges::move(file.problems, std::back_inserter(report_.problems));
    work_.on_all_ranks([&] { still_.require_unchanged(); });
    return std::move(report_);
  }

 private:
  /// Checks what needs no data, and lists what does.
  void check_metadata() {
    report_.format = reader_.info().format;
    report_.deep = options_.deep;
    report_.tensors = metadata_.tensors.size();
    report_.objects = metadata_.objects.size();
    report_.findings = reader_.info().findings;
    check_files();
    std::ranges::move(problems_of_metadata(reader_), std::back_inserter(report_.problems));
    manifest_.emplace(reader_, report_.problems);
    if (options_.deep && !manifest_->sizes().empty()) require_sha256();
    report_.manifest_files = manifest_->sizes().size();
    work_.expect(total_bytes());
    list_tasks();
  }

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

  bool file_is_there(const StorageInfo& place) const { return file_sizes_[place.file].has_value(); }

  void check_inside_file(const StorageInfo& place) const {
    const std::uint64_t size = *file_sizes_[place.file];
    if (range_fits(place.offset, place.length, size)) return;
    throw_error(ErrorCode::kCorrupt,
                "its {} bytes reach beyond the end of the file, which has {}; was it truncated?",
                grouped(place.length), grouped(size));
  }

  const StorageInfo& place_of(const ChunkRef& ref) const {
    return metadata_.tensors[ref.tensor].places[ref.chunk];
  }

  /// Lists the chunks in the order of their files and offsets, in tasks of bounded size.
  void list_tasks() {
    refs_.resize(metadata_.files.size());
    for (std::uint32_t t = 0; t < metadata_.tensors.size(); ++t) {
      const auto& places = metadata_.tensors[t].places;
      report_.chunks += places.size();
      for (std::uint32_t c = 0; c < places.size(); ++c) {
        if (file_is_there(places[c])) refs_[places[c].file].push_back({t, c});
      }
    }
    for (std::vector<ChunkRef>& refs : refs_) {
      std::ranges::sort(refs, {}, [&](const ChunkRef& ref) { return place_of(ref).offset; });
      std::size_t begin = 0;
      std::uint64_t bytes = 0;
      for (std::size_t i = 0; i < refs.size(); ++i) {
        bytes += std::min(place_of(refs[i]).length, kTaskBytes);
        const bool full = i + 1 - begin >= kTaskChunks || bytes >= kTaskBytes;
        if (i + 1 < refs.size() && (!full || hashes(metadata_.files[place_of(refs[i]).file])))
          continue;
        tasks_.emplace_back(refs.data() + begin, i + 1 - begin);
        task_sizes_.push_back(bytes);
        begin = i + 1;
        bytes = 0;
      }
    }
  }

  const std::string& file_of(std::span<const ChunkRef> task) const {
    return metadata_.files[place_of(task.front()).file];
  }

  Checked check_task(std::span<const ChunkRef> task) {
    Checked checked;
    const std::string& name = file_of(task);
    attempt(checked.problems, {.file = name}, [&] {
      const std::shared_ptr<const ReadableFile> opened = reader_.storage().open(name);
      const auto check = [&](const ReadableFile& whole) {
        const ReadAheadFile file(whole);
        for (const ChunkRef& ref : task) {
          attempt(checked.problems,
                  {.key = metadata_.tensors[ref.tensor].key,
                   .file = name,
                   .offset = place_of(ref).offset},
                  [&] { checked.without_checksum += check_chunk(ref, file) ? 0 : 1; });
          if (&ref == task.data() || place_of(*(&ref - 1)) != place_of(ref))
            work_.add(place_of(ref).length);
        }
      };
      if (!hashes(name)) return check(*opened);
      PassingHash hash;
      check(HashedFile(opened, hash));
      checked.digest = hash.finish_hex(*opened);
    });
    return checked;
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
      throw_error(ErrorCode::kCorrupt, "the metadata say {}, the chunk holds {}",
                  to_string(tensor.properties.dtype), to_string(payload.dtype));
    }
    return !options_.deep || reader_.check_chunk(ref.tensor, ref.chunk, file);
  }

  Checked check_object(std::size_t index) {
    Checked checked;
    const BytesStorageMetadata& object = metadata_.objects[index];
    if (!file_is_there(object.place)) return checked;
    attempt(checked.problems,
            {.key = object.key,
             .file = metadata_.files[object.place.file],
             .offset = object.place.offset},
            [&] {
              check_inside_file(object.place);
              reader_.object(index);
              if (options_.deep && !reader_.check_object(index)) ++checked.without_checksum;
            });
    work_.add(object.place.length);
    return checked;
  }

  Checked check_common() const {
    Checked checked;
    const CheckpointInfo& info = reader_.info();
    const auto in = [&](const StorageInfo& place) {
      return ErrorContext{
          .key = "common state", .file = metadata_.files[place.file], .offset = place.offset};
    };
    ErrorContext context{.file = info.common_file};
    if (info.common_places.size() == 1) context = in(info.common_places.front());
    const bool readable = attempt(checked.problems, context, [&] {
      reader_.common_state();
      if (std::string conflict = iteration_conflict(reader_); !conflict.empty())
        checked.findings.push_back({FindingCode::kIterationConflict,
                                    std::move(conflict),
                                    {},
                                    context.file,
                                    context.offset});
    });
    if (!readable || !options_.deep) return checked;
    const auto check = [&](const std::string& name, std::uint64_t offset,
                           std::optional<std::uint64_t> length) {
      const std::unique_ptr<ReadableFile> file = reader_.storage().open(name);
      if (!check_torch_file(*file, offset, length.value_or(file->size())))
        ++checked.without_checksum;
    };
    if (info.common_file)
      attempt(checked.problems, context, [&] { check(*info.common_file, 0, {}); });
    for (const StorageInfo& place : info.common_places)
      attempt(checked.problems, in(place),
              [&] { check(metadata_.files[place.file], place.offset, place.length); });
    return checked;
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
    const std::vector<std::uint64_t>& manifest = manifest_->sizes();
    return std::accumulate(manifest.begin(), options_.deep ? manifest.end() : manifest.begin(),
                           report_.bytes);
  }

  const CheckpointReader& reader_;
  const Metadata& metadata_;
  const StoredCheck& options_;
  VerifyReport report_;
  std::vector<std::optional<std::uint64_t>> file_sizes_;  // empty for files that cannot be opened
  std::optional<ListedFiles> manifest_;
  const StillFiles still_;
  std::vector<std::vector<ChunkRef>> refs_;  // by file
  std::vector<std::span<const ChunkRef>> tasks_;
  std::vector<std::uint64_t> task_sizes_;
  SharedWork work_;
};

}  // namespace

VerifyReport check_stored(const CheckpointReader& reader, const StoredCheck& options) {
  return check_stored(reader, options, *single_rank());
}

VerifyReport check_stored(const CheckpointReader& reader, const StoredCheck& options,
                          Communicator& comm) try {
  return Verifier(reader, options, comm).run();
} catch (...) {
  throw_checkpoint_error();
}

}  // namespace dckpt
