#include "strategies/formats/pickle/graph_builder.h"

#include <algorithm>
#include <tuple>

#include "mapping/base/error.h"
#include "mapping/base/text.h"

namespace dckpt::pickle {
namespace {

// Metadata of DCP takes 7 bytes a node. What is reserved too much is address space, not memory, and the cap keeps that small.
constexpr std::uint64_t kBytesPerNode = 6;
constexpr std::uint64_t kMaxReserved = std::uint64_t{1} << 23;

}  // namespace

GraphBuilder::GraphBuilder(std::uint64_t max_nodes, std::uint64_t pickle_size) : max_nodes_(std::min<std::uint64_t>(max_nodes, Graph::kNil)) {
  const std::uint64_t expected = std::min({max_nodes_, pickle_size / kBytesPerNode, kMaxReserved});
  graph_.nodes_.reserve(expected);
  graph_.edges_.reserve(expected);
  constants_.fill(Graph::kNil);
  small_integers_.fill(Graph::kNil);
}

Graph::Id GraphBuilder::constant(Kind kind) {
  Id& shared = constants_[static_cast<std::size_t>(kind)];
  if (shared == Graph::kNil) shared = add({.kind = kind});
  return shared;
}

Graph::Id GraphBuilder::integer(std::int64_t value) {
  const bool small = value >= 0 && value < static_cast<std::int64_t>(small_integers_.size());
  if (!small) return add({.payload = {.integer = value}, .kind = Kind::kInt});
  Id& shared = small_integers_[static_cast<std::size_t>(value)];
  if (shared == Graph::kNil) shared = add({.payload = {.integer = value}, .kind = Kind::kInt});
  return shared;
}

Graph::Id GraphBuilder::integer(ByteView bytes) {
  const auto byte = [&](std::size_t i) { return static_cast<std::uint8_t>(bytes[i]); };
  const auto last_is_redundant = [&](std::size_t n) {
    return n > 1 && ((byte(n - 1) == 0x00 && byte(n - 2) < 0x80) || (byte(n - 1) == 0xFF && byte(n - 2) >= 0x80));
  };
  std::size_t size = bytes.size();
  while (last_is_redundant(size)) --size;
  if (size > sizeof(std::int64_t)) return text(Kind::kLong, as_text(bytes.first(size)));
  const bool negative = size > 0 && byte(size - 1) >= 0x80;
  std::uint64_t value = negative ? ~std::uint64_t{0} : 0;
  for (std::size_t i = size; i-- > 0;) value = value << 8 | byte(i);
  return integer(static_cast<std::int64_t>(value));
}

Graph::Id GraphBuilder::owned_text(Kind kind, Bytes content) {
  return text(kind, as_text(graph_.owned_.emplace_back(std::move(content))));
}

Graph::Id GraphBuilder::owned_integer(Bytes bytes) {
  const Id id = integer(ByteView(bytes));
  if (kind(id) == Kind::kLong) graph_.owned_.push_back(std::move(bytes));  // moving keeps the address
  return id;
}

Graph::Id GraphBuilder::container(Kind kind, std::span<const Id> members) {
  return add({.payload = {.first = add_edges(members)}, .count = static_cast<std::uint32_t>(members.size()), .kind = kind});
}

Graph::Id GraphBuilder::object(Kind kind, std::span<const Id> parts) {
  return add({.payload = {.first = add_edges(parts)}, .kind = kind, .arity = static_cast<std::uint8_t>(parts.size())});
}

void GraphBuilder::extend(Id id, std::span<const Id> members) {
  if (members.empty()) return;
  const auto count = static_cast<std::uint32_t>(members.size());
  const std::uint64_t first = add_edges(members);
  Graph::Node& node = graph_.nodes_[id];
  if (node.count == 0) {
    node.payload.first = first;
  } else if (node.scattered || node.payload.first + node.count != first) {
    if (!node.scattered) pieces_.push_back({id, {}, node.count, node.payload.first});
    pieces_.push_back({id, {}, count, first});
    node.scattered = true;
  }
  node.count += count;
}

void GraphBuilder::extend(Id id, Part part, std::span<const Id> items) {
  if (items.empty()) return;
  const auto count = static_cast<std::uint32_t>(items.size());
  const std::uint64_t first = add_edges(items);
  Graph::Node& node = graph_.nodes_[id];
  if (node.count == 0) {
    node.count = static_cast<std::uint32_t>(graph_.object_extras_.size());
    graph_.object_extras_.push_back({.first = first});
  } else {
    if (!node.scattered) {  // exactly one part is filled
      const Graph::ObjectExtras& extras = graph_.object_extras_[node.count];
      for (std::uint8_t i = 0; i < 3; ++i) {
        if (extras.counts[i] > 0) pieces_.push_back({id, Part{i}, extras.counts[i], extras.first});
      }
    }
    pieces_.push_back({id, part, count, first});
    node.scattered = true;
  }
  graph_.object_extras_[node.count].counts[static_cast<std::size_t>(part)] += count;
}

Graph GraphBuilder::finish(Id root) && {
  gather_pieces();
  graph_.root_ = root;
  return std::move(graph_);
}

void GraphBuilder::too_many_nodes() const {
  throw CheckpointError(ErrorCode::kUnsupported, "the pickle describes more than " + grouped(max_nodes_) + " values, which is the limit");
}

std::uint64_t GraphBuilder::add_edges(std::span<const Id> ids) {
  const std::uint64_t first = graph_.edges_.size();
  graph_.edges_.insert(graph_.edges_.end(), ids.begin(), ids.end());
  return first;
}

void GraphBuilder::gather_pieces() {
  std::stable_sort(pieces_.begin(), pieces_.end(),
                   [](const Piece& a, const Piece& b) { return std::tie(a.owner, a.part) < std::tie(b.owner, b.part); });
  std::vector<Id>& edges = graph_.edges_;
  for (const Piece& piece : pieces_) {
    Graph::Node& node = graph_.nodes_[piece.owner];
    const std::uint64_t target = edges.size();
    if (node.scattered) {
      node.scattered = false;
      (is_object(piece.owner) ? graph_.object_extras_[node.count].first : node.payload.first) = target;
    }
    edges.resize(target + piece.count);
    std::copy_n(edges.begin() + static_cast<std::ptrdiff_t>(piece.first), piece.count, edges.begin() + static_cast<std::ptrdiff_t>(target));
  }
}

}  // namespace dckpt::pickle
