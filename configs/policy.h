#pragma once

#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "configs/options.h"
#include "configs/problems.h"

namespace dckpt {

/// How a run saves, loads and keeps its checkpoints, as a YAML file says it. docs/policies.md
/// describes every field.
///
///   version: 1
///   save: {compat: megatron, integrity: sha256, io: {threads: 4}}
///   retention: {keep_last: 3}
///
/// `extends: production` begins with a shipped policy, or another file, instead of the defaults.
/// What a file does not mention keeps its default; an empty file is the default policy. Unknown
/// fields, values out of range and the like are errors, all of them reported together, each with
/// file, line and column; so is what this version cannot do, with what it can do instead. A file
/// may have kMaxYamlBytes (yaml.h).
struct Policy {
  SaveOptions save{};  ///< `overwrite` is no matter of policy: it stays false
  LoadOptions load{};
  Retention retention{};

  /// Throw CheckpointError: io if the file cannot be read, invalid-argument, or unsupported if
  /// nothing else is wrong. `name` stands for the file in messages.
  static Policy from_file(const std::filesystem::path& file);
  static Policy from_text(std::string_view yaml, const std::string& name = "policy");
  /// One of shipped_policies().
  static Policy shipped(std::string_view name);
  /// A file, or one of shipped_policies() by its name where there is no such file.
  static Policy find(const std::string& name_or_file);

  friend bool operator==(const Policy&, const Policy&) = default;
};

/// Every field with its value, as YAML that reads back as an equal policy.
std::string to_yaml(const Policy& policy);

/// A policy and what is wrong with its text, in the order of the text; where a field is wrong, the
/// policy has its default.
struct CheckedPolicy {
  Policy policy;
  ConfigProblems problems;
};
/// `extends` names a shipped policy or a file relative to `folder`; without one, as for text of
/// unknown origin, no file is read.
CheckedPolicy check_policy(std::string_view yaml,
                           const std::optional<std::filesystem::path>& folder = std::nullopt);

/// Policies that extend each other in a row.
inline constexpr std::size_t kMaxPolicyDepth = 8;

/// A policy before it is read.
struct PolicyText {
  std::string name;  ///< for messages
  std::string yaml;
  /// Of the file; empty for the working directory, or a shipped policy.
  std::filesystem::path folder;
};

/// What Policy::find reads; a relative file stands in `folder`. Throws CheckpointError: io if the
/// file cannot be read, invalid-argument for a name that is neither.
PolicyText find_policy(const std::string& name_or_file, const std::filesystem::path& folder = {});

/// A file's text, at most a little more than a policy may have. Throws CheckpointError (io).
std::string read_policy_file(const std::filesystem::path& file);

/// The policies of configs/policies, as they were when the library was built.
struct ShippedPolicy {
  std::string_view name;  ///< of the file, without .yaml
  std::string_view yaml;
};
std::span<const ShippedPolicy> shipped_policies() noexcept;

/// The YAML of the one of that name. Throws CheckpointError (invalid-argument) with the names that
/// there are.
std::string_view shipped_policy(std::string_view name);

}  // namespace dckpt
