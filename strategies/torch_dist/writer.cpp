#include "strategies/torch_dist/writer.h"

#include <algorithm>
#include <deque>
#include <mutex>
#include <span>
#include <utility>

#include "configs/policy/separation_hint.h"
#include "mapping/base/format.h"
#include "mapping/base/parallel_for.h"
#include "strategies/contract/common_state.h"
#include "strategies/formats/dcp/megatron_json.h"
#include "strategies/formats/dcp/metadata_writer.h"
#include "strategies/formats/torch_archive/torch_file.h"
#include "strategies/storage/buffered_file.h"
#include "strategies/torch_dist/data_file.h"
#include "strategies/torch_dist/reader.h"

namespace dckpt {
namespace {

std::string in_directory(const std::string& directory, const std::string& name) {
  return directory.empty() ? name : str_format("{}/{}", directory, name);
}

/// Divides `items` among files: objects first and round robin, then tensors, largest first to the
/// file with the least bytes. No file is empty.
std::vector<std::vector<std::size_t>> spread(const SavePlan& plan,
                                             std::span<const std::size_t> items,
                                             std::size_t files) {
  std::vector<std::vector<std::size_t>> buckets(files);
  std::vector<std::uint64_t> bytes(files, 0);
  std::vector<std::size_t> tensors;
  std::size_t objects = 0;
  for (const std::size_t i : items) {
    const WriteItem& item = plan[i];
    if (item.kind == WriteItem::Kind::kTensor) {
      tensors.push_back(i);
    } else {
      bytes[objects % files] += item.nbytes;
      buckets[objects++ % files].push_back(i);
    }
  }
  std::vector<std::size_t> by_size;
  if (files > 1) by_size = tensors;
  std::stable_sort(by_size.begin(), by_size.end(),
                   [&](std::size_t a, std::size_t b) { return plan[a].nbytes > plan[b].nbytes; });
  std::vector<std::size_t> file_of(plan.size(), 0);
  for (const std::size_t i : by_size) {
    const auto least =
        static_cast<std::size_t>(std::min_element(bytes.begin(), bytes.end()) - bytes.begin());
    bytes[least] += plan[i].nbytes + kBlobOverhead;
    file_of[i] = least;
  }
  // Inside a file tensors keep the order of the plan, which is the order in which a whole-model
  // load wants them.
  for (const std::size_t i : tensors) buckets[file_of[i]].push_back(i);
  std::erase_if(buckets, [](const auto& bucket) { return bucket.empty(); });
  return buckets;
}

struct PlannedItems {
  std::string name;
  std::vector<std::size_t> items;  ///< positions in the plan, in the order of the file
};

/// Returns the rank's files, numbered through: first those of ordinary keys, then those that the
/// hint keeps apart.
std::vector<PlannedItems> plan_data_files(const SavePlan& plan, int rank, int files_per_rank,
                                          std::string_view hint) {
  std::vector<std::size_t> ordinary;
  std::vector<std::size_t> hinted;
  for (std::size_t i = 0; i < plan.size(); ++i) {
    const bool apart =
        !hint.empty() && plan[i].key.starts_with(hint) && plan[i].key != kCommonStateKey;
    (apart ? hinted : ordinary).push_back(i);
  }
  std::vector<PlannedItems> files;
  const auto add = [&](std::string_view prefix, std::span<const std::size_t> items) {
    for (auto& bucket :
         spread(plan, items, static_cast<std::size_t>(std::max(files_per_rank, 1)))) {
      files.push_back(
          {str_format("{}__{}_{}.distcp", prefix, rank, files.size()), std::move(bucket)});
    }
  };
  add("", ordinary);
  add(hint, hinted);
  return files;
}

/// Hands out the sections of files: first of files that fewer threads are writing, so that each
/// thread has a file of its own as long as there are enough; then in the order of the files.
class SectionQueue {
 public:
  explicit SectionQueue(std::deque<DataFileWriter>& files) : files_(files), turns_(files.size()) {}

  std::size_t size() const {
    std::size_t sections = 0;
    for (const DataFileWriter& file : files_) sections += file.sections();
    return sections;
  }

  /// Must be called size() times.
  void write_next() {
    const auto [file, section] = take();
    files_[file].write(section);
    const std::lock_guard lock(mutex_);
    --turns_[file].threads;
  }

 private:
  struct Turn {
    std::size_t next = 0;
    std::size_t threads = 0;
  };

  std::pair<std::size_t, std::size_t> take() {
    const std::lock_guard lock(mutex_);
    std::size_t best = files_.size();
    for (std::size_t i = 0; i < files_.size(); ++i) {
      if (turns_[i].next < files_[i].sections() &&
          (best == files_.size() || turns_[i].threads < turns_[best].threads))
        best = i;
    }
    ++turns_[best].threads;
    return {best, turns_[best].next++};
  }

  std::deque<DataFileWriter>& files_;
  std::mutex mutex_;
  std::vector<Turn> turns_;
};

}  // namespace

WrittenItems write_data_files(Storage& storage, const std::string& directory, int rank,
                              const SavePlan& plan, ItemSource& source,
                              const DataFileOptions& options) {
  const WriteOptions& io = options.io;
  check_separation_hint(options.separation_hint);
  TensorBlobWriters blobs(blob_options(io));
  const DataFileTarget target{storage, directory, rank, plan, source, io, options.codec, blobs};
  std::deque<DataFileWriter> files;
  WrittenItems written;
  for (PlannedItems& file :
       plan_data_files(plan, rank, io.files_per_rank, options.separation_hint)) {
    files.emplace_back(target, file.name, std::move(file.items));
    written.files.push_back(std::move(file.name));
  }
  SectionQueue queue(files);
  parallel_for(queue.size(), io.threads, [&](std::size_t) { queue.write_next(); });

  written.places.resize(plan.size());
  for (std::size_t index = 0; index < files.size(); ++index) {
    const auto& items = files[index].items();
    for (std::size_t k = 0; k < items.size(); ++k) {
      written.places[items[k]] = files[index].places()[k];
      written.places[items[k]].file = static_cast<std::uint32_t>(index);
    }
  }
  return written;
}

WrittenItems measure_data_files(int rank, const SavePlan& plan, const DataFileOptions& options) {
  check_separation_hint(options.separation_hint);
  TensorBlobWriters blobs(blob_options(options.io));
  WrittenItems written;
  written.places.resize(plan.size());
  for (const PlannedItems& file :
       plan_data_files(plan, rank, options.io.files_per_rank, options.separation_hint)) {
    std::uint64_t position = 0;
    for (const std::size_t i : file.items) {
      const std::uint64_t length = plan[i].kind == WriteItem::Kind::kObject
                                       ? plan[i].nbytes
                                       : blob_of(blobs, plan[i], position)->size();
      written.places[i] = {static_cast<std::uint32_t>(written.files.size()), position, length};
      position += length;
    }
    written.files.push_back(file.name);
  }
  return written;
}

void write_index_files(Storage& storage, const std::string& directory, const CheckpointIndex& index,
                       bool fsync) {
  if (index.common != nullptr)
    write_small_file(storage, in_directory(directory, kCommonFile), index.common->archive(), fsync);
  if (index.compat == Compat::kDcp) return;
  CheckpointingConfig config;
  if (index.compat == Compat::kMegatron) {
    config.common_backend = "torch";
    config.common_backend_version = 1;
  }
  write_small_file(storage, in_directory(directory, kConfigFile),
                   as_bytes(write_checkpointing_config(config)), fsync);
}

// The marker is not metadata.json: a directory with .metadata alone could be taken for a checkpoint
// of plain DCP.
MarkerFile marker_of(const CheckpointIndex& index) {
  const std::uint32_t common_crc =
      index.common == nullptr ? 0 : content_crc(index.common->archive());
  return {kMetadataFile, write_dcp_metadata(index.metadata, common_crc)};
}

}  // namespace dckpt
