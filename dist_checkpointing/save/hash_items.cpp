#include "dist_checkpointing/save/hash_items.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "dist_checkpointing/planner/resolved_source.h"
#include "mapping/base/bytes.h"
#include "mapping/base/fingerprint.h"
#include "mapping/base/parallel_for.h"
#include "strategies/device/registry.h"
#include "strategies/tensor_io/state_source.h"

namespace dckpt {
namespace {

constexpr std::uint64_t kSamples = 16;
constexpr std::uint64_t kSampleBytes = 4096;  // a multiple of every dtype's size
constexpr std::uint64_t kBufferBytes = std::uint64_t{8} << 20;

using ByteRange = std::pair<std::uint64_t, std::uint64_t>;

/// Returns the bytes of an item that are hashed.
std::vector<ByteRange> hashed_ranges(std::uint64_t nbytes, CheckReplicas how) {
  if (how == CheckReplicas::kAll || nbytes <= kSamples * kSampleBytes) return {{0, nbytes}};
  std::vector<ByteRange> ranges;
  const std::uint64_t last = (nbytes - kSampleBytes) / kSampleBytes;
  for (std::uint64_t i = 0; i < kSamples; ++i) {
    const std::uint64_t begin = last * i / (kSamples - 1) * kSampleBytes;
    ranges.emplace_back(begin, begin + kSampleBytes);
  }
  return ranges;
}

std::uint64_t size_of(const std::vector<ByteRange>& ranges) {
  std::uint64_t size = 0;
  for (const auto& [begin, end] : ranges) size += end - begin;
  return size;
}

std::uint64_t value_of(const Fingerprinter& hash) {
  return std::max<std::uint64_t>(hash.value().low, 1);
}

class ItemHasher {
 public:
  ItemHasher(std::span<const Tensor> tensors, std::span<const WriteItem> items, CheckReplicas how)
      : how_(how), source_({tensors.begin(), tensors.end()}, {}), hashes_(items.size()) {
    for (const WriteItem& item : items) {
      const Tensor& tensor = tensors[item.source];
      const bool has_data = tensor.has_data() && unreachable(tensor.device()).empty();
      if (has_data)
        (tensor.device().kind == Device::Kind::kCpu ? here_ : on_devices_).push_back(items_.size());
      items_.push_back(item_in_state(item, tensor.dtype()));
    }
  }

  std::vector<std::uint64_t> run(int threads) {
    parallel_for(here_.size(), threads, [&](std::size_t i) { hash(here_[i]); });
    if (how_ == CheckReplicas::kAll)
      parallel_for(on_devices_.size(), threads, [&](std::size_t i) { hash(on_devices_[i]); });
    else
      hash_samples();
    return std::move(hashes_);
  }

 private:
  void hash(std::size_t number) {
    const WriteItem& item = items_[number];
    Fingerprinter hash;
    for (const auto& [begin, end] : hashed_ranges(item.nbytes, how_)) {
      if (begin != end) source_.read(item, begin, end, [&](ByteView bytes) { hash.update(bytes); });
    }
    hashes_[number] = value_of(hash);
  }

  /// Copies the samples of many items in device memory with one wait.
  void hash_samples() {
    for (std::size_t first = 0, end = 0; first < on_devices_.size(); first = end) {
      const Device device = source_.device_of(items_[on_devices_[first]]);
      std::uint64_t size = 0;
      for (; end < on_devices_.size(); ++end) {
        const WriteItem& item = items_[on_devices_[end]];
        const std::uint64_t more = size_of(hashed_ranges(item.nbytes, how_));
        if (source_.device_of(item) != device || (size != 0 && size + more > kBufferBytes)) break;
        size += more;
      }
      hash_samples(std::span(on_devices_).subspan(first, end - first), size);
    }
  }

  void hash_samples(std::span<const std::size_t> numbers, std::uint64_t size) {
    Bytes buffer(size);
    {
      PendingCopies copies = source_.copies_from(items_[numbers.front()]);
      std::byte* to = buffer.data();
      for (const std::size_t number : numbers) {
        for (const auto& [begin, end] : hashed_ranges(items_[number].nbytes, how_)) {
          if (begin != end) source_.add(copies, items_[number], begin, end, to);
          to += end - begin;
        }
      }
      copies.enqueued();
      copies.wait();
    }
    ByteView rest = buffer;
    for (const std::size_t number : numbers) {
      const std::uint64_t length = size_of(hashed_ranges(items_[number].nbytes, how_));
      Fingerprinter hash;
      hash.update(rest.first(length));
      hashes_[number] = value_of(hash);
      rest = rest.subspan(length);
    }
  }

  const CheckReplicas how_;
  StateSource source_;
  std::vector<WriteItem> items_{};  ///< as they are in the state
  // Positions in `items_`:
  std::vector<std::size_t> here_{};
  std::vector<std::size_t> on_devices_{};
  std::vector<std::uint64_t> hashes_;
};

}  // namespace

std::vector<std::uint64_t> hash_items(std::span<const Tensor> tensors,
                                      std::span<const WriteItem> items, CheckReplicas how,
                                      int threads) {
  return ItemHasher(tensors, items, how).run(threads);
}

}  // namespace dckpt
