#include "strategies/torch_checkpointing/index.h"

#include <algorithm>
#include <set>
#include <utility>

#include "mapping/base/checked.h"
#include "mapping/base/counted.h"
#include "mapping/base/error.h"
#include "mapping/base/storage_name.h"
#include "mapping/state/flatten.h"
#include "mapping/state/value.h"
#include "strategies/formats/json/json.h"
#include "strategies/formats/pickle/graph.h"
#include "strategies/formats/pickle/value.h"

namespace dckpt {
namespace {

using Kind = Value::Kind;

const Value& member(const Value& dict, const char* name) {
  const Value* const found = dict.find(name);
  if (found == nullptr) throw_error(ErrorCode::kCorrupt, "an entry lacks {}", quote(name));
  return *found;
}

const Dict& dict_of(const Value& value, std::string_view what) {
  if (!value.is_dict())
    throw_error(ErrorCode::kCorrupt, "{} is {} (expected: a dict)", what, to_string(value.kind()));
  return value.as_dict();
}

const ValueList& list_of(const Value& value, std::string_view what) {
  if (!value.is_sequence())
    throw_error(ErrorCode::kCorrupt, "{} is {} (expected: a list)", what, to_string(value.kind()));
  return value.items();
}

const std::string& text_of(const Value& value, std::string_view what) {
  if (!value.is_str())
    throw_error(ErrorCode::kCorrupt, "{} is {} (expected: text)", what, to_string(value.kind()));
  return value.as_str();
}

std::int64_t integer_of(const Value& value, std::string_view what) {
  if (!value.is_int())
    throw_error(ErrorCode::kCorrupt, "{} is {} (expected: an integer)", what,
                to_string(value.kind()));
  return value.as_int();
}

int rank_of(const Value& value) {
  const std::int64_t rank = integer_of(value, "a rank");
  if (rank < 0 || rank >= kMaxItemRanks) throw_error(ErrorCode::kCorrupt, "{} is no rank", rank);
  return static_cast<int>(rank);
}

Shape shape_of(const Value& value, std::string_view what) {
  const ValueList& extents = list_of(value, what);
  if (extents.size() > kMaxDims)
    throw_error(ErrorCode::kCorrupt, "{} has {} axes (at most {})", what, extents.size(), kMaxDims);
  Shape shape;
  for (const Value& extent : extents) {
    shape.push_back(integer_of(extent, what));
    if (shape.back() < 0) throw_error(ErrorCode::kCorrupt, "{} has a negative extent", what);
  }
  return shape;
}

DType dtype_of(const Value& value) {
  const std::string& name = text_of(value, "a dtype");
  constexpr std::string_view kPrefix = "torch.";
  const auto dtype =
      name.starts_with(kPrefix) ? parse_dtype(name.substr(kPrefix.size())) : std::nullopt;
  if (!dtype)
    throw_error(ErrorCode::kUnsupported,
                "the tensor has dtype {}, which this version does not know", quote(name));
  return *dtype;
}

/// Refuses shapes whose strides or bytes overflow, even if an extent of 0 would hide it.
void check_size(DType dtype, ShapeView shape) {
  std::optional<std::int64_t> bytes = static_cast<std::int64_t>(item_size(dtype));
  for (const std::int64_t extent : shape) {
    bytes = checked_mul(*bytes, std::max<std::int64_t>(extent, 1));
    if (!bytes) throw_error(ErrorCode::kCorrupt, "the tensor has more bytes than a file can have");
  }
}

Placement dimension_placement(const Value& value) {
  const std::string& type = text_of(member(value, "type"), "the type of a placement");
  if (type == "Replicate") return Replicate{};
  const auto dim = [&] { return integer_of(member(value, "dim"), "the dim of a placement"); };
  if (type == "Shard") return Shard{dim()};
  if (type == "StridedShard")
    return StridedShard{dim(), integer_of(member(value, "split_factor"), "a split factor")};
  throw_error(ErrorCode::kUnsupported,
              "the tensor has placement {}; this version knows Replicate, Shard and StridedShard",
              quote(type));
}

MeshLayout mesh_layout_of(const Value& data) {
  const Value& mesh = member(data, "mesh_spec");
  std::vector<int> ranks;
  for (const Value& rank : list_of(member(mesh, "mesh_data"), "the ranks of the mesh"))
    ranks.push_back(rank_of(rank));
  std::vector<Placement> placements;
  for (const Value& placement : list_of(member(data, "placements"), "the list of placements"))
    placements.push_back(dimension_placement(placement));
  Shape shape = shape_of(member(mesh, "mesh_shape"), "the shape of the mesh");
  if (ranks.empty()) throw_error(ErrorCode::kCorrupt, "the mesh has no ranks");
  return {.mesh = DeviceMesh(std::move(shape), std::move(ranks)),
          .placements = std::move(placements)};
}

/// Adds the parts that a mesh holds, without copies.
void add_mesh_parts(const Value& data, const std::vector<int>& ranks, ItemTensor& tensor) {
  const MeshLayout layout = mesh_layout_of(data);
  for (const int rank : ranks) {
    std::optional<LocalPart> part = local_part(layout, tensor.global_shape, rank);
    if (!part) throw_error(ErrorCode::kCorrupt, "rank {} is not on the mesh of its tensor", rank);
    const bool holds_some = numel(part->shape) > 0 || numel(tensor.global_shape) == 0;
    if (part->replica == 0 && holds_some) tensor.parts.emplace(rank, *std::move(part));
  }
}

/// Returns a part given as a list of boxes.
LocalPart listed_part(const Value& data) {
  const auto& offsets = list_of(member(data, "global_offsets"), "the list of offsets");
  const auto& locals = list_of(member(data, "local_offsets"), "the list of local offsets");
  const auto& sizes = list_of(member(data, "local_sizes"), "the list of sizes");
  if (offsets.size() != sizes.size() || locals.size() != sizes.size() || sizes.size() > kMaxPieces)
    throw_error(ErrorCode::kCorrupt,
                "the lists of shards have different lengths, or too many entries");
  LocalPart part;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    LocalPiece piece{{shape_of(offsets[i], "an offset"), shape_of(sizes[i], "a size")},
                     shape_of(locals[i], "a local offset")};
    const std::size_t dims = piece.box.sizes.size();
    if (!is_valid(piece.box) || piece.local_offsets.size() != dims)
      throw_error(ErrorCode::kCorrupt, "a shard has offsets and sizes of different lengths");
    part.shape.resize(std::max(part.shape.size(), dims), 0);
    if (!is_valid({piece.local_offsets, piece.box.sizes}))
      throw_error(ErrorCode::kCorrupt, "a shard is larger than any tensor");
    for (std::size_t axis = 0; axis < dims; ++axis)
      part.shape[axis] =
          std::max(part.shape[axis], piece.local_offsets[axis] + piece.box.sizes[axis]);
    part.pieces.push_back(std::move(piece));
  }
  return part;
}

ItemTensor tensor_of(KeyPath path, const ValueList& groups, int world_size) {
  ItemTensor tensor{.path = std::move(path)};
  std::optional<int> lowest;  // lowest rank of the chosen mesh
  std::set<std::pair<Shape, Shape>> seen;
  std::set<int> all_ranks;
  for (const Value& group : groups) {
    const Value& sharding = member(group, "sharding_metadata");
    const std::string& type = text_of(member(sharding, "type"), "the type of a sharding");
    const Value& data = member(sharding, "data");
    std::vector<int> ranks;
    for (const Value& rank : list_of(member(group, "ranks"), "the list of ranks")) {
      ranks.push_back(rank_of(rank));
      if (ranks.back() >= world_size || !all_ranks.insert(ranks.back()).second)
        throw_error(ErrorCode::kCorrupt,
                    "rank {} holds the tensor twice, or is not one of the {} ranks", ranks.back(),
                    world_size);
    }
    if (ranks.empty()) throw_error(ErrorCode::kCorrupt, "a sharding has no ranks");
    std::ranges::sort(ranks);
    const Shape shape = shape_of(member(data, "global_shape"), "the shape of the tensor");
    const DType dtype = dtype_of(member(data, "dtype"));
    check_size(dtype, shape);
    const bool is_first = all_ranks.size() == ranks.size();
    if (!is_first && (shape != tensor.global_shape || dtype != tensor.dtype)) {
      throw_error(ErrorCode::kUnsupported,
                  "ranks hold tensors of different shapes or dtypes under this path; they cannot "
                  "become one");
    }
    tensor.global_shape = shape;
    tensor.dtype = dtype;
    if (type == "DTensorShardingMetadata") {
      if (lowest && *lowest < ranks.front()) continue;
      lowest = ranks.front();
      tensor.parts.clear();
      add_mesh_parts(data, ranks, tensor);
    } else if (type == "default_tensor_v1") {
      LocalPart part = listed_part(data);
      std::erase_if(part.pieces, [&](const LocalPiece& piece) {
        if (!fits(piece.box, shape))
          throw_error(ErrorCode::kCorrupt, "a shard is not inside its tensor");
        return !seen.emplace(piece.box.offsets, piece.box.sizes).second;
      });
      if (!part.pieces.empty()) tensor.parts.emplace(ranks.front(), std::move(part));
    } else {
      throw_error(ErrorCode::kUnsupported,
                  "the tensor is sharded by {}, of a resharder that this version does not know",
                  quote(type));
    }
  }
  if (all_ranks.empty()) throw_error(ErrorCode::kCorrupt, "no rank holds the tensor");
  return tensor;
}

ItemForm form_of(const Value& layout) {
  const std::string& type = text_of(member(member(layout, "serialization_format"), "type"),
                                    "the type of a serialization format");
  if (type == "TorchSerialization") return ItemForm::kTorch;
  if (type == "SafetensorsSerialization") return ItemForm::kSafetensors;
  if (type == "JsonSerialization") return ItemForm::kJson;
  if (type == "RawSerialization") return ItemForm::kRaw;
  throw_error(ErrorCode::kUnsupported,
              "the item is stored by {}; this version reads torch, safetensors, JSON and raw bytes",
              quote(type));
}

KeyPath path_of(const std::string& text) {
  KeyPath path;
  const Value steps = parse_json(as_bytes(text), "metadata.pkl");
  for (const Value& step : list_of(steps, "a path")) {
    if (step.is_str())
      path.emplace_back(step.as_str());
    else
      path.emplace_back(integer_of(step, "a step of a path"));
  }
  return path;
}

class IndexReader {
 public:
  ItemIndex read(const Value& root) {
    const Value* const version = root.find("version");
    index_.version = version == nullptr ? "1.0" : text_of(*version, "the version");
    const std::int64_t ranks = integer_of(member(root, "world_size"), "world_size");
    if (ranks < 1 || ranks > kMaxItemRanks)
      throw_error(ErrorCode::kCorrupt, "world_size is {} (expected: 1 to {})", ranks,
                  kMaxItemRanks);
    index_.world_size = static_cast<int>(ranks);
    const Dict& entries = dict_of(member(root, "metadata"), "the metadata");
    if (index_.version == "2.0")
      read_items(entries);
    else
      read_paths(entries, dict_of(member(root, "rank_to_layout_info_mappings"), "the layouts"));
    return std::move(index_);
  }

 private:
  void read_items(const Dict& entries) {
    for (const auto& [name, entry] : entries) {
      Item& item = add_item(text_of(name, "the name of an item"));
      with_context({.key = item.name}, [&, &entry = entry] {
        const Dict& files = dict_of(member(entry, "rank_to_layout_info"), "the layouts");
        if (files.size() != static_cast<std::size_t>(index_.world_size))
          throw_error(ErrorCode::kCorrupt, "the item has files of {} (expected: {})",
                      counted(files.size(), "rank"), index_.world_size);
        for (int rank = 0; rank < index_.world_size; ++rank)
          add_file(item, rank, files.find(Value(rank)));
        for (const auto& [path, groups] :
             dict_of(member(entry, "nested_path_to_metadata"), "the metadata of the item"))
          add_tensor(item, path_of(text_of(path, "a path")), groups);
      });
    }
  }

  /// Reads the form before 2.0, in which paths start with the item and files are listed by rank.
  void read_paths(const Dict& entries, const Dict& files) {
    for (const auto& [text, groups] : entries) {
      KeyPath path = path_of(text_of(text, "a path"));
      if (path.empty() || !std::holds_alternative<std::string>(path.front()))
        throw_error(ErrorCode::kCorrupt, "a path does not start with the name of an item");
      const std::string name = std::get<std::string>(path.front());
      path.erase(path.begin());
      const auto found = std::ranges::find(index_.items, name, &Item::name);
      Item& item = found != index_.items.end() ? *found : add_item(name);
      with_context({.key = name},
                   [&, &groups = groups] { add_tensor(item, std::move(path), groups); });
    }
    for (Item& item : index_.items) {
      with_context({.key = item.name}, [&] {
        for (int rank = 0; rank < index_.world_size; ++rank) {
          const Value* const of_rank = files.find(Value(rank));
          add_file(item, rank, of_rank == nullptr ? nullptr : of_rank->find(Value(item.name)));
        }
      });
    }
  }

  Item& add_item(const std::string& name) {
    const bool sound = !name.empty() && std::ranges::all_of(name, [](char c) {
      return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
             c == '_' || c == '-';
    });
    if (!sound)
      throw_error(ErrorCode::kCorrupt, "{} cannot be the name of an item", quote(name, 60));
    Item& item = index_.items.emplace_back();
    item.name = name;
    return item;
  }

  void add_file(Item& item, int rank, const Value* layout) {
    if (layout == nullptr)
      throw_error(ErrorCode::kCorrupt, "rank {} has no file of the item", rank);
    ItemFile file{default_item_file(item.name, rank)};
    if (!layout->is_none()) {
      file = {text_of(member(*layout, "file_path"), "a file name"), form_of(*layout)};
      name_components(file.name);  // refuses what leaves the checkpoint
    }
    if (!files_.insert(file.name).second)
      throw_error(ErrorCode::kCorrupt, "two entries have the file {}", quote(file.name));
    item.files.push_back(std::move(file));
  }

  void add_tensor(Item& item, KeyPath path, const Value& groups) const {
    const std::string key = path.empty() ? item.name : item.name + "." + dotted_name(path);
    with_context({.key = key}, [&] {
      item.tensors.push_back(
          tensor_of(std::move(path), list_of(groups, "the shardings"), index_.world_size));
    });
  }

  ItemIndex index_;
  std::set<std::string> files_;
};

}  // namespace

std::string default_item_file(const std::string& item, int rank) {
  return str_format("{}_{}.pt", item, rank);
}

ItemIndex read_item_index(ByteView pickle, const std::string& file_name) {
  return with_context({.file = file_name}, [&] {
    try {
      return IndexReader().read(pickle::value_from_graph(pickle::read_graph(pickle, file_name)));
    } catch (const CheckpointError& error) {
      // An invalid argument to a mesh or layout comes from the file here.
      if (error.code() != ErrorCode::kInvalidArgument) throw;
      throw CheckpointError(ErrorCode::kCorrupt, error.message(), error.context());
    }
  });
}

}  // namespace dckpt
