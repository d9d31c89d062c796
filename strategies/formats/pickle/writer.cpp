#include "strategies/formats/pickle/writer.h"

#include <algorithm>
#include <bit>
#include <limits>

#include "mapping/base/error.h"
#include "strategies/formats/pickle/python2_names.h"

namespace dckpt::pickle {
namespace {

template <typename Wide>
bool fits(std::uint64_t size) {
  return size <= std::numeric_limits<Wide>::max();
}

std::string global_key(std::string_view module, std::string_view name) {
  return std::string(module) + '\n' + std::string(name);
}

}  // namespace

PickleWriter::PickleWriter(int protocol) : protocol_(protocol) {
  if (protocol != 2 && protocol != 4)
    throw_error(ErrorCode::kInvalidArgument, "cannot write pickle protocol {}; choose 2 or 4",
                protocol);
  op(Op::kProto, static_cast<std::uint8_t>(protocol));
}

void PickleBytes::integer(std::int64_t value) {
  if (value >= 0 && fits<std::uint8_t>(static_cast<std::uint64_t>(value))) {
    op(Op::kBinInt1, static_cast<std::uint8_t>(value));
  } else if (value >= 0 && fits<std::uint16_t>(static_cast<std::uint64_t>(value))) {
    op(Op::kBinInt2, static_cast<std::uint16_t>(value));
  } else if (value == static_cast<std::int32_t>(value)) {
    op(Op::kBinInt, static_cast<std::int32_t>(value));
  } else {
    const auto bits = static_cast<std::uint64_t>(value < 0 ? ~value : value);
    const std::size_t bytes = std::bit_width(bits) / 8 + 1;
    big_integer(as_bytes({reinterpret_cast<const char*>(&value), bytes}));
  }
}

void PickleBytes::big_integer(ByteView twos_complement) {
  if (fits<std::uint8_t>(twos_complement.size())) {
    op(Op::kLong1, static_cast<std::uint8_t>(twos_complement.size()));
  } else if (fits<std::int32_t>(twos_complement.size())) {
    op(Op::kLong4, static_cast<std::int32_t>(twos_complement.size()));
  } else {
    throw_error(ErrorCode::kInvalidArgument, "an integer of {} cannot be pickled",
                human_bytes(twos_complement.size()));
  }
  raw(twos_complement);
}

void PickleBytes::real(double value) {
  op(Op::kBinFloat, __builtin_bswap64(std::bit_cast<std::uint64_t>(value)));
}

void PickleWriter::complex(double re, double im) {
  global("builtins", "complex");
  real(re);
  real(im);
  tuple(2);
  reduce();
}

void PickleWriter::text(std::string_view utf8) {
  if (utf8.size() > kLongestSharedText) return plain_text(utf8);
  if (const auto known = texts_.find(utf8); known != texts_.end()) return get(known->second);
  plain_text(utf8);
  texts_.emplace(utf8, put());
}

void PickleWriter::first_text(RepeatedText& repeated) {
  text(repeated.text);
  if (repeated.text.size() <= kLongestSharedText)
    repeated.slot = texts_.find(repeated.text)->second;
}

void PickleWriter::plain_text(std::string_view utf8) {
  text_size(utf8.size());
  raw(as_bytes(utf8));
}

void PickleWriter::text_size(std::uint64_t bytes) {
  if (protocol_ >= 4 && fits<std::uint8_t>(bytes)) {
    op(Op::kShortBinUnicode, static_cast<std::uint8_t>(bytes));
  } else if (fits<std::uint32_t>(bytes)) {
    op(Op::kBinUnicode, static_cast<std::uint32_t>(bytes));
  } else {
    throw_error(ErrorCode::kInvalidArgument, "a text of {} cannot be pickled", human_bytes(bytes));
  }
}

/// Writes each byte as the character with that number, the form of bytes in protocol 2.
void PickleWriter::latin1_text(ByteView value) {
  constexpr std::byte kHighBit{0x80};
  const auto high = std::ranges::count_if(value, [](std::byte b) { return b >= kHighBit; });
  const std::uint64_t size = value.size() + static_cast<std::uint64_t>(high);
  text_size(size);
  std::byte* out = room(size);
  for (const std::byte byte : value) {
    if (byte >= kHighBit) *out++ = std::byte{0xC0} | byte >> 6;
    *out++ = byte < kHighBit ? byte : kHighBit | (byte & std::byte{0x3F});
  }
}

void PickleWriter::bytes(ByteView value) {
  if (protocol_ < 4) {
    if (value.empty()) {
      global("builtins", "bytes");
      empty_tuple();
    } else {
      global("_codecs", "encode");
      latin1_text(value);
      text("latin1");
      tuple(2);
    }
    return reduce();
  }
  if (fits<std::uint8_t>(value.size())) {
    op(Op::kShortBinBytes, static_cast<std::uint8_t>(value.size()));
  } else if (fits<std::uint32_t>(value.size())) {
    op(Op::kBinBytes, static_cast<std::uint32_t>(value.size()));
  } else {
    op(Op::kBinBytes8, std::uint64_t{value.size()});
  }
  raw(value);
}

void PickleWriter::byte_array(ByteView value) {
  global("builtins", "bytearray");
  if (value.empty()) {
    empty_tuple();
  } else if (protocol_ < 4) {
    latin1_text(value);
    text("latin-1");
    tuple(2);
  } else {
    bytes(value);
    tuple(1);
  }
  reduce();
}

void PickleWriter::global(std::string_view module, std::string_view name) {
  if (protocol_ >= 4) return plain_global(module, name);
  const std::size_t dots = static_cast<std::size_t>(std::count(name.begin(), name.end(), '.'));
  for (std::size_t i = 0; i < dots; ++i) plain_global("builtins", "getattr");
  std::size_t dot = name.find('.');
  plain_global(module, name.substr(0, dot));
  while (dot != std::string_view::npos) {
    name.remove_prefix(dot + 1);
    dot = name.find('.');
    text(name.substr(0, dot));
    tuple(2);
    reduce();
  }
}

void PickleWriter::plain_global(std::string_view module, std::string_view name) {
  std::string key = global_key(module, name);
  if (const auto known = globals_.find(key); known != globals_.end()) return get(known->second);
  if (protocol_ >= 4) {
    text(module);
    text(name);
    op(Op::kStackGlobal);
  } else {
    // A renamed name would be read as another one by Python: see python2_names.h.
    const bool renamed = python3_name(module, name) != std::pair(module, name);
    if (module.empty() || name.empty() || renamed ||
        std::count(key.begin(), key.end(), '\n') != 1) {
      throw_error(ErrorCode::kInvalidArgument,
                  "the global {} of module {} cannot be pickled at protocol 2", quote(name),
                  quote(module));
    }
    op(Op::kGlobal);
    raw(as_bytes(key));
    *room(1) = std::byte{'\n'};
  }
  globals_.emplace(std::move(key), put());
}

void PickleWriter::first_global(RepeatedGlobal& repeated) {
  global(repeated.module, repeated.name);
  if (protocol_ >= 4 || repeated.name.find('.') == std::string_view::npos)
    repeated.slot = globals_.at(global_key(repeated.module, repeated.name));
}

void PickleWriter::tuple(int count) {
  op(Op{static_cast<std::uint8_t>(static_cast<int>(Op::kTuple1) + count - 1)});
}
PickleWriter::Slot PickleWriter::put() {
  const Slot slot = next_++;
  if (protocol_ >= 4) {
    op(Op::kMemoize);
  } else if (fits<std::uint8_t>(slot)) {
    op(Op::kBinPut, static_cast<std::uint8_t>(slot));
  } else {
    op(Op::kLongBinPut, slot);
  }
  return slot;
}

void PickleWriter::get(Slot slot) {
  if (fits<std::uint8_t>(slot)) {
    op(Op::kBinGet, static_cast<std::uint8_t>(slot));
  } else {
    op(Op::kLongBinGet, slot);
  }
}

/// Grows by blocks that stay in the cache while they are filled.
void PickleBytes::grow(std::size_t bytes) {
  constexpr std::size_t kBlock = 1 << 14;
  out_.resize(size_ + bytes + std::min(kBlock, size_ + bytes));
}

Bytes PickleWriter::finish() {
  op(Op::kStop);
  return finish_bytes();
}

}  // namespace dckpt::pickle
