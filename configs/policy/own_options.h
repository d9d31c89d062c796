#pragma once

#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "mapping/base/api.h"

namespace DCKPT_API dckpt {

struct YamlNode;

/// The own options of a strategy or planner, by name, as a policy would spell them:
///
///   options.strategy = {.name = "torch_dist", .options = {{"compression", "zstd"}}};
///
/// Only the strategy knows their names: it reads them with read_options() and reports mistakes. A
/// value that is a list or a mapping itself comes from from_yaml(). Copies are cheap and
/// independent.
class OwnOptions {
 public:
  OwnOptions() noexcept = default;
  OwnOptions(std::initializer_list<std::pair<std::string_view, std::string_view>> values);
  /// Reads a mapping: "{tensor_model_parallel_size: 2, ranks: [0, 1]}". Throws CheckpointError
  /// (invalid argument) with all mistakes if the text is something else.
  [[nodiscard]] static OwnOptions from_yaml(std::string_view mapping);

  /// Adds an option, or replaces its value.
  void set(std::string_view name, std::string_view value);
  void remove(std::string_view name);
  bool empty() const noexcept;
  bool has(std::string_view name) const noexcept;
  /// Returns the value of an option as text; empty if it is missing, a list or a mapping.
  std::string value(std::string_view name) const;
  std::vector<std::string> names() const;  ///< in the order in which they were given

  friend bool operator==(const OwnOptions& a, const OwnOptions& b) noexcept { return a.equals(b); }

  // For code that reads and writes policies.
  explicit OwnOptions(YamlNode tree);
  const YamlNode& tree() const noexcept;

 private:
  bool equals(const OwnOptions& other) const noexcept;

  std::shared_ptr<const YamlNode> tree_;  ///< null: no options
};

}  // namespace dckpt
