#include "operations/convert/removal/write_graph.h"

#include "mapping/base/error.h"
#include "strategies/formats/pickle/writer.h"

namespace dckpt::pickle {
namespace {

using Id = Graph::Id;
using NodeKind = Graph::Kind;
using Slot = PickleWriter::Slot;

constexpr int kMaxDepth = 1000;

class GraphWriter {
 public:
  GraphWriter(const Graph& graph, const Omissions& omitted)
      : graph_(graph), omitted_(omitted), slots_(graph.id_limit(), kUnwritten) {}

  Bytes write() {
    value(graph_.root());
    return out_.finish();
  }

 private:
  static constexpr Slot kUnwritten = 0xFFFFFFFF;

  void value(Id id) {
    switch (graph_.kind(id)) {
      case NodeKind::kNone: return out_.none();
      case NodeKind::kFalse: return out_.boolean(false);
      case NodeKind::kTrue: return out_.boolean(true);
      case NodeKind::kInt: return out_.integer(graph_.integer(id));
      case NodeKind::kFloat: return out_.real(graph_.real(id));
      case NodeKind::kGlobal:
        return out_.global(graph_.text(graph_.children(id)[0]),
                           graph_.text(graph_.children(id)[1]));
      case NodeKind::kStr:
        if (graph_.text(id).size() <= PickleWriter::kLongestSharedText)
          return out_.text(graph_.text(id));  // equal texts are written once
        break;
      default: break;
    }
    if (slots_[id] != kUnwritten) return out_.get(slots_[id]);
    if (++depth_ > kMaxDepth)
      throw_error(ErrorCode::kUnsupported, "values nested more than {} deep are not written",
                  kMaxDepth);
    shared(id);
    --depth_;
  }

  /// Writes values with an identity of their own. Containers are remembered before they are filled,
  /// so that they may contain themselves.
  void shared(Id id) {
    switch (graph_.kind(id)) {
      case NodeKind::kLong:
        out_.big_integer(graph_.bytes(id));
        remember(id);
        return;
      case NodeKind::kStr:
        out_.text(graph_.text(id));
        remember(id);
        return;
      case NodeKind::kBytes:
        out_.bytes(graph_.bytes(id));
        remember(id);
        return;
      case NodeKind::kByteArray:
        out_.byte_array(graph_.bytes(id));
        remember(id);
        return;
      case NodeKind::kList:
        out_.empty_list();
        remember(id);
        return list_items(id, graph_.children(id));
      case NodeKind::kSet:
        out_.empty_set();
        remember(id);
        out_.mark();
        members(id, graph_.children(id));
        return out_.add_items();
      case NodeKind::kDict:
        out_.empty_dict();
        remember(id);
        return dict_items(id, graph_.children(id));
      case NodeKind::kTuple:
        if (graph_.children(id).empty()) {
          out_.empty_tuple();
        } else {
          out_.mark();
          members(id, graph_.children(id));
          out_.tuple();
        }
        remember(id);
        return;
      case NodeKind::kFrozenSet:
        out_.mark();
        members(id, graph_.children(id));
        out_.frozen_set();
        remember(id);
        return;
      case NodeKind::kCall:
      case NodeKind::kNew: return object(id);
      default:
        throw_error(ErrorCode::kCorrupt,
                    "the pickle has a persistent id, which nothing here can resolve");
    }
  }

  void object(Id id) {
    const auto parts = graph_.children(id);
    for (const Id part : parts) value(part);
    if (graph_.kind(id) == NodeKind::kCall) {
      out_.reduce();
    } else if (parts.size() == 2) {
      out_.new_object();
    } else {
      out_.new_object_ex();
    }
    if (!remember(id)) return;
    const Graph::Extras extras = graph_.extras(id);
    if (!extras.list_items.empty()) list_items(Graph::kNil, extras.list_items);
    dict_items(id, extras.dict_items);
    for (const Id state : extras.states) {
      value(state);
      out_.build();
    }
  }

  /// Acts as Python's pickler does: if a part has led back to the value and has thus written it,
  /// the second one is dropped. Returns whether this is the first one.
  bool remember(Id id) {
    if (slots_[id] != kUnwritten) {
      out_.pop();
      out_.get(slots_[id]);
      return false;
    }
    slots_[id] = out_.put();
    return true;
  }

  bool is_omitted(Id container, std::size_t member) const {
    const auto marks = omitted_.find(container);
    return marks != omitted_.end() && member < marks->second.size() && marks->second[member];
  }

  void members(Id container, std::span<const Id> ids) {
    for (std::size_t i = 0; i < ids.size(); ++i) {
      if (!is_omitted(container, i)) value(ids[i]);
    }
  }

  void list_items(Id container, std::span<const Id> items) {
    out_.mark();
    members(container, items);
    out_.append_items();
  }

  void dict_items(Id container, std::span<const Id> items) {
    if (items.empty()) return;
    out_.mark();
    for (std::size_t pair = 0; pair < items.size() / 2; ++pair) {
      if (is_omitted(container, pair)) continue;
      value(items[2 * pair]);
      value(items[2 * pair + 1]);
    }
    out_.set_items();
  }

  const Graph& graph_;
  const Omissions& omitted_;
  PickleWriter out_{4};
  std::vector<Slot> slots_;
  int depth_ = 0;
};

}  // namespace

Bytes write_graph(const Graph& graph, const Omissions& omitted) {
  return GraphWriter(graph, omitted).write();
}

}  // namespace dckpt::pickle
