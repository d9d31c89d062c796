#pragma once

#include <cstdint>

namespace dckpt::pickle {

constexpr int kHighestProtocol = 5;

/// The opcodes of Python's pickle module, with its names.
enum class Op : std::uint8_t {
  kMark = '(',
  kStop = '.',
  kPop = '0',
  kPopMark = '1',
  kDup = '2',
  kFloat = 'F',
  kInt = 'I',
  kBinInt = 'J',
  kBinInt1 = 'K',
  kLong = 'L',
  kBinInt2 = 'M',
  kNone = 'N',
  kBinFloat = 'G',
  kPersId = 'P',
  kBinPersId = 'Q',
  kReduce = 'R',
  kString = 'S',
  kBinString = 'T',
  kShortBinString = 'U',
  kUnicode = 'V',
  kBinUnicode = 'X',
  kAppend = 'a',
  kBuild = 'b',
  kGlobal = 'c',
  kDict = 'd',
  kEmptyDict = '}',
  kAppends = 'e',
  kGet = 'g',
  kBinGet = 'h',
  kInst = 'i',
  kLongBinGet = 'j',
  kList = 'l',
  kEmptyList = ']',
  kObj = 'o',
  kPut = 'p',
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

}  // namespace dckpt::pickle
