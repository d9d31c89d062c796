#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "mapping/base/bytes.h"
#include "strategies/formats/pickle/graph_builder.h"
#include "strategies/formats/pickle/memo.h"
#include "strategies/formats/pickle/opcodes.h"
#include "strategies/formats/pickle/rows.h"

namespace dckpt::pickle {

/// Takes rows (rows.h) off a pickle before they become nodes. What is not exactly as a pickler of
/// protocol 4 or 5 writes such an object is left alone, and so is all of a pickle whose memo is not
/// counted up: it is then read as nodes.
class RowScanner {
 public:
  using Id = Graph::Id;

  RowScanner(const RowTypes& types, ByteView pickle, GraphBuilder& graph, Memo& memo);

  /// If the bytes from `at` on, behind the opcode that pushed `type`, make an object of a row type:
  /// its node, and `at` is behind them. Otherwise kNil, and nothing has changed.
  Id take(Id type, const std::byte*& at);

  bool took_any() const noexcept { return took_any_; }

 private:
  class Cursor;
  /// A name as it is referred to: where the memo has it.
  static constexpr std::uint32_t kUnknown = 0xFFFFFFFF;
  struct Type {
    Id node = Graph::kNil;  ///< of the class, once it was seen
    std::array<std::uint32_t, kMaxRowFields> names{};
  };

  /// Position in types_.classes; behind the last for another global.
  std::size_t type_of(Id node);
  std::size_t find_type(Id node);
  bool is_counts_class(Id node);
  std::size_t find_field(const RowType& type, Type& known, std::uint32_t index);

  // Each goes over what it expects, or returns false.
  bool object(Cursor& in, const RowType& type, Type& known);
  bool name(Cursor& in, const RowType& type, Type& known, std::size_t& field);
  bool value(Cursor& in, Id& cell);
  bool counts(Cursor& in, Id here);
  bool text(Cursor& in, Id& cell);
  /// Whether there was a MEMOIZE.
  bool memoize(Cursor& in, Id id);

  const RowTypes& types_;
  const std::byte* const begin_;
  const std::byte* const end_;
  GraphBuilder& graph_;
  Memo& memo_;
  std::vector<Type> known_;
  Id counts_class_ = Graph::kNil;
  std::array<Id, kMaxRowFields> cells_{};  // of the object at hand
  bool instance_is_memoized_ = false;
  bool took_any_ = false;
};

}  // namespace dckpt::pickle
