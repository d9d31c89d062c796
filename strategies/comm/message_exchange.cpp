#include "strategies/comm/message_exchange.h"

#include <cstddef>

#include "mapping/base/fingerprint.h"
#include "mapping/base/text.h"
#include "strategies/comm/device_exchange.h"

namespace dckpt {
namespace {

// Elements of tensors are sent by all_to_all, in buffers that take as long to hash as to copy.
constexpr std::size_t kMostHashedElements = std::size_t{1} << 20;

std::uint64_t content_of(Operation operation, ByteView bytes) noexcept {
  if (operation == Operation::kAllToAll && bytes.size() > kMostHashedElements) return 0;
  return fingerprint_of(bytes).low;
}

}  // namespace

CheckpointError MessageExchange::misuse(const std::string& message) const {
  return {ErrorCode::kInvalidArgument, message, {.rank = group_.job_rank(group_.rank)}};
}

std::vector<MessageHeader> MessageExchange::announce(std::span<const Announced> to,
                                                     std::span<const int> from) {
  std::vector<MessageHeader> mine(to.size());
  std::vector<MessageHeader> theirs(from.size());
  std::vector<Transport::Outgoing> outgoing;
  std::vector<Transport::Incoming> incoming;
  for (std::size_t i = 0; i < to.size(); ++i) {
    const Way way{group_.job_rank(group_.rank), group_.job_rank(to[i].to)};
    mine[i] = message_header(way, call_.operation, call_.number, to[i].size, to[i].content,
                             to[i].inlined);
    outgoing.push_back({way.to, std::as_bytes(std::span(&mine[i], 1))});
  }
  for (std::size_t i = 0; i < from.size(); ++i)
    incoming.push_back(
        {group_.job_rank(from[i]), std::as_writable_bytes(std::span(&theirs[i], 1))});
  try {
    move(outgoing, incoming);
  } catch (const CheckpointError&) {  // of a rank that takes no more headers, but may have said why
    for (std::size_t i = 0; i < from.size(); ++i) hear(from[i], theirs[i]);
    throw;
  }
  for (std::size_t i = 0; i < from.size(); ++i) check(from[i], theirs[i]);
  return theirs;
}

void MessageExchange::exchange(std::span<const Sending> sendings, std::span<Receiving> receivings) {
  // All ranks decide alike: only all_to_all() gives its buffers away, and the other side of one may
  // make it a DeviceExchange's, whose headers hold no bytes.
  const bool to_all = call_.operation == Operation::kAllToAll;
  const bool hand_over = to_all && group_.transport->hands_over();
  const bool in_parts =
      to_all && dynamic_cast<const DeviceBoxTransport*>(group_.transport.get()) != nullptr;
  const auto is_inlined = [&](std::uint64_t size) {
    return !hand_over && !in_parts && size <= MessageHeader::kInlined;
  };
  std::vector<Announced> to;
  std::vector<int> from;
  for (const Sending& sending : sendings) {
    if (is_inlined(sending.bytes.size())) {
      to.push_back({sending.to, sending.bytes.size(), 0, sending.bytes});
    } else {
      to.push_back({sending.to, sending.bytes.size(), content_of(call_.operation, sending.bytes)});
      call_.announced[sending.to] = sending.bytes.size();
    }
  }
  for (const Receiving& receiving : receivings) from.push_back(receiving.from);
  call_.talking_to.clear();
  for (const Announced& one : to) call_.talking_to.push_back(one.to);
  call_.talking_to.insert(call_.talking_to.end(), from.begin(), from.end());
  const std::vector<MessageHeader> theirs = announce(to, from);

  std::vector<Transport::Outgoing> outgoing;
  std::vector<Transport::Incoming> incoming;
  for (std::size_t i = 0; i < receivings.size(); ++i) {
    if (is_inlined(theirs[i].size)) {
      const auto begin = theirs[i].inlined.begin();
      receivings[i].bytes.assign(begin, begin + static_cast<std::ptrdiff_t>(theirs[i].size));
      continue;
    }
    if (hand_over)
      receivings[i].bytes.clear();
    else
      make_room(receivings[i], theirs[i]);
    if (theirs[i].size > 0)
      incoming.push_back({group_.job_rank(receivings[i].from), receivings[i].bytes,
                          hand_over ? &receivings[i].bytes : nullptr});
  }
  for (const Sending& sending : sendings) {
    if (!is_inlined(sending.bytes.size()) && !sending.bytes.empty())
      outgoing.push_back(
          {group_.job_rank(sending.to), sending.bytes, hand_over ? sending.whole : nullptr});
  }
  move(outgoing, incoming);
  call_.announced.clear();
  call_.talking_to.clear();
  for (std::size_t i = 0; i < receivings.size(); ++i) {
    const ByteView bytes = receivings[i].bytes;
    if (bytes.size() == theirs[i].size &&
        (theirs[i].content == 0 || theirs[i].content == content_of(call_.operation, bytes)))
      continue;
    if (const auto last = farewell_in(bytes))
      throw last_words_.has_given_up(receivings[i].from, *last, call_.operation);
    throw garbled(receivings[i].from);
  }
}

CheckpointError MessageExchange::garbled(int from) const {
  return {ErrorCode::kCorrupt,
          str_format("{}: a message from rank {} did not arrive as it was sent: check the network "
                     "or the Transport between the ranks, and that all ranks run the same build",
                     name_of(call_.operation), group_.job_rank(from))};
}

void MessageExchange::move(std::span<const Transport::Outgoing> outgoing,
                           std::span<const Transport::Incoming> incoming) {
  if (outgoing.empty() && incoming.empty()) return;
  with_operation([&] { group_.transport->exchange(outgoing, incoming, call_.deadline); });
}

void MessageExchange::hear(int from, const MessageHeader& header) {
  if (const auto last = farewell_in(std::as_bytes(std::span(&header, 1))))
    throw last_words_.has_given_up(from, *last, call_.operation);
}

void MessageExchange::check(int from, const MessageHeader& header) {
  hear(from, header);
  if (!is_sound({group_.job_rank(from), group_.job_rank(group_.rank)}, header)) throw garbled(from);
  if (header.operation == call_.operation && header.number == call_.number) return;
  throw misuse(
      str_format("rank {} called {} (operation {}) where rank {} called {} (operation {}): all "
                 "ranks must call the same operations in the same order",
                 group_.job_rank(from), name_of(header.operation), header.number,
                 group_.job_rank(group_.rank), name_of(call_.operation), call_.number));
}

void MessageExchange::make_room(Receiving& receiving, const MessageHeader& header) const {
  try {
    if (receiving.bytes.capacity() < header.size) receiving.bytes = Bytes();
    receiving.bytes.resize(static_cast<std::size_t>(header.size));
  } catch (const std::exception&) {
    throw_error(ErrorCode::kIo, {.rank = group_.job_rank(group_.rank)},
                "{}: no memory for the {} bytes that rank {} sends", name_of(call_.operation),
                grouped(header.size), group_.job_rank(receiving.from));
  }
}

}  // namespace dckpt
