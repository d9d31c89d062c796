#include "benchmarks/workloads.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <stdexcept>

#include "mapping/state/sharded_tensor.h"

namespace dckpt::bench {
namespace {

constexpr std::int64_t kPeriod = 251;
constexpr std::size_t kPatternLength = std::size_t{1} << 16;

/// Consecutive elements of every tensor, starting with the value 0; longer than kPatternLength by a period, so that any phase can be copied from it.
const std::vector<std::uint16_t>& pattern() {
  static const std::vector<std::uint16_t> elements = [] {
    std::vector<std::uint16_t> result;
    for (std::size_t i = 0; i < kPatternLength + kPeriod; ++i) {
      const auto value = static_cast<float>(i % kPeriod);
      result.push_back(static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(value) >> 16));  // exact: seven bits of mantissa are enough
    }
    return result;
  }();
  return elements;
}

/// Calls `visit(destination, source, bytes)` for the runs of `count` elements from row-major position `begin` of the tensor.
template <typename Visit>
void for_pattern(const TensorSpec& spec, std::int64_t begin, std::int64_t count, std::byte* destination, Visit&& visit) {
  while (count > 0) {
    const std::int64_t run = std::min<std::int64_t>(count, kPatternLength);
    visit(destination, pattern().data() + (begin + spec.ordinal) % kPeriod, static_cast<std::size_t>(run) * 2);
    destination += run * 2;
    begin += run;
    count -= run;
  }
}

/// The same for a box of whole rows or of a part of each row of a matrix.
template <typename Visit>
void for_box(const TensorSpec& spec, const Box& box, std::byte* data, Visit&& visit) {
  const std::int64_t columns = spec.shape[1];
  if (box.sizes[1] == columns) return for_pattern(spec, box.offsets[0] * columns, box.sizes[0] * columns, data, visit);
  for (std::int64_t row = 0; row < box.sizes[0]; ++row) {
    for_pattern(spec, (box.offsets[0] + row) * columns + box.offsets[1], box.sizes[1], data + row * box.sizes[1] * 2, visit);
  }
}

Box part_of(const TensorSpec& spec, std::optional<std::size_t> axis, int rank, int ranks) {
  Box box = whole(spec.shape);
  if (axis) {
    box.sizes[*axis] /= ranks;
    box.offsets[*axis] = rank * box.sizes[*axis];
  }
  return box;
}

std::vector<TensorSpec> equal_tensors(int count, Shape shape) {
  std::vector<TensorSpec> tensors;
  for (int i = 0; i < count; ++i) tensors.push_back({"layers." + std::to_string(i) + ".weight", shape, i});
  return tensors;
}

/// 4 to 64 KiB each, in an order that mixes the sizes.
std::vector<TensorSpec> small_tensors(int count) {
  std::vector<TensorSpec> tensors;
  for (int i = 0; i < count; ++i) {
    const std::int64_t kib = 4 + (37 * i) % 61;
    tensors.push_back({"experts." + std::to_string(i) + ".weight", {8 * kib, 64}, i});
  }
  return tensors;
}

}  // namespace

std::uint64_t Workload::nbytes() const noexcept {
  std::uint64_t total = 0;
  for (const TensorSpec& tensor : tensors) total += tensor.nbytes();
  return total;
}

std::vector<Workload> workloads() {
  return {
      {.name = "io-2g", .about = "32 tensors of 64 MiB, one rank: the raw data path", .tensors = equal_tensors(32, {32768, 1024})},
      {.name = "io-many-small", .about = "20 000 tensors of 4 to 64 KiB, one rank: the cost per item", .tensors = small_tensors(20'000)},
      {.name = "reshard-dim0-to-dim1",
       .about = "four writers cut rows, four readers cut columns: every reader needs a part of every chunk",
       .writers = 4,
       .readers = 4,
       .save_axis = 0,
       .load_axis = 1,
       .tensors = equal_tensors(32, {8192, 4096})},
  };
}

RankState::RankState(const Workload& workload, std::optional<std::size_t> axis, int rank, int ranks, Content content) {
  for (const TensorSpec& spec : workload.tensors) {
    const Box box = part_of(spec, axis, rank, ranks);
    const Tensor data = Tensor::empty(DType::kBFloat16, box.sizes);
    if (content == Content::kValues) {
      for_box(spec, box, data.data(), [](std::byte* to, const std::uint16_t* from, std::size_t bytes) { std::memcpy(to, from, bytes); });
    } else {
      std::memset(data.data(), 0, data.nbytes());
    }
    std::vector<RankOffset> offsets;
    if (axis) offsets.push_back({.axis = static_cast<std::int64_t>(*axis), .rank = rank, .count = ranks});
    state_[spec.key.c_str()] = ShardedTensor::from_rank_offsets(spec.key, data, offsets, {});
    nbytes_ += data.nbytes();
    parts_.push_back({&spec, box, data});
  }
}

void RankState::check() const {
  for (const std::size_t index : {std::size_t{0}, parts_.size() / 2, parts_.size() - 1}) {
    const Part& part = parts_[index];
    for_box(*part.spec, part.box, part.data.data(), [&](const std::byte* got, const std::uint16_t* wanted, std::size_t bytes) {
      if (std::memcmp(got, wanted, bytes) != 0) throw std::runtime_error("wrong content in " + part.spec->key + " after loading");
    });
  }
}

}  // namespace dckpt::bench
