#include "strategies/local/local_reader.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "mapping/base/checked.h"
#include "mapping/base/error.h"
#include "mapping/base/log.h"
#include "mapping/base/storage_name.h"
#include "mapping/megatron/run_args.h"
#include "mapping/planning/reformulation.h"
#include "mapping/state/sharded_object.h"
#include "strategies/contract/common_state.h"
#include "strategies/contract/parsed_checkpoint.h"
#include "strategies/formats/torch_archive/lazy_tensor.h"
#include "strategies/formats/torch_archive/torch_file.h"

namespace dckpt {
namespace {

constexpr std::string_view kLocalPrefix = "iter_";
constexpr std::string_view kLocalSuffix = "_local.pt";
constexpr std::string_view kStateClass =
    "megatron.core.dist_checkpointing.tensor_aware_state_dict.MCoreTensorAwareStateDict";
constexpr std::string_view kTensorClass = "megatron.core.dist_checkpointing.mapping.ShardedTensor";
constexpr std::string_view kObjectClass = "megatron.core.dist_checkpointing.mapping.ShardedObject";

struct LocalName {
  std::uint64_t iteration = 0;
  std::uint64_t rank = 0;
};

/// Parses a file's name: "iter_0000010_3_local.pt".
std::optional<LocalName> parse_local_name(std::string_view name) {
  if (!name.starts_with(kLocalPrefix) || !name.ends_with(kLocalSuffix)) return std::nullopt;
  name.remove_prefix(kLocalPrefix.size());
  name.remove_suffix(kLocalSuffix.size());
  const std::size_t line = name.find('_');
  if (line == std::string_view::npos) return std::nullopt;
  const auto iteration = parse_u64(name.substr(0, line));
  const auto rank = parse_u64(name.substr(line + 1));
  if (!iteration || !rank || *rank > INT32_MAX) return std::nullopt;
  return LocalName{*iteration, *rank};
}

bool is_rank_directory(const FileInfo& entry) {
  return entry.kind == FileInfo::Kind::kDirectory && parse_u64(entry.name).has_value();
}

using RankFiles = std::map<std::uint64_t, std::string>;  ///< files of an iteration, by rank
using LocalFiles = std::map<std::uint64_t, RankFiles>;   ///< by iteration

LocalFiles find_local_files(const Storage& storage) {
  LocalFiles files;
  const auto add = [&](const std::string& directory, const FileInfo& entry) {
    const auto name = parse_local_name(entry.name);
    if (name) files[name->iteration].emplace(name->rank, join_name(directory, entry.name));
  };
  for (const FileInfo& entry : storage.list("")) {
    add("", entry);
    if (!is_rank_directory(entry)) continue;
    for (const FileInfo& inner : storage.list(entry.name)) add(entry.name, inner);
  }
  return files;
}

const Value& attribute(const Opaque& object, const char* name) {
  const Value* const found = object.states.size() == 1 ? object.states.front().find(name) : nullptr;
  if (found == nullptr)
    throw_error(ErrorCode::kCorrupt, "the {} lacks its {}", quote(object.class_path()),
                quote(name));
  return *found;
}

std::string text(const Opaque& object, const char* name) {
  const Value& value = attribute(object, name);
  if (!value.is_str()) throw_error(ErrorCode::kCorrupt, "{} is no text", quote(name));
  return value.as_str();
}

Shape extents(const Opaque& object, const char* name) {
  const Value* value = &attribute(object, name);
  if (value->is(Value::Kind::kOpaque) && value->as_opaque().class_path() == "torch.Size" &&
      value->as_opaque().args.is_sequence() && value->as_opaque().args.size() == 1)
    value = &value->as_opaque().args.items().front();
  if (!value->is_sequence() || value->size() > kMaxDims)
    throw_error(ErrorCode::kCorrupt, "{} is no shape", quote(name));
  Shape shape;
  for (const Value& extent : value->items()) {
    if (!extent.is_int() || extent.as_int() < 0)
      throw_error(ErrorCode::kCorrupt, "{} is no shape", quote(name));
    shape.push_back(extent.as_int());
  }
  return shape;
}

class RankFileJoiner {
 public:
  RankFileJoiner(std::shared_ptr<const Storage> storage, std::optional<std::uint64_t> iteration)
      : result_(std::move(storage)) {
    result_.info.format = "local";
    result_.info.producer = "Megatron-Core 0.11 or newer, local checkpoint";
    result_.info.readers = "Megatron-Core 0.11 and newer with NVRx, on the ranks that saved it";
    result_.info.conventions = {.objects_in_lists = false};
    for (const auto& [rank, file] : choose_iteration(iteration))
      with_context({.file = result_.storage().display_path(file), .rank = static_cast<int>(rank)},
                   [&, &file = file] { add(file); });
    for (auto& [key, object] : objects_)
      result_.add_object(key, object.file, std::move(object.value));
  }

  std::unique_ptr<CheckpointReader> reader() {
    return ParsedCheckpoint::reader(std::move(result_));
  }

 private:
  struct Object {
    std::string file;
    Value value;
  };
  struct Known {
    std::size_t number = 0;
    std::set<std::pair<Shape, Shape>> chunks;
  };

  RankFiles choose_iteration(std::optional<std::uint64_t> asked) {
    const LocalFiles files = find_local_files(result_.storage());
    const std::string directory = result_.storage().display_path("");
    if (files.empty() || (asked && !files.contains(*asked))) {
      std::vector<std::string> numbers;
      for (const auto& [number, by_rank] : files) numbers.push_back(std::to_string(number));
      throw_error(ErrorCode::kIncomplete, {.file = directory},
                  files.empty() ? "no file iter_ITERATION_RANK_local.pt is there"
                                : str_format("no files for iteration {}; found those of {}", *asked,
                                             quoted_list(numbers)));
    }
    std::uint64_t named = 0;
    for (const auto& [number, by_rank] : files) named = std::max(named, by_rank.rbegin()->first);
    std::string missing;  // of the newest iteration, or of the requested one
    for (auto entry = files.rbegin(); entry != files.rend(); ++entry) {
      const auto& [number, by_rank] = *entry;
      if (asked && number != *asked) continue;
      const std::uint64_t count = ranks_of(by_rank).value_or(named + 1);
      if (by_rank.size() >= count) {
        if (!missing.empty()) log_warning(str_format("{}: iteration {} is read", missing, number));
        return by_rank;
      }
      if (!missing.empty()) continue;
      std::uint64_t first = 0;
      while (by_rank.contains(first)) ++first;
      missing = str_format(
          "iteration {} has files of {} of {} ranks, the first that is missing is rank {}'s",
          number, by_rank.size(), count, first);
    }
    throw_error(ErrorCode::kIncomplete, {.file = directory},
                "{}{}; copy all nodes' directories into one", missing,
                asked ? "" : ", and no other iteration is complete");
  }

  /// Returns the number of ranks according to the args in one of the files.
  std::optional<std::uint64_t> ranks_of(const RankFiles& files) const try {
    const auto& [rank, name] = *files.begin();
    const Value state = load_torch_file(*result_.storage().open(name), {.lazy = true});
    if (!state.is(Value::Kind::kOpaque)) return std::nullopt;
    const auto ranks = run_arg(run_args(attribute(state.as_opaque(), "common")), "world_size");
    if (!ranks || *ranks < 1) return std::nullopt;
    return static_cast<std::uint64_t>(*ranks);
  } catch (const CheckpointError&) {
    return std::nullopt;  // the error comes when the file is read
  }

  void add(const std::string& file) {
    const Value state = result_.torch_file(file);
    if (!state.is(Value::Kind::kOpaque) || state.as_opaque().class_path() != kStateClass) {
      throw_error(
          ErrorCode::kUnsupported, {.file = result_.storage().display_path(file)},
          "the file holds no MCoreTensorAwareStateDict, the only state dict of local checkpoints "
          "that is read");
    }
    const Opaque& parts = state.as_opaque();
    const Value* const hollow =
        parts.states.size() == 1 ? parts.states.front().find("_is_hollow") : nullptr;
    if (hollow != nullptr && hollow->is(Value::Kind::kBool) && hollow->as_bool()) {
      throw_error(ErrorCode::kUnsupported, {.file = result_.storage().display_path(file)},
                  "the state dict is hollow: its tensors were taken out before it was "
                  "saved");
    }
    if (result_.common.is_none()) read_common(file, attribute(parts, "common"));
    walk(file, attribute(parts, "sharded_state_dict"));
  }

  void read_common(const std::string& file, const Value& common) {
    std::unique_ptr<ReadableFile> opened;
    result_.common = require_dict(replace_tensors(common, [&](const Tensor& tensor) {
      if (!opened) opened = result_.storage().open(file);
      return read_lazy_tensor(tensor, *opened, {});
    }));
  }

  /// Adds what a value holds. It is nested as deep as a pickle may be.
  void walk(const std::string& file, const Value& value) {
    if (const auto* const items = mapping_items(value)) {
      for (const auto& [key, item] : *items) walk(file, item);
    } else if (value.is_sequence()) {
      for (const Value& item : value.items()) walk(file, item);
    } else if (value.is(Value::Kind::kOpaque)) {
      const Opaque& object = value.as_opaque();
      const std::string type = object.class_path();
      if (type != kTensorClass && type != kObjectClass) throw_unknown(type);
      const std::string key = text(object, "key");
      with_context({.key = key}, [&] {
        type == kTensorClass ? add_tensor(file, key, object) : add_object(file, key, object);
      });
    } else if (!value.is_none()) {
      throw_unknown(to_string(value.kind()));
    }
  }

  [[noreturn]] static void throw_unknown(const std::string& what) {
    throw_error(ErrorCode::kUnsupported,
                "the sharded state dict holds {}, which is neither a sharded tensor nor a "
                "sharded object",
                quote(what));
  }

  void add_tensor(const std::string& file, const std::string& key, const Opaque& shard) {
    const Value& data = attribute(shard, "data");
    if (data.is_none()) return;  // another rank has it
    const std::optional<Tensor> stored = tensor_of(data);
    if (!stored) throw_error(ErrorCode::kCorrupt, "the data of a shard is not a tensor");
    const Shape shape = extents(shard, "global_shape");
    const Shape local = extents(shard, "local_shape");
    Box box{extents(shard, "global_offset"), Shape(shape.size(), 1)};
    if (local.size() > shape.size() || box.offsets.size() != shape.size())
      throw_error(ErrorCode::kCorrupt, "the shapes of a shard have different numbers of axes");
    std::copy(local.begin(), local.end(),
              box.sizes.end() - static_cast<std::ptrdiff_t>(local.size()));
    if (!is_valid(box) || !fits(box, shape))
      throw_error(ErrorCode::kCorrupt, "the shard {} is not inside the tensor of shape {}",
                  to_string(box), to_string(shape));
    TensorStorageMetadata tensor{.key = key,
                                 .properties = {.dtype = stored->dtype()},
                                 .size = shape,
                                 .chunks = BoxList(shape.size()),
                                 .places = {}};
    if (const Value& range = attribute(shard, "flattened_range"); !range.is_none())
      flatten(range, shard, *stored, tensor, box);
    else if (stored->shape() != local)
      throw_error(ErrorCode::kCorrupt, "the shard of shape {} holds a tensor of shape {}",
                  to_string(local), to_string(stored->shape()));
    Known& known = tensor_like(std::move(tensor));
    if (!known.chunks.emplace(box.offsets, box.sizes).second) return;  // a replica
    result_.add_chunk(known.number, file, *stored, box, Shape(stored->dim(), 0));
  }

  /// Describes a flattened range as Megatron 0.8 to 0.15 reformulates it.
  static void flatten(const Value& range, const Opaque& shard, const Tensor& stored,
                      TensorStorageMetadata& tensor, Box& box) {
    const Shape fragments = extents(shard, "axis_fragmentations");
    const auto bounds = range.is(Value::Kind::kOpaque) &&
                                range.as_opaque().class_path() == "builtins.slice" &&
                                range.as_opaque().args.is_sequence()
                            ? range.as_opaque().args.items()
                            : ValueList{};
    bool sound = fragments.size() == tensor.size.size() && bounds.size() >= 2 &&
                 bounds[0].is_int() && bounds[1].is_int() && stored.dim() == 1;
    for (std::size_t axis = 0; sound && axis < fragments.size(); ++axis) {
      // The shard is one cell of a regular grid.
      sound = fragments[axis] > 0 &&
              checked_mul(fragments[axis], box.sizes[axis]) == tensor.size[axis] &&
              (box.sizes[axis] == 0 || box.offsets[axis] % box.sizes[axis] == 0);
      if (sound && box.sizes[axis] > 0) box.offsets[axis] /= box.sizes[axis];
    }
    const std::int64_t cell = sound ? checked_numel(box.sizes).value_or(0) : 0;
    const std::int64_t begin = sound ? bounds[0].as_int() : 0;
    const std::int64_t end = sound ? bounds[1].as_int() : 0;
    if (!sound || begin < 0 || end < begin || end > cell || stored.shape()[0] != end - begin)
      throw_error(ErrorCode::kCorrupt, "a flattened range does not fit its tensor");
    tensor.flattened_shape = tensor.size;
    tensor.size = reformulated_size(*tensor.flattened_shape, fragments);
    tensor.chunks = BoxList(tensor.size.size());
    box.offsets.push_back(begin);
    box.sizes.assign(fragments.size(), 1);
    box.sizes.push_back(end - begin);
  }

  Known& tensor_like(TensorStorageMetadata tensor) {
    const auto [entry, is_new] = tensors_.try_emplace(tensor.key);
    if (is_new) {
      result_.metadata.has_mcore_data |= tensor.flattened_shape.has_value();
      entry->second.number = result_.add_tensor(std::move(tensor));
      return entry->second;
    }
    const TensorStorageMetadata& known = result_.metadata.tensors[entry->second.number];
    if (known.size != tensor.size || known.properties.dtype != tensor.properties.dtype ||
        known.flattened_shape != tensor.flattened_shape) {
      throw_error(ErrorCode::kCorrupt,
                  "ranks disagree about the tensor: {} of shape {}, and {} of shape {}",
                  to_string(known.properties.dtype), to_string(known.size),
                  to_string(tensor.properties.dtype), to_string(tensor.size));
    }
    return entry->second;
  }

  /// Adds an object. Without data it is none, or another rank has it.
  void add_object(const std::string& file, const std::string& key, const Opaque& object) {
    const ShardedObject cell{.key = key,
                             .global_shape = extents(object, "global_shape"),
                             .global_offset = extents(object, "global_offset")};
    cell.validate();
    const Value& data = attribute(object, "data");
    Object& known = objects_[cell.unique_key()];
    if (known.file.empty() || (known.value.is_none() && !data.is_none())) known = {file, data};
  }

  ParsedCheckpoint result_;
  std::map<std::string, Known> tensors_;
  std::map<std::string, Object> objects_;
};

}  // namespace

bool may_be_local_checkpoint(std::span<const FileInfo> entries) {
  return std::ranges::any_of(entries, [](const FileInfo& entry) {
    return parse_local_name(entry.name) || is_rank_directory(entry);
  });
}

bool is_local_checkpoint(const Storage& directory) {
  return !find_local_files(directory).empty();
}

std::unique_ptr<CheckpointReader> open_local(std::shared_ptr<const Storage> storage,
                                             std::optional<std::uint64_t> iteration) {
  return RankFileJoiner(std::move(storage), iteration).reader();
}

}  // namespace dckpt
