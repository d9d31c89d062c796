#include "strategies/formats/pickle/read_pickle_file.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <limits>
#include <optional>
#include <string>

#include "mapping/base/error.h"
#include "strategies/formats/pickle/opcodes.h"

namespace dckpt::pickle {
namespace {

constexpr std::uint64_t kBlock = std::uint64_t{64} << 10;
constexpr std::size_t kMaxName = 4096;

/// Returns the size of the length field that begins an opcode's argument; 0 if it has none.
std::size_t length_bytes(Op op) {
  switch (op) {
    case Op::kShortBinBytes:
    case Op::kShortBinUnicode:
    case Op::kLong1: return 1;
    case Op::kBinUnicode:
    case Op::kBinBytes:
    case Op::kLong4: return 4;
    case Op::kBinUnicode8:
    case Op::kBinBytes8:
    case Op::kByteArray8: return 8;
    default: return 0;
  }
}

/// Returns the bytes of an argument of fixed size; empty if there is no such opcode.
std::optional<std::size_t> fixed_bytes(Op op) {
  switch (op) {
    case Op::kBinInt1:
    case Op::kBinGet:
    case Op::kBinPut:
    case Op::kProto:
    case Op::kExt1: return 1;
    case Op::kBinInt2:
    case Op::kExt2: return 2;
    case Op::kBinInt:
    case Op::kLongBinGet:
    case Op::kLongBinPut:
    case Op::kExt4: return 4;
    case Op::kBinFloat:
    case Op::kFrame: return 8;
    default: break;
  }
  const auto byte = static_cast<std::uint8_t>(op);
  constexpr std::string_view kWithout = "(.01NQRab}e]st)u";
  const bool without = kWithout.find(static_cast<char>(byte)) != kWithout.npos ||
                       byte == static_cast<std::uint8_t>(Op::kNewObj) ||
                       (op >= Op::kTuple1 && op <= Op::kNewFalse) ||
                       (op >= Op::kEmptySet && op <= Op::kMemoize) || op == Op::kNextBuffer ||
                       op == Op::kReadonlyBuffer;
  return without ? std::optional<std::size_t>(0) : std::nullopt;
}

/// Returns the position of a byte at the beginning of a file that no pickler writes.
std::optional<std::size_t> foreign_byte(ByteView block) {
  std::size_t at = 0;
  while (at < block.size()) {
    const auto op = static_cast<Op>(block[at]);
    if (op == Op::kStop) return std::nullopt;
    std::size_t next = at + 1;
    if (const std::size_t width = length_bytes(op)) {
      if (block.size() - next < width) return std::nullopt;
      std::uint64_t length = 0;
      for (std::size_t i = 0; i < width; ++i)
        length |= std::to_integer<std::uint64_t>(block[next + i]) << (8 * i);
      next += width;
      if (length >= block.size() - next) return std::nullopt;
      next += static_cast<std::size_t>(length);
    } else if (op == Op::kGlobal) {
      for (int line = 0; line < 2; ++line) {
        const std::size_t begin = next;
        while (next < block.size() && block[next] != std::byte{'\n'}) ++next;
        if (next - begin > kMaxName) return at;
        if (next++ >= block.size()) return std::nullopt;
      }
    } else if (const auto bytes = fixed_bytes(op)) {
      next += *bytes;
    } else {
      return at;
    }
    at = next;
  }
  return std::nullopt;
}

[[noreturn]] void refuse(const ReadableFile& file, std::uint64_t offset, const std::string& why) {
  throw_error(ErrorCode::kCorrupt, {.file = file.name(), .offset = offset},
              "the file holds no pickle: " + why);
}

}  // namespace

Bytes read_pickle_file(const ReadableFile& file, std::uint64_t limit) {
  const std::uint64_t size = file.size();
  if (size <= kBlock || size > limit) return read_file(file, limit);
  Bytes block(kBlock);
  file.read(0, block);
  if (const auto at = foreign_byte(block)) {
    const auto byte = std::to_integer<std::uint8_t>(block[*at]);
    const std::string too_old = why_too_old(Op{byte}, *at);
    if (!too_old.empty())
      throw_error(ErrorCode::kUnsupported, {.file = file.name(), .offset = *at}, too_old);
    refuse(file, *at, str_format("byte {} is not an opcode", byte));
  }
  std::array<std::byte, 1> last{};
  file.read(size - 1, last);
  if (last[0] != std::byte{'.'}) refuse(file, size - 1, "its last byte is not the opcode STOP");
  return read_file(file, limit);
}

}  // namespace dckpt::pickle
