#include "mapping/state/tree.h"

#include <algorithm>
#include <utility>

#include "mapping/base/error.h"

namespace dckpt {
namespace {

constexpr std::uint64_t kMaxValues = std::uint64_t{1} << 24;

/// The limits of one walk, checked at every value.
class Bounds {
 public:
  void check(std::size_t depth) {
    if (depth > kMaxTreeDepth)
      throw_error(ErrorCode::kUnsupported, "the tree is nested deeper than {} levels",
                  kMaxTreeDepth);
    if (++seen_ > kMaxValues)
      throw_error(ErrorCode::kUnsupported, "the tree has more than {} values", grouped(kMaxValues));
  }

 private:
  std::uint64_t seen_ = 0;
};

bool is_container(const Value& value) {
  return value.is_dict() || value.is_list();
}

PathElement path_element(const Value& key) {
  if (key.is_int()) return key.as_int();
  return key.is_str() ? key.as_str() : short_text(key);
}

class Visit {
 public:
  explicit Visit(const std::function<void(const KeyPath&, const Value&)>& visit) : visit_(visit) {}

  void walk(const Value& value) {
    bounds_.check(path_.size());
    if (value.is_dict()) {
      for (const auto& [key, item] : value.as_dict()) step(path_element(key), item);
    } else if (value.is_list()) {
      std::int64_t position = 0;
      for (const Value& item : value.items()) step(position++, item);
    } else {
      visit_(path_, value);
    }
  }

 private:
  void step(const auto& element, const Value& item) {
    path_.emplace_back(element);
    walk(item);
    path_.pop_back();
  }

  const std::function<void(const KeyPath&, const Value&)>& visit_;
  KeyPath path_;
  Bounds bounds_;
};

class LeafSearch {
 public:
  explicit LeafSearch(const std::function<bool(const Value&)>& predicate) : predicate_(predicate) {}

  bool walk(const Value& value, std::size_t depth) {
    bounds_.check(depth);
    const auto below = [&](const Value& item) { return walk(item, depth + 1); };
    if (value.is_dict())
      return std::ranges::any_of(value.as_dict(), below, &std::pair<Value, Value>::second);
    if (value.is_list()) return std::ranges::any_of(value.items(), below);
    return predicate_(value);
  }

 private:
  const std::function<bool(const Value&)>& predicate_;
  Bounds bounds_;
};

class LeafMapper {
 public:
  explicit LeafMapper(const std::function<Value(Value)>& map) : map_(map) {}

  Value walk(Value value, std::size_t depth) {
    bounds_.check(depth);
    if (value.is_dict()) {
      Dict& dict = value.mutable_dict();
      for (std::size_t i = 0; i < dict.size(); ++i)
        dict.value_at(i) = walk(std::move(dict.value_at(i)), depth + 1);
      return value;
    }
    if (value.is_list()) {
      for (Value& item : value.mutable_items()) item = walk(std::move(item), depth + 1);
      return value;
    }
    return map_(std::move(value));
  }

 private:
  const std::function<Value(Value)>& map_;
  Bounds bounds_;
};

class LeafExtractor {
 public:
  LeafExtractor(const std::function<bool(const Value&)>& predicate, ListForm form)
      : predicate_(predicate), form_(form) {}

  ExtractedLeaves part(const Value& tree, std::size_t depth) {
    bounds_.check(depth);
    Value none = tree.is_dict() || form_ == ListForm::kDict ? Value::dict() : Value::list();
    ExtractedLeaves sides{none, none};
    // As long as everything is on one side, that side is the tree itself: nothing is copied.
    bool shared = tree.is_dict() || form_ == ListForm::kList;
    Value ExtractedLeaves::*first = &ExtractedLeaves::rest;
    for (std::size_t i = 0; i < tree.size(); ++i) {
      const Parts parts = parts_of(tree, item_at(tree, i), depth);
      if (shared && parts.whole && (i == 0 || first == parts.whole)) {
        first = parts.whole;
        continue;
      }
      if (std::exchange(shared, false)) {
        for (std::size_t j = 0; j < i; ++j) append(sides.*first, tree, j, item_at(tree, j));
      }
      if (parts.matching) append(sides.matching, tree, i, *parts.matching);
      if (parts.rest) append(sides.rest, tree, i, *parts.rest);
    }
    if (shared) sides.*first = tree;
    sides.rest.set_label(tree.label());
    return sides;
  }

 private:
  struct Parts {
    std::optional<Value> matching{};
    std::optional<Value> rest{};
    Value ExtractedLeaves::*whole = nullptr;  ///< the side to which the item itself belongs
  };

  Parts parts_of(const Value& tree, const Value& item, std::size_t depth) {
    if (!is_container(item) || (tree.is_list() && item.size() == 0)) {
      if (predicate_(item)) return {.matching = item, .whole = &ExtractedLeaves::matching};
      return {.rest = item, .whole = &ExtractedLeaves::rest};
    }
    ExtractedLeaves both = part(item, depth + 1);
    Parts parts;
    if (both.matching.identity() == item.identity()) parts.whole = &ExtractedLeaves::matching;
    if (both.rest.identity() == item.identity()) parts.whole = &ExtractedLeaves::rest;
    if (both.matching.size() > 0) parts.matching = std::move(both.matching);
    if (both.rest.size() > 0 || item.size() == 0) parts.rest = std::move(both.rest);
    return parts;
  }

  static const Value& item_at(const Value& tree, std::size_t i) {
    return tree.is_dict() ? tree.as_dict().items()[i].second : tree.items()[i];
  }

  void append(Value& side, const Value& tree, std::size_t i, Value item) const {
    if (tree.is_dict()) {
      side.mutable_dict().set(tree.as_dict().items()[i].first, std::move(item));
    } else if (form_ == ListForm::kList) {
      side.mutable_items().push_back(std::move(item));
    } else {
      side.mutable_dict().set(Value(i), std::move(item));
    }
  }

  const std::function<bool(const Value&)>& predicate_;
  ListForm form_;
  Bounds bounds_;
};

class Merge {
 public:
  explicit Merge(const MergeRule& rule) : rule_(rule) {}

  void walk(Value& into, const Value& from) {
    bounds_.check(path_.size());
    if (rule_.take) {
      if (std::optional<Value> taken = rule_.take(into, from)) {
        into = std::move(*taken);
        return;
      }
    }
    if (into.is_dict() && from.is_dict()) {
      dicts(into.mutable_dict(), from.as_dict());
    } else if (into.is_list() && from.is_list()) {
      lists(into.mutable_items(), from.items());
    } else if (rule_.positions && into.is_list() && from.is_dict()) {
      positions(into.mutable_items(), from.as_dict());
    } else {
      refuse(str_format("Duplicate non-dict and non-list values encountered: `{}` and `{}`",
                        short_text(into), short_text(from)));
    }
  }

 private:
  void step(const auto& element, Value& into, const Value& from) {
    path_.emplace_back(element);
    walk(into, from);
    path_.pop_back();
  }

  void dicts(Dict& into, const Dict& from) {
    for (const auto& [key, item] : from) {
      if (Value* known = into.find(key)) {
        step(path_element(key), *known, item);
      } else if (rule_.add_keys) {
        into.set(key, item);
      } else {
        refuse(str_format("Different dict keys encountered: there is no {} to merge into",
                          short_text(key)));
      }
    }
  }

  void lists(ValueList& into, const ValueList& from) {
    if (into.size() != from.size()) {
      refuse(str_format("Cannot merge two lists with different lengths ({} and {})", into.size(),
                        from.size()));
    }
    for (std::size_t i = 0; i < from.size(); ++i)
      step(static_cast<std::int64_t>(i), into[i], from[i]);
  }

  void positions(ValueList& into, const Dict& from) {
    for (const auto& [key, item] : from) {
      if (!key.is_int())
        refuse(str_format("Invalid dict key {} non-integer type encountered in a list-dict merge",
                          short_text(key)));
      const std::int64_t position = key.as_int();
      if (position < 0 || static_cast<std::uint64_t>(position) >= into.size()) {
        refuse(str_format("Dict key {} out of bound for list of length {}", position, into.size()));
      }
      step(position, into[static_cast<std::size_t>(position)], item);
    }
  }

  [[noreturn]] void refuse(const std::string& message) const {
    throw_error(ErrorCode::kMismatch, "{} (at {})", message, quote(dotted_name(path_)));
  }

  const MergeRule& rule_;
  KeyPath path_;
  Bounds bounds_;
};

}  // namespace

void visit_leaves(const Value& tree,
                  const std::function<void(const KeyPath&, const Value&)>& visit) {
  Visit(visit).walk(tree);
}

void visit_leaves(const Value& tree, const std::function<void(const Value&)>& visit) {
  any_leaf(tree, [&](const Value& leaf) {
    visit(leaf);
    return false;
  });
}

bool any_leaf(const Value& tree, const std::function<bool(const Value&)>& predicate) {
  return LeafSearch(predicate).walk(tree, 0);
}

Value map_leaves(Value tree, const std::function<Value(Value)>& map) {
  return LeafMapper(map).walk(std::move(tree), 0);
}

ExtractedLeaves extract_matching(const Value& tree,
                                 const std::function<bool(const Value&)>& predicate,
                                 ListForm form) {
  if (!is_container(tree))
    throw_error(ErrorCode::kInvalidArgument,
                std::string("Unexpected top-level object type: ") + to_string(tree.kind()));
  return LeafExtractor(predicate, form).part(tree, 0);
}

Value merge(Value into, const Value& from, const MergeRule& rule) {
  Merge(rule).walk(into, from);
  return into;
}

const Value* find_element(const Value& tree, const KeyPath& path) {
  const Value* at = &tree;
  for (const PathElement& element : path) {
    if (const auto* name = std::get_if<std::string>(&element)) {
      at = at->find(*name);
    } else {
      const auto position = std::get<std::int64_t>(element);
      const bool there =
          at->is_list() && position >= 0 && static_cast<std::uint64_t>(position) < at->size();
      at = there ? &at->items()[static_cast<std::size_t>(position)] : nullptr;
    }
    if (at == nullptr) return nullptr;
  }
  return at;
}

std::size_t set_element(Value& tree, const KeyPath& path, Value value, std::size_t max_filled) {
  Bounds().check(path.size());
  const auto refuse = [&](const std::string& why) {
    throw_error(ErrorCode::kCorrupt, "cannot set the element at {}: {}", quote(dotted_name(path)),
                why);
  };
  std::size_t filled = 0;
  Value* at = &tree;
  for (const PathElement& element : path) {
    if (const auto* name = std::get_if<std::string>(&element)) {
      if (!at->is_none() && !at->is_dict())
        refuse(str_format("the path needs a dict, found {}", to_string(at->kind())));
      at = &(*at)[Value(*name)];
      continue;
    }
    if (at->is_none()) *at = Value::list();
    if (!at->is_list())
      refuse(str_format("the path needs a list, found {}", to_string(at->kind())));
    const std::int64_t position = std::get<std::int64_t>(element);
    ValueList& items = at->mutable_items();
    if (position < 0) refuse(str_format("the position {} is negative", position));
    const auto wanted = static_cast<std::uint64_t>(position);
    if (wanted >= items.size()) {
      if (wanted - items.size() > max_filled - filled) {
        refuse(str_format("position {} is too far beyond the {} items of the list", position,
                          items.size()));
      }
      filled += wanted - items.size();
      items.resize(wanted + 1);
    }
    at = &items[wanted];
  }
  *at = std::move(value);
  return filled;
}

std::string short_text(const Value& value) {
  constexpr std::size_t kShown = 60;
  switch (value.kind()) {
    case Value::Kind::kNone: return "None";
    case Value::Kind::kBool: return value.as_bool() ? "True" : "False";
    case Value::Kind::kInt: return std::to_string(value.as_int());
    case Value::Kind::kFloat: return str_format("{}", value.as_float());
    case Value::Kind::kStr: return quote(value.as_str(), kShown);
    case Value::Kind::kTensor: return to_string(value.as_tensor());
    default: return to_string(value.kind());
  }
}

}  // namespace dckpt
