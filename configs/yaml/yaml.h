#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "configs/yaml/problems.h"
#include "mapping/base/api.h"

namespace DCKPT_API dckpt {

/// Limits of a YAML file. Anchors, aliases, merge keys and explicit tags are refused altogether: a
/// configuration says what it means, and nothing expands.
inline constexpr std::size_t kMaxYamlBytes = std::size_t{256} << 10;
inline constexpr int kMaxYamlDepth = 16;

/// A YAML document as written: text is not yet numbers or booleans, and each node knows its place.
struct YamlNode {
  enum class Kind {
    kNull,  ///< nothing, ~ or null
    kText,
    kList,     ///< `values`
    kMap,      ///< `keys[i]` (texts, each once) has the value `values[i]`, in the order of the file
    kRefused,  ///< content for which a problem has been reported
  };

  Kind kind = Kind::kNull;
  TextPlace place{};
  std::string text{};
  bool quoted = false;  ///< text in quotes or a block: never a number or boolean
  std::vector<YamlNode> keys{};
  std::vector<YamlNode> values{};

  static YamlNode plain(std::string text);   ///< text that reads back as itself without quotes
  static YamlNode string(std::string text);  ///< any text; quoted unless it is a simple word
  static YamlNode list(std::vector<YamlNode> values);

  /// The value of a key of a map; null if there is none.
  const YamlNode* find(std::string_view key) const noexcept;

  /// Compares the content, not the place.
  friend bool operator==(const YamlNode& a, const YamlNode& b) noexcept {
    return a.kind == b.kind && a.text == b.text && a.quoted == b.quoted && a.keys == b.keys &&
           a.values == b.values;
  }
};

/// Reads one document. Reports problems: bytes that are not text, syntax, limits, a second
/// document, keys that are not text or occur twice, and refused features. Returns nothing if the
/// file cannot be understood at all, and a null node for a file without content.
std::optional<YamlNode> parse_yaml(std::string_view text, ConfigProblems& problems);

/// Returns maps with one field per line and lists in brackets, for nodes made with `plain`,
/// `string` and `list`. The text reads back as the same nodes.
[[nodiscard]] std::string to_yaml_text(const YamlNode& node);

}  // namespace dckpt
