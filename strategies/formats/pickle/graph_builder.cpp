#include "strategies/formats/pickle/graph_builder.h"

#include <algorithm>
#include <cstring>
#include <tuple>

#include "mapping/base/error.h"

namespace dckpt::pickle {
namespace {

// DCP metadata takes 2 to 3 bytes of a pickle for a word of the graph.
constexpr std::size_t kBytesPerWord = 2;
constexpr std::size_t kMaxReserved = std::size_t{1} << 28;

}  // namespace

GrowingGraph::GrowingGraph(ByteView pickle, std::uint64_t max_nodes)
    : pickle_size_(pickle.size()), max_nodes_(max_nodes) {
  graph_.pickle_ = as_text(pickle).data();
  graph_.words_.reserve(std::min(pickle.size() / kBytesPerWord, kMaxReserved));
  graph_.words_.push_back(0);  // the empty run
}

GraphBuilder::GraphBuilder(ByteView pickle, std::uint64_t max_nodes)
    : GrowingGraph(pickle, max_nodes) {
  constants_.fill(Graph::kNil);
  small_integers_.fill(Graph::kNil);
}

Graph::Id GraphBuilder::add_integer(std::int64_t value) {
  constexpr std::int64_t kLimit = std::int64_t{1} << 23;
  if (value >= -kLimit && value < kLimit)
    return add_head(Kind::kInt, static_cast<std::size_t>(value), 1);
  Word* const node = add(3);
  node[0] = head(Kind::kInt, 0, Graph::kWide);
  std::memcpy(node + 1, &value, sizeof value);
  return id_of(node);
}

Graph::Id GraphBuilder::real(double value) {
  Word* const node = add(3);
  node[0] = head(Kind::kFloat);
  std::memcpy(node + 1, &value, sizeof value);
  return id_of(node);
}

Graph::Id GraphBuilder::text(Kind kind, std::string_view content) {
  const std::uintptr_t position = reinterpret_cast<std::uintptr_t>(content.data()) -
                                  reinterpret_cast<std::uintptr_t>(graph_.pickle_);
  Word* const node = add(2);
  if (position <= pickle_size_ && content.size() <= Graph::kMaxNumber) {
    node[0] = head(kind, content.size());
    node[1] = static_cast<Word>(position);
  } else {
    node[0] = head(kind, 0, Graph::kWide);
    node[1] = static_cast<Word>(graph_.texts_.size());
    graph_.texts_.push_back(content);
  }
  return id_of(node);
}

Graph::Id GraphBuilder::integer(ByteView bytes) {
  const auto byte = [&](std::size_t i) { return static_cast<std::uint8_t>(bytes[i]); };
  const auto last_is_redundant = [&](std::size_t n) {
    return n > 1 && ((byte(n - 1) == 0x00 && byte(n - 2) < 0x80) ||
                     (byte(n - 1) == 0xFF && byte(n - 2) >= 0x80));
  };
  std::size_t size = bytes.size();
  while (last_is_redundant(size)) --size;
  if (size > sizeof(std::int64_t)) return text(Kind::kLong, as_text(bytes.first(size)));
  const bool negative = size > 0 && byte(size - 1) >= 0x80;
  std::uint64_t value = negative ? ~std::uint64_t{0} : 0;
  for (std::size_t i = size; i-- > 0;) value = value << 8 | byte(i);
  return integer(static_cast<std::int64_t>(value));
}

Graph::Id GraphBuilder::fixed(Kind kind, std::span<const Id> members) {
  const bool narrow = members.size() <= Graph::kMaxNumber;
  Word* const node = add(members.size() + (narrow ? 1 : 2));
  node[0] = narrow ? head(kind, members.size()) : head(kind, 0, Graph::kWide);
  if (!narrow) node[1] = static_cast<Word>(members.size());
  copy_ids(members, node + (narrow ? 1 : 2));
  if (kind == Kind::kPersistent) graph_.persistent_.push_back(id_of(node));
  return id_of(node);
}

bool GrowingGraph::is_named(Id global, std::string_view module,
                            std::string_view name) const noexcept {
  const auto parts = graph_.children(global);
  return text(parts[1]) == name && text(parts[0]) == module;
}

Graph::Id GraphBuilder::row(std::size_t type, std::span<const Id> cells) {
  max_words_ = Graph::kInPickle;
  const Id id = add_head(Kind::kRow, type + cells.size() * Graph::kRowCell, cells.size() + 1);
  copy_ids(cells, graph_.words_.data() + id + 1);
  return id;
}

void GraphBuilder::extend(Id id, std::span<const Id> members) {
  if (members.empty()) return;
  PodArray<Word>& words = graph_.words_;
  const auto count = static_cast<std::uint32_t>(members.size());
  const Word run = words[id + 1];
  if (run != 0 && !graph_.has(id, Graph::kScattered) &&
      run + 1 + words[run] == words.size()) {  // nothing was added in between
    copy_ids(members, extend_words(count));
    words[run] += count;
    return;
  }
  Word* const next = extend_words(std::uint64_t{count} + 1);
  next[0] = count;
  copy_ids(members, next + 1);
  if (run == 0) {
    words[id + 1] = id_of(next);
    return;
  }
  if (!graph_.has(id, Graph::kScattered)) pieces_.push_back({id, {}, run + 1, words[run]});
  pieces_.push_back({id, {}, id_of(next) + 1, count});
  words[id] |= Graph::kScattered;
}

void GraphBuilder::extend(Id id, Part part, std::span<const Id> items) {
  if (items.empty()) return;
  PodArray<Word>& words = graph_.words_;
  const Word slot = id + 1 + graph_.number(id);
  if (!graph_.has(id, Graph::kExtended)) {
    if (part == Part::kStates && items.size() == 1 && words[slot] == Graph::kNil) {
      words[slot] = items[0];
      return;
    }
    Graph::ObjectExtras& extras = graph_.object_extras_.emplace_back();
    if (words[slot] != Graph::kNil) {
      Word* const state = extend_words(1);
      state[0] = words[slot];
      extras = {.first = id_of(state), .counts = {1, 0, 0}};
    }
    words[slot] = static_cast<Word>(graph_.object_extras_.size() - 1);
    words[id] |= Graph::kExtended;
  }
  const auto count = static_cast<std::uint32_t>(items.size());
  Word* const next = extend_words(count);
  copy_ids(items, next);
  Graph::ObjectExtras& extras = graph_.object_extras_[words[slot]];
  if (extras.first == 0) {
    extras.first = id_of(next);
  } else {
    if (!graph_.has(id, Graph::kScattered)) {  // exactly one part is filled
      for (std::uint8_t i = 0; i < 3; ++i) {
        if (extras.counts[i] > 0) pieces_.push_back({id, Part{i}, extras.first, extras.counts[i]});
      }
    }
    pieces_.push_back({id, part, id_of(next), count});
    words[id] |= Graph::kScattered;
  }
  extras.counts[static_cast<std::size_t>(part)] += count;
}

Graph GraphBuilder::finish(Id root) && {
  gather_pieces();
  graph_.root_ = root;
  return std::move(graph_);
}

void GrowingGraph::too_many_nodes() const {
  throw_error(ErrorCode::kUnsupported,
              "the pickle describes more than {} values, which is the limit", grouped(max_nodes_));
}

void GrowingGraph::too_many_words() const {
  throw_error(ErrorCode::kUnsupported,
              "the values of the pickle and what they refer to take more than "
              "{} words, which is the limit",
              grouped(max_words_));
}

void GraphBuilder::gather_pieces() {
  std::stable_sort(pieces_.begin(), pieces_.end(), [](const Piece& a, const Piece& b) {
    return std::tie(a.owner, a.part) < std::tie(b.owner, b.part);
  });
  PodArray<Word>& words = graph_.words_;
  for (const Piece& piece : pieces_) {
    const bool object = is_object(piece.owner);
    if (graph_.has(piece.owner, Graph::kScattered)) {  // the first piece of the owner
      words[piece.owner] &= ~Graph::kScattered;
      const auto target = static_cast<Word>(words.size());
      if (object) {
        graph_.object_extras_[words[piece.owner + 1 + graph_.number(piece.owner)]].first = target;
      } else {
        words[piece.owner + 1] = target;
        *extend_words(1) = 0;
      }
    }
    Word* const copy = extend_words(piece.count);
    std::copy_n(words.data() + piece.first, piece.count, copy);
    if (!object) words[words[piece.owner + 1]] += piece.count;
  }
}

}  // namespace dckpt::pickle
