#include "migration/adapters/peft_config.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <span>

#include "configs/policy/rename.h"
#include "mapping/base/error.h"

namespace dckpt {
namespace {

/// Stands for all linear layers but the head. PEFT saves their names in its place.
constexpr std::string_view kAllLinear = "all-linear";

constexpr std::string_view kMergeWithPeft =
    "merge it with PEFT (PeftModel.from_pretrained(...).merge_and_unload()) and convert the result";

/// Fields that change what the adapter adds to the model, and the methods they select.
constexpr std::array<std::pair<std::string_view, std::string_view>, 11> kOtherMethods{{
    {"use_dora", "DoRA"},
    {"use_qalora", "QALoRA"},
    {"use_bdlora", "BD-LoRA"},
    {"kasa_config", "KaSA"},
    {"velora_config", "VeLoRA"},
    {"monteclora_config", "MonteCLoRA"},
    {"arrow_config", "a router of several adapters (Arrow)"},
    {"alora_invocation_tokens", "activated LoRA, which cannot be merged at all"},
    {"layer_replication", "layers of the base model that are used several times"},
    {"trainable_token_indices", "trained rows of the embedding"},
    {"megatron_config", "LoRA of Megatron's own layers"},
}};

/// Other fields of LoraConfig up to PEFT 0.21, which are either read here or matter for training
/// only.
constexpr std::array<std::string_view, 32> kKnownFields{"alpha_pattern",
                                                        "auto_mapping",
                                                        "base_model_name_or_path",
                                                        "bias",
                                                        "corda_config",
                                                        "ensure_weight_tying",
                                                        "eva_config",
                                                        "exclude_modules",
                                                        "fan_in_fan_out",
                                                        "inference_mode",
                                                        "init_lora_weights",
                                                        "layers_pattern",
                                                        "layers_to_transform",
                                                        "loftq_config",
                                                        "lora_alpha",
                                                        "lora_bias",
                                                        "lora_dropout",
                                                        "lora_ga_config",
                                                        "megatron_core",
                                                        "modules_to_save",
                                                        "peft_type",
                                                        "peft_version",
                                                        "qalora_group_size",
                                                        "r",
                                                        "rank_pattern",
                                                        "revision",
                                                        "runtime_config",
                                                        "target_modules",
                                                        "target_parameters",
                                                        "task_type",
                                                        "use_rslora",
                                                        "trainable_tokens"};

/// Ways to initialize an adapter that leave the base model as it was published.
constexpr std::array<std::string_view, 4> kPlainStarts{"gaussian", "eva", "orthogonal", "mica"};

bool says_something(const Value& value) {
  if (value.is_none()) return false;
  if (value.kind() == Value::Kind::kBool) return value.as_bool();
  if (value.is_dict()) return !value.as_dict().empty();
  if (value.is_sequence()) return !value.items().empty();
  if (value.is_str()) return !value.as_str().empty();
  return true;
}

/// Reads the fields of a config.
class Fields {
 public:
  Fields(const Value& config, const std::string& file) : config_(config), file_(file) {
    if (!config.is_dict()) throw corrupt("the configuration of the adapter", "a JSON object");
  }

  const Value* find(std::string_view name) const {
    const Value* const found = config_.find(std::string(name));
    return found == nullptr || found->is_none() ? nullptr : found;
  }
  bool flag(std::string_view name) const {
    const Value* const found = find(name);
    if (found == nullptr) return false;
    if (found->kind() != Value::Kind::kBool) throw corrupt(quote(name), "true or false");
    return found->as_bool();
  }
  double number(std::string_view name, double otherwise) const {
    const Value* const found = find(name);
    return found == nullptr ? otherwise : positive(*found, name);
  }
  std::string text(std::string_view name) const {
    const Value* const found = find(name);
    if (found == nullptr) return {};
    if (!found->is_str()) throw corrupt(quote(name), "a string");
    return found->as_str();
  }
  std::vector<std::string> texts(std::string_view name) const {
    std::vector<std::string> texts;
    const Value* const found = find(name);
    if (found == nullptr) return texts;
    if (!found->is_list()) throw corrupt(quote(name), "a list of strings");
    for (const Value& item : found->items()) {
      if (!item.is_str()) throw corrupt(quote(name), "a list of strings");
      texts.push_back(item.as_str());
    }
    return texts;
  }
  std::vector<ModulePattern> patterns(std::string_view name) const {
    std::vector<ModulePattern> patterns;
    const Value* const found = find(name);
    if (found == nullptr) return patterns;
    if (!found->is_dict()) throw corrupt(quote(name), "an object of patterns and numbers");
    for (const auto& [pattern, number] : found->as_dict()) {
      const RenameRule rule = whole_match(pattern.as_str());
      if (const auto problem = problem_of(rule))
        throw_error(ErrorCode::kUnsupported, {.file = file_},
                    "the pattern {} of {} cannot be used: {}", quote(pattern.as_str()), quote(name),
                    *problem);
      patterns.emplace_back(pattern.as_str(), positive(number, name));
    }
    return patterns;
  }
  /// Returns modules that are named in a list or by an expression; none if RE2 lacks its syntax.
  std::optional<ModuleSet> modules(std::string_view name) const {
    const Value* const found = find(name);
    if (found == nullptr || !found->is_str()) return ModuleSet{.names = texts(name)};
    const RenameRule rule{.from = str_format("^(?:{})$", found->as_str()), .to = ""};
    if (found->as_str() == kAllLinear || problem_of(rule)) return std::nullopt;
    return ModuleSet{.expression = KeyRenamer(std::span(&rule, 1))};
  }
  std::vector<std::string> unknown() const {
    std::vector<std::string> names;
    for (const auto& [name, value] : config_.as_dict()) {
      if (!name.is_str() || !says_something(value)) continue;
      const std::string& text = name.as_str();
      if (std::ranges::find(kKnownFields, text) == kKnownFields.end() &&
          std::ranges::find(kOtherMethods, text, [](const auto& field) { return field.first; }) ==
              kOtherMethods.end())
        names.push_back(text);
    }
    return names;
  }

  CheckpointError unsupported(const std::string& message) const {
    return {
        ErrorCode::kUnsupported, str_format("{}; {}", message, kMergeWithPeft), {.file = file_}};
  }

  /// Returns a rule that makes a module empty if `pattern` matches it.
  static RenameRule whole_match(const std::string& pattern) {
    return {.from = str_format("^(?:.*\\.)?(?:{})$", pattern), .to = ""};
  }

 private:
  double positive(const Value& value, std::string_view name) const {
    const bool is_number = value.is_int() || value.kind() == Value::Kind::kFloat;
    const double number = is_number ? value.as_float() : 0;
    if (number > 0) return number;
    throw corrupt(quote(name), "a number greater than 0");
  }
  CheckpointError corrupt(const std::string& what, std::string_view expected) const {
    return {ErrorCode::kCorrupt,
            str_format("{} is expected to be {}", what, expected),
            {.file = file_}};
  }

  const Value& config_;
  const std::string& file_;
};

void require_plain_lora(const Fields& fields) {
  const std::string type = fields.text("peft_type");
  if (type != "LORA")
    throw fields.unsupported(str_format("the adapter is {}, and only LORA can be merged here",
                                        type.empty() ? "of no known type" : quote(type)));
  for (const auto& [field, meaning] : kOtherMethods) {
    const Value* const found = fields.find(field);
    if (found != nullptr && says_something(*found))
      throw fields.unsupported(
          str_format("the adapter uses {} ({}), and only plain LoRA can be merged here", meaning,
                     quote(field)));
  }
  const Value* const start = fields.find("init_lora_weights");
  if (start != nullptr && start->is_str() &&
      std::ranges::find(kPlainStarts, start->as_str()) == kPlainStarts.end())
    throw fields.unsupported(
        str_format("training began with {} ('init_lora_weights'), which changes the weights of the "
                   "base model, so the adapter does not fit the published ones (PEFT's "
                   "save_pretrained(..., path_initial_model_for_weight_conversion=...) makes an "
                   "ordinary adapter of it)",
                   quote(start->as_str())));
}

double number_of(const std::vector<ModulePattern>& patterns, const std::string& module,
                 double otherwise) {
  for (const auto& [pattern, number] : patterns) {
    const RenameRule rule = Fields::whole_match(pattern);
    if (KeyRenamer(std::span(&rule, 1))(module).empty()) return number;
  }
  return otherwise;
}

}  // namespace

bool ModuleSet::has(const std::string& path) const {
  if (expression && (*expression)(path).empty()) return true;
  return std::ranges::any_of(names, [&](const std::string& name) {
    return path == name || (path.ends_with(name) && path[path.size() - name.size() - 1] == '.');
  });
}

double PeftConfig::rank_of(const std::string& module) const {
  return number_of(ranks, module, rank);
}

double PeftConfig::alpha_of(const std::string& module) const {
  return number_of(alphas, module, alpha);
}

float PeftConfig::scale_of(const std::string& module) const {
  const double rank_here = rank_of(module);
  return static_cast<float>(alpha_of(module) / (root_scaled ? std::sqrt(rank_here) : rank_here));
}

PeftConfig parse_peft_config(const Value& config, const std::string& file) {
  const Fields fields(config, file);
  require_plain_lora(fields);
  PeftConfig parsed{.rank = fields.number("r", 8),
                    .alpha = fields.number("lora_alpha", 8),
                    .ranks = fields.patterns("rank_pattern"),
                    .alphas = fields.patterns("alpha_pattern"),
                    .root_scaled = fields.flag("use_rslora"),
                    .fan_in_fan_out = fields.flag("fan_in_fan_out"),
                    .modules_to_save = fields.texts("modules_to_save"),
                    .base_model = fields.text("base_model_name_or_path"),
                    .unknown = fields.unknown()};
  parsed.target_parameters.names = fields.texts("target_parameters");
  auto targets = fields.modules("target_modules");
  auto excluded = fields.modules("exclude_modules");
  if (targets && excluded && fields.find("layers_to_transform") == nullptr) {
    parsed.target_modules = *std::move(targets);
    parsed.exclude_modules = *std::move(excluded);
  }
  return parsed;
}

}  // namespace dckpt
