#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "configs/policy/policy.h"
#include "configs/yaml/problems.h"
#include "mapping/base/enum_names.h"
#include "mapping/geometry/dtype.h"

namespace dckpt {

// A key map relates the names of a model's tensors in Megatron-Core to those in Hugging Face files,
// and describes the arrangement of their elements. It works both ways, in every sharding and for
// every layout of Megatron's keys. In a map that names its left side, another trainer's names take
// the place of Megatron's. docs/maps.md explains how to write one.

/// The place where Megatron keeps the numbers of layers and experts.
enum class MegatronLayout : std::uint8_t {
  kHomogeneous,     ///< both are axes of the tensors
  kNonHomogeneous,  ///< layers are in the keys, experts are an axis
  kSingleton,       ///< both are in the keys, and the halves of gated matrices are apart
};
inline constexpr EnumNames<MegatronLayout, 3> kMegatronLayoutNames{
    {{MegatronLayout::kHomogeneous, "homogeneous"},
     {MegatronLayout::kNonHomogeneous, "non-homogeneous"},
     {MegatronLayout::kSingleton, "singleton"}}};

/// The steps from Hugging Face tensors to Megatron's. Each works on the result of the previous one,
/// along axis 0, and is undone on the way back.
enum class MapStep : std::uint8_t {
  kExpertsInRows,       ///< each tensor of the rows of all experts into those of one
  kTranspose,           ///< each tensor of two axes
  kSqueeze,             ///< each tensor without its first axis, of extent 1
  kSplitRows,           ///< one tensor into several
  kConcatRows,          ///< several tensors into one
  kSplitGroups,         ///< one tensor into several, each with a part of every group
  kQkvInterleave,       ///< query, key and value heads into one tensor, by query groups
  kGatedQkvInterleave,  ///< the same for a query with its gate behind each head
  kQkvGrouped,          ///< one tensor in which they are in this order already; only checked
  kRopeInterleave,      ///< rows of the two halves of each head that rotate together, made adjacent
  kRopeDeinterleave,    ///< the opposite
  kPadRows,             ///< vocab_size rows to padded_vocab_size
};
inline constexpr EnumNames<MapStep, 12> kMapStepNames{
    {{MapStep::kExpertsInRows, "experts_in_rows"},
     {MapStep::kTranspose, "transpose"},
     {MapStep::kSqueeze, "squeeze"},
     {MapStep::kSplitRows, "split_rows"},
     {MapStep::kConcatRows, "concat_rows"},
     {MapStep::kSplitGroups, "split_groups"},
     {MapStep::kQkvInterleave, "qkv_interleave"},
     {MapStep::kGatedQkvInterleave, "gated_qkv_interleave"},
     {MapStep::kQkvGrouped, "qkv_grouped"},
     {MapStep::kRopeInterleave, "rope_interleave"},
     {MapStep::kRopeDeinterleave, "rope_deinterleave"},
     {MapStep::kPadRows, "pad_rows"}}};

struct MapTransform {
  MapStep step = MapStep::kTranspose;
  /// For split_rows and concat_rows, the proportion of the parts, as numbers or names of numbers;
  /// for split_rows, a single number is a count of equal parts. Empty for concat_rows: equal parts.
  /// For experts_in_rows, the count of experts. For split_groups, the count of groups, then the
  /// proportion of the parts of each. For rope_interleave and rope_deinterleave, the heads of each
  /// tensor, 0 if it stays as it is. For qkv_interleave and qkv_grouped, the heads and the groups,
  /// if they are not those of the language model, and the rows of a head of the value, if they are
  /// not those of the others.
  std::vector<std::string> parts{};
  friend bool operator==(const MapTransform&, const MapTransform&) = default;
};
[[nodiscard]] bool has_step(std::span<const MapTransform> steps, MapStep step);

/// The Hugging Face tensors that hold the elements of a row.
struct HfTensors {
  std::vector<std::string> keys{};
  std::vector<MapTransform> transform{};
  /// Returns whether the tensors have the rows of all experts, in place of an axis for experts.
  bool has_experts_in_rows() const {
    return !transform.empty() && transform.front().step == MapStep::kExpertsInRows;
  }
  friend bool operator==(const HfTensors&, const HfTensors&) = default;
};

/// The dtypes of the elements of a row on either side; by default that of the other side.
struct MapCast {
  std::optional<DType> megatron{};
  std::optional<DType> left{};  ///< in place of `megatron` in maps that name their left side
  std::optional<DType> hf{};

  std::optional<DType> of_left() const { return left ? left : megatron; }
  friend bool operator==(const MapCast&, const MapCast&) = default;
};

/// The constant by which Megatron's elements exceed those of Hugging Face.
struct MapAdd {
  float value = 0;
  std::string only_if{};  ///< a number that must be true, or nothing is added
  bool rounded = false;   ///< elements may come back changed, because they were rounded
  friend bool operator==(const MapAdd&, const MapAdd&) = default;
};

/// The dtypes that elements are cast to.
inline constexpr EnumNames<DType, 3> kMapCastNames{
    {{DType::kBFloat16, "bfloat16"}, {DType::kFloat16, "float16"}, {DType::kFloat32, "float32"}}};

/// A kind of layers that has rows of its own.
struct MapKind {
  std::string name{};
  std::vector<std::string> words{};  ///< its names in configurations
  friend bool operator==(const MapKind&, const MapKind&) = default;
};

/// A set of kinds to one of which each layer belongs. The keys of a layer tell its kind; a
/// configuration that says otherwise contradicts them.
struct MapKinds {
  std::vector<MapKind> layers{};
  std::vector<std::string> args{};  ///< names, in Megatron's args, of the list of words by layer
  std::vector<std::string> hf{};    ///< the same in config.json
  friend bool operator==(const MapKinds&, const MapKinds&) = default;

  const MapKind* find(std::string_view name) const;
};

/// The kinds that need no declaration: layers without and with experts.
inline constexpr const char* kDenseLayers = "dense";
inline constexpr const char* kMoeLayers = "moe";
inline constexpr const char* kAllLayers = "all";  ///< not a kind: all layers

/// The place where a row is written, for messages. It is not part of the row's content.
struct MapPlace {
  std::string file{};  ///< a file, or the name of a shipped map
  TextPlace place{};
  friend bool operator==(const MapPlace&, const MapPlace&) { return true; }
};

/// A Megatron tensor of a layer (or expert), or several, and the Hugging Face tensors that make it
/// up. Keys are patterns (key_pattern.h): {l} counts layers, {v} layers of a vision tower and {e}
/// experts, and Megatron's layout decides whether they are in its key or axes of the tensor.
struct MapRow {
  std::string megatron{};              ///< the name with Transformer Engine, or a trainer's
  std::vector<std::string> more{};     ///< the tensors after this one, if the last step splits
  std::string local{};                 ///< the name with Megatron's local layers, if it differs
  std::vector<std::string> aliases{};  ///< other names in files
  HfTensors hf{};
  std::vector<HfTensors> or_hf{};  ///< other forms that are read
  MapCast cast{};
  MapAdd add{};
  std::string columns{};  ///< the number that is the last extent of Megatron's tensor
  std::string rows{};     ///< the number that is the first extent of Megatron's tensor
  std::string only_if{};  ///< a number that must be true
  std::string unless{};   ///< a number that must not be true
  std::string layers{};   ///< the kind of layers that have the row; empty: all have it
  bool optional = false;  ///< a model may lack it, in all layers
  /// The number by which a configuration says whether the model has an optional row; empty: none.
  std::string stated_by{};
  bool gated = false;  ///< the singleton layout keeps the halves apart, as …_w and …_v
  /// True if Megatron asks for an _extra_state of the module; by default, true for weights of
  /// layers.
  std::optional<bool> extra_state{};
  bool of_trainer = false;  ///< the row names its key 'left', as maps do that name their left side
  MapPlace written{};
  friend bool operator==(const MapRow&, const MapRow&) = default;

  /// Returns whether the tensor is Megatron's and has query, key and value: linear_qkv's weight or
  /// bias.
  bool is_qkv() const;
  std::vector<std::string> megatron_keys() const;  ///< `megatron` and `more`
  /// Returns whether the two sides differ in names, shapes or elements.
  bool changes_tensors() const;
};

/// The part of a path in config.json that stands for the number of a layer.
inline constexpr const char* kLayerInPath = "{l}";

/// A number in the model's configuration. True is 1.
struct MapNumber {
  std::string name{};
  std::vector<std::string> args{};  ///< names in Megatron's args or run_config.yaml, in this order
  std::string args_if{};            ///< a flag there without which `args` means nothing
  std::string args_not{};           ///< a flag there that says the opposite
  /// Names in config.json, in this order; "a.b.0" is the first of the list b in a. "a.{l}.b" is the
  /// number b of each layer in the list a.
  std::vector<std::string> hf{};
  /// The numbers that words in config.json stand for; empty: it has the number itself.
  std::map<std::string, std::string> words{};
  std::string part_of{};  ///< the number of which args and config.json give a fraction, such as 0.5
  /// The default: a number, true or false, or a formula of other numbers, "hidden_size /
  /// num_attention_heads" (key_map_numbers.h).
  std::string otherwise{};
  friend bool operator==(const MapNumber&, const MapNumber&) = default;

  bool is_by_layer() const;  ///< `hf` has {l}
};

/// A model that the map would convert wrongly.
struct MapRefusal {
  std::string only_if{};
  std::string because{};
  MapPlace written{};
  friend bool operator==(const MapRefusal&, const MapRefusal&) = default;
};

/// Weights that Hugging Face files hold as float8, with a scale for each block of their last two
/// axes: a weight is multiplied by the scale of its block. They are written back as bfloat16.
struct MapDequantize {
  std::string scales{};  ///< the suffix of the scales' keys, after the weight's: "_scale_inv"
  std::vector<std::string>
      block{};  ///< rows and columns of a block, as numbers or names of numbers
  friend bool operator==(const MapDequantize&, const MapDequantize&) = default;
};

/// The parts of a model beside its language model, such as a vision tower. The rows of the language
/// model have keys without a prefix, as in a model without towers.
struct MapTowers {
  std::vector<std::string> keys{};  ///< beginnings of their keys in rows, on either side: "visual."
  /// The prefix of the language model's keys in Hugging Face files: "model.language_model.".
  std::string hf_text_prefix{};
  friend bool operator==(const MapTowers&, const MapTowers&) = default;

  bool have(std::string_view key) const;
};

struct KeyMap {
  std::string family{};
  std::string left{};  ///< the trainer whose names are on the left side; empty: Megatron
  /// The layout of the left side's keys in results; empty: as the source suggests, or as the rows
  /// have them if the left side is a trainer's.
  std::optional<MegatronLayout> layout{};
  /// True if modules have an _extra_state where rows do not say so; by default, Megatron's do.
  std::optional<bool> extra_state{};
  std::vector<std::string> architectures{};  ///< names in config.json
  std::vector<std::string> model_types{};
  /// The prefix of a model's keys, which files of the bare model lack: "model."
  std::string hf_prefix{};
  std::vector<MapNumber> numbers{};
  std::vector<MapKinds> kinds{};
  MapTowers towers{};
  MapDequantize dequantize{};  ///< empty: weights stay as they are
  std::vector<MapRow> tensors{};
  /// Modules without tensors for which Megatron asks for an _extra_state.
  std::vector<std::string> extra_states{};
  std::vector<MapRefusal> refuse{};
  std::vector<std::string> ignore_megatron{};  ///< globs of keys that are dropped
  std::vector<std::string> ignore_left{};      ///< the same in maps that name their left side
  std::vector<std::string> ignore_hf{};
  friend bool operator==(const KeyMap&, const KeyMap&) = default;

  bool is_megatrons() const { return left.empty(); }
  /// Returns the name of the left side, for messages.
  const std::string& left_name() const;
  bool has_extra_state(const MapRow& row) const;

  const MapNumber* find_number(std::string_view name) const;
  /// Returns whether a number, or one from which it follows, is given for each layer.
  bool differs_by_layer(const std::string& name) const;
  /// Returns `kinds`, and dense and moe unless `kinds` names one of them.
  std::vector<MapKinds> all_kinds() const;

  /// Reads a file or, if there is no such file, the shipped map of that name. Throws
  /// CheckpointError: io if it cannot be read, invalid-argument if it has mistakes.
  static KeyMap find(const std::string& name_or_file);
  static KeyMap from_text(std::string_view yaml, const std::string& name = "map");
};

/// Returns the word for the left side in settings and in rows: "megatron", or "left".
std::string name_of_left(const KeyMap& map);

/// Returns every row, including those of extended maps, as YAML that reads back as an equal map.
std::string to_yaml(const KeyMap& map);

struct CheckedKeyMap {
  KeyMap map;
  ConfigProblems problems;
};
/// `extends` names a shipped map or a file relative to `folder`; without a folder, no file is read.
CheckedKeyMap check_key_map(std::string_view yaml,
                            const std::optional<std::filesystem::path>& folder = std::nullopt);

/// Returns whether a YAML text is a map and not a policy: it names a family of models.
bool is_key_map(std::string_view yaml);

/// The maps of configs/maps, as they were when the library was built.
std::span<const ShippedPolicy> shipped_maps() noexcept;

/// Returns the text that KeyMap::find reads.
PolicyText find_key_map(const std::string& name_or_file, const std::filesystem::path& folder = {});

/// Limits of a map.
inline constexpr std::size_t kMaxMapRows = 1000;
inline constexpr std::size_t kMaxMapNumbers = 200;
inline constexpr std::size_t kMaxMapParts = 64;
inline constexpr std::int32_t kMaxMapConstant = 1 << 20;

}  // namespace dckpt
