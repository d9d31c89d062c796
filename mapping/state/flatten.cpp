#include "mapping/state/flatten.h"

#include <algorithm>
#include <charconv>
#include <unordered_set>

#include "mapping/base/error.h"

namespace dckpt {
namespace {

std::string name_of(const Value& key) {
  if (std::optional<std::string> text = key_text(key)) return *std::move(text);
  throw_error(ErrorCode::kInvalidArgument,
              "a dict key of kind {} has no place in a dotted name; use text",
              to_string(key.kind()));
}

class Flatten {
 public:
  explicit Flatten(FlattenRule rule) : rule_(rule) {}

  std::vector<FlatLeaf> run(const Value& state) {
    const auto* items = mapping_items(state);
    if (items == nullptr)
      throw_error(ErrorCode::kInvalidArgument,
                  std::string("expected a dict to flatten, found ") + to_string(state.kind()));
    open(*items);
    return std::move(leaves_);
  }

 private:
  void open(const std::vector<std::pair<Value, Value>>& items) {
    for (const auto& [key, item] : items) step(name_of(key), item);
  }

  void step(const auto& element, const Value& item) {
    path_.emplace_back(element);
    walk(item);
    path_.pop_back();
  }

  void walk(const Value& value) {
    if (path_.size() > kMaxTreeDepth) throw_too_deep();
    if (!is_opened(value, 0)) return add(value);
    if (const auto* items = mapping_items(value)) return open(*items);
    std::int64_t position = 0;
    for (const Value& item : value.items()) step(position++, item);
  }

  /// Returns whether the parts of a value get names of their own.
  bool is_opened(const Value& value, std::size_t depth) const {
    if (depth > kMaxTreeDepth) throw_too_deep();
    const auto opens = [&](const Value& item) {
      return item.is_tensor() || item.is(Value::Kind::kShardedTensor) || is_opened(item, depth + 1);
    };
    if (const auto* items = mapping_items(value)) {
      return rule_ == FlattenRule::kCurrent ||
             (rule_ == FlattenRule::kKeepEmpty && !items->empty()) ||
             std::any_of(items->begin(), items->end(),
                         [&](const auto& entry) { return opens(entry.second); });
    }
    return value.is_list() && std::any_of(value.items().begin(), value.items().end(), opens);
  }

  void add(const Value& value) {
    std::string name = dotted_name(path_);
    if (!names_.insert(name).second)
      throw_error(ErrorCode::kInvalidArgument, {.key = name},
                  "duplicated flatten key " + quote(name));
    leaves_.push_back({std::move(name), path_, value});
  }

  [[noreturn]] static void throw_too_deep() {
    throw_error(ErrorCode::kUnsupported, "the state dict is nested deeper than {} levels",
                kMaxTreeDepth);
  }

  FlattenRule rule_;
  KeyPath path_;
  std::vector<FlatLeaf> leaves_;
  std::unordered_set<std::string> names_;
};

/// Returns the value of the key that flattening calls `text`; null if there is none.
Value* find_key(Value& dict, const std::string& text) {
  if (!dict.is_dict()) return nullptr;
  Dict& items = dict.mutable_dict();
  if (Value* const found = items.find(Value(text))) return found;
  for (std::size_t i = 0; i < items.size(); ++i) {
    const Value& key = items.items()[i].first;
    if (!key.is_str() && name_of(key) == text) return &items.value_at(i);
  }
  return nullptr;
}

Value* find_item(Value& list, std::int64_t position) {
  if (!list.is_list() || position < 0 || static_cast<std::size_t>(position) >= list.size())
    return nullptr;
  return &list.mutable_items()[static_cast<std::size_t>(position)];
}

/// Returns a step of a path as the container, of either kind, needs it: dicts of positions and
/// lists have the same names.
PathElement step_in(const Value& container, const PathElement& step) {
  if (container.is_dict()) return dotted_name({step});
  const auto* const text = std::get_if<std::string>(&step);
  if (!container.is_list() || text == nullptr) return step;
  std::int64_t position = 0;
  const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), position);
  return error == std::errc() && end == text->data() + text->size() ? PathElement(position) : step;
}

}  // namespace

std::optional<std::string> key_text(const Value& key) {
  switch (key.kind()) {
    case Value::Kind::kStr: return key.as_str();
    case Value::Kind::kInt: return std::to_string(key.as_int());
    case Value::Kind::kBigInt: return key.as_big_int().to_decimal();
    case Value::Kind::kBool: return key.as_bool() ? "True" : "False";
    case Value::Kind::kNone: return "None";
    default: return std::nullopt;
  }
}

std::vector<FlatLeaf> flatten_state_dict(const Value& state, FlattenRule rule) {
  return Flatten(rule).run(state);
}

void replace_leaf(Value& tree, const KeyPath& path, Value value) {
  Value* place = &tree;
  for (auto at = path.begin(); at != path.end(); ++at) {
    const PathElement step = step_in(*place, *at);
    const auto* const text = std::get_if<std::string>(&step);
    Value* const next =
        text != nullptr ? find_key(*place, *text) : find_item(*place, std::get<std::int64_t>(step));
    if (next == nullptr) {
      KeyPath rest(at, path.end());
      rest.front() = step;
      set_element(*place, rest, std::move(value));
      return;
    }
    place = next;
  }
  *place = std::move(value);
}

Value unflatten_state_dict(std::span<const std::pair<KeyPath, Value>> leaves) {
  std::size_t may_fill =
      (std::size_t{1} << 20) + leaves.size();  // positions named later are filled in first, too
  Value nested = Value::dict();
  for (const auto& [path, value] : leaves) {
    if (path.empty())
      throw_error(ErrorCode::kCorrupt, "a value without a path cannot be placed in a state dict");
    may_fill -= set_element(nested, path, value, may_fill);
  }
  return nested;
}

}  // namespace dckpt
