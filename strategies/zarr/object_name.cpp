#include "strategies/zarr/object_name.h"

#include <string>

#include "mapping/base/text.h"

namespace dckpt {
namespace {

constexpr std::string_view kShardPrefix = "shard_";
constexpr std::string_view kShardSuffix = ".pt";

std::optional<Shape> parse_numbers(std::string_view text) {
  Shape numbers;
  for (const std::string& part : split(text, '.')) {
    const auto number = parse_u64(part);
    if (!number || *number > static_cast<std::uint64_t>(INT64_MAX) ||
        std::to_string(*number) != part || numbers.size() == kMaxDims)
      return std::nullopt;
    numbers.push_back(static_cast<std::int64_t>(*number));
  }
  return numbers;
}

}  // namespace

std::optional<ZarrObjectName> parse_zarr_object_name(std::string_view file_name) {
  if (!file_name.starts_with(kShardPrefix) || !file_name.ends_with(kShardSuffix))
    return std::nullopt;
  file_name.remove_prefix(kShardPrefix.size());
  const std::size_t underscore = file_name.find('_');
  if (underscore == std::string_view::npos ||
      file_name.size() < underscore + 1 + kShardSuffix.size())
    return std::nullopt;
  const auto offset = parse_numbers(file_name.substr(0, underscore));
  const auto shape = parse_numbers(
      file_name.substr(underscore + 1, file_name.size() - underscore - 1 - kShardSuffix.size()));
  if (!offset || !shape) return std::nullopt;
  const bool lost_one = offset->size() >= 2 && shape->size() + 1 == offset->size();
  if (shape->size() != offset->size() && !lost_one) return std::nullopt;
  for (std::size_t axis = 0; axis < shape->size(); ++axis) {
    if ((*offset)[axis] >= (*shape)[axis]) return std::nullopt;
  }
  return ZarrObjectName{*offset, *shape};
}

}  // namespace dckpt
