#include "data.h"

#include <ATen/ATen.h>

#include <fstream>
#include <iterator>
#include <stdexcept>

namespace gpt {
namespace {

/// SplitMix64: adjacent numbers give unrelated results.
std::uint64_t scramble(std::uint64_t value) {
  value += 0x9e3779b97f4a7c15;
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9;
  value = (value ^ (value >> 27)) * 0x94d049bb133111eb;
  return value ^ (value >> 31);
}

}  // namespace

Corpus::Corpus(const std::filesystem::path& file, std::int64_t sequence) : sequence_(sequence) {
  std::ifstream stream(file, std::ios::binary);
  text_.assign(std::istreambuf_iterator<char>(stream), {});
  if (!stream || static_cast<std::int64_t>(text_.size()) <= sequence) {
    throw std::runtime_error(file.string() + ": expected a text of more than " +
                             std::to_string(sequence) + " bytes");
  }
}

Batch Corpus::batch(std::int64_t first, std::int64_t count) const {
  at::Tensor bytes = at::empty({count, sequence_ + 1}, at::kLong);
  auto* out = bytes.mutable_data_ptr<std::int64_t>();
  for (std::int64_t sample = first; sample < first + count; ++sample) {
    const auto start = scramble(static_cast<std::uint64_t>(sample)) %
                       (text_.size() - static_cast<std::size_t>(sequence_));
    for (std::int64_t i = 0; i <= sequence_; ++i)
      *out++ = static_cast<unsigned char>(text_[start + static_cast<std::size_t>(i)]);
  }
  return {bytes.narrow(1, 0, sequence_).contiguous(), bytes.narrow(1, 1, sequence_).contiguous()};
}

}  // namespace gpt
