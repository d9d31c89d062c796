#include "operations/convert/source/missing_data.h"

#include <optional>
#include <string>
#include <unordered_set>
#include <utility>

#include "mapping/base/counted.h"
#include "mapping/base/error.h"
#include "mapping/base/problem_list.h"
#include "strategies/tensor_io/lost_data.h"

namespace dckpt {
namespace {

/// Removes the entries at `positions`, in ascending order, with their parallel entries in
/// `origins`.
template <typename Entries, typename Origins>
void take_out(Entries& entries, Origins& origins, const std::vector<std::uint32_t>& positions,
              std::vector<std::string>& keys) {
  std::size_t kept = 0;
  auto next = positions.begin();
  for (std::size_t i = 0; i < entries.size(); ++i) {
    if (next != positions.end() && *next == i) {
      keys.push_back(std::move(entries[i].key));
      ++next;
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
}

}  // namespace

CopyContents without_lost_data(CopyContents contents, const CheckpointReader& source,
                               bool allow_partial, std::vector<std::string>& lost_keys) {
  Metadata& metadata = contents.metadata;
  const LostData lost = find_lost_data(source, metadata);
  if (lost.common_state)
    throw_error(ErrorCode::kIncomplete,
                lost.where() +
                    "; the common state was in one of them, and nothing can "
                    "be resumed without it");
  if (lost.empty()) return contents;
  if (!allow_partial) {
    ProblemList keys;
    for (std::string& line : describe_lost_keys(lost, metadata)) keys.add(std::move(line));
    keys.raise_if_any(
        ErrorCode::kIncomplete,
        lost.where() + "; of these keys data are lost (--allow-partial takes the rest):");
  }
  std::vector<std::uint32_t> tensors;
  std::uint64_t bytes = 0;
  for (const LostData::Tensor& tensor : lost.tensors) {
    tensors.push_back(tensor.number);
    bytes += metadata.tensors[tensor.number].nbytes();
  }
  std::uint64_t all_bytes = 0;
  for (const TensorStorageMetadata& tensor : metadata.tensors) all_bytes += tensor.nbytes();
  take_out(metadata.tensors, contents.tensor_of, tensors, lost_keys);
  take_out(metadata.objects, contents.object_of, lost.objects, lost_keys);
  const std::unordered_set<std::string_view> keys(lost_keys.begin(), lost_keys.end());
  std::erase_if(metadata.paths, [&](const auto& path) { return keys.contains(path.first); });
  contents.left_out += keys.size();
  contents.findings.push_back(
      {FindingCode::kDataLost,
       str_format("left out, as {}: {} with {} of {} of tensors, {}", lost.where(),
                  counted(keys.size(), "key"), human_bytes(bytes), human_bytes(all_bytes),
                  quoted_list(lost_keys, 10)),
       lost_keys, lost.files.size() == 1 ? std::optional(lost.files.front()) : std::nullopt});
  return contents;
}

}  // namespace dckpt
