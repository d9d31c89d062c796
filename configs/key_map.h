#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "configs/policy.h"
#include "configs/problems.h"
#include "mapping/base/enum_names.h"
#include "mapping/geometry/dtype.h"

namespace dckpt {

// A key map says which tensors of a model are called what in Megatron-Core and in Hugging Face
// files, and how their elements are arranged. It works both ways, in every sharding and for every
// layout of Megatron's keys. docs/maps.md teaches writing one.

/// How Hugging Face tensors become Megatron's. Each step works on what the one before it has made,
/// along axis 0, and is undone on the way back.
enum class MapStep : std::uint8_t {
  kTranspose,           ///< each tensor of two axes
  kSplitRows,           ///< one tensor into several
  kConcatRows,          ///< several tensors into one
  kSplitGroups,         ///< one tensor into several, each of which has a part of every group
  kQkvInterleave,       ///< query, key and value heads into one tensor, by query groups
  kGatedQkvInterleave,  ///< the same of a query that has its gate behind each head
  kRopeInterleave,      ///< halves of each head that turn together, row by row
  kRopeDeinterleave,    ///< the way back of this one
  kPadRows,             ///< vocab_size rows to padded_vocab_size
};
inline constexpr EnumNames<MapStep, 9> kMapStepNames{
    {{MapStep::kTranspose, "transpose"},
     {MapStep::kSplitRows, "split_rows"},
     {MapStep::kConcatRows, "concat_rows"},
     {MapStep::kSplitGroups, "split_groups"},
     {MapStep::kQkvInterleave, "qkv_interleave"},
     {MapStep::kGatedQkvInterleave, "gated_qkv_interleave"},
     {MapStep::kRopeInterleave, "rope_interleave"},
     {MapStep::kRopeDeinterleave, "rope_deinterleave"},
     {MapStep::kPadRows, "pad_rows"}}};

struct MapTransform {
  MapStep step = MapStep::kTranspose;
  /// Of split_rows and concat_rows: how the rows are divided, as numbers or their names. A single
  /// one is a count of equal parts; empty for concat_rows: as many as there are tensors. Of
  /// split_groups: the count of groups, and how the rows of each are divided. Of rope_interleave
  /// and rope_deinterleave: the heads of each tensor, 0 if it stays as it is.
  std::vector<std::string> parts{};
  friend bool operator==(const MapTransform&, const MapTransform&) = default;
};

/// Where the elements of a row are in Hugging Face files.
struct HfTensors {
  std::vector<std::string> keys{};
  std::vector<MapTransform> transform{};
  friend bool operator==(const HfTensors&, const HfTensors&) = default;
};

/// What the elements of a row are on either side; by default what they are on the other one.
struct MapCast {
  std::optional<DType> megatron{};
  std::optional<DType> hf{};
  friend bool operator==(const MapCast&, const MapCast&) = default;
};

/// What Megatron's elements are more than those of Hugging Face.
struct MapAdd {
  float value = 0;
  std::string only_if{};  ///< a number that must be true; else nothing is added
  bool rounded = false;   ///< elements may come back as others, as they were rounded
  friend bool operator==(const MapAdd&, const MapAdd&) = default;
};

/// Types that elements are cast to.
inline constexpr EnumNames<DType, 3> kMapCastNames{
    {{DType::kBFloat16, "bfloat16"}, {DType::kFloat16, "float16"}, {DType::kFloat32, "float32"}}};

/// A kind of layers, which has rows of its own.
struct MapKind {
  std::string name{};
  std::vector<std::string> words{};  ///< that configurations call it
  friend bool operator==(const MapKind&, const MapKind&) = default;
};

/// Kinds of which each layer is one. The keys of a layer tell which; a configuration that says
/// otherwise contradicts them.
struct MapKinds {
  std::vector<MapKind> layers{};
  std::vector<std::string> args{};  ///< names in Megatron's args of what lists the words, by layer
  std::vector<std::string> hf{};    ///< the same in config.json
  friend bool operator==(const MapKinds&, const MapKinds&) = default;

  const MapKind* find(std::string_view name) const;
};

/// Kinds that need no declaration: without and with experts.
inline constexpr const char* kDenseLayers = "dense";
inline constexpr const char* kMoeLayers = "moe";
inline constexpr const char* kAllLayers = "all";  ///< no kind, but every layer

/// Where a row is written. It is no part of what the row says.
struct MapPlace {
  std::string file{};  ///< or the name of a shipped map
  TextPlace place{};
  friend bool operator==(const MapPlace&, const MapPlace&) { return true; }
};

/// A tensor of a layer (or expert), and the tensors of Hugging Face that make it up; or several
/// tensors of Megatron that do. Keys are patterns (key_pattern.h): {l} counts layers and {e}
/// experts, and Megatron's layout decides whether they are in its key or axes of the tensor.
struct MapRow {
  std::string megatron{};              ///< the name with Transformer Engine
  std::vector<std::string> more{};     ///< the tensors behind this one, if the last step splits
  std::string local{};                 ///< with Megatron's local layers, if it is another
  std::vector<std::string> aliases{};  ///< what else it is called in files
  HfTensors hf{};
  std::vector<HfTensors> or_hf{};  ///< other forms that are read
  MapCast cast{};
  MapAdd add{};
  std::string columns{};  ///< how many Megatron's tensor has, as a number of the model
  std::string only_if{};  ///< a number that must be true
  std::string unless{};   ///< one that must not
  std::string layers{};   ///< the kind of layers that have it; empty: all have
  bool optional = false;  ///< a model may lack it, in all layers
  bool gated = false;     ///< the singleton layout keeps the halves apart, as …_w and …_v
  /// Whether Megatron asks for an _extra_state of the module: true for weights of layers.
  std::optional<bool> extra_state{};
  MapPlace written{};
  friend bool operator==(const MapRow&, const MapRow&) = default;

  bool has_extra_state() const;
  std::vector<std::string> megatron_keys() const;  ///< `megatron` and `more`
};

/// A number that the model's configuration has. Truth is 1.
struct MapNumber {
  std::string name{};
  std::vector<std::string> args{};  ///< names in Megatron's args or run_config.yaml, in this order
  std::string args_if{};            ///< a flag there, without which `args` means nothing
  std::string args_not{};           ///< a flag there that says the opposite
  /// Names in config.json, in this order; "a.b.0" is the first of the list b in a.
  std::vector<std::string> hf{};
  std::string part_of{};  ///< the number of which args and config.json say a part, such as 0.5
  /// If nothing of this is there: a number, true or false, or a formula of other numbers,
  /// "hidden_size / num_attention_heads" (key_map_numbers.h).
  std::string otherwise{};
  friend bool operator==(const MapNumber&, const MapNumber&) = default;
};

/// A model that the map would get wrong.
struct MapRefusal {
  std::string only_if{};
  std::string because{};
  friend bool operator==(const MapRefusal&, const MapRefusal&) = default;
};

/// Weights that Hugging Face files hold as float8, with a scale for each block of their last two
/// axes: a weight is multiplied with the scale of its block. They are written as bfloat16 again.
struct MapDequantize {
  std::string scales{};  ///< the key of the scales is the weight's with this behind: "_scale_inv"
  std::vector<std::string> block{};  ///< rows and columns of a block, as numbers or their names
  friend bool operator==(const MapDequantize&, const MapDequantize&) = default;
};

struct KeyMap {
  std::string family{};
  std::vector<std::string> architectures{};  ///< of config.json
  std::vector<std::string> model_types{};
  /// What the keys of a model start with, and files of the bare model lack: "model."
  std::string hf_prefix{};
  std::vector<MapNumber> numbers{};
  std::vector<MapKinds> kinds{};
  MapDequantize dequantize{};  ///< nothing, if it is empty
  std::vector<MapRow> tensors{};
  /// Modules without tensors for which Megatron asks for an _extra_state.
  std::vector<std::string> extra_states{};
  std::vector<MapRefusal> refuse{};
  std::vector<std::string> ignore_megatron{};  ///< globs of keys that are dropped
  std::vector<std::string> ignore_hf{};
  friend bool operator==(const KeyMap&, const KeyMap&) = default;

  const MapNumber* find_number(std::string_view name) const;
  /// `kinds`, and dense and moe unless it names one of them.
  std::vector<MapKinds> all_kinds() const;

  /// A file or, if there is no such file, the shipped map of that name. Throw CheckpointError: io
  /// if it cannot be read, invalid-argument.
  static KeyMap find(const std::string& name_or_file);
  static KeyMap from_text(std::string_view yaml, const std::string& name = "map");
};

/// Every row, those of the maps that it extends included, as YAML that reads back as an equal map.
std::string to_yaml(const KeyMap& map);

struct CheckedKeyMap {
  KeyMap map;
  ConfigProblems problems;
};
/// `extends` names a shipped map or a file relative to `folder`; without one no file is read.
CheckedKeyMap check_key_map(std::string_view yaml,
                            const std::optional<std::filesystem::path>& folder = std::nullopt);

/// Whether a YAML text is a map and not a policy: it names a family of models.
bool is_key_map(std::string_view yaml);

/// The maps of configs/maps, as they were when the library was built.
std::span<const ShippedPolicy> shipped_maps() noexcept;

/// What KeyMap::find reads.
PolicyText find_key_map(const std::string& name_or_file, const std::filesystem::path& folder = {});

/// Limits of a map.
inline constexpr std::size_t kMaxMapRows = 1000;
inline constexpr std::size_t kMaxMapNumbers = 200;
inline constexpr std::size_t kMaxMapParts = 64;
inline constexpr std::int32_t kMaxMapConstant = 1 << 20;

}  // namespace dckpt
