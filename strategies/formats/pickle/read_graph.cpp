#include <algorithm>
#include <bit>
#include <limits>
#include <optional>
#include <string>
#include <tuple>
#include <utility>

#include "mapping/base/counted.h"
#include "mapping/base/error.h"
#include "mapping/base/utf8.h"
#include "strategies/formats/pickle/graph_builder.h"
#include "strategies/formats/pickle/memo.h"
#include "strategies/formats/pickle/opcodes.h"
#include "strategies/formats/pickle/python2_names.h"
#include "strategies/formats/pickle/row_scanner.h"

namespace dckpt::pickle {
namespace {

using Id = Graph::Id;
using NodeKind = Graph::Kind;
using Part = GraphBuilder::Part;

// Out of line, so that the code that runs for every opcode stays small.
[[noreturn, gnu::cold, gnu::noinline]] void corrupt(const std::string& message) {
  throw_error(ErrorCode::kCorrupt, "malformed pickle: " + message);
}

[[noreturn, gnu::cold, gnu::noinline]] void too_few_bytes(std::uint64_t wanted,
                                                          std::uint64_t left) {
  corrupt(str_format("the opcode declares {} bytes, but {} are left", wanted, left));
}

[[noreturn, gnu::cold, gnu::noinline]] void too_few_values(std::size_t wanted) {
  corrupt(
      str_format("the opcode takes {} from the stack, which has fewer", counted(wanted, "value")));
}

[[noreturn, gnu::cold, gnu::noinline]] void unknown_index(std::uint32_t index) {
  corrupt(str_format("memo index {} is read before it is written", index));
}

[[noreturn, gnu::cold, gnu::noinline]] void too_many_marks(std::uint32_t limit) {
  throw_error(ErrorCode::kUnsupported,
              "the pickle has more than {} nested MARKs, which is the limit", limit);
}

[[noreturn, gnu::cold, gnu::noinline]] void refuse(Op op, std::size_t position) {
  const std::string why = why_too_old(op, position);
  if (!why.empty()) throw_error(ErrorCode::kUnsupported, why);
  corrupt("unknown opcode " + std::to_string(static_cast<unsigned>(op)));
}

/// The rest of the pickle.
class Cursor {
 public:
  explicit Cursor(ByteView bytes) : at_(bytes.data()), end_(bytes.data() + bytes.size()) {}

  const std::byte* position() const noexcept { return at_; }
  std::size_t left() const noexcept { return static_cast<std::size_t>(end_ - at_); }
  Op op() {
    if (at_ == end_) corrupt("the bytes end before STOP");
    return Op{static_cast<std::uint8_t>(*at_++)};
  }
  bool next_is(Op op) const noexcept { return at_ != end_ && *at_ == static_cast<std::byte>(op); }
  void move_to(const std::byte* position) noexcept { at_ = position; }
  std::string_view take(std::uint64_t count) {
    if (count > left()) too_few_bytes(count, left());
    const std::string_view taken = as_text({at_, count});
    at_ += count;
    return taken;
  }
  template <typename T>
  T number() {
    return load_le<T>(as_bytes(take(sizeof(T))), 0);
  }
  std::uint64_t length_of_long4() {
    const auto length = number<std::int32_t>();
    if (length < 0) corrupt("negative length " + std::to_string(length));
    return static_cast<std::uint64_t>(length);
  }
  std::string_view line() {
    const std::string_view rest = as_text({at_, left()});
    const std::size_t length = rest.find('\n');
    if (length == std::string_view::npos) corrupt("the bytes end inside a line of text");
    at_ += length + 1;
    return rest.substr(0, length);
  }

 private:
  const std::byte* at_;
  const std::byte* end_;
};

/// The stack machine that executes a pickle as its program, building nodes instead of objects.
class Machine {
 public:
  Machine(ByteView pickle, const Limits& limits, const RowTypes* rows)
      : in_(pickle), limits_(limits), graph_(pickle, limits.max_nodes), at_(pickle.data()) {
    if (rows != nullptr) rows_.emplace(*rows, pickle, graph_, memo_);
  }
  Machine(const Machine&) = delete;  // rows_ refers to other members

  /// Runs until STOP.
  Graph run();
  /// The position behind STOP after run(), or that of the opcode that caused an error.
  std::size_t position() const noexcept { return static_cast<std::size_t>(at_ - in_.data()); }

 private:
  void execute(Op op, Cursor& in);

  // The stack. Values below the last MARK are out of reach.
  void push(Id id) { stack_.push_back(id); }
  void need(std::size_t count) const {
    if (stack_.size() - floor_ < count) too_few_values(count);
  }
  Id top() const {
    need(1);
    return stack_.back();
  }
  Id pop() {
    const Id id = top();
    stack_.pop_back();
    return id;
  }
  std::size_t pop_mark() {
    if (marks_.empty()) corrupt("there is no MARK");
    const std::size_t position = floor_;
    marks_.pop_back();
    floor_ = marks_.empty() ? 0 : marks_.back();
    return position;
  }
  std::span<const Id> above(std::size_t position) const {
    return {stack_.data() + position, stack_.size() - position};
  }
  void push_fixed(NodeKind kind, std::size_t first) {
    const Id id = graph_.fixed(kind, above(first));
    stack_.shrink(first);
    push(id);
  }
  void push_tuple(std::size_t count) {
    need(count);
    push_fixed(NodeKind::kTuple, stack_.size() - count);
  }
  void push_mark() {
    if (marks_.size() >= limits_.max_depth) too_many_marks(limits_.max_depth);
    floor_ = stack_.size();
    marks_.push_back(floor_);
  }
  void push_object(NodeKind kind, std::size_t parts);

  // Values.
  void push_utf8(std::string_view text);
  void push_global(std::string_view module, std::string_view name);
  void add_list_items(std::size_t first);
  void add_dict_items(std::size_t first);
  void add_set_items(std::size_t first);
  void build();
  void put(std::uint32_t index);
  void get(std::uint32_t index);
  const std::byte* behind_row(const std::byte* at);

  ByteView in_;
  Limits limits_;
  GraphBuilder graph_;
  const std::byte* at_;
  unsigned protocol_ = 0;
  PodArray<Id> stack_;
  PodArray<std::size_t> marks_;  // sizes of the stack at the MARKs
  std::size_t floor_ = 0;        // the last of marks_, or 0
  Memo memo_;
  std::optional<RowScanner> rows_;
};

/// This loop handles the opcodes that make up almost all of a pickle of protocol 2 and above, so
/// that the cursor stays in registers.
Graph Machine::run() {
  for (Cursor in(in_);;) {
    at_ = in.position();
    switch (const Op op = in.op()) {
      case Op::kMark: push_mark(); break;
      case Op::kBinInt: push(graph_.integer(std::int64_t{in.number<std::int32_t>()})); break;
      case Op::kBinInt1: push(graph_.integer(std::int64_t{in.number<std::uint8_t>()})); break;
      case Op::kBinInt2: push(graph_.integer(std::int64_t{in.number<std::uint16_t>()})); break;
      case Op::kShortBinUnicode: push_utf8(in.take(in.number<std::uint8_t>())); break;
      case Op::kBinUnicode: push_utf8(in.take(in.number<std::uint32_t>())); break;
      case Op::kEmptyTuple: push(graph_.constant(NodeKind::kTuple)); break;
      case Op::kEmptyDict: push(graph_.container(NodeKind::kDict)); break;
      case Op::kTuple: push_fixed(NodeKind::kTuple, pop_mark()); break;
      case Op::kTuple1: push_tuple(1); break;
      case Op::kTuple2: push_tuple(2); break;
      case Op::kTuple3: push_tuple(3); break;
      case Op::kSetItems: add_dict_items(pop_mark()); break;
      case Op::kReduce: push_object(NodeKind::kCall, 2); break;
      case Op::kNewObj: push_object(NodeKind::kNew, 2); break;
      case Op::kBuild: build(); break;
      case Op::kBinPut: put(in.number<std::uint8_t>()); break;
      case Op::kLongBinPut: put(in.number<std::uint32_t>()); break;
      case Op::kMemoize: memo_.store(memo_.size(), top()); break;
      case Op::kBinGet:
        get(in.number<std::uint8_t>());
        if (in.next_is(Op::kEmptyTuple)) in.move_to(behind_row(in.position()));
        break;
      case Op::kLongBinGet:
        get(in.number<std::uint32_t>());
        if (in.next_is(Op::kEmptyTuple)) in.move_to(behind_row(in.position()));
        break;
      case Op::kStop: {
        const Id root = pop();
        if (!stack_.empty())
          corrupt(str_format("STOP leaves {} on the stack", counted(stack_.size(), "more value")));
        at_ = in.position();
        return std::move(graph_).finish(root);
      }
      default: {
        Cursor rest = in;
        execute(op, rest);
        in = rest;
      }
    }
  }
}

/// The other opcodes.
void Machine::execute(Op op, Cursor& in) {
  switch (op) {
    case Op::kPop:
      if (!marks_.empty() && floor_ == stack_.size()) {
        pop_mark();
      } else {
        pop();
      }
      return;
    case Op::kPopMark: return stack_.shrink(pop_mark());

    case Op::kNone: return push(graph_.constant(NodeKind::kNone));
    case Op::kNewTrue: return push(graph_.constant(NodeKind::kTrue));
    case Op::kNewFalse: return push(graph_.constant(NodeKind::kFalse));
    case Op::kLong1: return push(graph_.integer(as_bytes(in.take(in.number<std::uint8_t>()))));
    case Op::kLong4: return push(graph_.integer(as_bytes(in.take(in.length_of_long4()))));
    case Op::kBinFloat:
      return push(
          graph_.real(std::bit_cast<double>(__builtin_bswap64(in.number<std::uint64_t>()))));

    case Op::kBinUnicode8: return push_utf8(in.take(in.number<std::uint64_t>()));
    case Op::kShortBinBytes:
      return push(graph_.text(NodeKind::kBytes, in.take(in.number<std::uint8_t>())));
    case Op::kBinBytes:
      return push(graph_.text(NodeKind::kBytes, in.take(in.number<std::uint32_t>())));
    case Op::kBinBytes8:
      return push(graph_.text(NodeKind::kBytes, in.take(in.number<std::uint64_t>())));
    case Op::kByteArray8:
      return push(graph_.text(NodeKind::kByteArray, in.take(in.number<std::uint64_t>())));

    case Op::kEmptyList: return push(graph_.container(NodeKind::kList));
    case Op::kEmptySet: return push(graph_.container(NodeKind::kSet));
    case Op::kFrozenSet: return push_fixed(NodeKind::kFrozenSet, pop_mark());
    case Op::kAppend: need(2); return add_list_items(stack_.size() - 1);
    case Op::kAppends: return add_list_items(pop_mark());
    case Op::kSetItem: need(3); return add_dict_items(stack_.size() - 2);
    case Op::kAddItems: return add_set_items(pop_mark());

    case Op::kGlobal: {
      const std::string_view module = in.line();
      return push_global(module, in.line());
    }
    case Op::kStackGlobal: {
      const Id name = pop();
      const Id module = pop();
      if (graph_.kind(module) != NodeKind::kStr || graph_.kind(name) != NodeKind::kStr)
        corrupt("STACK_GLOBAL needs two strings");
      return push_global(graph_.text(module), graph_.text(name));
    }
    case Op::kNewObjEx: return push_object(NodeKind::kNew, 3);
    case Op::kBinPersId: need(1); return push_fixed(NodeKind::kPersistent, stack_.size() - 1);

    case Op::kProto:
      protocol_ = in.number<std::uint8_t>();
      if (protocol_ > kHighestProtocol) {
        throw_error(ErrorCode::kUnsupported, "pickle protocol {}; protocols up to 5 are known",
                    protocol_);
      }
      return;
    case Op::kFrame: {  // a hint for readers that buffer; its end has no meaning
      const auto length = in.number<std::uint64_t>();
      if (length > in.left())
        corrupt(str_format("a frame of {} bytes, but {} are left", length, in.left()));
      return;
    }
    case Op::kExt1:
    case Op::kExt2:
    case Op::kExt4:
      corrupt(
          "a copyreg extension code; which class it means is known only to the program that wrote "
          "it");
    case Op::kNextBuffer:
    case Op::kReadonlyBuffer: corrupt("an out-of-band buffer, which is not in the file");
    default: refuse(op, position());
  }
}

void Machine::push_object(NodeKind kind, std::size_t parts) {
  need(parts);
  const std::size_t first = stack_.size() - parts;
  const NodeKind callable = graph_.kind(stack_[first]);
  if (callable != NodeKind::kGlobal && callable != NodeKind::kPersistent &&
      !graph_.is_object(stack_[first]))
    corrupt("callee is not callable");
  if (graph_.kind(stack_[first + 1]) != NodeKind::kTuple) corrupt("call arguments must be a tuple");
  if (parts == 3 && graph_.kind(stack_[first + 2]) != NodeKind::kDict)
    corrupt("keyword arguments must be a dict");
  const Id id = graph_.object(kind, above(first));
  stack_.shrink(first);
  push(id);
}

void Machine::push_utf8(std::string_view text) {
  if (!is_utf8(text, Surrogates::kPass)) corrupt("a string is not UTF-8");
  push(graph_.text(NodeKind::kStr, text));
}

void Machine::push_global(std::string_view module, std::string_view name) {
  if (module.empty() || name.empty()) corrupt("a global without module or name");
  if (protocol_ < 3) std::tie(module, name) = python3_name(module, name);
  push_utf8(module);
  push_utf8(name);
  push_fixed(NodeKind::kGlobal, stack_.size() - 2);
}

void Machine::add_list_items(std::size_t first) {
  const std::span<const Id> items = above(first);
  need(items.size() + 1);
  const Id target = stack_[first - 1];
  if (graph_.kind(target) == NodeKind::kList) {
    graph_.extend(target, items);
  } else if (graph_.is_object(target)) {
    graph_.extend(target, Part::kListItems, items);
  } else {
    corrupt("items are appended to a value that is neither a list nor an object");
  }
  stack_.shrink(first);
}

void Machine::add_dict_items(std::size_t first) {
  const std::span<const Id> items = above(first);
  need(items.size() + 1);
  if (items.size() % 2 != 0) corrupt("a dict key without a value");
  const Id target = stack_[first - 1];
  if (graph_.kind(target) == NodeKind::kDict) {
    graph_.extend(target, items);
  } else if (graph_.is_object(target)) {
    graph_.extend(target, Part::kDictItems, items);
  } else {
    corrupt("items are set in a value that is neither a dict nor an object");
  }
  stack_.shrink(first);
}

void Machine::add_set_items(std::size_t first) {
  const std::span<const Id> items = above(first);
  need(items.size() + 1);
  if (graph_.kind(stack_[first - 1]) != NodeKind::kSet)
    corrupt("members are added to a value that is not a set");
  graph_.extend(stack_[first - 1], items);
  stack_.shrink(first);
}

void Machine::build() {
  need(2);
  const Id state = pop();
  if (!graph_.is_object(top())) corrupt("BUILD gives a state to a plain value");
  graph_.extend(top(), Part::kStates, {&state, 1});
}

void Machine::put(std::uint32_t index) {
  if (rows_ && index != memo_.size()) {
    if (rows_->took_any()) unknown_index(index);
    rows_.reset();
  }
  memo_.store(index, top());
}

void Machine::get(std::uint32_t index) {
  const Id id = memo_.find(index);
  if (id == Graph::kNil) unknown_index(index);
  push(Graph::is_in_pickle(id) ? graph_.row(Graph::kCountsRow, {&id, 1}) : id);
}

/// If the bytes at `at` form a row of the class on top of the stack, pushes the row. Returns the
/// position at which to continue.
const std::byte* Machine::behind_row(const std::byte* at) {
  constexpr std::size_t kMarks = 2;  // inside a row
  if (!rows_ || marks_.size() + kMarks > limits_.max_depth) return at;
  const Id row = rows_->take(top(), at);
  if (row != Graph::kNil) stack_.back() = row;
  return at;
}

Graph run(ByteView pickle, const std::string& what, const Limits& limits, const RowTypes* rows,
          std::size_t* consumed) {
  const std::uint64_t max_bytes = std::min<std::uint64_t>(
      limits.max_bytes,
      std::numeric_limits<std::uint32_t>::max());  // lengths of texts have 32 bits
  if (pickle.size() > max_bytes) {
    throw_error(ErrorCode::kUnsupported, {.file = what}, "a pickle of {}; the limit is {}",
                human_bytes(pickle.size()), human_bytes(max_bytes));
  }
  Machine machine(pickle, limits, rows);
  try {
    Graph graph = machine.run();
    const std::size_t rest = pickle.size() - machine.position();
    if (consumed != nullptr) {
      *consumed = machine.position();
    } else if (rest > 0) {
      corrupt(std::to_string(rest) + " bytes follow STOP");
    }
    return graph;
  } catch (const CheckpointError& error) {
    throw error.with({.file = what, .offset = machine.position()});
  }
}

}  // namespace

Graph read_graph(ByteView pickle, const std::string& what, const Limits& limits,
                 std::size_t* consumed) {
  return run(pickle, what, limits, nullptr, consumed);
}

Graph read_rows(ByteView pickle, const std::string& what, const RowTypes& rows) {
  return run(pickle, what, {}, &rows, nullptr);
}

}  // namespace dckpt::pickle
