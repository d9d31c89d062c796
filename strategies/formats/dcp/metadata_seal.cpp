#include "strategies/formats/dcp/metadata_seal.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>

#include "mapping/base/error.h"
#include "mapping/base/hash.h"
#include "strategies/formats/dcp/metadata_graph.h"
#include "strategies/formats/pickle/opcodes.h"

namespace dckpt {
namespace {

using pickle::Op;

constexpr std::byte byte_of(Op op) {
  return static_cast<std::byte>(op);
}

/// The end of a pickle whose root is an object with attributes.
constexpr std::array kEnd{byte_of(Op::kSetItems), byte_of(Op::kBuild), byte_of(Op::kStop)};
/// The opcode before the number, with its count of bytes: two more than the number has.
constexpr std::array kBefore{byte_of(Op::kLong1), std::byte{6}};
constexpr std::array<std::byte, sizeof(std::uint32_t)> kZeros{};
constexpr std::array<std::byte, 2> kPadding{};
constexpr std::size_t kNumberEnd = kEnd.size() + kPadding.size();  // counted from the back
constexpr std::size_t kSealBytes = kBefore.size() + kZeros.size() + kNumberEnd;

bool ends_with(ByteView bytes, ByteView end) {
  return bytes.size() >= end.size() && std::ranges::equal(bytes.last(end.size()), end);
}

void append(Bytes& bytes, ByteView more) {
  bytes.insert(bytes.end(), more.begin(), more.end());
}

/// Returns the CRC-32 of a pickle with a number, whatever that is.
std::uint32_t crc_of(ByteView pickle) {
  const std::size_t after = pickle.size() - kNumberEnd;
  const std::uint32_t before = crc32(pickle.first(after - kZeros.size()));
  return crc32(pickle.subspan(after), crc32(kZeros, before));
}

std::byte* number_in(Bytes& pickle) {
  return pickle.data() + pickle.size() - kNumberEnd - kZeros.size();
}

}  // namespace

Bytes sealed(Bytes pickle) {
  if (!ends_with(pickle, kEnd)) return pickle;  // a root without attributes
  pickle.resize(pickle.size() - kEnd.size());
  const std::string_view name = dcp::kMetadataCrc;
  const std::array length{static_cast<std::byte>(name.size()), std::byte{0}, std::byte{0},
                          std::byte{0}};
  pickle.push_back(byte_of(Op::kBinUnicode));
  append(pickle, length);
  append(pickle, as_bytes(name));
  append(pickle, kBefore);
  append(pickle, kZeros);
  append(pickle, kPadding);
  append(pickle, kEnd);
  const std::uint32_t crc = crc_of(pickle);
  std::memcpy(number_in(pickle), &crc, sizeof crc);
  return pickle;
}

bool is_sealed(ByteView pickle) {
  if (pickle.size() < kSealBytes || !ends_with(pickle, kEnd)) return false;
  const ByteView before = pickle.first(pickle.size() - kSealBytes + kBefore.size());
  // Either sign suffices, since a bit of the other one may be damaged.
  return ends_with(before, kBefore) &&
         (ends_with(pickle.first(pickle.size() - kEnd.size()), kPadding) ||
          ends_with(before.first(before.size() - kBefore.size()), as_bytes(dcp::kMetadataCrc)));
}

void check_seal(ByteView pickle, const std::string& file_name) {
  if (!is_sealed(pickle)) return;
  std::uint32_t expected = 0;
  std::memcpy(&expected, pickle.data() + pickle.size() - kNumberEnd - kZeros.size(),
              sizeof expected);
  const std::uint32_t found = crc_of(pickle);
  if (found == expected) return;
  throw_error(ErrorCode::kCorrupt, {.file = file_name},
              "the file is damaged: its CRC-32 is {}, expected {} (a key or another name in it "
              "has changed); restore it from a copy of the checkpoint",
              found, expected);
}

}  // namespace dckpt
