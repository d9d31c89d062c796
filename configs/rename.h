#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "configs/options.h"

namespace dckpt {

/// Limits of renaming: expressions and keys are matched by a library that recurses with their length.
inline constexpr std::size_t kMaxRenamePattern = 512;
inline constexpr std::size_t kMaxRenamedKey = 4096;

/// What is wrong with a rule, for people; empty if it can be used. `from` is an ECMAScript regular expression; in `to`, \1 to \9 stand for groups of it,
/// \0 for the whole match, \\ for a backslash, and every other byte for itself.
std::optional<std::string> problem_of(const RenameRule& rule);

/// Rewrites keys. Each rule in its order replaces every match in what the rules before it have made, like sed or Python's re.sub. Copies share what was
/// compiled; any number of threads may use one. A rule is the user's own: an expression that backtracks without end does so here too.
class KeyRenamer {
 public:
  /// Throws CheckpointError (invalid-argument) for a rule that has a problem.
  explicit KeyRenamer(std::span<const RenameRule> rules);

  bool empty() const noexcept;

  /// Throws CheckpointError (unsupported) for a key, or a result, of more than kMaxRenamedKey bytes.
  std::string operator()(std::string_view key) const;

 private:
  struct Compiled;
  std::shared_ptr<const Compiled> compiled_;
};

}  // namespace dckpt
