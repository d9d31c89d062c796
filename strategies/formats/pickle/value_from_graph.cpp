#include <algorithm>
#include <array>
#include <cstdint>
#include <deque>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "mapping/base/checked.h"
#include "mapping/base/error.h"
#include "mapping/base/utf8.h"
#include "strategies/formats/pickle/plain_values.h"
#include "strategies/formats/pickle/value.h"

namespace dckpt::pickle {
namespace {

using Id = Graph::Id;
using NodeKind = Graph::Kind;

std::uint64_t saturating_add(std::uint64_t a, std::uint64_t b) {
  return checked_add(a, b).value_or(std::numeric_limits<std::uint64_t>::max());
}

}  // namespace

/// Walks the graph depth first without recursion and makes each node's Value once, after the Values
/// of its parts.
class GraphValues::Impl {
 public:
  Impl(const Graph& graph, ValueHooks hooks, const Limits& limits)
      : graph_(graph),
        hooks_(std::move(hooks)),
        limits_(limits),
        slot_of_(graph.id_limit(), kNoSlot) {}

  Value value(Id root) {
    for (const Visit& visit : open_) slot(visit.id) = {};  // left by an error
    open_.clear();
    if (!is_done(root)) open(root);
    while (!open_.empty()) {
      const Id part = next_missing_part(open_.back());
      if (part == Graph::kNil) {
        finish(open_.back().id);
        open_.pop_back();
      } else {
        open(part);
      }
    }
    return made(root);
  }

 private:
  enum class State : std::uint8_t { kUntouched, kOpen, kDone };

  struct Slot {
    Value value{};
    std::uint64_t expanded = 0;  // references and text pieces when everything shared is counted
                                 // wherever it is referred to
    std::uint32_t height = 0;
    State state = State::kUntouched;
  };

  struct Visit {
    Id id;
    std::uint32_t list = 0;  // position in parts()
    std::size_t next = 0;
  };

  static constexpr std::uint32_t kNoSlot = UINT32_MAX;

  Slot& slot(Id id) {
    if (slot_of_[id] == kNoSlot) {
      slot_of_[id] = static_cast<std::uint32_t>(slots_.size());
      slots_.emplace_back();
    }
    return slots_[slot_of_[id]];
  }
  const Slot& slot_at(Id id) const { return slots_[slot_of_[id]]; }
  State state(Id id) const {
    return slot_of_[id] == kNoSlot ? State::kUntouched : slot_at(id).state;
  }
  bool is_done(Id id) const { return state(id) == State::kDone; }
  /// Returns a reference while a node is open: the requested node is a part of itself.
  const Value& made(Id id) const { return slot_at(id).value; }

  /// Returns all nodes that a node refers to.
  std::array<std::span<const Id>, 4> parts(Id id) const {
    const Graph::Extras extras = graph_.extras(id);
    return {graph_.children(id), extras.states, extras.list_items, extras.dict_items};
  }

  void open(Id id) {
    this->slot(id).state = State::kOpen;
    open_.push_back({id});
    if (const auto text = latin1_text(id)) finish_bytes(id, *text);
  }

  /// Returns the text in `_codecs.encode(text, 'latin1')`, the form of bytes in protocol 2. The
  /// bytes may be large, so no value is made of the text.
  std::optional<std::string_view> latin1_text(Id id) const {
    if (graph_.kind(id) != NodeKind::kCall || !has_no_extras(id)) return std::nullopt;
    const std::span<const Id> call = graph_.children(id);
    if (call.size() != 2 || graph_.kind(call[0]) != NodeKind::kGlobal ||
        graph_.kind(call[1]) != NodeKind::kTuple)
      return std::nullopt;
    const std::span<const Id> name = graph_.children(call[0]);
    const std::span<const Id> args = graph_.children(call[1]);
    if (graph_.text(name[0]) != "_codecs" || graph_.text(name[1]) != "encode" || args.size() != 2 ||
        graph_.kind(args[0]) != NodeKind::kStr || graph_.kind(args[1]) != NodeKind::kStr ||
        (graph_.text(args[1]) != "latin1" && graph_.text(args[1]) != "latin-1"))
      return std::nullopt;
    return graph_.text(args[0]);
  }

  bool has_no_extras(Id id) const {
    const Graph::Extras extras = graph_.extras(id);
    return extras.states.empty() && extras.list_items.empty() && extras.dict_items.empty();
  }

  /// Finishes the bytes of a node that was just opened. A text with other characters stays a call.
  void finish_bytes(Id id, std::string_view text) {
    std::optional<Bytes> bytes = encode_latin1(text);
    if (!bytes) return;
    Slot& slot = this->slot(id);
    slot.expanded = text.size() / 16 + 4;  // as measure() counts the call and its parts
    unshared_ += slot.expanded;
    slot.value = Value::bytes(*std::move(bytes));
    slot.state = State::kDone;
    open_.pop_back();
  }

  /// Labels parts that are open, because the visited node leads back to them.
  Id next_missing_part(Visit& visit) {
    const auto lists = parts(visit.id);
    for (; visit.list < lists.size(); ++visit.list, visit.next = 0) {
      for (const auto list = lists[visit.list]; visit.next < list.size();) {
        const Id part = list[visit.next++];
        if (state(part) == State::kUntouched) return part;
        if (state(part) == State::kOpen && slot(part).value.label() == 0)
          slot(part).value = Value::reference(Value::new_label());
      }
    }
    return Graph::kNil;
  }

  void finish(Id id) {
    Slot& slot = this->slot(id);
    measure(id, slot);
    const std::uint32_t label = slot.value.label();
    slot.value = make(id);
    slot.value.set_label(label);
    slot.state = State::kDone;
  }

  /// Limits the value, so that no code walks it forever or runs out of stack: neither for a chain
  /// of a million lists, nor for 64 lists that each hold the next one twice.
  void measure(Id id, Slot& slot) {
    std::uint64_t own = is_text(graph_.kind(id)) ? graph_.bytes(id).size() / 16 : 0;
    for (const auto list : parts(id)) {
      own += list.size();
      for (const Id part : list) {
        slot.height = std::max(slot.height, slot_at(part).height + 1);
        slot.expanded = saturating_add(slot.expanded, slot_at(part).expanded);
      }
    }
    slot.expanded = saturating_add(slot.expanded, own);
    unshared_ += own;
    if (slot.height > limits_.max_depth) {
      throw_error(ErrorCode::kUnsupported,
                  "the pickle nests values more than {} deep, which is the limit",
                  limits_.max_depth);
    }
    if (slot.expanded > saturating_add(unshared_, limits_.max_expanded)) {
      throw_error(ErrorCode::kUnsupported,
                  "the pickle shares values so often that they would be more "
                  "than {} as a tree, which is the limit",
                  grouped(limits_.max_expanded));
    }
  }

  static bool is_text(NodeKind kind) {
    return kind == NodeKind::kStr || kind == NodeKind::kBytes || kind == NodeKind::kByteArray ||
           kind == NodeKind::kLong;
  }

  ValueList values(std::span<const Id> ids) const {
    ValueList result;
    result.reserve(ids.size());
    for (const Id id : ids) result.push_back(made(id));
    return result;
  }

  std::vector<std::pair<Value, Value>> pairs(std::span<const Id> ids) const {
    std::vector<std::pair<Value, Value>> result;
    result.reserve(ids.size() / 2);
    for (std::size_t i = 0; i + 1 < ids.size(); i += 2)
      result.emplace_back(made(ids[i]), made(ids[i + 1]));
    return result;
  }

  Value make(Id id) const {
    const std::span<const Id> children = graph_.children(id);
    switch (graph_.kind(id)) {
      case NodeKind::kNone: return {};
      case NodeKind::kFalse: return false;
      case NodeKind::kTrue: return true;
      case NodeKind::kInt: return graph_.integer(id);
      case NodeKind::kLong: return BigInt{copy(graph_.bytes(id))};
      case NodeKind::kFloat: return graph_.real(id);
      case NodeKind::kStr: return graph_.text(id);
      case NodeKind::kBytes: return Value::bytes(copy(graph_.bytes(id)));
      case NodeKind::kByteArray: return Value::byte_array(copy(graph_.bytes(id)));
      case NodeKind::kList: return Value::list(values(children));
      case NodeKind::kTuple: return Value::tuple(values(children));
      case NodeKind::kSet: return make_set(values(children), false);
      case NodeKind::kFrozenSet: return make_set(values(children), true);
      case NodeKind::kDict: return make_dict(pairs(children));
      case NodeKind::kGlobal:
        return Global{std::string(graph_.text(children[0])), std::string(graph_.text(children[1]))};
      case NodeKind::kCall:
      case NodeKind::kNew: return make_object(id);
      case NodeKind::kPersistent:
        if (!hooks_.persistent)
          throw_error(ErrorCode::kCorrupt,
                      "the pickle has a persistent id, which nothing here can resolve");
        return hooks_.persistent(made(children[0]));
      case NodeKind::kRow: break;  // only in graphs that are not made into values
    }
    return {};
  }

  Value make_object(Id id) const {
    const std::span<const Id> children = graph_.children(id);
    const Graph::Extras extras = graph_.extras(id);
    Opaque object;
    object.form = graph_.kind(id) == NodeKind::kCall ? Opaque::Form::kCall : Opaque::Form::kNew;
    object.callable = made(children[0]);
    if (!is_callable(object.callable)) {
      throw_error(ErrorCode::kCorrupt, std::string("the pickle calls a value of kind ") +
                                           to_string(object.callable.kind()));
    }
    object.args = made(children[1]);
    if (children.size() > 2) object.kwargs = made(children[2]);
    object.states = values(extras.states);
    object.list_items = values(extras.list_items);
    object.dict_items = pairs(extras.dict_items);
    if (std::optional<Value> plain = plain_value_of(object)) {
      if (!plain->is(Value::Kind::kOpaque)) return *std::move(plain);
      object = plain->as_opaque();
    }
    if (hooks_.known) {
      if (std::optional<Value> known = hooks_.known(object)) return *std::move(known);
    }
    return object;
  }

  static Bytes copy(ByteView bytes) { return {bytes.begin(), bytes.end()}; }

  const Graph& graph_;
  ValueHooks hooks_;
  Limits limits_;
  std::vector<std::uint32_t> slot_of_;  // by id
  std::deque<Slot> slots_;              // slots of the nodes that were visited
  std::vector<Visit> open_;
  std::uint64_t unshared_ = 0;
};

GraphValues::GraphValues(const Graph& graph, ValueHooks hooks, const Limits& limits)
    : impl_(std::make_unique<Impl>(graph, std::move(hooks), limits)) {}
GraphValues::~GraphValues() = default;
GraphValues::GraphValues(GraphValues&&) noexcept = default;
GraphValues& GraphValues::operator=(GraphValues&&) noexcept = default;

Value GraphValues::value(Graph::Id id) {
  return impl_->value(id);
}

Value value_from_graph(const Graph& graph, ValueHooks hooks, const Limits& limits) {
  return GraphValues(graph, std::move(hooks), limits).value(graph.root());
}

}  // namespace dckpt::pickle
