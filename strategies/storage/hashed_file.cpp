#include "strategies/storage/hashed_file.h"

#include <algorithm>

namespace dckpt {

void PassingHash::add(const ReadableFile& file, std::uint64_t offset, ByteView bytes) {
  constexpr std::uint64_t kShortGap = std::uint64_t{1} << 20;  // an archive's head, objects
  const std::lock_guard lock(mutex_);
  if (offset > hashed_ && offset - hashed_ <= kShortGap) hash_up_to(file, offset);
  if (offset > hashed_ || offset + bytes.size() <= hashed_) return;
  hash_.update(bytes.subspan(hashed_ - offset));
  hashed_ = offset + bytes.size();
}

void PassingHash::hash_up_to(const ReadableFile& file, std::uint64_t end) {
  constexpr std::uint64_t kStep = std::uint64_t{256} << 10;
  Bytes buffer(static_cast<std::size_t>(std::min(end - hashed_, kStep)));
  while (hashed_ < end) {
    const MutableByteView step(buffer.data(),
                               static_cast<std::size_t>(std::min(kStep, end - hashed_)));
    file.read(hashed_, step);
    hash_.update(step);
    hashed_ += step.size();
  }
}

std::string PassingHash::finish_hex(const ReadableFile& file) {
  const std::lock_guard lock(mutex_);
  if (hashed_ < file.size()) hash_up_to(file, file.size());
  hashed_ = 0;
  return hash_.finish_hex();
}

std::string file_sha256(const ReadableFile& file) {
  constexpr std::uint64_t kStep = std::uint64_t{4} << 20;
  Sha256 hash;
  Bytes buffer(static_cast<std::size_t>(std::min(file.size(), kStep)));
  for (std::uint64_t offset = 0; offset < file.size(); offset += kStep) {
    const MutableByteView step(buffer.data(),
                               static_cast<std::size_t>(std::min(kStep, file.size() - offset)));
    file.read(offset, step);
    hash.update(step);
  }
  return hash.finish_hex();
}

}  // namespace dckpt
