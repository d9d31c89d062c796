#include "strategies/parallel/request.h"

#include <algorithm>
#include <string>

#include "mapping/base/error.h"

namespace dckpt {

std::uint64_t identity_of(const Metadata& metadata) {
  std::uint64_t hash = 0xCBF29CE484222325U;
  const auto number = [&](std::uint64_t value) {
    hash = (hash ^ value) * 0x9E3779B97F4A7C15U;
    hash ^= hash >> 32;
  };
  const auto text = [&](const std::string& value) {
    number(value.size());
    for (const char c : value) number(static_cast<unsigned char>(c));
  };
  const auto place = [&](const Place& value) {
    number(value.file);
    number(value.offset);
    number(value.length);
  };
  for (const TensorMetadata& tensor : metadata.tensors) {
    text(tensor.key);
    number(static_cast<std::uint64_t>(tensor.properties.dtype));
    for (const std::int64_t extent : tensor.size) number(static_cast<std::uint64_t>(extent));
    std::for_each(tensor.places.begin(), tensor.places.end(), place);
  }
  for (const ObjectMetadata& object : metadata.objects) {
    text(object.key);
    place(object.place);
  }
  std::for_each(metadata.files.begin(), metadata.files.end(), text);
  return hash;
}

Bytes encode_request(const Request& request) {
  Bytes out;
  append_le(out, request.identity);
  append_le(out, request.budget);
  out.insert(out.end(), request.wish.begin(), request.wish.end());
  return out;
}

std::vector<Request> decode_requests(std::span<const Bytes> messages) {
  std::vector<Request> requests;
  for (const Bytes& message : messages) {
    const auto rank = static_cast<int>(requests.size());
    constexpr std::size_t kHead = 2 * sizeof(std::uint64_t);
    if (message.size() < kHead) throw CheckpointError(ErrorCode::kCorrupt, "a rank's request to load together is too short: do all ranks run the same build?", {.rank = rank});
    requests.push_back({load_le<std::uint64_t>(message, 0), load_le<std::uint64_t>(message, sizeof(std::uint64_t)), ByteView(message).subspan(kHead)});
    if (requests.back().identity != requests.front().identity) {
      throw CheckpointError(ErrorCode::kMismatch, "rank " + std::to_string(rank) + " sees another checkpoint under this path than rank 0: is it on a file system that all ranks "
                                                  "share, and does a training root lead all of them to the same iteration?", {.rank = rank});
    }
  }
  return requests;
}

std::uint64_t smallest_budget(std::span<const Request> requests) {
  return std::min_element(requests.begin(), requests.end(), [](const Request& a, const Request& b) { return a.budget < b.budget; })->budget;
}

std::uint64_t round_budget(std::uint64_t staging) { return std::max<std::uint64_t>(staging / 2, 1); }

}  // namespace dckpt
