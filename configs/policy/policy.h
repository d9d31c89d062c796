#pragma once

#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "configs/policy/options.h"
#include "configs/yaml/problems.h"
#include "mapping/base/api.h"

namespace DCKPT_API dckpt {

/// The way in which a run saves, loads and retains its checkpoints, as a YAML file describes it.
/// docs/policies.md describes every field.
///
///   version: 1
///   save: {compat: megatron, integrity: sha256, io: {threads: 4}}
///   retention: {keep_last: 3}
///
/// `extends: production` starts from a shipped policy, or another file, instead of the defaults.
/// Fields that a file does not mention keep their defaults; an empty file is the default policy.
/// Unknown fields, values out of range and other mistakes are errors; all are reported together,
/// each with file, line and column. So are values that this version does not support, with the
/// alternatives. A file is limited to kMaxYamlBytes (yaml.h).
struct Policy {
  SaveOptions save{};  ///< `overwrite` cannot be set by a policy and stays false
  LoadOptions load{};
  Retention retention{};
  ResumeOptions resume{};

  /// All throw CheckpointError: io if the file cannot be read, invalid-argument, or unsupported if
  /// nothing else is wrong. Messages call the file `name`.
  static Policy from_file(const std::filesystem::path& file);
  static Policy from_text(std::string_view yaml, const std::string& name = "policy");
  /// Returns one of shipped_policies().
  static Policy shipped(std::string_view name);
  /// Reads a file or, if there is no such file, the shipped policy of that name.
  static Policy find(const std::string& name_or_file);

  friend bool operator==(const Policy&, const Policy&) = default;
};

/// Returns every field with its value, as YAML that reads back as an equal policy.
std::string to_yaml(const Policy& policy);

/// A policy and the problems of its text, in the order of the text; a field with a problem has its
/// default.
struct CheckedPolicy {
  Policy policy;
  ConfigProblems problems;
  /// True if the policy, or one that it extends, contains save.strategy, save.backend or
  /// save.compat, even with the default value.
  bool names_format = false;
};
/// `extends` names a shipped policy or a file relative to `folder`; without a folder, as for text
/// of unknown origin, no file is read.
CheckedPolicy check_policy(std::string_view yaml,
                           const std::optional<std::filesystem::path>& folder = std::nullopt);

/// The most policies that extend each other in a row.
inline constexpr std::size_t kMaxPolicyDepth = 8;

/// A policy before it is read.
struct PolicyText {
  std::string name;  ///< for messages
  std::string yaml;
  /// The directory in which `extends` is resolved; none for shipped policies, which can only extend
  /// shipped policies.
  std::optional<std::filesystem::path> folder;
};

/// Returns the text that Policy::find reads; a relative file is resolved in `folder`. Throws
/// CheckpointError: io if the file cannot be read, invalid-argument for a name that is neither.
PolicyText find_policy(const std::string& name_or_file, const std::filesystem::path& folder = {});

/// Reads a file's text, at most one byte more than a policy may have. Throws CheckpointError (io).
[[nodiscard]] std::string read_policy_file(const std::filesystem::path& file);

/// The policies of configs/policies, as they were when the library was built.
struct ShippedPolicy {
  std::string_view name;  ///< name of the file, without .yaml
  std::string_view yaml;
};
std::span<const ShippedPolicy> shipped_policies() noexcept;

/// Returns the YAML of the shipped policy of that name. Throws CheckpointError (invalid-argument)
/// with the names that there are.
std::string_view shipped_policy(std::string_view name);

}  // namespace dckpt
