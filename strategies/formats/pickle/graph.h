#pragma once

#include <bit>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "mapping/base/bytes.h"
#include "strategies/formats/pickle/pod_array.h"
#include "strategies/formats/pickle/rows.h"

namespace dckpt::pickle {

/// A pickle as the values it describes: nodes in one array that refer to each other by number.
/// Shared and cyclic references are edges like any other; nothing is imported and nothing is
/// called. Text and byte nodes point into the pickle's own bytes where they can, which must outlive
/// the graph. A node takes a few 32-bit words, its edges among them, so that the metadata of
/// millions of chunks can be walked in memory.
class Graph {
 public:
  using Id = std::uint32_t;  ///< position of the first word of a node; not consecutive
  static constexpr Id kNil = 0xFFFFFFFF;

  enum class Kind : std::uint8_t {
    kNone,
    kFalse,
    kTrue,
    kInt,    ///< integer()
    kLong,   ///< outside int64: bytes() two's complement, little-endian
    kFloat,  ///< real()
    kStr,    ///< text(): UTF-8, surrogates passed
    kBytes,
    kByteArray,  ///< bytes()
    kRow,        ///< cells(), of the class row_type(); only with read_rows
    kList,
    kSet,   ///< children(): members
    kDict,  ///< children(): key, value, key, value, …
    kTuple,
    kFrozenSet,   ///< children(): members
    kGlobal,      ///< children(): module (str), name (str); Python 2 names of protocol 2 appear as
                  ///< Python 3's
    kPersistent,  ///< children(): the persistent id
    kCall,        ///< callable(*args): children(): callable, args tuple
    kNew,         ///< callable.__new__: children(): callable, args tuple[, kwargs dict]
  };

  /// Changes to a kCall or kNew node after its creation; lists, sets and dicts hold them as
  /// children.
  struct Extras {
    std::span<const Id> states;      ///< arguments of BUILD
    std::span<const Id> list_items;  ///< items of APPEND(S)
    std::span<const Id> dict_items;  ///< key, value, … of SETITEM(S)
  };

  Graph() = default;
  Graph(Graph&&) noexcept = default;
  Graph& operator=(Graph&&) noexcept = default;
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  Id root() const noexcept { return root_; }
  std::size_t size() const noexcept { return node_count_; }
  /// All ids are below this.
  std::size_t id_limit() const noexcept { return words_.size(); }
  Kind kind(Id id) const noexcept { return static_cast<Kind>(words_[id] & kKindMask); }
  std::int64_t integer(Id id) const noexcept;
  double real(Id id) const noexcept { return std::bit_cast<double>(wide(id)); }
  std::string_view text(Id id) const noexcept;
  ByteView bytes(Id id) const noexcept { return as_bytes(text(id)); }

  /// Returns the children in order; none for scalars, text and bytes.
  std::span<const Id> children(Id id) const noexcept;
  std::size_t child_count(Id id) const noexcept { return children(id).size(); }
  /// Returns empty spans if there are none.
  Extras extras(Id id) const noexcept;
  /// Returns the position in RowTypes::classes of the class of a kRow, or kCountsRow for a row
  /// whose only cell is a bare tuple of counts.
  std::size_t row_type(Id id) const noexcept { return number(id) & kRowTypeMask; }
  static constexpr std::size_t kCountsRow = 15;
  /// Returns the attributes of a kRow in the order of RowType::fields: kNil for a missing one, a
  /// node, or a value that is still in the pickle.
  std::span<const Id> cells(Id id) const noexcept { return run(id + 1, number(id) / kRowCell); }
  static constexpr Id kInPickle = 0x80000000;  ///< cells from here: positions in the pickle
  static bool is_in_pickle(Id cell) noexcept { return cell >= kInPickle && cell != kNil; }
  /// Returns whether a value in the pickle is a tuple of counts instead of a count.
  bool has_counts(Id cell) const noexcept;
  std::int64_t count(Id cell) const noexcept;
  /// Copies the first of the counts, as many as there is room for. Returns the number of all
  /// counts.
  std::size_t counts(Id cell, std::span<std::int64_t> out) const noexcept;

  /// Returns all kPersistent nodes, also those that the root does not reach, in the order of their
  /// creation.
  std::span<const Id> persistent() const noexcept { return persistent_; }

 private:
  friend class GrowingGraph;
  friend class GraphBuilder;

  // The first word of a node has the kind, flags, and a number of 24 bits. The rest depends on the
  // kind:
  //   kNone, kFalse, kTrue       –
  //   kInt                       the number is the value; if wide, two words are
  //   kFloat                     two words
  //   kLong, kStr, kBytes, …     the number is the length, a word the position in the pickle; if
  //                              wide, the word is the position in texts_
  //   kRow                       the number is the type and the count of the cells; the cells. A
  //                              cell from kInPickle on is the position of the first opcode
  //   kList, kSet, kDict         a word: position of the run of children, which is their count and
  //                              the children
  //   kTuple … kPersistent       the number of children and the children; if wide, a word has their
  //                              number
  //   kCall, kNew                the number of children, the children, and a word: the state or
  //                              kNil; if extended, the position in object_extras_
  using Word = std::uint32_t;
  static constexpr Word kKindMask = 0x1F;
  static constexpr Word kWide = 0x20;
  static constexpr Word kExtended = 0x40;
  static constexpr Word kScattered =
      0x80;  // only while reading: filled in steps that are not adjacent
  static constexpr int kNumberShift = 8;
  static constexpr std::uint64_t kMaxNumber = (1U << 24) - 1;

  static constexpr Word kRowTypeMask = 0xF;
  static constexpr Word kRowCell = 0x10;

  struct ObjectExtras {  // states, list items, dict items one after the other
    Word first = 0;
    Word counts[3] = {0, 0, 0};
  };

  Word number(Id id) const noexcept { return words_[id] >> kNumberShift; }
  bool has(Id id, Word flag) const noexcept { return (words_[id] & flag) != 0; }
  std::uint64_t wide(Id id) const noexcept {
    return words_[id + 1] | std::uint64_t{words_[id + 2]} << 32;
  }
  bool is_object(Id id) const noexcept { return kind(id) >= Kind::kCall; }
  std::span<const Id> run(Word first, Word count) const noexcept {
    return {words_.data() + first, count};
  }

  Id root_ = kNil;
  std::size_t node_count_ = 0;
  PodArray<Word> words_;
  const char* pickle_ = nullptr;
  std::vector<std::string_view> texts_;
  std::vector<ObjectExtras> object_extras_;
  std::vector<Id> persistent_;
};

inline std::int64_t Graph::integer(Id id) const noexcept {
  if (has(id, kWide)) return static_cast<std::int64_t>(wide(id));
  return static_cast<std::int32_t>(words_[id]) >> kNumberShift;
}

inline std::string_view Graph::text(Id id) const noexcept {
  if (has(id, kWide)) return texts_[words_[id + 1]];
  return {pickle_ + words_[id + 1], number(id)};
}

inline std::span<const Graph::Id> Graph::children(Id id) const noexcept {
  const Kind kind = this->kind(id);
  if (kind < Kind::kList) return {};
  if (kind <= Kind::kDict) return run(words_[id + 1] + 1, words_[words_[id + 1]]);
  return has(id, kWide) ? run(id + 2, words_[id + 1]) : run(id + 1, number(id));
}

/// Limits against hostile input; a real checkpoint stays far below them.
struct Limits {
  std::uint64_t max_nodes = std::uint64_t{1} << 28;
  std::uint64_t max_bytes = std::uint64_t{1} << 32;  ///< size of the pickle itself
  /// Limit of MARKs inside MARKs (read_graph), and of values inside values (value.h).
  std::uint32_t max_depth = 1000;
  std::uint64_t max_expanded = std::uint64_t{1}
                               << 26;  ///< what sharing may add when everything is counted wherever
                                       ///< it is referred to (value.h)
};

/// Reads one pickle of protocol 2–5 (opcodes.h). `what` names the bytes in messages (a file);
/// errors carry it and the offset of the opcode. Throws CheckpointError (corrupt) on malformed or
/// truncated input, bytes after STOP, extension codes and out-of-band buffers; (unsupported) on
/// opcodes that only protocols 0 and 1 and Python 2 use, and on protocols above 5. If `consumed` is
/// given, bytes after STOP are allowed and their position is stored there (streams of several
/// pickles).
Graph read_graph(ByteView pickle, const std::string& what, const Limits& limits = {},
                 std::size_t* consumed = nullptr);

/// Reads the same with rows (rows.h). Throws for a pickle that read_graph accepts only if an object
/// can no longer be told from its row, because a part of it is referred to or changed.
Graph read_rows(ByteView pickle, const std::string& what, const RowTypes& rows);

}  // namespace dckpt::pickle
