#include "mapping/state/value.h"

namespace dckpt {
namespace {

constexpr std::size_t kIndexed = 8;  // up to this many items, a scan is faster than hashing

}  // namespace

Dict::Dict(std::initializer_list<Item> items) {
  for (const auto& [key, value] : items) set(key, value);
}

std::optional<std::size_t> Dict::position(const Value& key) const {
  if (index_.empty()) {
    for (std::size_t i = 0; i < items_.size(); ++i) {
      if (items_[i].first == key) return i;
    }
    return std::nullopt;
  }
  const auto [first, last] = index_.equal_range(hash_value(key));
  for (auto entry = first; entry != last; ++entry) {
    if (items_[entry->second].first == key) return entry->second;
  }
  return std::nullopt;
}

const Value* Dict::find(const Value& key) const {
  const auto at = position(key);
  return at ? &items_[*at].second : nullptr;
}

Value* Dict::find(const Value& key) {
  const auto at = position(key);
  return at ? &items_[*at].second : nullptr;
}

Value& Dict::operator[](const Value& key) {
  if (Value* known = find(key)) return *known;
  set(key, {});
  return items_.back().second;
}

void Dict::set(Value key, Value value) {
  if (Value* known = find(key)) {
    *known = std::move(value);
    return;
  }
  items_.emplace_back(std::move(key), std::move(value));
  if (!index_.empty()) {
    index_.emplace(hash_value(items_.back().first), items_.size() - 1);
  } else if (items_.size() > kIndexed) {
    for (std::size_t i = 0; i < items_.size(); ++i) index_.emplace(hash_value(items_[i].first), i);
  }
}

bool Dict::erase(const Value& key) {
  const auto at = position(key);
  if (!at) return false;
  items_.erase(items_.begin() + static_cast<std::ptrdiff_t>(*at));
  index_.clear();
  if (items_.size() > kIndexed) {
    for (std::size_t i = 0; i < items_.size(); ++i) index_.emplace(hash_value(items_[i].first), i);
  }
  return true;
}

}  // namespace dckpt
