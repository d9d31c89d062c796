#include "dist_checkpointing/save/hash_items.h"

#include <algorithm>
#include <cstddef>
#include <memory>
#include <numeric>
#include <utility>
#include <vector>

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

  /// Copies the samples of all items in device memory together.
  void hash_samples() {
    SavePlan samples;
    for (const std::size_t number : on_devices_) {
      for (const auto& [begin, end] : hashed_ranges(items_[number].nbytes, how_)) {
        WriteItem& sample = samples.emplace_back(items_[number]);
        sample.source_begin +=
            static_cast<std::int64_t>(begin / item_size(sample.properties.dtype));
        sample.nbytes = end - begin;
      }
    }
    std::vector<std::size_t> all(samples.size());
    std::iota(all.begin(), all.end(), std::size_t{0});
    const std::unique_ptr<ItemSource> together = source_.in_order(samples, all);
    auto next = samples.begin();
    for (const std::size_t number : on_devices_) {
      Fingerprinter hash;
      for (std::size_t left = hashed_ranges(items_[number].nbytes, how_).size(); left > 0; --left) {
        if (together) together->tensor(*next, [&](ByteView bytes) { hash.update(bytes); });
        ++next;
      }
      hashes_[number] = value_of(hash);
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
  if (items.empty()) return {};
  return ItemHasher(tensors, items, how).run(threads);
}

}  // namespace dckpt
