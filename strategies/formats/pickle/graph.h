#pragma once

#include <cstdint>
#include <deque>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "mapping/base/bytes.h"

namespace dckpt::pickle {

/// A pickle as what it describes: nodes in one array, referring to each other by number. Shared and cyclic references are edges
/// like any other; nothing is imported and nothing is called. Text and byte nodes point into the pickle's own bytes where they can, which
/// must outlive the graph.
/// 16 bytes a node and 4 bytes an edge, so that the metadata of a million chunks can be walked in memory.
class Graph {
 public:
  using Id = std::uint32_t;
  static constexpr Id kNil = 0xFFFFFFFF;

  enum class Kind : std::uint8_t {
    kNone, kFalse, kTrue,
    kInt,           ///< integer()
    kLong,          ///< outside int64: bytes() two's complement, little-endian
    kFloat,         ///< real()
    kStr,           ///< text(): UTF-8, surrogates passed
    kBytes, kByteArray,  ///< bytes()
    kList, kTuple, kSet, kFrozenSet,  ///< children(): members
    kDict,          ///< children(): key, value, key, value, …
    kGlobal,        ///< children(): module (str), name (str); Python 2 names of protocols 0–2 appear as Python 3's
    kCall,          ///< callable(*args): children(): callable, args tuple
    kNew,           ///< callable.__new__: children(): callable, args tuple[, kwargs dict]
    kPersistent,    ///< children(): the persistent id
  };

  /// What was done to a kCall or kNew node after it was made; lists, sets and dicts hold it as children.
  struct Extras {
    std::span<const Id> states;      ///< arguments of BUILD
    std::span<const Id> list_items;  ///< of APPEND(S)
    std::span<const Id> dict_items;  ///< key, value, … of SETITEM(S)
  };

  Graph() = default;
  Graph(Graph&&) noexcept = default;
  Graph& operator=(Graph&&) noexcept = default;
  Graph(const Graph&) = delete;  // texts point into owned_
  Graph& operator=(const Graph&) = delete;

  Id root() const noexcept { return root_; }
  std::size_t size() const noexcept { return nodes_.size(); }
  Kind kind(Id id) const noexcept { return nodes_[id].kind; }
  std::int64_t integer(Id id) const noexcept { return nodes_[id].payload.integer; }
  double real(Id id) const noexcept { return nodes_[id].payload.real; }
  std::string_view text(Id id) const noexcept;
  ByteView bytes(Id id) const noexcept;

  /// The children in order; none for scalars, text and bytes.
  std::span<const Id> children(Id id) const noexcept;
  std::size_t child_count(Id id) const noexcept { return children(id).size(); }
  /// Empty spans when there are none.
  Extras extras(Id id) const noexcept;

 private:
  friend class GraphBuilder;
  struct Node {
    union Payload {
      std::int64_t integer;
      double real;
      const char* text;        // kStr, kBytes, …; `count` is the length
      std::uint64_t first;     // position in edges_
    } payload{};
    std::uint32_t count = 0;   // of bytes or children; of kCall and kNew: position in object_extras_, 0 = none
    Kind kind = Kind::kNone;
    std::uint8_t arity = 0;    // of kCall and kNew: children
    bool scattered = false;    // while reading: filled in steps that are not yet contiguous in edges_
  };
  static_assert(sizeof(Node) == 16);
  struct ObjectExtras {        // states, list items, dict items one after the other in edges_
    std::uint64_t first = 0;
    std::uint32_t counts[3] = {0, 0, 0};
  };

  bool is_object(Id id) const noexcept { return nodes_[id].kind == Kind::kCall || nodes_[id].kind == Kind::kNew; }

  Id root_ = kNil;
  std::vector<Node> nodes_;
  std::vector<Id> edges_;
  std::vector<ObjectExtras> object_extras_ = std::vector<ObjectExtras>(1);  // the first is that of objects without any
  std::deque<Bytes> owned_;    // decoded text that is not in the pickle as such (escapes, latin-1)
};

/// Limits against hostile input; a real checkpoint stays far below them.
struct Limits {
  std::uint64_t max_nodes = std::uint64_t{1} << 28;
  std::uint64_t max_bytes = std::uint64_t{1} << 32;   ///< of the pickle itself
  std::uint32_t max_depth = 1000;                     ///< of MARKs inside MARKs (read_graph), and of values inside values (value.h)
  std::uint64_t max_expanded = std::uint64_t{1} << 26;  ///< what sharing may add when everything is counted wherever it is referred to (value.h)
};

/// Reads one pickle of protocol 0–5. `what` names the bytes in messages (a file); errors carry it and the offset of the opcode.
/// Throws CheckpointError (corrupt) on malformed or truncated input, bytes after STOP, extension codes, out-of-band buffers, and on
/// opcodes that readers of the world understand differently; (unsupported) on protocols above 5.
/// If `consumed` is given, bytes after STOP are allowed and their position is stored there (streams of several pickles).
Graph read_graph(ByteView pickle, const std::string& what, const Limits& limits = {}, std::size_t* consumed = nullptr);

}  // namespace dckpt::pickle
