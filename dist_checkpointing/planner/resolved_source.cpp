#include "dist_checkpointing/planner/resolved_source.h"

#include <algorithm>
#include <string>

#include "dist_checkpointing/planner/foreign_code.h"
#include "mapping/base/error.h"

namespace dckpt {
namespace {

void require_fit(const WriteItem& item, const Tensor& resolved) {
  const auto refuse = [&](const std::string& found) {
    throw_error(ErrorCode::kMismatch, {.key = item.key},
                "the planner's resolve_tensor() returned {}, but the plan stores {} of shape {}, "
                "contiguous in CPU memory",
                found, to_string(item.properties.dtype), to_string(item.chunk.sizes));
  };
  if (!resolved.has_data()) refuse("a tensor without data");
  if (resolved.device().kind != Device::Kind::kCpu || !resolved.is_contiguous())
    refuse("a tensor that is elsewhere or has strides");
  if (resolved.dtype() != item.properties.dtype || !equal(resolved.shape(), item.chunk.sizes))
    refuse(str_format("{} of shape {}", to_string(resolved.dtype()), to_string(resolved.shape())));
}

}  // namespace

WriteItem item_in_state(const WriteItem& item, DType dtype) {
  WriteItem in_state = item;
  in_state.properties.dtype = dtype;
  if (item.source_shape) in_state.chunk = whole(*item.source_shape);
  in_state.nbytes = static_cast<std::uint64_t>(item.source_count()) * item_size(dtype);
  return in_state;
}

bool ResolvedSource::resolves(const WriteItem& item) const {
  return run_foreign(who_, {.key = item.key}, [&] { return planner_.resolves(item); });
}

void ResolvedSource::tensor(const WriteItem& item, const std::function<void(ByteView)>& sink) {
  if (!resolves(item)) return source_.tensor(item, sink);
  Tensor data = Tensor::empty(dtypes_[item.source], item.source_shape.value_or(item.chunk.sizes));
  const MutableByteView bytes = data.bytes();
  std::size_t filled = 0;
  const auto take = [&](ByteView piece) {
    std::copy(piece.begin(), piece.end(), bytes.begin() + static_cast<std::ptrdiff_t>(filled));
    filled += piece.size();
  };
  if (data.dtype() == item.properties.dtype && !item.source_shape)
    source_.tensor(item, take);
  else
    source_.tensor(item_in_state(item, data.dtype()), take);
  const Tensor resolved = run_foreign(who_, {.key = item.key}, [&] {
    Tensor made = planner_.resolve_tensor(item, std::move(data));
    require_fit(item, made);
    return made;
  });
  sink(resolved.bytes());
}

std::unique_ptr<ItemSource> ResolvedSource::in_order(const SavePlan& plan,
                                                     std::span<const std::size_t> items) {
  const bool as_they_are =
      std::ranges::none_of(items, [&](std::size_t index) { return resolves(plan[index]); });
  return as_they_are ? source_.in_order(plan, items) : nullptr;
}

}  // namespace dckpt
