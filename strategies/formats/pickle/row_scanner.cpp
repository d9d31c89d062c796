#include "strategies/formats/pickle/row_scanner.h"

#include <algorithm>
#include <iterator>

#include "mapping/base/utf8.h"

namespace dckpt::pickle {

/// The rest of the pickle. The object is on the stack of take() and its functions are inlined
/// there, so that the position stays in a register.
class RowScanner::Cursor {
 public:
  Cursor(const std::byte* at, const std::byte* end) : at_(at), end_(end) {}

  const std::byte* position() const noexcept { return at_; }
  bool has(std::uint64_t bytes) const noexcept {
    return static_cast<std::uint64_t>(end_ - at_) >= bytes;
  }
  /// Returns the next opcode; Op{} at the end.
  Op peek() const noexcept { return at_ == end_ ? Op{} : static_cast<Op>(*at_); }
  bool next(Op op) noexcept {
    if (peek() != op) return false;
    ++at_;
    return true;
  }
  template <typename T>
  bool number(std::uint32_t& value) noexcept {
    if (!has(1 + sizeof(T))) return false;
    value = load_le<T>({at_ + 1, sizeof(T)}, 0);
    at_ += 1 + sizeof(T);
    return true;
  }
  /// Takes a reference to the memo.
  bool reference(std::uint32_t& index) noexcept {
    const Op op = peek();
    if (op == Op::kBinGet) return number<std::uint8_t>(index);
    return op == Op::kLongBinGet && number<std::uint32_t>(index);
  }
  /// Takes an int from 0 to 2^63 - 1.
  bool count() noexcept {
    switch (peek()) {
      case Op::kBinInt1: return skip(2);
      case Op::kBinInt2: return skip(3);
      case Op::kBinInt: return skip(5) && !is_negative();
      case Op::kLong1: {
        std::uint32_t bytes = 0;
        return number<std::uint8_t>(bytes) && bytes > 0 && bytes <= sizeof(std::int64_t) &&
               skip(bytes) && !is_negative();
      }
      default: return false;
    }
  }
  bool text(std::string_view& content) noexcept {
    std::uint32_t length = 0;
    const bool is_short = peek() == Op::kShortBinUnicode;
    if (!(is_short ? number<std::uint8_t>(length) : number<std::uint32_t>(length))) return false;
    content = as_text({at_, has(length) ? length : 0});
    return skip(length);
  }

 private:
  bool skip(std::uint64_t bytes) noexcept {
    if (!has(bytes)) return false;
    at_ += bytes;
    return true;
  }
  bool is_negative() const noexcept { return std::to_integer<std::uint8_t>(at_[-1]) >= 0x80; }

  const std::byte* at_;
  const std::byte* end_;
};

RowScanner::RowScanner(const RowTypes& types, ByteView pickle, GraphBuilder& graph, Memo& memo)
    : types_(types),
      begin_(pickle.data()),
      end_(pickle.data() + std::min<std::uint64_t>(pickle.size(), Graph::kInPickle)),
      graph_(graph),
      memo_(memo),
      known_(types.classes.size()) {
  for (Type& known : known_) known.names.fill(kUnknown);
}

Graph::Id RowScanner::take(Id type, const std::byte*& at) {
  if (at >= end_ || !memo_.is_counted_up() || !graph_.has_room_for_rows()) return Graph::kNil;
  const std::size_t number = type_of(type);
  if (number == known_.size()) return Graph::kNil;
  const std::uint32_t first = memo_.size();
  Cursor in(at, end_);
  if (!object(in, types_.classes[number], known_[number])) {
    memo_.shrink(first);
    return Graph::kNil;
  }
  at = in.position();
  const Id row = graph_.row(number, {cells_.data(), types_.classes[number].count()});
  if (instance_is_memoized_) memo_.replace(first, row);
  took_any_ = true;
  return row;
}

inline std::size_t RowScanner::type_of(Id node) {
  for (std::size_t i = 0; i < known_.size(); ++i) {
    if (known_[i].node == node) return i;
  }
  return find_type(node);
}

std::size_t RowScanner::find_type(Id node) {
  for (std::size_t i = 0; i < known_.size(); ++i) {
    if (!graph_.is_global(node, types_.classes[i].module, types_.classes[i].name)) continue;
    known_[i].node = node;
    return i;
  }
  return known_.size();
}

inline bool RowScanner::is_counts_class(Id node) {
  if (node == counts_class_) return true;
  if (!graph_.is_global(node, types_.counts_module, types_.counts_name)) return false;
  counts_class_ = node;
  return true;
}

/// Takes `type()`, made without arguments, and its attributes.
inline bool RowScanner::object(Cursor& in, const RowType& type, Type& known) {
  if (!in.next(Op::kEmptyTuple) || !in.next(Op::kNewObj)) return false;
  instance_is_memoized_ = memoize(in, Graph::kNil);
  if (!in.next(Op::kEmptyDict)) return false;
  memoize(in, Graph::kNil);
  if (!in.next(Op::kMark)) return false;
  cells_.fill(Graph::kNil);
  for (std::size_t likely = 0; !in.next(Op::kSetItems); ++likely) {
    std::size_t field = likely;
    if (!name(in, type, known, field) || cells_[field] != Graph::kNil || !value(in, cells_[field]))
      return false;
  }
  return in.next(Op::kBuild);
}

/// Takes the name of a field, which is that of `field` in most objects.
inline bool RowScanner::name(Cursor& in, const RowType& type, Type& known, std::size_t& field) {
  std::uint32_t index = 0;
  if (!in.reference(index) || index >= memo_.size()) return false;
  if (field >= kMaxRowFields || known.names[field] != index) field = find_field(type, known, index);
  return field < kMaxRowFields;
}

std::size_t RowScanner::find_field(const RowType& type, Type& known, std::uint32_t index) {
  const auto is_known = std::ranges::find(known.names, index);
  if (is_known != known.names.end())
    return static_cast<std::size_t>(is_known - known.names.begin());
  const Id node = memo_.find(index);
  if (node >= Graph::kInPickle || graph_.kind(node) != Graph::Kind::kStr) return kMaxRowFields;
  const auto field = static_cast<std::size_t>(std::ranges::find(type.fields, graph_.text(node)) -
                                              type.fields.begin());
  if (field >= type.count()) return kMaxRowFields;
  known.names[field] = index;
  return field;
}

inline bool RowScanner::value(Cursor& in, Id& cell) {
  const auto here = static_cast<Id>(Graph::kInPickle + (in.position() - begin_));
  const Op op = in.peek();
  if (is_count(op)) {
    cell = here;
    return in.count();
  }
  if (in.next(Op::kNone)) {
    cell = graph_.constant(Graph::Kind::kNone);
    return true;
  }
  if (op == Op::kShortBinUnicode || op == Op::kBinUnicode) return text(in, cell);
  std::uint32_t index = 0;
  if (!in.reference(index)) return false;
  cell = memo_.find(index);
  if (cell == Graph::kNil) return false;  // a part of another row
  if (!is_counts_class(cell)) return true;
  cell = here;
  return counts(in, here);
}

/// Takes `counts_class((count, …))`, behind the reference to the class.
inline bool RowScanner::counts(Cursor& in, Id here) {
  const bool marked = in.next(Op::kMark);
  std::size_t size = 0;
  for (; is_count(in.peek()); ++size) {
    if (!in.count()) return false;
  }
  static constexpr Op kTuples[] = {Op::kEmptyTuple, Op::kTuple1, Op::kTuple2, Op::kTuple3};
  if (!marked && size >= std::size(kTuples)) return false;
  if (!in.next(marked ? Op::kTuple : kTuples[size])) return false;
  memoize(in, Graph::kNil);
  if (!in.next(Op::kTuple1)) return false;
  memoize(in, Graph::kNil);
  if (!in.next(Op::kReduce)) return false;
  memoize(in, here);
  return true;
}

bool RowScanner::text(Cursor& in, Id& cell) {
  std::string_view content;
  if (!in.text(content) || !is_utf8(content, Surrogates::kPass)) return false;
  cell = graph_.text(Graph::Kind::kStr, content);
  memoize(in, cell);
  return true;
}

inline bool RowScanner::memoize(Cursor& in, Id id) {
  if (!in.next(Op::kMemoize)) return false;
  memo_.count_up(id);
  return true;
}

}  // namespace dckpt::pickle
