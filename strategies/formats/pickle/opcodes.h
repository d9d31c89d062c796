#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace dckpt::pickle {

constexpr int kHighestProtocol = 5;

/// The opcodes that Python 3 writes at protocol 2 or newer, with the names of its pickle module.
enum class Op : std::uint8_t {
  kMark = '(',
  kStop = '.',
  kPop = '0',
  kPopMark = '1',
  kBinInt = 'J',
  kBinInt1 = 'K',
  kBinInt2 = 'M',
  kNone = 'N',
  kBinFloat = 'G',
  kBinPersId = 'Q',
  kReduce = 'R',
  kBinUnicode = 'X',
  kAppend = 'a',
  kBuild = 'b',
  kGlobal = 'c',
  kEmptyDict = '}',
  kAppends = 'e',
  kBinGet = 'h',
  kLongBinGet = 'j',
  kEmptyList = ']',
  kBinPut = 'q',
  kLongBinPut = 'r',
  kSetItem = 's',
  kTuple = 't',
  kEmptyTuple = ')',
  kSetItems = 'u',
  kBinBytes = 'B',
  kShortBinBytes = 'C',
  kProto = 0x80,
  kNewObj,
  kExt1,
  kExt2,
  kExt4,
  kTuple1,
  kTuple2,
  kTuple3,
  kNewTrue,
  kNewFalse,
  kLong1,
  kLong4,  // protocol 2
  kShortBinUnicode = 0x8c,
  kBinUnicode8,
  kBinBytes8,
  kEmptySet,
  kAddItems,
  kFrozenSet,
  kNewObjEx,
  kStackGlobal,
  kMemoize,
  kFrame,  // protocol 4
  kByteArray8 = 0x96,
  kNextBuffer,
  kReadonlyBuffer,  // protocol 5
};

/// True for an int of one to four bytes, or of a length that it states.
constexpr bool is_count(Op op) noexcept {
  return op == Op::kBinInt1 || op == Op::kBinInt2 || op == Op::kBinInt || op == Op::kLong1;
}

/// Returns why an opcode of older pickles is not read, and what to do; "" for all other bytes, and
/// at position 0, since old pickles begin with "(" or a global: such a file holds no pickle.
std::string why_too_old(Op op, std::size_t position);

}  // namespace dckpt::pickle
