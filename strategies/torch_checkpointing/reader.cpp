#include "strategies/torch_checkpointing/reader.h"

#include <algorithm>
#include <array>
#include <optional>
#include <set>
#include <utility>

#include "mapping/base/counted.h"
#include "mapping/base/error.h"
#include "mapping/base/storage_name.h"
#include "mapping/state/flatten.h"
#include "strategies/contract/parsed_checkpoint.h"
#include "strategies/formats/json/json.h"
#include "strategies/formats/pickle/read_pickle_file.h"
#include "strategies/formats/safetensors/header.h"
#include "strategies/formats/torch_archive/torch_file.h"
#include "strategies/torch_checkpointing/dtensor.h"
#include "strategies/torch_checkpointing/index.h"
#include "strategies/torch_checkpointing/item_files.h"

namespace dckpt {
namespace {

constexpr const char* kIndexFile = "metadata.pkl";
constexpr std::string_view kTemporaryPrefix = "tmp_";
constexpr std::uint64_t kMaxIndexBytes = std::uint64_t{8} << 30;
/// The limit of an item that is JSON or raw bytes.
constexpr std::uint64_t kMaxPlainBytes = std::uint64_t{1} << 30;

std::string key_of(const std::string& item, const KeyPath& path) {
  return path.empty() ? item : item + "." + dotted_name(path);
}

/// Throws CheckpointError (corrupt) if a large file does not begin as JSON, so that it takes no
/// memory.
void require_json(const ReadableFile& file) {
  constexpr std::uint64_t kBlock = 4096;
  if (file.size() <= kBlock) return;
  std::array<std::byte, kBlock> block{};
  file.read(0, block);
  const std::string_view text = as_text(block);
  const std::size_t begin = text.find_first_not_of(" \t\r\n");
  if (begin == text.npos || std::string_view("{[\"-0123456789tfnNI").find(text[begin]) != text.npos)
    return;
  throw_error(ErrorCode::kCorrupt, {.file = file.name(), .offset = begin},
              "the file does not begin as JSON does");
}

/// A leaf of a rank's value, and its path in the value.
struct Leaf {
  KeyPath path;
  Value value;
};

/// Returns whether a value in a list or tuple gives the elements names of their own.
bool has_parts(const Value& value) {
  return value.is_sequence() || mapping_items(value) != nullptr || tensor_of(value) ||
         dtensor_of(value);
}

void add_leaves(const Value& value, KeyPath& path, std::vector<Leaf>& leaves) {
  const auto step = [&](PathElement element, const Value& item) {
    path.push_back(std::move(element));
    add_leaves(item, path, leaves);
    path.pop_back();
  };
  const auto* const items = mapping_items(value);
  const bool opened =
      items != nullptr && !items->empty() && std::ranges::all_of(*items, [](const auto& entry) {
        return key_text(entry.first).has_value();
      });
  if (opened) {
    for (const auto& [key, item] : *items) step(*key_text(key), item);
  } else if (value.is_sequence() && std::ranges::any_of(value.items(), has_parts)) {
    std::int64_t position = 0;
    for (const Value& item : value.items()) step(position++, item);
  } else {
    leaves.push_back({path, value});
  }
}

/// Returns the value at a path; null if there is none.
const Value* find_path(const Value& value, const KeyPath& path) {
  const Value* found = &value;
  for (const PathElement& step : path) {
    const auto* const position = std::get_if<std::int64_t>(&step);
    if (position != nullptr && found->is_sequence()) {
      if (*position < 0 || static_cast<std::size_t>(*position) >= found->size()) return nullptr;
      found = &found->items()[static_cast<std::size_t>(*position)];
      continue;
    }
    const std::string text = dotted_name({step});
    const auto* const items = mapping_items(*found);
    if (items == nullptr) return nullptr;
    const auto entry = std::ranges::find_if(*items, [&](const auto& candidate) {
      return candidate.first.is_str() ? candidate.first.as_str() == text
                                      : key_text(candidate.first) == text;
    });
    if (entry == items->end()) return nullptr;
    found = &entry->second;
  }
  return found;
}

class DirectoryScanner {
 public:
  explicit DirectoryScanner(std::shared_ptr<const Storage> storage) : result_(std::move(storage)) {
    refuse_temporary();
    result_.info.format = "torch_checkpointing";
    result_.info.producer = "torch_checkpointing";
    result_.info.readers = "torch_checkpointing";
    result_.info.conventions = {.keys_are_paths = true, .objects_in_lists = false};
    files_ = find_item_files(files());
    if (files().stat(kIndexFile)) read_index();
    for (const auto& [name, by_rank] : files_) add_item(name, by_rank);
  }

  std::unique_ptr<CheckpointReader> reader() {
    return ParsedCheckpoint::reader(std::move(result_));
  }

 private:
  const Storage& files() const { return result_.storage(); }

  void refuse_temporary() const {
    const std::string name = base_name(files().display_path(""));
    if (!name.starts_with(kTemporaryPrefix)) return;
    throw_error(ErrorCode::kIncomplete, {.file = files().display_path("")},
                "{} is where torch_checkpointing writes before it renames the directory: the "
                "save was interrupted, or is not finished yet",
                quote(name));
  }

  void read_index() {
    const auto file = files().open(kIndexFile);
    ItemIndex index =
        read_item_index(pickle::read_pickle_file(*file, kMaxIndexBytes), file->name());
    result_.info.index_files.emplace_back(kIndexFile);
    result_.info.producer += " (metadata " + index.version + ")";
    std::set<std::string> known;
    for (const Item& item : index.items) {
      for (const ItemFile& own : item.files) known.insert(own.name);
    }
    std::erase_if(files_, [&](const auto& listed) {
      return std::ranges::any_of(
          listed.second, [&](const auto& entry) { return known.contains(entry.second.name); });
    });
    for (Item& item : index.items) {
      std::map<int, ItemFile> by_rank;
      for (std::size_t rank = 0; rank < item.files.size(); ++rank)
        by_rank.emplace(static_cast<int>(rank), std::move(item.files[rank]));
      for (const ItemTensor& tensor : item.tensors) add_tensor(item.name, tensor, by_rank);
      add_objects(item.name, by_rank);
    }
    world_size_ = index.world_size;
  }

  /// Adds an item that metadata.pkl does not have.
  void add_item(const std::string& name, const std::map<int, ItemFile>& by_rank) {
    const int ranks = world_size_.value_or(by_rank.rbegin()->first + 1);
    for (int rank = 0; rank < ranks; ++rank) {
      if (by_rank.contains(rank)) continue;
      throw_error(ErrorCode::kIncomplete,
                  {.key = name, .file = files().display_path(default_item_file(name, rank))},
                  "the item has files of {}, but none of rank {}", counted(by_rank.size(), "rank"),
                  rank);
    }
    if (by_rank.begin()->second.form == ItemForm::kTorch) {
      for (const Leaf& leaf : leaves_of(by_rank.begin()->second)) {
        if (dtensor_of(leaf.value)) add_dtensor(name, leaf.path, by_rank);
      }
    }
    add_objects(name, by_rank);
  }

  std::vector<Leaf> leaves_of(const ItemFile& file) {
    std::vector<Leaf> leaves;
    KeyPath path;
    add_leaves(value_of(file), path, leaves);
    return leaves;
  }

  /// Returns the content of a structured item's file, with tensors left in the file.
  Value value_of(const ItemFile& file) {
    switch (file.form) {
      case ItemForm::kTorch: return result_.torch_file(file.name);
      case ItemForm::kSafetensors: return tensors_of(file.name);
      case ItemForm::kJson: {
        const auto opened = files().open(file.name);
        require_json(*opened);
        return parse_json(read_file(*opened, kMaxPlainBytes), opened->name());
      }
      case ItemForm::kRaw: break;
    }
    return {};
  }

  /// Returns the tensors of a safetensors file by their names.
  const Value& tensors_of(const std::string& name) {
    const auto [entry, is_new] = safetensors_.try_emplace(name);
    if (!is_new) return entry->second;
    const auto file = files().open(name);
    const SafetensorsLayout layout = read_safetensors_header(*file);
    std::uint64_t offset = layout.data_begin;
    Dict tensors;
    for (const SafetensorsTensor& tensor : layout.header.tensors) {
      tensors.set(tensor.key, Tensor::in_file(tensor.dtype, tensor.shape,
                                              row_major_strides(tensor.shape), {name, offset}));
      offset += tensor.nbytes();
    }
    return entry->second = std::move(tensors);
  }

  /// Returns a rank's part of a tensor, as it is stored.
  Tensor stored_part(const std::string& key, const ItemFile& file, const KeyPath& path) {
    const Value* value = nullptr;
    if (file.form == ItemForm::kSafetensors) {
      value = tensors_of(file.name).find(Value(dotted_name(path)));
    } else if (file.form == ItemForm::kTorch) {
      value = find_path(result_.torch_file(file.name), path);
    }
    if (value != nullptr) {
      if (const auto dtensor = dtensor_of(*value)) return dtensor->local;
      if (const auto tensor = tensor_of(*value)) return *tensor;
    }
    throw_error(ErrorCode::kCorrupt, {.key = key, .file = files().display_path(file.name)},
                "the file should hold a part of the tensor, but has {} there",
                value == nullptr ? "nothing" : to_string(value->kind()));
  }

  void add_tensor(const std::string& item, const ItemTensor& tensor,
                  const std::map<int, ItemFile>& by_rank) {
    const std::string key = key_of(item, tensor.path);
    add_name(item, tensor.path, key);
    tensor_keys_.insert(key);
    const std::size_t number = result_.add_tensor({.key = key,
                                                   .properties = {.dtype = tensor.dtype},
                                                   .size = tensor.global_shape,
                                                   .chunks = BoxList(tensor.global_shape.size()),
                                                   .places = {}});
    for (const auto& [rank, part] : tensor.parts) {
      const ItemFile& file = by_rank.at(rank);
      const Tensor stored =
          with_context({.key = key}, [&] { return stored_part(key, file, tensor.path); });
      if (stored.dtype() != tensor.dtype || stored.shape() != part.shape) {
        throw_error(ErrorCode::kCorrupt, {.key = key, .file = files().display_path(file.name)},
                    "rank {} should hold a part of dtype {} and shape {}, but the file has {}",
                    rank, to_string(tensor.dtype), to_string(part.shape), to_string(stored));
      }
      for (const LocalPiece& piece : part.pieces)
        result_.add_chunk(number, file.name, stored, piece.box, piece.local_offsets);
    }
  }

  /// Adds a tensor that itself says how it is cut, in the file of each rank.
  void add_dtensor(const std::string& item, const KeyPath& path,
                   const std::map<int, ItemFile>& by_rank) {
    const std::string key = key_of(item, path);
    ItemTensor tensor{.path = path};
    std::optional<std::string> mesh;  // the first mesh has all of the tensor
    for (const auto& [rank, file] : by_rank) {
      if (file.form != ItemForm::kTorch) continue;
      with_context({.key = key, .file = files().display_path(file.name)}, [&, rank = rank,
                                                                           &file = file] {
        const Value* const value = find_path(result_.torch_file(file.name), path);
        const auto found = value == nullptr ? std::nullopt : dtensor_of(*value);
        if (!found) return;
        if (!found->layout) {
          throw_error(
              ErrorCode::kUnsupported,
              "metadata.pkl does not say how the tensor is cut, and the mesh of the pickled "
              "DTensor is not understood");
        }
        const std::optional<LocalPart> part = local_part(*found->layout, found->global_shape, rank);
        if (!mesh) {
          mesh = to_string(*found->layout);
          tensor.dtype = found->dtype;
          tensor.global_shape = found->global_shape;
        } else if (tensor.dtype != found->dtype || tensor.global_shape != found->global_shape) {
          throw_error(ErrorCode::kUnsupported,
                      "ranks hold tensors of different shapes or dtypes under this path; they "
                      "cannot become one");
        }
        const bool holds_some = part && (numel(part->shape) > 0 || numel(tensor.global_shape) == 0);
        if (holds_some && part->replica == 0) add_unless_there(tensor, rank, *part);
      });
    }
    add_tensor(item, tensor, by_rank);
  }

  /// Adds a part unless another mesh holds the same.
  static void add_unless_there(ItemTensor& tensor, int rank, const LocalPart& part) {
    const bool known = std::ranges::any_of(
        tensor.parts, [&](const auto& other) { return other.second.pieces == part.pieces; });
    if (!known) tensor.parts.emplace(rank, part);
  }

  /// Adds the objects of the lowest rank.
  void add_objects(const std::string& item, const std::map<int, ItemFile>& by_rank) {
    const ItemFile& file = by_rank.begin()->second;
    if (file.form == ItemForm::kRaw) {
      if (tensor_keys_.contains(item)) return;
      add_name(item, {}, item);
      return result_.add_file_object(item, file.name, kMaxPlainBytes);
    }
    for (Leaf& leaf : leaves_of(file)) {
      std::string key = key_of(item, leaf.path);
      if (tensor_keys_.contains(key)) continue;
      add_name(item, leaf.path, key);
      result_.add_object(std::move(key), file.name, std::move(leaf.value));
    }
  }

  void add_name(const std::string& item, const KeyPath& path, const std::string& key) {
    if (!names_.insert(key).second)
      throw_error(ErrorCode::kUnsupported, {.key = key}, "two values have this key");
    KeyPath full{item};
    full.insert(full.end(), path.begin(), path.end());
    result_.metadata.paths.emplace_back(key, std::move(full));
  }

  ParsedCheckpoint result_;
  ItemFiles files_;
  std::optional<int> world_size_;
  std::map<std::string, Value> safetensors_;
  std::set<std::string> names_;
  std::set<std::string> tensor_keys_;
};

}  // namespace

bool is_torch_checkpointing(std::span<const FileInfo> entries) {
  return std::ranges::any_of(entries, [](const FileInfo& e) { return e.name == kIndexFile; }) ||
         has_item_files(entries);
}

std::unique_ptr<CheckpointReader> open_torch_checkpointing(std::shared_ptr<const Storage> storage) {
  return DirectoryScanner(std::move(storage)).reader();
}

}  // namespace dckpt
