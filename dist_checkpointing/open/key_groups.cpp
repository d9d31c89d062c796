#include "dist_checkpointing/open/key_groups.h"

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <utility>

#include "configs/policy/rename.h"
#include "mapping/base/format.h"
#include "mapping/base/text.h"

namespace dckpt {
namespace {

constexpr std::string_view kGridMark = "/shard_";
constexpr std::string_view kSeparators = "./";
constexpr std::size_t kShownBelow = 4;

bool is_number(std::string_view text) {
  return !text.empty() &&
         std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

/// Returns the components of a key that are numbers, in order.
std::vector<std::string_view> numbers_of(std::string_view key) {
  std::vector<std::string_view> numbers;
  for (std::size_t at = 0; at <= key.size();) {
    const std::size_t end = std::min(key.find_first_of(kSeparators, at), key.size());
    if (const std::string_view part = key.substr(at, end - at); is_number(part))
      numbers.push_back(part);
    at = end + 1;
  }
  return numbers;
}

/// Returns the pattern with numbers in place of its stars, as far as there are both.
std::string with_numbers(std::string_view pattern, const std::vector<std::string_view>& numbers) {
  std::string key;
  std::size_t next = 0;
  for (const char c : pattern) {
    if (c == '*' && next < numbers.size()) {
      key += numbers[next++];
    } else {
      key += c;
    }
  }
  return key;
}

template <typename Line>
std::string table(const KeySet& keys, const Line& line_of) {
  const std::vector<KeyGroup> groups = group_keys(keys);
  std::string text;
  std::size_t shown = 0;
  for (std::size_t i = 0; i < std::min(groups.size(), kShownGroups); ++i) {
    text += "\n  " + line_of(groups[i]);
    shown += groups[i].count;
  }
  if (shown < keys.size()) text += str_format("\n  … and {} more", grouped(keys.size() - shown));
  return text;
}

/// Looks for similar stored names by their patterns, of which there are far fewer.
class Suggestions {
 public:
  explicit Suggestions(const KeySet& stored) : stored_(stored) {
    for (KeyGroup& group : group_keys(stored)) {
      const std::string pattern = without_numbers(group.first);
      patterns_.push_back(pattern);
      groups_.emplace(pattern, std::move(group));
    }
  }

  std::string for_group(const KeyGroup& group) const {
    if (const std::string grown = below(group.first); !grown.empty()) return grown;
    const std::string pattern = without_numbers(group.first);
    if (const auto same = groups_.find(pattern); same != groups_.end()) {
      return ": the checkpoint has " +
             (same->second.count == 1
                  ? quote(same->second.first)
                  : str_format("{} others, e.g. {}", grouped(same->second.count),
                               quote(same->second.first)));
    }
    const auto close = nearest(pattern, patterns_);
    if (!close) return "";
    const std::string likely = with_numbers(*close, numbers_of(group.first));
    return str_format(": did you mean {}?",
                      quote(stored_.contains(likely) ? likely : groups_.at(*close).first));
  }

 private:
  /// Returns the stored keys below a name, which then belongs to a dict or list with more items
  /// than the request's.
  std::string below(const std::string& name) const {
    std::vector<std::string> found;
    const std::string prefix = name + ".";
    for (auto at = stored_.lower_bound(prefix); at != stored_.end() && at->starts_with(prefix);
         ++at)
      found.push_back(*at);
    if (found.empty()) return "";
    return ": the checkpoint has " + quoted_list(found, kShownBelow) +
           " below this name; ask with a dict or list that has these items";
  }

  const KeySet& stored_;
  std::vector<std::string> patterns_;
  std::map<std::string, KeyGroup> groups_;
};

/// Returns a regular expression that matches only this text.
std::string escaped_for_regex(std::string_view text) {
  std::string escaped;
  for (const char c : text) {
    if (std::string_view("\\^$.|?*+()[]{}").find(c) != std::string_view::npos) escaped += '\\';
    escaped += c;
  }
  return escaped;
}

std::string escaped_for_replacement(std::string_view text) {
  std::string escaped;
  for (const char c : text) escaped += c == '\\' ? std::string("\\\\") : std::string(1, c);
  return escaped;
}

/// Returns a rule for one common prefix too much or too little.
std::optional<RenameRule> prefix_rule(const KeySet& asked, const KeySet& stored) {
  const auto is_unknown = [&](const std::string& key) { return !stored.contains(key); };
  const auto first = std::find_if(asked.begin(), asked.end(), is_unknown);
  if (first == asked.end()) return std::nullopt;

  const auto if_usable = [](RenameRule rule) {
    return problem_of(rule) ? std::nullopt : std::optional(std::move(rule));
  };
  const auto all_stored_behind = [&](const std::string& prefix) {
    return std::all_of(asked.begin(), asked.end(), [&](const std::string& key) {
      return is_unknown(key) ? stored.contains(prefix + key) : !key.starts_with(prefix);
    });
  };
  for (const std::string& key : stored) {
    if (!key.ends_with(*first)) continue;
    const std::string prefix = key.substr(0, key.size() - first->size());
    if (all_stored_behind(prefix))
      return if_usable({str_format("^{}(.*)$", escaped_for_regex(prefix)), "\\1"});
  }

  const auto all_stored_without = [&](std::size_t length) {
    return std::all_of(asked.begin(), asked.end(), [&](const std::string& key) {
      return is_unknown(key) && key.size() > length &&
             key.compare(0, length, *first, 0, length) == 0 && stored.contains(key.substr(length));
    });
  };
  for (std::size_t dot = first->find('.'); dot != std::string::npos;
       dot = first->find('.', dot + 1)) {
    if (all_stored_without(dot + 1))
      return if_usable({"^(.*)$", escaped_for_replacement(first->substr(0, dot + 1)) + "\\1"});
  }
  return std::nullopt;
}

// Components that torch.compile, activation checkpointing and FSDP insert before the wrapped
// module.
constexpr std::array<std::string_view, 3> kWrappers = {"_orig_mod", "_checkpoint_wrapped_module",
                                                       "_fsdp_wrapped_module"};

/// Returns the first component of a key that belongs to a wrapper: its position, and its length
/// with the dot.
std::optional<std::pair<std::size_t, std::size_t>> find_wrapper(std::string_view key) {
  for (std::size_t at = 0, dot = key.find('.'); dot != std::string_view::npos;
       at = dot + 1, dot = key.find('.', at)) {
    const std::string_view part = key.substr(at, dot - at);
    if (std::ranges::find(kWrappers, part) != kWrappers.end()) return std::pair(at, dot + 1 - at);
  }
  return std::nullopt;
}

KeySet renamed(const KeySet& keys, const std::vector<RenameRule>& rules) {
  if (std::ranges::any_of(rules,
                          [](const RenameRule& rule) { return problem_of(rule).has_value(); }))
    return {};
  const KeyRenamer rename(rules);
  KeySet names;
  for (const std::string& key : keys) {
    if (key.size() <= kMaxRenamedKey / 2) names.insert(rename(key));
  }
  return names;
}

/// Returns a rule that removes the wrappers in stored keys.
std::optional<RenameRule> unwrapping_rule(const KeySet& stored) {
  std::set<std::string> names;
  for (const std::string& key : stored) {
    std::string_view rest = key;
    while (const auto found = find_wrapper(rest)) {
      names.emplace(rest.substr(found->first, found->second - 1));
      rest.remove_prefix(found->first + found->second);
    }
  }
  if (names.empty()) return std::nullopt;
  std::string pattern;
  for (const std::string& name : names) pattern += (pattern.empty() ? "" : "|") + name;
  return RenameRule{str_format("\\b({})\\.", pattern), ""};
}

/// Returns a rule that inserts the wrapper of requested keys into stored ones, behind the same
/// names.
std::optional<RenameRule> wrapping_rule(const KeySet& asked, const KeySet& stored) {
  std::set<std::string> heads;
  std::set<std::string> names;
  for (const std::string& key : asked) {
    const auto found = find_wrapper(key);
    if (!found || stored.contains(key)) continue;
    names.insert(key.substr(found->first, found->second));
    std::string head = escaped_for_regex(without_numbers(key.substr(0, found->first)));
    for (std::size_t at = 0; (at = head.find("\\*", at)) != std::string::npos;)
      head.replace(at, 2, "[0-9]+");
    heads.insert(std::move(head));
  }
  if (names.size() != 1) return std::nullopt;
  std::string pattern;
  for (const std::string& head : heads) pattern += (pattern.empty() ? "" : "|") + head;
  return RenameRule{str_format("^({})", pattern), "\\1" + *names.begin()};
}

}  // namespace

std::string to_string(const KeyGroup& group) {
  std::string text = quote(group.pattern);
  if (group.count > 1)
    text += str_format(" ({} keys, e.g. {})", grouped(group.count), quote(group.first));
  return text;
}

std::string without_numbers(std::string_view key) {
  std::string pattern;
  const std::size_t grid = key.rfind(kGridMark);
  const std::string_view name = key.substr(0, grid);
  for (std::size_t at = 0; at <= name.size();) {
    const std::size_t end = std::min(name.find_first_of(kSeparators, at), name.size());
    const std::string_view part = name.substr(at, end - at);
    pattern += is_number(part) ? std::string_view("*") : part;
    if (end < name.size()) pattern += name[end];
    at = end + 1;
  }
  if (grid != std::string_view::npos) pattern += std::string(kGridMark) + "*";
  return pattern;
}

std::vector<KeyGroup> group_keys(const KeySet& keys) {
  std::vector<KeyGroup> groups;
  std::map<std::string, std::size_t> positions;
  for (const std::string& key : keys) {
    std::string pattern = without_numbers(key);
    const auto [found, added] = positions.try_emplace(pattern, groups.size());
    if (added) {
      groups.push_back({key, key, 1});
    } else {
      KeyGroup& group = groups[found->second];
      group.pattern = std::move(pattern);
      ++group.count;
    }
  }
  return groups;
}

std::string table_of(const KeySet& keys) {
  return table(keys, [](const KeyGroup& group) { return to_string(group); });
}

std::string table_of_unknown(const KeySet& unknown, const KeySet& stored) {
  const Suggestions suggestions(stored);
  return table(unknown, [&](const KeyGroup& group) {
    return to_string(group) + suggestions.for_group(group);
  });
}

std::vector<RenameRule> suggest_rename(const KeySet& asked, const KeySet& stored) {
  if (std::ranges::includes(stored, asked)) return {};
  if (const auto prefix = prefix_rule(asked, stored)) return {*prefix};
  const auto serve = [&](const std::vector<RenameRule>& rules) {
    return std::ranges::includes(renamed(stored, rules), asked);
  };
  if (const auto unwrapping = unwrapping_rule(stored)) {
    if (serve({*unwrapping})) return {*unwrapping};
    if (const auto prefix = prefix_rule(asked, renamed(stored, {*unwrapping})))
      return {*unwrapping, *prefix};
  }
  if (const auto wrapping = wrapping_rule(asked, stored); wrapping && serve({*wrapping}))
    return {*wrapping};
  return {};
}

}  // namespace dckpt
