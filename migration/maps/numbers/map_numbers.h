#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "configs/maps/key_map.h"
#include "mapping/base/error.h"
#include "mapping/state/value.h"
#include "strategies/contract/reader.h"

namespace dckpt {

/// A model's configuration, as far as a checkpoint has it. Missing parts are none.
struct ModelConfig {
  Value args;          ///< Megatron's args, as a dict
  Value run_config;    ///< the section `model` of Megatron-Bridge's run_config.yaml, as a dict
  Value hf;            ///< config.json, as a dict
  Value hf_in_args{};  ///< the config.json that Megatron keeps in its args if layers differ
};

/// The section of config.json in which a model of text and images has the values that other models
/// have at the top level.
inline constexpr const char* kHfTextConfig = "text_config";

/// Reads the configuration from the common state and from files beside the checkpoint; config.json
/// is taken from the folder `model_files` if it is given. Throws CheckpointError (corrupt) for a
/// malformed config.json.
ModelConfig model_config(const CheckpointReader& reader, const Storage* model_files = nullptr);

/// A number and its origin: "num_attention_heads of args", "--set".
struct KnownNumber {
  std::int64_t value = 0;
  bool flag = false;  ///< the value is true or false
  std::string origin{};
};

/// A number that the configuration lacks.
class UnknownNumber final : public CheckpointError {
 public:
  using CheckpointError::CheckpointError;
};

/// An entry of config.json, by a path with dots, and the value that it must have.
struct ConfigEntry {
  std::string path;
  Value value;
};
/// Sets the entry in `config`. Does nothing if there is no place for it.
void set_entry(Value& config, const ConfigEntry& entry);

/// The settings that are not numbers, see mapped_reader().
inline constexpr std::array kMapSettings{"from",        "keys",     "layout",  "names",
                                         "extra_state", "parts",    "experts", "prefix",
                                         "dequantize",  "quantize", "dtype"};

/// The numbers of a model. The map must outlive them.
class MapNumbers {
 public:
  /// Values in `given` take precedence over the configuration. Throws CheckpointError: (invalid
  /// argument) for a name that the map does not have, (mismatch) for values that are not numbers
  /// and for formulas that have no result.
  MapNumbers(const KeyMap& map, const ModelConfig& config,
             const std::map<std::string, std::string>& given);

  std::optional<std::int64_t> find(const std::string& name) const;
  bool is_true(const std::string& name) const { return find(name).value_or(0) != 0; }
  /// Returns the number. Throws UnknownNumber (mismatch) naming its possible origins if it is
  /// unknown.
  std::int64_t require(const std::string& name) const;
  /// Returns the numbers of a layer: these, and those that differ by layer.
  MapNumbers of_layer(std::int64_t layer) const;
  /// Returns "num_query_groups is 2 (num_key_value_heads of config.json)".
  std::string describe(const std::string& name) const;

  /// Sentences about given numbers that contradict the configuration.
  const std::vector<std::string>& overridden() const noexcept { return overridden_; }

  /// Sets a flag to the value that the tensors show, unless more than a default of the map gives
  /// it.
  void guess(const std::string& name, bool value);
  void set(const std::string& name, std::int64_t value);

  /// Returns the args that Megatron would have, from which the next conversion takes the numbers.
  Value as_args() const;

  /// Returns the entries that config.json must have for a model with these numbers: those that were
  /// given, and flags that the tensors show and that are not the map's default. Those that it has
  /// are left out.
  std::vector<ConfigEntry> config_entries() const;

  const ModelConfig& config() const noexcept { return config_; }

 private:
  /// Returns the value that states a number in place of `before`, if there is one.
  std::optional<Value> stated_value(const MapNumber& number, const KnownNumber& known,
                                    const Value* before) const;

  const KeyMap* map_;
  ModelConfig config_;
  std::map<std::string, KnownNumber> known_;
  std::vector<std::string> overridden_;
};

/// Returns the number by which the model lacks a row; empty if it has the row, or may have it.
const std::string& inactive_by(const MapRow& row, const MapNumbers& numbers);
inline bool is_active(const MapRow& row, const MapNumbers& numbers) {
  return inactive_by(row, numbers).empty();
}

}  // namespace dckpt
