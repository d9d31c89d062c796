#include "strategies/formats/pickle/graph.h"

#include <cstring>

#include "strategies/formats/pickle/opcodes.h"

namespace dckpt::pickle {
namespace {

Op op_at(const char* at) noexcept {
  return Op{static_cast<std::uint8_t>(*at)};
}

template <typename T>
std::int64_t take(const char*& at) noexcept {
  T value;
  std::memcpy(&value, at, sizeof value);
  at += sizeof value;
  return static_cast<std::int64_t>(value);
}

/// Takes a count that RowScanner has checked.
std::int64_t take_count(const char*& at) noexcept {
  switch (op_at(at++)) {
    case Op::kBinInt1: return take<std::uint8_t>(at);
    case Op::kBinInt2: return take<std::uint16_t>(at);
    case Op::kBinInt: return take<std::uint32_t>(at);
    default: {  // LONG1
      std::uint64_t value = 0;
      const auto bytes = take<std::uint8_t>(at);
      std::memcpy(&value, at, static_cast<std::size_t>(bytes));
      at += bytes;
      return static_cast<std::int64_t>(value);
    }
  }
}

}  // namespace

bool Graph::has_counts(Id cell) const noexcept {
  return !is_count(op_at(pickle_ + (cell - kInPickle)));
}

std::int64_t Graph::count(Id cell) const noexcept {
  const char* at = pickle_ + (cell - kInPickle);
  return take_count(at);
}

std::size_t Graph::counts(Id cell, std::span<std::int64_t> out) const noexcept {
  const char* at = pickle_ + (cell - kInPickle);
  at += op_at(at) == Op::kBinGet ? 2 : 5;  // skips the class
  if (op_at(at) == Op::kMark) ++at;
  std::size_t size = 0;
  for (; is_count(op_at(at)); ++size) {
    const std::int64_t value = take_count(at);
    if (size < out.size()) out[size] = value;
  }
  return size;
}

Graph::Extras Graph::extras(Id id) const noexcept {
  if (!is_object(id)) return {};
  const Word slot = id + 1 + number(id);
  if (!has(id, kExtended))
    return {.states = run(slot, words_[slot] == kNil ? 0 : 1), .list_items = {}, .dict_items = {}};
  const auto& [first, counts] = object_extras_[words_[slot]];
  const Word list_items = first + counts[0];
  return {run(first, counts[0]), run(list_items, counts[1]),
          run(list_items + counts[1], counts[2])};
}

}  // namespace dckpt::pickle
