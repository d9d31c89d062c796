#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "mapping/base/error.h"
#include "mapping/geometry/shape.h"
#include "strategies/formats/pickle/graph.h"

namespace dckpt::dcp {

inline constexpr std::string_view kMetadataModule = "torch.distributed.checkpoint.metadata";
inline constexpr std::string_view kFilesystemModule = "torch.distributed.checkpoint.filesystem";
/// The transform of torch's stream extension that compresses each item.
inline constexpr std::string_view kZstdTransform = "stream.zstd/1";
inline constexpr std::string_view kMegatronModule =
    "megatron.core.dist_checkpointing.strategies.torch";

/// The attribute that this library adds to Metadata, for Metadata::common_paths. Python's readers
/// ignore it.
inline constexpr std::string_view kCommonPaths = "dckpt_common_paths";
/// The attribute that this library adds to each _StorageInfo, for StorageInfo::crc.
/// Begins the entry of StorageMeta.modules that names StorageMeta::load_planner.
inline constexpr std::string_view kLoadPlannerModule = "dckpt.load.planner:";
inline constexpr std::string_view kRecordCrc = "dckpt_crc32";
/// The attribute of the first _StorageInfo that binds common.pt, for Metadata::common_crc. It is
/// not an attribute of Metadata, because Megatron writes the Metadata that it has loaded again,
/// with new _StorageInfo, beside another common.pt.
inline constexpr std::string_view kCommonCrc = "dckpt_common_crc32";
/// The attribute that this library adds to Metadata, with the CRC-32 of the file (see
/// metadata_seal.h).
inline constexpr std::string_view kMetadataCrc = "dckpt_metadata_crc32";

struct GlobalName {
  std::string_view module;
  std::string_view name;
  bool is(std::string_view wanted_module, std::string_view wanted_name) const noexcept {
    return name == wanted_name && module == wanted_module;
  }
  explicit operator bool() const noexcept { return !name.empty(); }
};

/// The rows that metadata have for each chunk: its box, and the key and the value of its storage
/// record.
inline constexpr std::size_t kChunkRow = 0;
inline constexpr std::size_t kIndexRow = 1;
inline constexpr std::size_t kPlaceRow = 2;
inline constexpr std::array<pickle::RowType, 3> kRowTypes{
    {{kMetadataModule, "ChunkStorageMetadata", {"offsets", "sizes"}},
     {kMetadataModule, "MetadataIndex", {"fqn", "offset", "index"}},
     {kFilesystemModule,
      "_StorageInfo",
      {"relative_path", "offset", "length", kRecordCrc, "transform_descriptors", kCommonCrc}}}};
inline constexpr pickle::RowTypes kMetadataRows{kRowTypes, "torch", "Size"};

/// A class or function that is looked up repeatedly. A pickler writes each name once and then
/// refers to it, so that the node that matched last time mostly matches again.
struct KnownGlobal {
  std::string_view module;
  std::string_view name;
  mutable pickle::Graph::Id node = pickle::Graph::kNil;  ///< a node that names it
};

/// The fields of a class, to be found in one object after the other. Objects of a class mostly have
/// the same keys (the same nodes) in the same order. The values are then at the same positions as
/// in the previous object.
template <std::size_t kCount>
struct Fields {
  std::array<std::string_view, kCount> names;
  mutable std::vector<pickle::Graph::Id> keys{};  ///< keys of the previous object
  /// Positions of the values among the object's items; 0 = absent.
  mutable std::array<std::uint32_t, kCount> positions{};
};

/// A class of kRowTypes, whose objects are rows, or ordinary nodes.
template <std::size_t kCount>
struct RowClass {
  std::size_t row_type;
  KnownGlobal global{kRowTypes[row_type].module, kRowTypes[row_type].name};
  Fields<kCount> fields{first_names(kRowTypes[row_type])};

 private:
  static std::array<std::string_view, kCount> first_names(const pickle::RowType& type) {
    std::array<std::string_view, kCount> names;
    std::copy_n(type.fields.begin(), kCount, names.begin());
    return names;
  }
};

/// Reads Python objects straight from the nodes of a pickle: their classes, states and attributes.
/// All functions throw CheckpointError (corrupt) without key and file, which the reader adds.
class ObjectGraph {
 public:
  using Id = pickle::Graph::Id;
  using Kind = pickle::Graph::Kind;
  static constexpr Id kAbsent = pickle::Graph::kNil;

  explicit ObjectGraph(const pickle::Graph& graph) : graph_(graph) {}

  const pickle::Graph& nodes() const noexcept { return graph_; }
  /// Returns kRow also for a value of a row that is not a node.
  Kind kind(Id id) const noexcept {
    return pickle::Graph::is_in_pickle(id) ? Kind::kRow : graph_.kind(id);
  }
  bool is_none(Id id) const noexcept { return id == kAbsent || kind(id) == Kind::kNone; }
  bool is_text(Id id) const noexcept { return id != kAbsent && kind(id) == Kind::kStr; }

  /// Returns the class or function that the node names; empty names if it names none.
  GlobalName global(Id id) const noexcept;
  /// Returns the class of a plain object, made by NEWOBJ without arguments. Empty for
  /// anything else.
  GlobalName class_of(Id id) const noexcept { return global(class_node(id)); }
  bool is(Id id, const KnownGlobal& known) const noexcept {
    return id != kAbsent && (id == known.node || is_named(id, known));
  }
  bool is_object_of(Id id, const KnownGlobal& type) const { return is(class_node(id), type); }
  template <std::size_t kCount>
  bool is_object_of(Id id, const RowClass<kCount>& type) const {
    if (id == kAbsent || kind(id) != Kind::kRow) return is_object_of(id, type.global);
    return is_row(id, type.row_type);
  }
  bool is_call_of(Id id, const KnownGlobal& function) const {
    return id != kAbsent && kind(id) == Kind::kCall && is(graph_.children(id)[0], function);
  }
  /// The function of a call and its arguments; an empty name for anything else.
  GlobalName called(Id id) const noexcept;
  std::span<const Id> arguments(Id call) const noexcept {
    const Id arguments = graph_.children(call)[1];
    return kind(arguments) == Kind::kTuple ? graph_.children(arguments) : std::span<const Id>();
  }

  /// Returns the only state that an object was given, or kAbsent.
  Id state(Id object) const {
    const auto extras = graph_.extras(object);
    if (extras.states.size() > 1 || !extras.list_items.empty() || !extras.dict_items.empty())
      refuse_changed(object);
    return extras.states.empty() ? kAbsent : extras.states[0];
  }
  /// Returns the attributes of an object: key, value, … of the dict that is its state; none if it
  /// has no state.
  std::span<const Id> attributes(Id object) const {
    const Id given = state(object);
    if (is_none(given)) return {};
    if (kind(given) != Kind::kDict) refuse_state(object, given);
    return graph_.children(given);
  }
  /// Returns the value of a name among attributes or items, or kAbsent. Throws if the name occurs
  /// twice.
  Id find(std::span<const Id> items, std::string_view name) const;

  /// Returns the value of each field among items, or kAbsent. Throws if a field occurs twice.
  template <std::size_t kCount>
  std::array<Id, kCount> find(std::span<const Id> items, const Fields<kCount>& fields) const {
    if (!same_keys(items, fields.keys)) {
      std::array<std::uint32_t, kCount> positions;
      for (std::size_t field = 0; field < kCount; ++field)
        positions[field] = position(items, fields.names[field]);
      fields.positions = positions;
      fields.keys.clear();
      for (std::size_t i = 0; i < items.size(); i += 2) fields.keys.push_back(items[i]);
    }
    std::array<Id, kCount> values;
    for (std::size_t field = 0; field < kCount; ++field) {
      values[field] = fields.positions[field] == 0 ? kAbsent : items[fields.positions[field]];
    }
    return values;
  }

  /// Does the same for the attributes of an object of this class.
  template <std::size_t kCount>
  std::array<Id, kCount> fields(Id object, const RowClass<kCount>& type) const {
    if (kind(object) != Kind::kRow) return find(attributes(object), type.fields);
    std::array<Id, kCount> values;
    std::copy_n(graph_.cells(object).begin(), kCount, values.begin());
    return values;
  }

  /// Describes a node as text for messages: "a list", "an object of class 'a.B'", "the result of a
  /// call of 'os.system'".
  std::string describe(Id id) const;

 protected:
  bool is_row(Id id, std::size_t type) const noexcept {
    return !pickle::Graph::is_in_pickle(id) && graph_.row_type(id) == type;
  }
  [[noreturn]] void expected(std::string_view what, std::string_view wanted, Id found) const;

  const pickle::Graph& graph_;

 private:
  /// Returns the node that names the class of a plain object, or kAbsent.
  Id class_node(Id object) const noexcept {
    if (object == kAbsent || kind(object) != Kind::kNew) return kAbsent;
    const auto parts = graph_.children(object);
    return parts.size() == 2 && arguments(object).empty() ? parts[0] : kAbsent;
  }
  bool is_named(Id id, const KnownGlobal& known) const noexcept;
  /// Returns the position of a name's value among items; 0 if it is absent. Throws if the name
  /// occurs twice.
  std::uint32_t position(std::span<const Id> items, std::string_view name) const;
  static bool same_keys(std::span<const Id> items, std::span<const Id> keys) noexcept {
    if (items.size() != 2 * keys.size()) return false;
    for (std::size_t i = 0; i < keys.size(); ++i) {
      if (items[2 * i] != keys[i]) return false;
    }
    return true;
  }
  [[noreturn]] void refuse_changed(Id object) const;
  [[noreturn]] void refuse_state(Id object, Id given) const;
};

/// Also reads the few kinds of Python values that DCP metadata consist of. `what` names a value in
/// messages.
class MetadataGraph : public ObjectGraph {
 public:
  using ObjectGraph::ObjectGraph;

  bool is_path(Id id) const noexcept { return is_text(id) || is_pathlib(id); }

  /// Returns key, value, … of a dict or OrderedDict.
  std::span<const Id> dict(Id id, std::string_view what) const;
  std::span<const Id> list_or_tuple(Id id, std::string_view what) const;
  std::string_view text(Id id, std::string_view what) const;
  bool boolean(Id id, std::string_view what) const;
  /// Returns an int from 0 to 2^63 - 1; refuses True and False.
  std::int64_t count(Id id, std::string_view what) const {
    if (is_count_in_pickle(id)) return graph_.count(id);
    if (id == kAbsent || kind(id) != Kind::kInt || graph_.integer(id) < 0) refuse_count(id, what);
    return graph_.integer(id);
  }
  /// Returns the value of an int of 64 bits; empty for anything else.
  std::optional<std::int64_t> integer(Id id) const {
    if (is_count_in_pickle(id)) return graph_.count(id);
    if (id == kAbsent || kind(id) != Kind::kInt) return std::nullopt;
    return graph_.integer(id);
  }
  /// Reads a torch.Size or tuple of counts, at most kMaxDims of them, into `out`.
  void shape(Id id, std::string_view what, Shape& out) const;
  /// Returns a str, or a pathlib path joined from its parts.
  std::string path(Id id, std::string_view what) const;

 private:
  bool is_pathlib(Id id) const noexcept;
  bool is_count_in_pickle(Id id) const noexcept {
    return pickle::Graph::is_in_pickle(id) && !graph_.has_counts(id);
  }
  void row_shape(Id id, std::string_view what, Shape& out) const;
  [[noreturn]] static void refuse_axes(std::string_view what, std::size_t axes);
  [[noreturn]] void refuse_count(Id found, std::string_view what) const;

  KnownGlobal torch_size_{"torch", "Size"};
};

/// Runs `body` and adds the key to errors that leave it. Unlike with_context it copies the key only
/// then.
template <typename Body>
decltype(auto) for_key(std::string_view key, Body&& body) {
  try {
    return body();
  } catch (const CheckpointError& error) {
    throw error.with({.key = std::string(key)});
  }
}

}  // namespace dckpt::dcp
