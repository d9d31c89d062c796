#include "operations/inspect/compare_values.h"

#include <algorithm>
#include <string_view>

#include "mapping/base/format.h"
#include "mapping/state/members.h"
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
    if (!have_members(a, b)) return compare_leaf(a, b, path);
    for_each_member(a, b, [&](const Value& key, const Value* of_a, const Value* of_b) {
      return compare_member(key, of_a, of_b, path);
    });
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

  /// Compares a member, which a null pointer's side lacks. Returns whether to continue.
  bool compare_member(const Value& key, const Value* a, const Value* b, const std::string& path) {
    if (a != nullptr && b != nullptr)
      compare(*a, *b, path + member(key));
    else
      report(path + member(key), a, b);
    return found_.size() < limit_;
  }

  /// Compares lists of [key, value] with rendered keys.
  void compare_pairs(const Value& a, const Value& b, const std::string& path) {
    const auto as_dict = [](const Value& pairs) {
      Dict dict;
      for (const Value& pair : pairs.items()) dict.set(to_json(pair.items()[0]), pair);
      return dict;
    };
    for_each_member(as_dict(a), as_dict(b),
                    [&](const Value&, const Value* of_a, const Value* of_b) {
                      const auto value_of = [](const Value* pair) {
                        return pair ? &pair->items()[1] : nullptr;
                      };
                      return compare_member((of_a ? of_a : of_b)->items()[0], value_of(of_a),
                                            value_of(of_b), path);
                    });
  }

  /// Returns ".name" for names, "[…]" with the key as JSON for anything else.
  static std::string member(const Value& key) {
    if (key.is_int()) return str_format("[{}]", key.as_int());
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
