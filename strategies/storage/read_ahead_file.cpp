#include "strategies/storage/read_ahead_file.h"

#include <algorithm>

#include "mapping/base/checked.h"
#include "mapping/base/error.h"

namespace dckpt {

void ReadAheadFile::read(std::uint64_t offset, MutableByteView into) const {
  const bool is_short = into.size() < kLongRead && range_fits(offset, into.size(), size());
  if (!is_short || (!covers(offset, into.size()) && !move_to(offset, into.size())))
    return file_.read(offset, into);
  std::copy_n(window_.begin() + static_cast<std::ptrdiff_t>(offset - offset_), into.size(),
              into.begin());
}

bool ReadAheadFile::covers(std::uint64_t offset, std::uint64_t length) const noexcept {
  return offset >= offset_ && range_fits(offset - offset_, length, window_.size());
}

bool ReadAheadFile::move_to(std::uint64_t offset, std::uint64_t length) const {
  const std::uint64_t wanted =
      covers(offset, 0) ? std::min(2 * std::uint64_t{window_.size()}, kLargestWindow) : 0;
  const std::uint64_t window = std::max({wanted, kFirstWindow, length});
  window_.resize(static_cast<std::size_t>(std::min(window, size() - offset)));
  offset_ = offset;
  try {
    file_.read(offset, window_);
    return true;
  } catch (const CheckpointError&) {
    window_.clear();
    return false;
  }
}

}  // namespace dckpt
