#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "configs/key_map.h"
#include "mapping/state/value.h"
#include "strategies/contract/reader.h"

namespace dckpt {

/// A model's configuration, as far as a checkpoint has it. What it lacks is none.
struct ModelConfig {
  Value args;        ///< Megatron's args, as a dict
  Value run_config;  ///< the section `model` of Megatron-Bridge's run_config.yaml, as a dict
  Value hf;          ///< config.json, as a dict
};

/// Where config.json of a model of text and images has what the other ones have at the top.
inline constexpr const char* kHfTextConfig = "text_config";

/// Reads them from the common state and from files beside the checkpoint, config.json from the
/// folder `model_files` if it is given. Throws CheckpointError (corrupt) for a config.json that is
/// none.
ModelConfig model_config(const CheckpointReader& reader, const Storage* model_files = nullptr);

/// A number, and who says so: "num_attention_heads of args", "--set".
struct KnownNumber {
  std::int64_t value = 0;
  bool flag = false;  ///< true or false
  std::string origin{};
};

/// What is set beside numbers, see mapped_reader().
inline constexpr std::array kMapSettings{"keys",  "layout", "names",      "extra_state",
                                         "parts", "prefix", "dequantize", "dtype"};

/// The numbers of a model. The map must outlive them.
class MapNumbers {
 public:
  /// `given` comes before what the configuration says. Throws CheckpointError (invalid argument)
  /// for a name that the map does not have, (mismatch) for values that are no numbers and for
  /// formulas that have no result.
  MapNumbers(const KeyMap& map, const ModelConfig& config,
             const std::map<std::string, std::string>& given);

  std::optional<std::int64_t> find(const std::string& name) const;
  bool is_true(const std::string& name) const { return find(name).value_or(0) != 0; }
  /// Throws CheckpointError (mismatch) that says where it could come from.
  std::int64_t require(const std::string& name) const;
  /// "num_query_groups is 2 (num_key_value_heads of config.json)"
  std::string describe(const std::string& name) const;

  /// Numbers that are given against what the configuration says, in sentences.
  const std::vector<std::string>& overridden() const noexcept { return overridden_; }

  /// What the tensors show of a flag for which the map has only a default, if any.
  void guess(const std::string& name, bool value);
  void set(const std::string& name, std::int64_t value);

  /// The args that Megatron would have: what the next conversion takes them from.
  Value as_args() const;

  const ModelConfig& config() const noexcept { return config_; }

 private:
  const KeyMap* map_;
  ModelConfig config_;
  std::map<std::string, KnownNumber> known_;
  std::vector<std::string> overridden_;
};

}  // namespace dckpt
