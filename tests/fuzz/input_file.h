#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>

#include "mapping/base/checked.h"
#include "mapping/base/error.h"
#include "strategies/storage/storage.h"

namespace dckpt {

/// The input of a fuzz target as a file, without a copy.
class InputFile final : public ReadableFile {
 public:
  InputFile(const std::uint8_t* data, std::size_t size) : data_(data), size_(size) {}

  const std::string& name() const noexcept override { return name_; }
  std::uint64_t size() const noexcept override { return size_; }
  void read(std::uint64_t offset, MutableByteView into) const override {
    if (!range_fits(offset, into.size(), size_))
      throw CheckpointError(ErrorCode::kCorrupt, "read beyond the end",
                            {.file = name_, .offset = offset});
    if (!into.empty()) std::memcpy(into.data(), data_ + offset, into.size());
  }
  void prefetch(std::uint64_t, std::uint64_t) const override {}

 private:
  const std::uint8_t* data_;
  std::size_t size_;
  std::string name_ = "input";
};

}  // namespace dckpt
