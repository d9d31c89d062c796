#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "strategies/formats/pickle/graph.h"

namespace dckpt::pickle {

/// The words of a growing Graph, within limits.
class GrowingGraph {
 public:
  using Id = Graph::Id;
  using Kind = Graph::Kind;

  Kind kind(Id id) const noexcept { return graph_.kind(id); }
  bool is_object(Id id) const noexcept { return graph_.is_object(id); }
  std::string_view text(Id id) const noexcept { return graph_.text(id); }
  bool is_global(Id id, std::string_view module, std::string_view name) const noexcept {
    return !Graph::is_in_pickle(id) && kind(id) == Kind::kGlobal && is_named(id, module, name);
  }

 protected:
  using Word = Graph::Word;

  GrowingGraph(ByteView pickle, std::uint64_t max_nodes);

  static Word head(Kind kind, std::uint64_t number = 0, Word flags = 0) {
    return static_cast<Word>(kind) | flags | static_cast<Word>(number) << Graph::kNumberShift;
  }
  /// Adds a node of this many words, which the caller writes.
  Word* add(std::size_t words) {
    if (graph_.node_count_ >= max_nodes_) too_many_nodes();
    ++graph_.node_count_;
    return extend_words(words);
  }
  Word* extend_words(std::uint64_t count) {
    if (count >= max_words_ - graph_.words_.size()) too_many_words();
    return graph_.words_.extend(count);
  }
  Id add_head(Kind kind, std::size_t number, std::size_t words) {
    Word* const node = add(words);
    node[0] = head(kind, number);
    return id_of(node);
  }
  /// Copies mostly one to three ids, for which a call of memmove would take longer than the copy.
  static Word* copy_ids(std::span<const Id> ids, Word* to) {
    if (ids.size() > 3) return std::copy(ids.begin(), ids.end(), to);
    for (std::size_t i = 0; i < ids.size() && i < 3; ++i) *to++ = ids[i];
    return to;
  }
  Id id_of(const Word* node) const noexcept { return static_cast<Id>(node - graph_.words_.data()); }
  [[noreturn]] void too_many_nodes() const;
  [[noreturn]] void too_many_words() const;

  Graph graph_;
  std::size_t pickle_size_;
  std::uint64_t max_nodes_;
  std::uint64_t max_words_ = Graph::kNil;

 private:
  bool is_named(Id global, std::string_view module, std::string_view name) const noexcept;
};

/// Builds a Graph node by node. Containers may be filled in any number of steps, also after other
/// nodes refer to them.
class GraphBuilder : public GrowingGraph {
 public:
  enum class Part : std::uint8_t { kStates, kListItems, kDictItems };
  using GrowingGraph::text;

  /// Texts in `pickle` cost less than others.
  GraphBuilder(ByteView pickle, std::uint64_t max_nodes);

  /// Returns the node of None, a bool or the empty tuple, of which there is only one each.
  Id constant(Kind kind) {
    Id& shared = constants_[static_cast<std::size_t>(kind)];
    if (shared == Graph::kNil) shared = add_head(kind, 0, 1);
    return shared;
  }
  Id integer(std::int64_t value) {
    const bool small = value >= 0 && value < static_cast<std::int64_t>(small_integers_.size());
    if (!small) return add_integer(value);
    Id& shared = small_integers_[static_cast<std::size_t>(value)];
    if (shared == Graph::kNil) shared = add_integer(value);
    return shared;
  }
  /// Adds an integer of any length (two's complement, little-endian), as kInt if it fits. The bytes
  /// must outlive the graph.
  Id integer(ByteView twos_complement);
  Id real(double value);
  /// Adds a kStr, kBytes or kByteArray. `content` must outlive the graph.
  Id text(Kind kind, std::string_view content);
  /// Adds an empty kList, kSet or kDict.
  Id container(Kind kind) {
    const Id id = add_head(kind, 0, 2);
    graph_.words_[id + 1] = 0;
    return id;
  }
  /// Adds a kTuple, kFrozenSet, kGlobal or kPersistent.
  Id fixed(Kind kind, std::span<const Id> members);
  /// A kRow needs room: a graph with rows cannot become as large as one without.
  bool has_room_for_rows() const noexcept { return graph_.words_.size() < Graph::kInPickle / 2; }
  Id row(std::size_t type, std::span<const Id> cells);
  /// Adds a kCall or kNew.
  Id object(Kind kind, std::span<const Id> parts) {
    const Id id = add_head(kind, parts.size(), parts.size() + 2);
    Word* const words = graph_.words_.data() + id;
    *copy_ids(parts, words + 1) = Graph::kNil;
    return id;
  }

  void extend(Id container, std::span<const Id> members);
  void extend(Id object, Part part, std::span<const Id> items);

  Graph finish(Id root) &&;

 private:
  /// A run of edges of a container that was filled in several steps.
  struct Piece {
    Id owner;
    Part part;
    std::uint32_t first;
    std::uint32_t count;
  };

  Id add_integer(std::int64_t value);
  void gather_pieces();

  std::vector<Piece> pieces_;
  std::array<Id, 16> constants_;
  std::array<Id, 256> small_integers_;
};

}  // namespace dckpt::pickle
