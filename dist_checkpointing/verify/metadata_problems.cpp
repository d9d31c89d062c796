#include "dist_checkpointing/verify/metadata_problems.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "mapping/base/checked.h"
#include "mapping/base/format.h"
#include "mapping/base/text.h"
#include "mapping/planning/rearrange.h"
#include "mapping/planning/validate.h"
#include "mapping/state/sharded_object.h"

namespace dckpt {
namespace {

void find_uncovered(const Metadata& metadata, Problems& problems) {
  for (const TensorStorageMetadata& tensor : metadata.tensors) {
    for (const CoverageProblem& problem : validate_coverage(tensor)) {
      const ErrorCode code = problem.code == FindingCode::kElementsMissing ? ErrorCode::kIncomplete
                                                                           : ErrorCode::kCorrupt;
      problems.emplace_back(code, problem.message, ErrorContext{.key = tensor.key});
    }
  }
}

/// Finds cells of the grids of objects that are missing. For formats that list objects by their
/// files, so that a lost file leaves no other trace.
void find_missing_cells(const Metadata& metadata, Problems& problems) {
  std::map<std::pair<std::string, Shape>, std::set<Shape>> grids;
  for (const BytesStorageMetadata& object : metadata.objects) {
    if (const auto cell = ShardedObject::parse_unique_key(object.key))
      grids[{cell->key, cell->global_shape}].insert(cell->global_offset);
  }
  for (const auto& [grid, cells] : grids) {
    const auto& [key, shape] = grid;
    if (std::ranges::any_of(shape, [](std::int64_t extent) { return extent < 1; })) continue;
    const std::optional<std::int64_t> count = checked_numel(shape);
    if (count == static_cast<std::int64_t>(cells.size())) continue;
    ShardedObject missing{.key = key, .global_shape = shape, .global_offset = Shape(shape.size())};
    while (cells.contains(missing.global_offset)) {
      std::size_t axis = shape.size() - 1;
      while (++missing.global_offset[axis] == shape[axis]) missing.global_offset[axis--] = 0;
    }
    problems.emplace_back(
        ErrorCode::kIncomplete,
        str_format("{} of the object's {} cells are there; the first that is missing is {}, whose "
                   "file was lost",
                   grouped(cells.size()),
                   count ? grouped(static_cast<std::uint64_t>(*count)) : "many",
                   quote(missing.unique_key())),
        ErrorContext{.key = missing.unique_key()});
  }
}

struct Record {
  StorageInfo place;
  const std::string* key;
};

/// Returns the records in the order of their places.
std::vector<Record> sorted_records(const CheckpointReader& reader) {
  static const std::string kCommonState = "the common state";
  std::vector<Record> records;
  for (const TensorStorageMetadata& tensor : reader.metadata().tensors)
    for (const StorageInfo& place : tensor.places) records.push_back({place, &tensor.key});
  for (const BytesStorageMetadata& object : reader.metadata().objects)
    records.push_back({object.place, &object.key});
  for (const StorageInfo& place : reader.info().common_places)
    records.push_back({place, &kCommonState});
  std::ranges::sort(records, {}, [](const Record& record) {
    return std::pair(record.place.file, record.place.offset);
  });
  return records;
}

void find_shared_bytes(const CheckpointReader& reader, Problems& problems) {
  const std::vector<Record> records = sorted_records(reader);
  for (std::size_t i = 1; i < records.size(); ++i) {
    const Record& before = records[i - 1];
    const Record& after = records[i];
    if (before.place.file != after.place.file ||
        after.place.offset - before.place.offset >= before.place.length || after.place.length == 0)
      continue;
    problems.emplace_back(ErrorCode::kCorrupt,
                          "its record shares bytes with the record of " + quote(*before.key),
                          ErrorContext{.key = *after.key,
                                       .file = reader.metadata().files[after.place.file],
                                       .offset = after.place.offset});
  }
}

}  // namespace

Problems problems_of_metadata(const CheckpointReader& reader) {
  Problems problems;
  find_uncovered(reader.metadata(), problems);
  if (const auto problem = problem_of_paths(reader.metadata())) problems.push_back(*problem);
  // Formats without records may store two tensors in one place.
  if (reader.info().conventions.records)
    find_shared_bytes(reader, problems);
  else
    find_missing_cells(reader.metadata(), problems);
  return problems;
}

}  // namespace dckpt
