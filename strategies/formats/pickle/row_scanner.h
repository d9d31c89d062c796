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

/// Takes rows (rows.h) off a pickle before they become nodes. Objects that are not exactly as a
/// pickler of protocol 4 or 5 writes them are left to be read as nodes, and so is all of a pickle
/// whose memo is not counted up.
class RowScanner {
 public:
  using Id = Graph::Id;

  RowScanner(const RowTypes& types, ByteView pickle, GraphBuilder& graph, Memo& memo);

  /// Returns the node of an object of a row type that is formed by the bytes from `at` on, behind
  /// the opcode that pushed `type`, and moves `at` behind them. Otherwise returns kNil, and nothing
  /// has changed.
  Id take(Id type, const std::byte*& at);

  bool took_any() const noexcept { return took_any_; }

 private:
  class Cursor;
  /// A name in the form in which it is referred to: its memo index.
  static constexpr std::uint32_t kUnknown = 0xFFFFFFFF;
  struct Type {
    Id node = Graph::kNil;  ///< node of the class, once it was seen
    std::array<std::uint32_t, kMaxRowFields> names{};
  };

  /// Returns the position in types_.classes, or the number of classes for another global.
  std::size_t type_of(Id node);
  std::size_t find_type(Id node);
  bool is_counts_class(Id node);
  std::size_t find_field(const RowType& type, Type& known, std::uint32_t index);

  // Each function skips what it expects, or returns false.
  bool object(Cursor& in, const RowType& type, Type& known);
  bool name(Cursor& in, const RowType& type, Type& known, std::size_t& field);
  bool value(Cursor& in, Id& cell);
  bool counts(Cursor& in, Id here);
  bool text(Cursor& in, Id& cell);
  /// Takes a MEMOIZE of `id`. Returns false if none is next.
  bool memoize(Cursor& in, Id id);

  const RowTypes& types_;
  const std::byte* const begin_;
  const std::byte* const end_;
  GraphBuilder& graph_;
  Memo& memo_;
  std::vector<Type> known_;
  Id counts_class_ = Graph::kNil;
  std::array<Id, kMaxRowFields> cells_{};  // cells of the current object
  bool instance_is_memoized_ = false;
  bool took_any_ = false;
};

}  // namespace dckpt::pickle
