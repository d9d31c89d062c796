#include "dist_checkpointing/rewrite/missing_data.h"

#include <algorithm>
#include <optional>
#include <unordered_set>
#include <utility>

#include "mapping/base/checked.h"
#include "mapping/base/error.h"
#include "mapping/base/format.h"
#include "mapping/base/problem_list.h"
#include "mapping/base/text.h"
#include "mapping/planning/rearrange.h"

namespace dckpt {
namespace {

/// Sizes of the data files that are used, each looked up once.
class FileSizes {
 public:
  FileSizes(const Storage& storage, const std::vector<std::string>& names)
      : storage_(storage), names_(names), sizes_(names.size()) {}

  /// Whether nothing of the place is lost. Files that are not are remembered.
  bool holds(const StorageInfo& place) {
    const std::string& name = names_[place.file];
    if (!is_stored_file(name)) return true;
    std::optional<std::uint64_t>& size = sizes_[place.file];
    if (!size) {
      const std::optional<FileInfo> found = storage_.stat_target(name);
      size = found ? found->size : 0;
    }
    if (range_fits(place.offset, place.length, *size)) return true;
    if (std::ranges::find(lost_, name) == lost_.end()) lost_.push_back(name);
    return false;
  }

  const std::vector<std::string>& lost() const noexcept { return lost_; }

 private:
  const Storage& storage_;
  const std::vector<std::string>& names_;
  std::vector<std::optional<std::uint64_t>> sizes_;
  std::vector<std::string> lost_;
};

std::uint64_t lost_elements(const TensorStorageMetadata& tensor, FileSizes& files) {
  std::uint64_t lost = 0;
  for (std::size_t chunk = 0; chunk < tensor.chunks.size(); ++chunk) {
    if (!files.holds(tensor.places[chunk]))
      lost += static_cast<std::uint64_t>(numel(tensor.chunks.sizes(chunk)));
  }
  return lost;
}

/// "12.5 % of 3.0 MiB", "0.1 %" where it is less but not nothing.
std::string share(std::uint64_t lost, std::uint64_t all, std::uint64_t bytes) {
  const double percent =
      all == 0 ? 100.0 : 100.0 * static_cast<double>(lost) / static_cast<double>(all);
  return str_format("{:.1f} % of {}", std::max(percent, 0.1), human_bytes(bytes));
}

}  // namespace

CopyContents without_lost_data(CopyContents contents, const CheckpointReader& source,
                               bool allow_partial, std::vector<std::string>& lost,
                               std::vector<std::string>& remarks) {
  Metadata& metadata = contents.metadata;
  FileSizes files(source.storage(), metadata.files);
  ProblemList problems;
  std::unordered_set<std::string> taken_out;
  std::uint64_t bytes = 0;
  std::uint64_t all_bytes = 0;
  // Keeps what is whole, with its origin beside it.
  const auto sift = [&](auto& entries, auto& origins, const auto& is_whole) {
    std::size_t kept = 0;
    for (std::size_t i = 0; i < entries.size(); ++i) {
      if (!is_whole(entries[i])) {
        taken_out.insert(entries[i].key);
        lost.push_back(std::move(entries[i].key));
        continue;
      }
      if (kept != i) {
        entries[kept] = std::move(entries[i]);
        origins[kept] = std::move(origins[i]);
      }
      ++kept;
    }
    entries.resize(kept);
    origins.resize(kept);
  };
  sift(metadata.tensors, contents.tensor_of, [&](const TensorStorageMetadata& tensor) {
    all_bytes += tensor.nbytes();
    const std::uint64_t elements = lost_elements(tensor, files);
    const bool empty_lost = numel(tensor.size) == 0;
    if (elements == 0 || empty_lost) return true;
    bytes += tensor.nbytes();
    problems.add(str_format(
        "{}: {}", quote(tensor.key),
        share(elements, static_cast<std::uint64_t>(numel(tensor.size)), tensor.nbytes())));
    return false;
  });
  sift(metadata.objects, contents.object_of, [&](const BytesStorageMetadata& object) {
    all_bytes += object.place.length;
    if (files.holds(object.place)) return true;
    bytes += object.place.length;
    problems.add(
        str_format("{}: an object of {}", quote(object.key), human_bytes(object.place.length)));
    return false;
  });
  const CheckpointInfo& info = source.info();
  const bool common_lost = info.common_place && !files.holds(*info.common_place);
  const std::string where =
      str_format("data files are missing or too short: {}", quoted_list(files.lost(), 10));
  if (common_lost)
    throw CheckpointError(ErrorCode::kIncomplete,
                          where +
                              "; the common state was in one of them, and nothing can be "
                              "resumed without it");
  if (!allow_partial)
    problems.raise_if_any(ErrorCode::kIncomplete,
                          where + "; of these keys data are lost (allow_partial takes the rest):");
  if (taken_out.empty()) return contents;
  std::erase_if(metadata.paths, [&](const auto& path) { return taken_out.contains(path.first); });
  contents.left_out += taken_out.size();
  remarks.push_back(str_format("left out, as {}: {} keys of {} ({}), {}", where,
                               grouped(taken_out.size()), human_bytes(bytes),
                               share(bytes, all_bytes, all_bytes), quoted_list(lost, 10)));
  return contents;
}

}  // namespace dckpt
