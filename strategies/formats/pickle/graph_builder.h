#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "strategies/formats/pickle/graph.h"

namespace dckpt::pickle {

/// Grows a Graph node by node. Containers may be filled in any number of steps, also after other nodes refer to them.
class GraphBuilder {
 public:
  using Id = Graph::Id;
  using Kind = Graph::Kind;
  enum class Part : std::uint8_t { kStates, kListItems, kDictItems };

  /// `pickle_size` only hints at how many nodes will come.
  GraphBuilder(std::uint64_t max_nodes, std::uint64_t pickle_size);

  Kind kind(Id id) const noexcept { return graph_.nodes_[id].kind; }
  bool is_object(Id id) const noexcept { return graph_.is_object(id); }
  std::string_view text(Id id) const noexcept { return graph_.text(id); }

  /// None, a bool or the empty tuple: one node each.
  Id constant(Kind kind);
  Id integer(std::int64_t value);
  /// Two's complement, little-endian, of any length; becomes kInt where it fits. The bytes outlive the graph.
  Id integer(ByteView twos_complement);
  /// The same for bytes that the graph has to keep.
  Id owned_integer(Bytes twos_complement);
  Id real(double value) { return add({.payload = {.real = value}, .kind = Kind::kFloat}); }
  /// kStr, kBytes or kByteArray; `content` outlives the graph.
  Id text(Kind kind, std::string_view content) {
    return add({.payload = {.text = content.data()}, .count = static_cast<std::uint32_t>(content.size()), .kind = kind});
  }
  /// The same for content that the graph has to keep.
  Id owned_text(Kind kind, Bytes content);
  Id container(Kind kind, std::span<const Id> members);
  /// kCall or kNew.
  Id object(Kind kind, std::span<const Id> parts);

  void extend(Id container, std::span<const Id> members);
  void extend(Id object, Part part, std::span<const Id> items);

  Graph finish(Id root) &&;

 private:
  /// A run of edges of a container that was filled in several steps.
  struct Piece {
    Id owner;
    Part part;
    std::uint32_t count;
    std::uint64_t first;
  };

  Id add(const Graph::Node& node) {
    if (graph_.nodes_.size() >= max_nodes_) too_many_nodes();
    graph_.nodes_.push_back(node);
    return static_cast<Id>(graph_.nodes_.size() - 1);
  }
  [[noreturn]] void too_many_nodes() const;
  std::uint64_t add_edges(std::span<const Id> ids);
  void gather_pieces();

  Graph graph_;
  std::uint64_t max_nodes_;
  std::vector<Piece> pieces_;
  std::array<Id, 16> constants_;
  std::array<Id, 256> small_integers_;
};

}  // namespace dckpt::pickle
