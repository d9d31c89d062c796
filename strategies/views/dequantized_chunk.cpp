#include "strategies/views/dequantized_chunk.h"

#include <algorithm>
#include <array>

#include "mapping/base/checked.h"
#include "mapping/base/error.h"
#include "mapping/base/format.h"
#include "mapping/geometry/cast.h"

namespace dckpt {
namespace {

constexpr std::size_t kMostAtOnce = 256;

}  // namespace

std::uint64_t DequantizedChunk::size() const noexcept {
  return static_cast<std::uint64_t>(numel(box_.sizes)) * item_size(dtype_);
}

void DequantizedChunk::prefetch(std::uint64_t offset, std::uint64_t length) const {
  const Range codes = bytes_of(offset / item_size(dtype_), length / item_size(dtype_));
  stored().prefetch(codes.offset, codes.length);
}

void DequantizedChunk::read(std::uint64_t offset, MutableByteView into) const {
  const std::size_t item = item_size(dtype_);
  if (offset % item != 0 || into.size() % item != 0 || !range_fits(offset, into.size(), size()))
    throw CheckpointError(ErrorCode::kCorrupt,
                          "a read goes past the elements of a weight, or divides one",
                          {.file = name(), .offset = offset});
  if (into.empty()) return;
  // Codes are smaller than their values: they fit at the end of `into`, and the values replace
  // them.
  const std::size_t count = into.size() / item;
  const std::uint64_t first = offset / item;
  const Range range = bytes_of(first, count);
  const MutableByteView codes = into.last(range.length);
  stored().read(range.offset, codes);
  const std::uint64_t skipped = weight_.form != nullptr ? first % 2 : 0;  // of a shared byte
  const std::int64_t width = box_.sizes.back();
  for (std::size_t done = 0; done < count;) {
    const auto position = static_cast<std::int64_t>(first + done);
    const std::int64_t begin = position % width;
    const std::size_t in_row = std::min(count - done, static_cast<std::size_t>(width - begin));
    const auto scales = scales_.row(weight_, row_at(position / width));
    std::int64_t column = box_.offsets.back() + begin;
    for (const std::size_t end = done + in_row; done < end;) {
      const std::size_t run = std::min(end - done, kMostAtOnce);
      std::array<float, kMostAtOnce> values;
      decode(codes.data(), skipped + done, values.data(), run);
      for (std::size_t i = 0; i < run;) {
        const std::int64_t block = column / weight_.columns;
        const std::int64_t left = (block + 1) * weight_.columns - column;
        const std::size_t next = i + std::min(run - i, static_cast<std::size_t>(left));
        column += static_cast<std::int64_t>(next - i);
        for (; i < next; ++i) values[i] *= scales.get()[block];
      }
      cast(values.data(), into.data() + done * item, run);
      done += run;
    }
  }
}

DequantizedChunk::Range DequantizedChunk::bytes_of(std::uint64_t first, std::uint64_t count) const {
  if (weight_.form == nullptr) return {codes_.offset + first, count};
  return {codes_.offset + first / 2, (first + count + 1) / 2 - first / 2};
}

/// Returns the index in the tensor of a row of the chunk.
Shape DequantizedChunk::row_at(std::int64_t row) const {
  Shape index(box_.dims() - 1, 0);
  for (std::size_t axis = index.size(); axis-- > 0;) {
    index[axis] = box_.offsets[axis] + row % box_.sizes[axis];
    row /= box_.sizes[axis];
  }
  return index;
}

/// Decodes `count` codes from number `first` on.
void DequantizedChunk::decode(const std::byte* codes, std::uint64_t first, float* values,
                              std::size_t count) const {
  if (weight_.form == nullptr)
    return cast_elements(codes_.dtype, codes + first, DType::kFloat32,
                         reinterpret_cast<std::byte*>(values), count);
  for (std::uint64_t i = first; i < first + count; ++i) {
    const std::byte pair = codes[i / 2];
    *values++ =
        weight_.form
            ->values[std::to_integer<std::size_t>(i % 2 == 0 ? pair & std::byte{0x0F} : pair >> 4)];
  }
}

/// Rounds values. `into` may overlap codes that are decoded already.
void DequantizedChunk::cast(const float* values, std::byte* into, std::size_t count) const {
  const auto* const floats = reinterpret_cast<const std::byte*>(values);
  cast_elements(DType::kFloat32, floats, dtype_, into, count);
  const std::size_t i = first_too_large(DType::kFloat32, floats, dtype_, into, count);
  if (i == count) return;
  throw CheckpointError(ErrorCode::kMismatch,
                        str_format("a weight is worth {}, which would be infinite in {}; choose "
                                   "dequantize=bfloat16 or dequantize=float32",
                                   values[i], to_string(dtype_)),
                        {.key = weight_.key, .file = name()});
}

}  // namespace dckpt
