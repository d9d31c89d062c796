#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>

#include "mapping/base/bytes.h"
#include "strategies/formats/pickle/opcodes.h"

namespace dckpt::pickle {

/// The bytes of a pickle being written, and the values that do not use the stack or the memo.
class PickleBytes {
 public:
  void none() { op(Op::kNone); }
  void boolean(bool value) { op(value ? Op::kNewTrue : Op::kNewFalse); }
  void integer(std::int64_t value);
  void big_integer(ByteView twos_complement);  ///< little-endian
  void real(double value);

  std::size_t size() const noexcept { return size_; }
  /// Allocates in advance; unused room only takes address space.
  void reserve(std::size_t bytes) { out_.reserve(bytes); }

 protected:
  /// Returns the next `bytes` of the pickle, to be written.
  std::byte* room(std::size_t bytes) {
    if (out_.size() - size_ < bytes) grow(bytes);
    size_ += bytes;
    return out_.data() + size_ - bytes;
  }
  void op(Op code) { *room(1) = static_cast<std::byte>(code); }
  template <typename T>
  void op(Op code, T operand) {  // little-endian
    std::byte* const at = room(1 + sizeof operand);
    *at = static_cast<std::byte>(code);
    std::memcpy(at + 1, &operand, sizeof operand);
  }
  void raw(ByteView content) { std::copy(content.begin(), content.end(), room(content.size())); }
  Bytes finish_bytes() {
    out_.resize(size_);
    return std::move(out_);
  }

 private:
  void grow(std::size_t bytes);

  Bytes out_;  // filled up to size_
  std::size_t size_ = 0;
};

/// Emits the opcodes of one pickle, in the order in which a reader executes them: values push
/// themselves on the reader's stack, the others take their operands from it. `{"a": (1, 2)}` is
/// `empty_dict(), text("a"), integer(1), integer(2), tuple(2), set_item()`. Short texts and globals
/// that were written before are referred to. The caller is responsible for a sound order; nothing
/// is checked.
class PickleWriter : public PickleBytes {
 public:
  using Slot = std::uint32_t;  ///< place in the memo
  /// Longer texts are rarely repeated and would make the memo large.
  static constexpr std::size_t kLongestSharedText = 256;

  /// A text or global that is written repeatedly; saves a lookup each time. For one writer only.
  struct RepeatedText {
    std::string_view text;
    std::optional<Slot> slot{};
  };
  struct RepeatedGlobal {
    std::string_view module;
    std::string_view name;
    std::optional<Slot> slot{};
  };

  /// Writes protocol 2, or 4 without frames.
  explicit PickleWriter(int protocol = 2);

  int protocol() const noexcept { return protocol_; }

  void complex(double re, double im);
  void text(std::string_view utf8);  ///< surrogates as three bytes each
  void text(RepeatedText& repeated) { repeated.slot ? get(*repeated.slot) : first_text(repeated); }
  void bytes(ByteView value);
  void byte_array(ByteView value);
  /// Writes a class or function. At protocol 2 a dotted name becomes getattr calls, as Python's own
  /// pickler writes it. Throws CheckpointError (invalid argument) for names that protocol 2 cannot
  /// express: empty, with a line break, or taken for a Python 2 name.
  void global(std::string_view module, std::string_view name);
  void global(RepeatedGlobal& repeated) {
    repeated.slot ? get(*repeated.slot) : first_global(repeated);
  }

  void empty_tuple() { op(Op::kEmptyTuple); }
  void empty_list() { op(Op::kEmptyList); }
  void empty_dict() { op(Op::kEmptyDict); }
  void empty_set() { op(Op::kEmptySet); }  ///< protocol 4

  void mark() { op(Op::kMark); }
  void tuple() { op(Op::kTuple); }           ///< takes everything since mark
  void tuple(int count);                     ///< takes the 1, 2 or 3 values on top
  void frozen_set() { op(Op::kFrozenSet); }  ///< takes everything since mark; protocol 4
  void append() { op(Op::kAppend); }         ///< list, value → list
  void append_items() { op(Op::kAppends); }  ///< list, mark, values → list
  void set_item() { op(Op::kSetItem); }      ///< dict, key, value → dict
  void set_items() { op(Op::kSetItems); }    ///< dict, mark, key, value, … → dict
  void add_items() { op(Op::kAddItems); }    ///< set, mark, values → set; protocol 4
  void reduce() { op(Op::kReduce); }         ///< callable, args tuple → callable(*args)
  void new_object() { op(Op::kNewObj); }     ///< class, args tuple → class.__new__(class, *args)
  void new_object_ex() { op(Op::kNewObjEx); }  ///< class, args tuple, kwargs dict → …; protocol 4
  void build() { op(Op::kBuild); }             ///< object, state → object
  void persistent_id() { op(Op::kBinPersId); }  ///< id → the object that it stands for

  void pop() { op(Op::kPop); }  ///< drops the top of the stack
  Slot put();                   ///< remembers the top of the stack, which stays there
  void get(Slot slot);

  /// Ends the pickle; nothing can be written afterwards.
  Bytes finish();

 private:
  void first_text(RepeatedText& repeated);
  void first_global(RepeatedGlobal& repeated);
  void text_size(std::uint64_t bytes);  ///< writes the opcode and the length before a text
  void plain_text(std::string_view utf8);
  void latin1_text(ByteView value);
  void plain_global(std::string_view module, std::string_view name);

  struct TextHash {
    using is_transparent = void;
    std::size_t operator()(std::string_view text) const noexcept {
      return std::hash<std::string_view>{}(text);
    }
  };
  using Memo = std::unordered_map<std::string, Slot, TextHash, std::equal_to<>>;

  int protocol_;
  Slot next_ = 0;
  Memo texts_;
  Memo globals_;  // "module\nname"
};

}  // namespace dckpt::pickle
