#include "strategies/comm/message_header.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <span>

#include "mapping/base/fingerprint.h"
#include "mapping/base/text.h"

namespace dckpt {
namespace {

constexpr Way kToAll{-1, -1};

std::uint64_t check_of(Way way, MessageHeader header) noexcept {
  header.check = std::uint64_t{static_cast<std::uint32_t>(way.from)} << 32U |
                 static_cast<std::uint32_t>(way.to);
  return fingerprint_of(std::as_bytes(std::span(&header, 1))).low;
}

}  // namespace

const char* name_of(Operation operation) {
  constexpr const char* kNames[] = {"barrier",    "gather",    "all_gather",
                                    "scatter",    "broadcast", "all_to_all",
                                    "all_reduce", "split",     "farewell"};
  const auto index = static_cast<std::size_t>(operation);
  return index < std::size(kNames) ? kNames[index] : "an unknown operation";
}

MessageHeader message_header(Way way, Operation operation, std::uint32_t number, std::uint64_t size,
                             std::uint64_t content, ByteView inlined) noexcept {
  MessageHeader header{operation, number, size, content, 0, {}};
  std::copy_n(inlined.begin(), std::min(inlined.size(), header.inlined.size()),
              header.inlined.begin());
  header.check = check_of(way, header);
  return header;
}

bool is_sound(Way way, const MessageHeader& header) noexcept {
  return header.check == check_of(way, header);
}

MessageHeader header_of(const Farewell& farewell) noexcept {
  const ByteView text = as_bytes(farewell.text);
  const std::size_t size = std::min(text.size(), MessageHeader::kInlined);
  return message_header(kToAll, Operation::kFarewell, static_cast<std::uint32_t>(farewell.kind),
                        size, static_cast<std::uint32_t>(farewell.origin + 1), text.first(size));
}

std::optional<Farewell> farewell_in(ByteView message) {
  MessageHeader header;
  if (message.size() < sizeof header) return std::nullopt;
  std::memcpy(&header, message.data(), sizeof header);
  if (header.operation != Operation::kFarewell || !is_sound(kToAll, header) ||
      header.size > header.inlined.size())
    return std::nullopt;
  const ByteView text = ByteView(header.inlined).first(static_cast<std::size_t>(header.size));
  return Farewell{static_cast<Farewell::Kind>(header.number),
                  printable(as_text(text), MessageHeader::kInlined),
                  static_cast<int>(static_cast<std::uint32_t>(header.content) - 1U)};
}

}  // namespace dckpt
