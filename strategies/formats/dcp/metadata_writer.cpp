#include "strategies/formats/dcp/metadata_writer.h"

#include <algorithm>
#include <array>
#include <map>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "mapping/base/counted.h"
#include "mapping/base/error.h"
#include "mapping/base/format.h"
#include "mapping/planning/save/messages.h"
#include "strategies/formats/dcp/metadata_graph.h"
#include "strategies/formats/pickle/writer.h"

namespace dckpt {
namespace {

/// Emits the objects as Python's pickler does: an object is NEWOBJ of its class and BUILD of its
/// attributes, and what was written before (texts, globals, equal sizes, the offsets of a chunk in
/// its storage record) is referred to.
class MetadataWriter {
  static constexpr std::size_t kBytesPerChunk = 120;  // with its storage record, for two axes

 public:
  MetadataWriter(const Metadata& metadata, std::uint32_t common_crc)
      : metadata_(metadata), common_crc_(common_crc) {}

  Bytes write() {
    std::size_t chunks = 0;
    for (const TensorStorageMetadata& tensor : metadata_.tensors) chunks += tensor.chunks.size();
    out_.reserve(chunks * kBytesPerChunk);
    object(dcp::kMetadataModule, "Metadata");
    attributes([&] {
      attribute("state_dict_metadata", [&] { state_dict_metadata(); });
      attribute("planner_data",
                [&] { metadata_.paths.empty() ? out_.none() : paths(metadata_.paths); });
      attribute("storage_data", [&] { storage_data(); });
      attribute("storage_meta", [&] { storage_meta(); });
      if (metadata_.version) attribute("version", [&] { out_.text(*metadata_.version); });
      if (metadata_.has_mcore_data) attribute("mcore_data", [&] { mcore_data(); });
      if (!metadata_.common_paths.empty())
        attribute(dcp::kCommonPaths, [&] { paths(metadata_.common_paths); });
      if (!metadata_.cached_plans.empty()) attribute("all_local_plans", [&] { all_local_plans(); });
    });
    return out_.finish();
  }

 private:
  using Slot = pickle::PickleWriter::Slot;
  using Text = pickle::PickleWriter::RepeatedText;
  using Global = pickle::PickleWriter::RepeatedGlobal;

  void object(std::string_view module, std::string_view name) {
    Global type{module, name};
    object(type);
  }

  void object(Global& type) {
    out_.global(type);
    out_.empty_tuple();
    out_.new_object();
  }

  /// A dict whose items `write` pushes.
  template <typename Write>
  void dict(Write write) {
    out_.empty_dict();
    out_.mark();
    write();
    out_.set_items();
  }

  template <typename Write>
  void attributes(Write write) {
    dict(write);
    out_.build();
  }

  template <typename Write>
  void attribute(std::string_view name, Write write) {
    out_.text(name);
    write();
  }

  template <typename Write>
  void attribute(Text& name, Write write) {
    out_.text(name);
    write();
  }

  void tuple(ShapeView numbers) {
    if (numbers.empty()) return out_.empty_tuple();
    if (numbers.size() > 3) out_.mark();
    for (const std::int64_t number : numbers) out_.integer(number);
    if (numbers.size() > 3) {
      out_.tuple();
    } else {
      out_.tuple(static_cast<int>(numbers.size()));
    }
  }

  Slot torch_size(ShapeView numbers) {
    out_.global(torch_size_);
    tuple(numbers);
    out_.tuple(1);
    out_.reduce();
    return out_.put();
  }

  /// Sizes repeat; offsets hardly do.
  void repeated_torch_size(ShapeView numbers) {
    if (last_size_ != sizes_.end() && equal(last_size_->first, numbers))
      return out_.get(last_size_->second);
    const Shape key = to_shape(numbers);
    last_size_ = sizes_.find(key);
    if (last_size_ != sizes_.end()) return out_.get(last_size_->second);
    last_size_ = sizes_.emplace(key, torch_size(numbers)).first;
  }

  void state_dict_metadata() {
    offsets_.resize(metadata_.tensors.size());
    auto entry = metadata_.objects.begin();
    const auto objects_before = [&](std::uint32_t order) {
      for (; entry != metadata_.objects.end() && entry->order < order; ++entry) {
        out_.text(entry->key);
        object(dcp::kMetadataModule, "BytesStorageMetadata");
      }
    };
    dict([&] {
      for (std::size_t i = 0; i < metadata_.tensors.size(); ++i) {
        const TensorStorageMetadata& tensor = metadata_.tensors[i];
        objects_before(tensor.order);
        out_.text(tensor.key);
        object(dcp::kMetadataModule, "TensorStorageMetadata");
        attributes([&] {
          attribute("properties", [&] { properties(tensor.properties); });
          attribute("size", [&] { repeated_torch_size(tensor.size); });
          attribute("chunks", [&] { offsets_[i] = chunks(tensor.chunks); });
        });
      }
      for (; entry != metadata_.objects.end(); ++entry) {
        out_.text(entry->key);
        object(dcp::kMetadataModule, "BytesStorageMetadata");
      }
    });
  }

  /// Where the offsets of the chunks are in the memo.
  std::vector<Slot> chunks(const BoxList& boxes) {
    std::vector<Slot> slots;
    slots.reserve(boxes.size());
    out_.empty_list();
    out_.mark();
    for (std::size_t i = 0; i < boxes.size(); ++i) {
      object(chunk_class_);
      attributes([&] {
        attribute(offsets_name_, [&] { slots.push_back(torch_size(boxes.offsets(i))); });
        attribute(sizes_name_, [&] { repeated_torch_size(boxes.sizes(i)); });
      });
    }
    out_.append_items();
    return slots;
  }

  void properties(const TensorProperties& wanted) {
    object(dcp::kMetadataModule, "TensorProperties");
    const auto known = std::find_if(states_.begin(), states_.end(),
                                    [&](const auto& state) { return state.first == wanted; });
    if (known != states_.end()) {
      out_.get(known->second);
    } else {
      out_.mark();
      out_.global("torch", to_string(wanted.dtype));
      out_.global("torch.serialization", "_get_layout");
      out_.text("torch.strided");
      out_.tuple(1);
      out_.reduce();
      out_.boolean(wanted.requires_grad);
      out_.global(dcp::kMetadataModule, "_MEM_FORMAT_ENCODING");
      out_.integer(static_cast<std::int64_t>(wanted.memory_format));
      out_.tuple(1);
      out_.reduce();
      out_.boolean(wanted.pin_memory);
      out_.tuple();
      states_.emplace_back(wanted, out_.put());
    }
    out_.build();
  }

  /// {key: path}
  void paths(const std::vector<std::pair<std::string, KeyPath>>& entries) {
    dict([&] {
      for (const auto& [key, path] : entries) {
        out_.text(key);
        out_.mark();
        for (const PathElement& step : path) {
          if (const auto* name = std::get_if<std::string>(&step)) {
            out_.text(*name);
          } else {
            out_.integer(std::get<std::int64_t>(step));
          }
        }
        out_.tuple();
      }
    });
  }

  void storage_data() {
    for (const std::string& file : metadata_.files) file_names_.push_back({file});
    dict([&] {
      for (std::size_t i = 0; i < metadata_.tensors.size(); ++i) {
        const TensorStorageMetadata& tensor = metadata_.tensors[i];
        if (tensor.places.size() != tensor.chunks.size()) {
          throw CheckpointError(ErrorCode::kInvalidArgument,
                                str_format("cannot write metadata with {} and {}",
                                           counted(tensor.chunks.size(), "chunk"),
                                           counted(tensor.places.size(), "place")),
                                {.key = tensor.key});
        }
        Text key{tensor.key};
        for (std::size_t chunk = 0; chunk < tensor.chunks.size(); ++chunk) {
          object(index_class_);
          attributes([&] {
            attribute(fqn_name_, [&] { out_.text(key); });
            attribute(index_name_, [&] { out_.integer(static_cast<std::int64_t>(chunk)); });
            attribute(offset_name_, [&] { out_.get(offsets_[i][chunk]); });
          });
          storage_info(tensor.key, tensor.places[chunk]);
        }
      }
      for (const BytesStorageMetadata& entry : metadata_.objects) {
        object(index_class_);
        attributes([&] {
          attribute(fqn_name_, [&] { out_.text(entry.key); });
          attribute(index_name_, [&] { out_.none(); });
        });
        storage_info(entry.key, entry.place);
      }
    });
  }

  void storage_info(const std::string& key, const StorageInfo& place) {
    if (place.file >= metadata_.files.size()) {
      throw CheckpointError(ErrorCode::kInvalidArgument,
                            str_format("cannot write metadata with a place in file {} of {}",
                                       place.file, metadata_.files.size()),
                            {.key = key});
    }
    object(place_class_);
    attributes([&] {
      attribute(path_name_, [&] { out_.text(file_names_[place.file]); });
      attribute(offset_name_, [&] { out_.integer(static_cast<std::int64_t>(place.offset)); });
      attribute(length_name_, [&] { out_.integer(static_cast<std::int64_t>(place.length)); });
      if (place.crc != 0) attribute(crc_name_, [&] { out_.integer(place.crc); });
      if (place.codec == StorageCodec::kZstd) {
        attribute(transforms_name_, [&] {
          out_.empty_list();
          out_.mark();
          out_.text(zstd_name_);
          out_.append_items();
        });
      }
      if (const std::uint32_t crc = std::exchange(common_crc_, 0); crc != 0)
        attribute(dcp::kCommonCrc, [&] { out_.integer(crc); });
    });
  }

  void storage_meta() {
    if (!metadata_.storage_meta) return out_.none();
    const auto optional_text = [&](const std::optional<std::string>& text) {
      text ? out_.text(*text) : out_.none();
    };
    object(dcp::kMetadataModule, "StorageMeta");
    attributes([&] {
      attribute("checkpoint_id", [&] { optional_text(metadata_.storage_meta->checkpoint_id); });
      attribute("save_id", [&] { optional_text(metadata_.storage_meta->save_id); });
      attribute("load_id", [&] { out_.none(); });
      attribute("modules", [&] { out_.empty_list(); });
    });
  }

  void mcore_data() {
    dict([&] {
      for (const TensorStorageMetadata& tensor : metadata_.tensors) {
        out_.text(tensor.key);
        original_shape(tensor.flattened_shape);
      }
    });
  }

  void original_shape(const std::optional<Shape>& shape) {
    dict([&] {
      if (shape) attribute("nd_reformulated_orig_global_shape", [&] { tuple(*shape); });
    });
  }

  /// Megatron compares each of its own plans with these field by field, except storage_data;
  /// mcore_data is a field of its plans up to 0.15.
  void all_local_plans() {
    out_.empty_list();
    out_.mark();
    for (const CachedPlan& kept : metadata_.cached_plans) {
      const SavePlan plan = by_key(decode_plan(kept.written));
      object(plan_class_);
      attributes([&] {
        attribute("items", [&] {
          out_.empty_list();
          out_.mark();
          for (const WriteItem& item : plan) write_item(item);
          out_.append_items();
        });
        attribute("storage_data", [&] { out_.none(); });
        attribute("planner_data", [&] { out_.empty_dict(); });
        attribute("usable", [&] { out_.boolean(true); });
        attribute("mcore_data", [&] { mcore_data(plan); });
        attribute(dcp::kCachedPlan, [&] { out_.bytes(kept.proposed); });
      });
    }
    out_.append_items();
  }

  /// Megatron plans key by key.
  static SavePlan by_key(SavePlan plan) {
    std::unordered_map<std::string, std::size_t> first;
    for (std::size_t i = 0; i < plan.size(); ++i) first.try_emplace(plan[i].key, i);
    std::ranges::stable_sort(plan, {}, [&](const WriteItem& item) { return first.at(item.key); });
    return plan;
  }

  void write_item(const WriteItem& item) {
    const bool is_tensor = item.kind == WriteItem::Kind::kTensor;
    object(item_class_);
    attributes([&] {
      attribute("index", [&] {
        object(index_class_);
        attributes([&] {
          attribute(fqn_name_, [&] { out_.text(item.key); });
          attribute(offset_name_,
                    [&] { is_tensor ? repeated_torch_size(item.chunk.offsets) : out_.none(); });
          attribute(index_name_, [&] { out_.none(); });
        });
      });
      attribute("type", [&] { item_type(is_tensor ? kShard : kByteIo); });
      attribute("bytes_io_data", [&] { out_.none(); });
      attribute("tensor_data", [&] { is_tensor ? tensor_data(item) : out_.none(); });
    });
  }

  void tensor_data(const WriteItem& item) {
    object(dcp::kPlannerModule, "TensorWriteData");
    attributes([&] {
      attribute("chunk", [&] {
        object(chunk_class_);
        attributes([&] {
          attribute(offsets_name_, [&] { repeated_torch_size(item.chunk.offsets); });
          attribute(sizes_name_, [&] { repeated_torch_size(item.chunk.sizes); });
        });
      });
      attribute("properties", [&] { properties(item.properties); });
      attribute("size", [&] { repeated_torch_size(item.size); });
    });
  }

  // Members of WriteItemType.
  static constexpr std::int64_t kShard = 2;
  static constexpr std::int64_t kByteIo = 3;

  void item_type(std::int64_t type) {
    std::optional<Slot>& known = item_types_[static_cast<std::size_t>(type)];
    if (known) return out_.get(*known);
    out_.global(dcp::kPlannerModule, "WriteItemType");
    out_.integer(type);
    out_.tuple(1);
    out_.reduce();
    known = out_.put();
  }

  void mcore_data(const SavePlan& plan) {
    std::unordered_set<std::string_view> seen;
    dict([&] {
      for (const WriteItem& item : plan) {
        if (item.kind != WriteItem::Kind::kTensor || !seen.insert(item.key).second) continue;
        out_.text(item.key);
        original_shape(item.flattened_shape);
      }
    });
  }

  struct Lexicographic {
    bool operator()(const Shape& a, const Shape& b) const {
      return std::ranges::lexicographical_compare(a, b);
    }
  };

  const Metadata& metadata_;
  std::uint32_t common_crc_;  // until the first record has it
  pickle::PickleWriter out_{4};
  Global chunk_class_{dcp::kMetadataModule, "ChunkStorageMetadata"};
  Global index_class_{dcp::kMetadataModule, "MetadataIndex"};
  Global place_class_{dcp::kFilesystemModule, "_StorageInfo"};
  Global torch_size_{"torch", "Size"};
  Global plan_class_{dcp::kPlannerModule, "SavePlan"};
  Global item_class_{dcp::kPlannerModule, "WriteItem"};
  std::array<std::optional<Slot>, 4> item_types_{};
  Text offsets_name_{"offsets"}, sizes_name_{"sizes"};
  Text fqn_name_{"fqn"}, index_name_{"index"}, offset_name_{"offset"};
  Text path_name_{"relative_path"}, length_name_{"length"};
  Text transforms_name_{"transform_descriptors"}, zstd_name_{dcp::kZstdTransform};
  Text crc_name_{dcp::kRecordCrc};
  std::vector<Text> file_names_;
  std::map<Shape, Slot, Lexicographic> sizes_;
  std::map<Shape, Slot, Lexicographic>::iterator last_size_ = sizes_.end();
  std::vector<std::pair<TensorProperties, Slot>> states_;  // few kinds of properties
  std::vector<std::vector<Slot>> offsets_;                 // per tensor and chunk
};

}  // namespace

Bytes write_dcp_metadata(const Metadata& metadata, std::uint32_t common_crc) {
  const auto nameless = [](const auto& entry) { return entry.key.empty(); };
  if (std::ranges::any_of(metadata.tensors, nameless) ||
      std::ranges::any_of(metadata.objects, nameless))
    throw CheckpointError(ErrorCode::kUnsupported,
                          "a tensor or object has an empty key, which PyTorch DCP cannot read");
  return MetadataWriter(metadata, common_crc).write();
}

}  // namespace dckpt
