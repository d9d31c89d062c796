#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "configs/policy/options.h"

namespace dckpt {

/// Limits of renaming, in bytes: rules that double a key cannot make it grow without end.
inline constexpr std::size_t kMaxRenamePattern = 512;
inline constexpr std::size_t kMaxRenamedKey = 4096;

/// Returns the problem of a rule as text for messages; empty if there is none. `from` is a regular
/// expression in the syntax of RE2, which matches in time linear in the key and so has neither
/// back-references nor look-around; in `to`, \1 to \9 stand for groups of it, \0 for the whole
/// match, \\ for a backslash, and every other byte for itself.
std::optional<std::string> problem_of(const RenameRule& rule);

/// Rewrites keys. Rules apply in order; each replaces every match in the result of the previous
/// ones, like sed or Python's re.sub. Copies share the compiled rules; any number of threads may
/// use one.
class KeyRenamer {
 public:
  /// Throws CheckpointError (invalid-argument) for a rule that has a problem.
  explicit KeyRenamer(std::span<const RenameRule> rules);

  bool empty() const noexcept;

  /// Throws CheckpointError (unsupported) for a key, or a result, of more than kMaxRenamedKey
  /// bytes.
  std::string operator()(std::string_view key) const;

 private:
  struct Compiled;
  std::shared_ptr<const Compiled> compiled_;
};

}  // namespace dckpt
