#include "mapping/geometry/strided_copy.h"

#include <cstring>

namespace dckpt {
namespace {

template <typename Word>
void copy_words(const RunPlan& plan, const std::byte* source, std::byte* destination) {
  for_each_run(plan, [&](std::int64_t from, std::int64_t to) {
    std::memcpy(destination + to * std::int64_t{sizeof(Word)},
                source + from * std::int64_t{sizeof(Word)}, sizeof(Word));
  });
}

}  // namespace

RunPlan plan_runs(ShapeView sizes, const StridedView& source, const StridedView& destination) {
  RunPlan plan;
  plan.source_offset = source.offset;
  plan.destination_offset = destination.offset;
  for (const std::int64_t size : sizes) {
    if (size == 0) return plan;
  }
  plan.run = 1;
  std::size_t axis = sizes.size();
  for (; axis > 0; --axis) {
    const std::size_t i = axis - 1;
    if (sizes[i] == 1) continue;
    if (source.strides[i] != plan.run || destination.strides[i] != plan.run) break;
    plan.run *= sizes[i];
  }
  for (std::size_t i = 0; i < axis; ++i) {
    if (sizes[i] == 1) continue;
    const bool continues = !plan.counts.empty() &&
                           plan.source_strides.back() == source.strides[i] * sizes[i] &&
                           plan.destination_strides.back() == destination.strides[i] * sizes[i];
    if (continues) {
      plan.counts.back() *= sizes[i];
      plan.source_strides.back() = source.strides[i];
      plan.destination_strides.back() = destination.strides[i];
    } else {
      plan.counts.push_back(sizes[i]);
      plan.source_strides.push_back(source.strides[i]);
      plan.destination_strides.push_back(destination.strides[i]);
    }
  }
  return plan;
}

void strided_copy(ShapeView sizes, std::size_t item_size, const std::byte* source,
                  const StridedView& source_view, std::byte* destination,
                  const StridedView& destination_view) {
  const RunPlan plan = plan_runs(sizes, source_view, destination_view);
  const auto item = static_cast<std::int64_t>(item_size);
  // For single elements (as in a transposition), a copy of constant size is several times faster
  // than memcpy of a variable one.
  if (plan.run == 1 && item_size == 2) return copy_words<std::uint16_t>(plan, source, destination);
  if (plan.run == 1 && item_size == 4) return copy_words<std::uint32_t>(plan, source, destination);
  if (plan.run == 1 && item_size == 8) return copy_words<std::uint64_t>(plan, source, destination);
  const auto bytes = static_cast<std::size_t>(plan.run) * item_size;
  for_each_run(plan, [&](std::int64_t from, std::int64_t to) {
    std::memcpy(destination + to * item, source + from * item, bytes);
  });
}

}  // namespace dckpt
