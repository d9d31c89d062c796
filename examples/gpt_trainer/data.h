#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <string>

namespace gpt {

/// Bytes [count, sequence] as integers, and the byte that follows each.
struct Batch {
  at::Tensor inputs, targets;
};

/// A text to learn from. Sample n is a run of bytes whose place is drawn from n alone, so that the
/// data of an iteration depends on neither layout nor history.
class Corpus {
 public:
  /// Throws std::runtime_error if the file cannot be read or is shorter than a sample.
  Corpus(const std::filesystem::path& file, std::int64_t sequence);
  /// Returns samples [first, first + count).
  Batch batch(std::int64_t first, std::int64_t count) const;

 private:
  std::string text_;
  std::int64_t sequence_;
};

}  // namespace gpt
