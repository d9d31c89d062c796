#include "mapping/state/sharded_object.h"

#include <limits>

#include "mapping/base/error.h"

namespace dckpt {
namespace {

constexpr std::string_view kMark = "/shard_";
constexpr std::int64_t kUnknownExtent = -1;

std::string dotted(ShapeView numbers) {
  std::string out;
  for (std::size_t i = 0; i < numbers.size(); ++i)
    out += (i > 0 ? "." : "") + std::to_string(numbers[i]);
  return out;
}

/// Parses "0.3" to (0, 3); empty for anything else.
std::optional<Shape> parse_dotted(std::string_view text) {
  Shape numbers;
  for (const std::string& part : split(text, '.')) {
    const auto number = parse_u64(part);
    if (!number || *number > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()) ||
        numbers.size() == kMaxDims)
      return std::nullopt;
    numbers.push_back(static_cast<std::int64_t>(*number));
  }
  return numbers;
}

}  // namespace

std::string ShardedObject::unique_key() const {
  return str_format("{}{}{}_{}", key, kMark, dotted(global_offset), dotted(global_shape));
}

std::optional<ShardedObject> ShardedObject::parse_unique_key(std::string_view unique_key) {
  const std::size_t mark = unique_key.rfind('/');
  if (mark == std::string_view::npos || !unique_key.substr(mark).starts_with(kMark))
    return std::nullopt;
  const std::string_view numbers = unique_key.substr(mark + kMark.size());
  const std::size_t middle = numbers.find('_');
  if (middle == std::string_view::npos) return std::nullopt;
  auto offset = parse_dotted(numbers.substr(0, middle));
  auto shape = parse_dotted(numbers.substr(middle + 1));
  if (!offset || !shape) return std::nullopt;
  // Megatron before 0.8 cut the last extent off the name.
  if (shape->size() + 1 == offset->size()) shape->push_back(kUnknownExtent);
  ShardedObject object{.key = std::string(unique_key.substr(0, mark)),
                       .global_shape = std::move(*shape),
                       .global_offset = std::move(*offset),
                       .has_data = false};
  try {
    object.validate();
  } catch (const CheckpointError&) {
    return std::nullopt;
  }
  return object;
}

ShardedObject ShardedObject::from_unique_key(std::string_view unique_key, ReplicaId replica_id) {
  auto object = parse_unique_key(unique_key);
  if (!object) {
    throw_error(ErrorCode::kCorrupt, quote(unique_key) +
                                         " is not the unique key of a ShardedObject, "
                                         "which has the form KEY/shard_OFFSETS_SHAPE");
  }
  object->replica_id = std::move(replica_id);
  return std::move(*object);
}

void ShardedObject::validate() const {
  if (global_shape.size() != global_offset.size()) {
    throw_error(ErrorCode::kInvalidArgument, {.key = key},
                "Global offset dimensions should be equal to global shape dimensions for " +
                    to_string(*this));
  }
  for (std::size_t axis = 0; axis < global_shape.size(); ++axis) {
    if (global_offset[axis] >= 0 &&
        (global_shape[axis] == kUnknownExtent || global_offset[axis] < global_shape[axis]))
      continue;
    throw_error(ErrorCode::kInvalidArgument, {.key = key},
                "Global offset {} lies outside the global shape {} for {}",
                to_string(global_offset), to_string(global_shape), to_string(*this));
  }
}

std::string to_string(const ShardedObject& object) {
  return str_format("ShardedObject(key={})", quote(object.key));
}

}  // namespace dckpt
