#include "strategies/tensor_io/lost_data.h"

#include <algorithm>
#include <optional>

#include "mapping/base/checked.h"
#include "mapping/base/format.h"
#include "mapping/base/problem_list.h"
#include "mapping/base/text.h"
#include "mapping/planning/rearrange.h"

namespace dckpt {
namespace {

/// The data files of a checkpoint. The size of each is looked up once.
class DataFiles {
 public:
  DataFiles(const Storage& storage, const std::vector<std::string>& names,
            std::vector<std::string>& lost)
      : storage_(storage), names_(names), lost_(lost), sizes_(names.size()) {}

  /// Returns whether the file holds all of the place. If not, adds the file to the lost ones.
  bool hold(const StorageInfo& place) {
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

 private:
  const Storage& storage_;
  const std::vector<std::string>& names_;
  std::vector<std::string>& lost_;
  std::vector<std::optional<std::uint64_t>> sizes_;
};

}  // namespace

std::string LostData::where() const {
  return "data files are missing or too short: " + quoted_list(files, 10);
}

LostData find_lost_data(const CheckpointReader& source, const Metadata& metadata) {
  LostData lost;
  DataFiles files(source.storage(), metadata.files, lost.files);
  for (std::uint32_t i = 0; i < metadata.tensors.size(); ++i) {
    const TensorStorageMetadata& tensor = metadata.tensors[i];
    std::uint64_t elements = 0;
    for (std::size_t chunk = 0; chunk < tensor.chunks.size(); ++chunk) {
      const auto size = static_cast<std::uint64_t>(numel(tensor.chunks.sizes(chunk)));
      if (size > 0 && !files.hold(tensor.places[chunk])) elements += size;
    }
    if (elements > 0) lost.tensors.push_back({i, elements});
  }
  for (std::uint32_t i = 0; i < metadata.objects.size(); ++i) {
    if (!files.hold(metadata.objects[i].place)) lost.objects.push_back(i);
  }
  for (const StorageInfo& place : source.info().common_places)
    lost.common_state |= !files.hold(place);
  return lost;
}

std::vector<std::string> describe_lost_keys(const LostData& lost, const Metadata& metadata) {
  std::vector<std::string> lines;
  for (const auto& [number, elements] : lost.tensors) {
    const TensorStorageMetadata& tensor = metadata.tensors[number];
    const double percent =
        100.0 * static_cast<double>(elements) / static_cast<double>(numel(tensor.global_shape()));
    lines.push_back(str_format("{}: {:.1f} % of {}", quote(tensor.key), std::max(percent, 0.1),
                               human_bytes(tensor.nbytes())));
  }
  for (const std::uint32_t number : lost.objects) {
    const BytesStorageMetadata& object = metadata.objects[number];
    lines.push_back(
        str_format("{}: an object of {}", quote(object.key), human_bytes(object.place.length)));
  }
  return lines;
}

void require_no_lost_data(const CheckpointReader& source, const Metadata& needed,
                          const std::string& why) {
  const LostData lost = find_lost_data(source, needed);
  ProblemList keys;
  for (std::string& line : describe_lost_keys(lost, needed)) keys.add(std::move(line));
  keys.raise_if_any(ErrorCode::kIncomplete,
                    str_format("{}; {}. Of these keys data are lost:", lost.where(), why));
}

}  // namespace dckpt
