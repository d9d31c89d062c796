#include "strategies/parallel/request.h"

#include <algorithm>
#include <array>
#include <span>
#include <string>

#include "mapping/base/error.h"
#include "mapping/base/fingerprint.h"

namespace dckpt {

namespace {

/// A hash of several values. The length of each goes ahead of it, so that none runs into the next.
class Hash {
 public:
  template <typename... Numbers>
  void numbers(Numbers... values) {
    const std::array<std::uint64_t, sizeof...(values)> all{static_cast<std::uint64_t>(values)...};
    fingerprint_.update(std::as_bytes(std::span(all)));
  }
  void bytes(ByteView content) {
    numbers(content.size());
    fingerprint_.update(content);
  }
  void text(std::string_view content) { bytes(as_bytes(content)); }
  void shape(ShapeView shape) {
    numbers(shape.size());
    fingerprint_.update(std::as_bytes(shape));
  }
  void place(const StorageInfo& place) { numbers(place.file, place.offset, place.length); }
  std::uint64_t value() const noexcept { return fingerprint_.value().low; }

 private:
  Fingerprinter fingerprint_;
};

}  // namespace

std::uint64_t identity_of(const Metadata& metadata) {
  Hash hash;
  for (const TensorStorageMetadata& tensor : metadata.tensors) {
    hash.text(tensor.key);
    hash.numbers(static_cast<std::uint64_t>(tensor.properties.dtype));
    hash.shape(tensor.size);
    for (const StorageInfo& place : tensor.places) hash.place(place);
  }
  for (const BytesStorageMetadata& object : metadata.objects) {
    hash.text(object.key);
    hash.place(object.place);
  }
  for (const std::string& file : metadata.files) hash.text(file);
  return hash.value();
}

std::uint64_t layout_of(const Metadata& metadata) {
  Hash hash;
  for (const TensorStorageMetadata& tensor : metadata.tensors) {
    hash.numbers(static_cast<std::uint64_t>(tensor.properties.dtype));
    hash.shape(tensor.size);
    hash.shape(tensor.global_shape());
    for (std::size_t chunk = 0; chunk < tensor.chunks.size(); ++chunk) {
      hash.shape(tensor.chunks.offsets(chunk));
      hash.shape(tensor.chunks.sizes(chunk));
    }
  }
  return hash.value();
}

std::uint64_t hash_of_wanted(std::uint64_t layout, std::span<const ByteView> all_wanted) {
  Hash hash;
  hash.numbers(layout);
  for (const ByteView wanted : all_wanted) hash.bytes(wanted);
  return hash.value() | 1;
}

Bytes encode_request(const Request& request) {
  Bytes out;
  append_le(out, request.identity);
  append_le(out, request.budget);
  append_le(out, request.known);
  out.insert(out.end(), request.wanted.begin(), request.wanted.end());
  return out;
}

std::vector<Request> decode_requests(std::span<const Bytes> messages) {
  std::vector<Request> requests;
  for (const Bytes& message : messages) {
    const auto rank = static_cast<int>(requests.size());
    constexpr std::size_t kNumber = sizeof(std::uint64_t), kHead = 3 * kNumber;
    if (message.size() < kHead)
      throw_error(
          ErrorCode::kCorrupt, {.rank = rank},
          "a rank's request to load together is too short: do all ranks run the same build?");
    requests.push_back(
        {load_le<std::uint64_t>(message, 0), load_le<std::uint64_t>(message, kNumber),
         load_le<std::uint64_t>(message, 2 * kNumber), ByteView(message).subspan(kHead)});
    if (requests.back().identity != requests.front().identity) {
      throw_error(ErrorCode::kMismatch, {.rank = rank},
                  "rank {} sees a different checkpoint under this path than rank 0: is it on a "
                  "file system that all ranks share, and does a "
                  "training root lead all of them to the same iteration?",
                  rank);
    }
  }
  return requests;
}

std::uint64_t smallest_budget(std::span<const Request> requests) {
  return std::min_element(requests.begin(), requests.end(),
                          [](const Request& a, const Request& b) { return a.budget < b.budget; })
      ->budget;
}

std::uint64_t round_budget(std::uint64_t staging, int ranks) {
  constexpr std::uint64_t kPerRank = std::uint64_t{1} << 20;
  constexpr std::uint64_t kLeast = std::uint64_t{8} << 20;
  return std::max<std::uint64_t>(
      std::min(staging / 2, std::max(kLeast, static_cast<std::uint64_t>(ranks) * kPerRank)), 1);
}

}  // namespace dckpt
