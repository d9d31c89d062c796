#include <algorithm>
#include <bit>
#include <limits>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "mapping/base/checked.h"
#include "mapping/base/error.h"
#include "mapping/base/text.h"
#include "strategies/formats/pickle/graph_builder.h"
#include "strategies/formats/pickle/memo.h"
#include "strategies/formats/pickle/opcodes.h"
#include "strategies/formats/pickle/python2_names.h"
#include "strategies/formats/pickle/spelling.h"

namespace dckpt::pickle {
namespace {

using Id = Graph::Id;
using Kind = Graph::Kind;
using Part = GraphBuilder::Part;

[[noreturn]] void corrupt(const std::string& message) { throw CheckpointError(ErrorCode::kCorrupt, "malformed pickle: " + message); }

/// The stack machine that a pickle is a program for, building nodes instead of objects.
class Machine {
 public:
  Machine(ByteView pickle, const Limits& limits) : in_(pickle), limits_(limits), graph_(limits.max_nodes, pickle.size()) {}

  /// Runs until STOP.
  Graph run();
  std::size_t position() const noexcept { return at_; }
  std::size_t opcode_position() const noexcept { return opcode_at_; }

 private:
  void execute(Op op);

  // Input.
  std::string_view take(std::uint64_t count) {
    if (!range_fits(at_, count, in_.size())) {
      corrupt("the opcode declares " + std::to_string(count) + " bytes, but " + std::to_string(in_.size() - at_) + " are left");
    }
    const std::string_view taken = as_text(in_.subspan(at_, count));
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
  std::string_view line();

  // The stack. What lies below the last MARK is out of reach.
  std::size_t floor() const noexcept { return marks_.empty() ? 0 : marks_.back(); }
  void push(Id id) { stack_.push_back(id); }
  void need(std::size_t count) const {
    if (stack_.size() - floor() < count) corrupt("the opcode takes " + std::to_string(count) + " values from the stack, which has fewer");
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
    const std::size_t position = marks_.back();
    marks_.pop_back();
    return position;
  }
  std::span<const Id> above(std::size_t position) const { return {stack_.data() + position, stack_.size() - position}; }
  void push_container(Kind kind, std::size_t first) {
    const Id id = graph_.container(kind, above(first));
    stack_.resize(first);
    push(id);
  }
  void push_object(Kind kind, std::size_t parts);
  void push_instance(Id callable, std::size_t first, std::size_t first_argument);

  // Values.
  void push_utf8(std::string_view text);
  void push_python2_text(std::string_view text);
  void push_decimal(std::string_view text, const char* opcode);
  void push_global(std::string_view module, std::string_view name);
  void add_list_items(std::size_t first);
  void add_dict_items(std::size_t first);
  void add_set_items(std::size_t first);
  void build();
  void get(std::uint32_t index);
  std::uint32_t text_index();

  ByteView in_;
  Limits limits_;
  GraphBuilder graph_;
  std::size_t at_ = 0;
  std::size_t opcode_at_ = 0;
  unsigned protocol_ = 0;
  std::vector<Id> stack_;
  std::vector<std::size_t> marks_;
  Memo memo_;
};

Graph Machine::run() {
  for (;;) {
    opcode_at_ = at_;
    if (at_ == in_.size()) corrupt("the bytes end before STOP");
    const Op op{static_cast<std::uint8_t>(in_[at_++])};
    if (op == Op::kStop) break;
    execute(op);
  }
  const Id root = pop();
  if (!stack_.empty()) corrupt("STOP leaves " + std::to_string(stack_.size()) + " more values on the stack");
  return std::move(graph_).finish(root);
}

void Machine::execute(Op op) {
  switch (op) {
    case Op::kMark:
      if (marks_.size() >= limits_.max_depth) {
        throw CheckpointError(ErrorCode::kUnsupported, "the pickle has more than " + std::to_string(limits_.max_depth) + " MARKs inside each other, which is the limit");
      }
      return marks_.push_back(stack_.size());
    case Op::kPop:
      if (!marks_.empty() && marks_.back() == stack_.size()) {
        marks_.pop_back();
      } else {
        pop();
      }
      return;
    case Op::kPopMark: return stack_.resize(pop_mark());
    case Op::kDup: return push(top());

    case Op::kNone: return push(graph_.constant(Kind::kNone));
    case Op::kNewTrue: return push(graph_.constant(Kind::kTrue));
    case Op::kNewFalse: return push(graph_.constant(Kind::kFalse));
    case Op::kBinInt: return push(graph_.integer(std::int64_t{number<std::int32_t>()}));
    case Op::kBinInt1: return push(graph_.integer(std::int64_t{number<std::uint8_t>()}));
    case Op::kBinInt2: return push(graph_.integer(std::int64_t{number<std::uint16_t>()}));
    case Op::kLong1: return push(graph_.integer(as_bytes(take(number<std::uint8_t>()))));
    case Op::kLong4: return push(graph_.integer(as_bytes(take(length_of_long4()))));
    case Op::kInt: {
      const std::string_view text = line();
      if (text == "00") return push(graph_.constant(Kind::kFalse));
      if (text == "01") return push(graph_.constant(Kind::kTrue));
      return push_decimal(text, "INT");
    }
    case Op::kLong: {
      std::string_view text = line();
      if (text.ends_with('L')) text.remove_suffix(1);
      return push_decimal(text, "LONG");
    }
    case Op::kFloat: {
      const std::string_view text = line();
      const std::optional<double> value = parse_real(text);
      if (!value) corrupt("FLOAT holds " + quoted(text, 40) + ", which is no number");
      return push(graph_.real(*value));
    }
    case Op::kBinFloat: return push(graph_.real(std::bit_cast<double>(__builtin_bswap64(number<std::uint64_t>()))));

    case Op::kShortBinUnicode: return push_utf8(take(number<std::uint8_t>()));
    case Op::kBinUnicode: return push_utf8(take(number<std::uint32_t>()));
    case Op::kBinUnicode8: return push_utf8(take(number<std::uint64_t>()));
    case Op::kUnicode: {
      const std::string_view spelt = line();
      if (is_plain_ascii(spelt)) return push(graph_.text(Kind::kStr, spelt));
      std::optional<Bytes> text = decode_raw_unicode_escape(spelt);
      if (!text) corrupt("UNICODE holds a wrong \\u escape");
      return push(graph_.owned_text(Kind::kStr, std::move(*text)));
    }
    case Op::kShortBinString: return push_python2_text(take(number<std::uint8_t>()));
    case Op::kBinString: return push_python2_text(take(length_of_long4()));
    case Op::kString: {
      std::optional<Bytes> text = decode_quoted(line());
      if (!text) corrupt("STRING holds no quoted literal as repr() writes it");
      push_python2_text(as_text(*text));
      stack_.back() = graph_.owned_text(Kind::kStr, std::move(*text));
      return;
    }
    case Op::kShortBinBytes: return push(graph_.text(Kind::kBytes, take(number<std::uint8_t>())));
    case Op::kBinBytes: return push(graph_.text(Kind::kBytes, take(number<std::uint32_t>())));
    case Op::kBinBytes8: return push(graph_.text(Kind::kBytes, take(number<std::uint64_t>())));
    case Op::kByteArray8: return push(graph_.text(Kind::kByteArray, take(number<std::uint64_t>())));

    case Op::kEmptyList: return push(graph_.container(Kind::kList, {}));
    case Op::kEmptyTuple: return push(graph_.constant(Kind::kTuple));
    case Op::kEmptyDict: return push(graph_.container(Kind::kDict, {}));
    case Op::kEmptySet: return push(graph_.container(Kind::kSet, {}));
    case Op::kList: return push_container(Kind::kList, pop_mark());
    case Op::kTuple: return push_container(Kind::kTuple, pop_mark());
    case Op::kFrozenSet: return push_container(Kind::kFrozenSet, pop_mark());
    case Op::kTuple1:
    case Op::kTuple2:
    case Op::kTuple3: {
      const std::size_t count = static_cast<std::size_t>(op) - static_cast<std::size_t>(Op::kTuple1) + 1;
      need(count);
      return push_container(Kind::kTuple, stack_.size() - count);
    }
    case Op::kDict: {
      const std::size_t first = pop_mark();
      if (above(first).size() % 2 != 0) corrupt("DICT has a key without a value");
      return push_container(Kind::kDict, first);
    }
    case Op::kAppend:
      need(2);
      return add_list_items(stack_.size() - 1);
    case Op::kAppends: return add_list_items(pop_mark());
    case Op::kSetItem:
      need(3);
      return add_dict_items(stack_.size() - 2);
    case Op::kSetItems: return add_dict_items(pop_mark());
    case Op::kAddItems: return add_set_items(pop_mark());

    case Op::kGlobal: {
      const std::string_view module = line();
      return push_global(module, line());
    }
    case Op::kStackGlobal: {
      const Id name = pop();
      const Id module = pop();
      if (graph_.kind(module) != Kind::kStr || graph_.kind(name) != Kind::kStr) corrupt("STACK_GLOBAL needs two strings");
      return push_global(graph_.text(module), graph_.text(name));
    }
    case Op::kReduce: return push_object(Kind::kCall, 2);
    case Op::kNewObj: return push_object(Kind::kNew, 2);
    case Op::kNewObjEx: return push_object(Kind::kNew, 3);
    case Op::kInst: {
      const std::size_t first = pop_mark();
      const std::string_view module = line();
      push_global(module, line());
      return push_instance(pop(), first, first);
    }
    case Op::kObj: {
      const std::size_t first = pop_mark();
      if (above(first).empty()) corrupt("OBJ has no class");
      return push_instance(stack_[first], first, first + 1);
    }
    case Op::kBuild: return build();
    case Op::kPersId: {
      push_utf8(line());
      return push_container(Kind::kPersistent, stack_.size() - 1);
    }
    case Op::kBinPersId:
      need(1);
      return push_container(Kind::kPersistent, stack_.size() - 1);

    case Op::kPut: return memo_.store(text_index(), top());
    case Op::kBinPut: return memo_.store(number<std::uint8_t>(), top());
    case Op::kLongBinPut: return memo_.store(number<std::uint32_t>(), top());
    case Op::kMemoize: return memo_.store(memo_.size(), top());
    case Op::kGet: return get(text_index());
    case Op::kBinGet: return get(number<std::uint8_t>());
    case Op::kLongBinGet: return get(number<std::uint32_t>());

    case Op::kProto:
      protocol_ = number<std::uint8_t>();
      if (protocol_ > kHighestProtocol) {
        throw CheckpointError(ErrorCode::kUnsupported, "pickle protocol " + std::to_string(protocol_) + "; protocols 0 to 5 are known");
      }
      return;
    case Op::kFrame: {  // a hint for readers that buffer; where it ends means nothing
      const auto length = number<std::uint64_t>();
      if (length > in_.size() - at_) corrupt("a frame of " + std::to_string(length) + " bytes, but " + std::to_string(in_.size() - at_) + " are left");
      return;
    }
    case Op::kExt1:
    case Op::kExt2:
    case Op::kExt4: corrupt("a copyreg extension code; which class it means is known only to the program that wrote it");
    case Op::kNextBuffer:
    case Op::kReadonlyBuffer: corrupt("an out-of-band buffer, which is not in the file");
    case Op::kStop: break;
  }
  corrupt("unknown opcode " + std::to_string(static_cast<unsigned>(op)));
}

std::string_view Machine::line() {
  const std::string_view rest = as_text(in_.subspan(at_));
  const std::size_t length = rest.find('\n');
  if (length == std::string_view::npos) corrupt("the bytes end inside a line of text");
  at_ += length + 1;
  return rest.substr(0, length);
}

void Machine::push_object(Kind kind, std::size_t parts) {
  need(parts);
  const std::size_t first = stack_.size() - parts;
  const Kind callable = graph_.kind(stack_[first]);
  if (callable != Kind::kGlobal && callable != Kind::kPersistent && !graph_.is_object(stack_[first])) corrupt("what is called is a plain value");
  if (graph_.kind(stack_[first + 1]) != Kind::kTuple) corrupt("the arguments of a call are no tuple");
  if (parts == 3 && graph_.kind(stack_[first + 2]) != Kind::kDict) corrupt("the keyword arguments of a call are no dict");
  const Id id = graph_.object(kind, above(first));
  stack_.resize(first);
  push(id);
}

/// INST and OBJ. Python makes a class without arguments by __new__ alone.
void Machine::push_instance(Id callable, std::size_t first, std::size_t first_argument) {
  const Kind kind = above(first_argument).empty() ? Kind::kNew : Kind::kCall;
  const Id arguments = graph_.container(Kind::kTuple, above(first_argument));
  stack_.resize(first);
  push(callable);
  push(arguments);
  push_object(kind, 2);
}

void Machine::push_utf8(std::string_view text) {
  if (!is_surrogatepass_utf8(text)) corrupt("a string is not UTF-8");
  push(graph_.text(Kind::kStr, text));
}

void Machine::push_python2_text(std::string_view text) {
  if (!is_utf8(text)) throw CheckpointError(ErrorCode::kUnsupported, "a string that Python 2 wrote is not UTF-8; which encoding it has is not recorded");
  push(graph_.text(Kind::kStr, text));
}

void Machine::push_decimal(std::string_view text, const char* opcode) {
  std::optional<Bytes> number = parse_decimal(text);
  if (!number) corrupt(std::string(opcode) + " holds " + quoted(text, 40) + ", which is no decimal number (without leading zeros, of at most 4300 digits)");
  push(graph_.owned_integer(std::move(*number)));
}

void Machine::push_global(std::string_view module, std::string_view name) {
  if (module.empty() || name.empty()) corrupt("a global without module or name");
  if (protocol_ < 3) std::tie(module, name) = python3_name(module, name);
  push_utf8(module);
  push_utf8(name);
  push_container(Kind::kGlobal, stack_.size() - 2);
}

void Machine::add_list_items(std::size_t first) {
  const std::span<const Id> items = above(first);
  need(items.size() + 1);
  const Id target = stack_[first - 1];
  if (graph_.kind(target) == Kind::kList) {
    graph_.extend(target, items);
  } else if (graph_.is_object(target)) {
    graph_.extend(target, Part::kListItems, items);
  } else {
    corrupt("items are appended to what is neither a list nor an object");
  }
  stack_.resize(first);
}

void Machine::add_dict_items(std::size_t first) {
  const std::span<const Id> items = above(first);
  need(items.size() + 1);
  if (items.size() % 2 != 0) corrupt("a dict key without a value");
  const Id target = stack_[first - 1];
  if (graph_.kind(target) == Kind::kDict) {
    graph_.extend(target, items);
  } else if (graph_.is_object(target)) {
    graph_.extend(target, Part::kDictItems, items);
  } else {
    corrupt("items are set in what is neither a dict nor an object");
  }
  stack_.resize(first);
}

void Machine::add_set_items(std::size_t first) {
  const std::span<const Id> items = above(first);
  need(items.size() + 1);
  if (graph_.kind(stack_[first - 1]) != Kind::kSet) corrupt("members are added to what is no set");
  graph_.extend(stack_[first - 1], items);
  stack_.resize(first);
}

void Machine::build() {
  need(2);
  const Id state = pop();
  if (!graph_.is_object(top())) corrupt("BUILD gives a state to a plain value");
  graph_.extend(top(), Part::kStates, {&state, 1});
}

void Machine::get(std::uint32_t index) {
  const Id id = memo_.find(index);
  if (id == Graph::kNil) corrupt("memo index " + std::to_string(index) + " is read before it is written");
  push(id);
}

std::uint32_t Machine::text_index() {
  const std::string_view text = line();
  const std::optional<std::uint32_t> index = parse_index(text);
  if (!index) corrupt(quoted(text, 40) + " is no memo index");
  return *index;
}

}  // namespace

Graph read_graph(ByteView pickle, const std::string& what, const Limits& limits, std::size_t* consumed) {
  const std::uint64_t max_bytes = std::min<std::uint64_t>(limits.max_bytes, std::numeric_limits<std::uint32_t>::max());  // lengths of texts have 32 bits
  if (pickle.size() > max_bytes) {
    throw CheckpointError(ErrorCode::kUnsupported, "a pickle of " + human_bytes(pickle.size()) + "; the limit is " + human_bytes(max_bytes), {.file = what});
  }
  Machine machine(pickle, limits);
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
    throw error.with({.file = what, .offset = machine.opcode_position()});
  }
}

}  // namespace dckpt::pickle
