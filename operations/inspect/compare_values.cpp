#include "operations/inspect/compare_values.h"

#include <algorithm>
#include <string_view>

#include "mapping/base/format.h"
#include "strategies/formats/json/json.h"

namespace dckpt {
namespace {

using Kind = Value::Kind;

constexpr std::size_t kShortText = 96;

/// Shortens JSON, which is ASCII and so can be cut anywhere.
std::string short_rendering(const Value& rendered) {
  std::string text = to_json(rendered);
  if (text.size() > kShortText) text = text.substr(0, kShortText) + "…";
  return text;
}

/// Returns "__tuple__" for {"__tuple__": …}; empty for anything else.
std::string_view tag_of(const Value& rendered) {
  if (!rendered.is_dict() || rendered.size() == 0) return {};
  const std::string& key = rendered.as_dict().items().front().first.as_str();
  const bool has_company =
      key == "__long__" || key == "__enum__" || key == "__npscalar__" || key == "__repr__";
  return (key.starts_with("__") && rendered.size() == 1) || has_company ? std::string_view(key)
                                                                        : std::string_view();
}

const Value& content_of(const Value& tagged) {
  return tagged.as_dict().items().front().second;
}

/// Returns whether a dict is rendered as [key, value] lists. The content is checked too, because a
/// checkpoint may contain an ordinary dict that only looks tagged.
bool holds_pairs(const Value& rendered, std::string_view tag) {
  if (tag != "__dict__" && tag != "__OrderedDict__" && tag != "__defaultdict__") return false;
  const Value& content = content_of(rendered);
  return content.is_list() && std::ranges::all_of(content.items(), [](const Value& pair) {
           return pair.is_list() && pair.size() == 2;
         });
}

class ValueComparison {
 public:
  ValueComparison(std::optional<Tolerance> tolerance, std::size_t limit)
      : tolerance_(tolerance), limit_(limit) {}

  void compare(const Value& a, const Value& b, const std::string& path) {
    if (found_.size() >= limit_) return;
    const std::string_view tag = tag_of(a);
    if (tag != tag_of(b)) return report(path, &a, &b);
    if (holds_pairs(a, tag) && holds_pairs(b, tag))
      return compare_pairs(content_of(a), content_of(b), path);
    if (tag == "__tuple__" || tag == "__namespace__" || tag == "__opaque__")
      return compare(content_of(a), content_of(b), path);
    if (!tag.empty()) return compare_leaf(a, b, path);
    if (a.is_dict() && b.is_dict()) return compare_dicts(a.as_dict(), b.as_dict(), path);
    if (a.is_list() && b.is_list()) return compare_lists(a.items(), b.items(), path);
    compare_leaf(a, b, path);
  }

  std::vector<ValueDifference> found() && { return std::move(found_); }

 private:
  void report(const std::string& path, const Value* a, const Value* b) {
    if (found_.size() >= limit_) return;
    std::string shown = path.starts_with('.') ? path.substr(1) : path;
    found_.push_back({std::move(shown), a != nullptr ? short_rendering(*a) : "",
                      b != nullptr ? short_rendering(*b) : ""});
  }

  void compare_leaf(const Value& a, const Value& b, const std::string& path) {
    if (tolerance_ && a.is(Kind::kFloat) && b.is(Kind::kFloat) &&
        tolerance_->accepts(a.as_float(), b.as_float()))
      return;
    if (a.kind() != b.kind() || !(a == b)) report(path, &a, &b);
  }

  void compare_dicts(const Dict& a, const Dict& b, const std::string& path) {
    for (const auto& [key, value] : a) {
      const Value* const other = b.find(key);
      const std::string below = path + member(key);
      if (other == nullptr)
        report(below, &value, nullptr);
      else
        compare(value, *other, below);
    }
    for (const auto& [key, value] : b) {
      if (a.find(key) == nullptr) report(path + member(key), nullptr, &value);
    }
  }

  /// Compares lists of [key, value] with rendered keys.
  void compare_pairs(const Value& a, const Value& b, const std::string& path) {
    const auto as_dict = [](const Value& pairs) {
      Dict dict;
      for (const Value& pair : pairs.items()) dict.set(to_json(pair.items()[0]), pair);
      return dict;
    };
    const Dict of_a = as_dict(a);
    const Dict of_b = as_dict(b);
    for (const auto& [text, pair] : of_a) {
      const Value* const other = of_b.find(text);
      const std::string below = path + member(pair.items()[0]);
      if (other == nullptr)
        report(below, &pair.items()[1], nullptr);
      else
        compare(pair.items()[1], other->items()[1], below);
    }
    for (const auto& [text, pair] : of_b) {
      if (of_a.find(text) == nullptr)
        report(path + member(pair.items()[0]), nullptr, &pair.items()[1]);
    }
  }

  void compare_lists(const ValueList& a, const ValueList& b, const std::string& path) {
    for (std::size_t i = 0; i < std::max(a.size(), b.size()); ++i) {
      const std::string below = str_format("{}[{}]", path, i);
      if (i >= a.size() || i >= b.size())
        report(below, i < a.size() ? &a[i] : nullptr, i < b.size() ? &b[i] : nullptr);
      else
        compare(a[i], b[i], below);
    }
  }

  /// Returns ".name" for names, "[…]" with the key as JSON for anything else.
  static std::string member(const Value& key) {
    constexpr std::string_view kPlain =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-";
    if (key.is_str() && !key.as_str().empty() &&
        key.as_str().find_first_not_of(kPlain) == std::string::npos)
      return "." + key.as_str();
    return str_format("[{}]", short_rendering(key));
  }

  std::optional<Tolerance> tolerance_;
  std::size_t limit_;
  std::vector<ValueDifference> found_;
};

}  // namespace

std::vector<ValueDifference> compare_values(const Value& a, const Value& b,
                                            std::optional<Tolerance> tolerance, std::size_t limit) {
  ValueComparison comparison(tolerance, limit);
  comparison.compare(a, b, "");
  return std::move(comparison).found();
}

}  // namespace dckpt
