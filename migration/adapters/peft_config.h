#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "configs/policy/rename.h"
#include "mapping/state/value.h"

namespace dckpt {

/// A regular expression for modules, and the number that replaces the usual one for them.
using ModulePattern = std::pair<std::string, double>;

/// Modules of a model, as PEFT names them.
struct ModuleSet {
  std::vector<std::string> names{};        ///< whole paths, or parts of them behind a dot
  std::optional<KeyRenamer> expression{};  ///< makes the paths empty that it names

  bool empty() const { return names.empty() && !expression; }
  bool has(const std::string& path) const;
};

/// The fields of a LoRA adapter's adapter_config.json that matter for a merge.
struct PeftConfig {
  double rank = 8;
  double alpha = 8;
  std::vector<ModulePattern> ranks{};   ///< rank_pattern, in order
  std::vector<ModulePattern> alphas{};  ///< alpha_pattern, in order
  bool root_scaled = false;             ///< use_rslora: alpha / √rank instead of alpha / rank
  bool fan_in_fan_out = false;          ///< weights are (in, out), like those of Conv1D
  std::vector<std::string> modules_to_save{};
  ModuleSet target_modules{};  ///< none if they are limited to some layers, or not known
  ModuleSet exclude_modules{};
  ModuleSet target_parameters{};       ///< of experts: "mlp.experts.gate_up_proj"
  std::string base_model{};            ///< the name that PEFT has recorded
  std::vector<std::string> unknown{};  ///< set fields that are not known here

  /// Returns the rank of `module`, its path in the model: "model.layers.0.self_attn.q_proj". As in
  /// PEFT, the first pattern counts that matches the whole path, or a part of it that begins after
  /// a dot.
  double rank_of(const std::string& module) const;
  double alpha_of(const std::string& module) const;
  /// Returns the factor of lora_B × lora_A.
  float scale_of(const std::string& module) const;
};

/// Parses the content of `file`. Throws CheckpointError: (unsupported) for adapters that are not
/// merged by adding lora_B × lora_A to the weights of the base model (DoRA, LoKr, IA3, …), naming
/// the method; (corrupt) for fields of the wrong type.
PeftConfig parse_peft_config(const Value& config, const std::string& file);

}  // namespace dckpt
