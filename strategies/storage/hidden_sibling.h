#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace dckpt {

/// A hidden name beside a name, used by publishing: `.{name}.{purpose}-{token}`. Code that makes
/// another kind of hidden sibling (a purpose is lower-case letters) uses these functions too.
struct HiddenSibling {
  std::string name;     ///< one path component
  std::string purpose;  ///< "saving", "interrupted", "replaced", "tmp", …
  std::string token;    ///< identifies the writer

  friend bool operator==(const HiddenSibling&, const HiddenSibling&) = default;
};
std::string to_string(const HiddenSibling& sibling);
/// The inverse, for names without a part like `.letters-`; empty for anything else.
std::optional<HiddenSibling> parse_hidden_sibling(std::string_view component);

/// Returns the path of a hidden sibling of the path `name`.
std::string hidden_sibling(const std::string& name, const std::string& purpose,
                           const std::string& token);

}  // namespace dckpt
