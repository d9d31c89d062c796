#include "strategies/storage/hashed_file.h"

#include <algorithm>

namespace dckpt {

void HashedFile::read(std::uint64_t offset, MutableByteView into) const {
  constexpr std::uint64_t kShortGap = std::uint64_t{16}
                                      << 10;  // what lies between two records, say
  file_.read(offset, into);
  if (offset > hashed_ && offset - hashed_ <= kShortGap) hash_up_to(offset);
  if (offset > hashed_ || offset + into.size() <= hashed_) return;
  hash_.update(into.subspan(hashed_ - offset));
  hashed_ = offset + into.size();
}

void HashedFile::hash_up_to(std::uint64_t end) const {
  constexpr std::uint64_t kStep = std::uint64_t{1} << 20;
  Bytes buffer(static_cast<std::size_t>(std::min(end - hashed_, kStep)));
  while (hashed_ < end) {
    const MutableByteView step(buffer.data(),
                               static_cast<std::size_t>(std::min(kStep, end - hashed_)));
    file_.read(hashed_, step);
    hash_.update(step);
    hashed_ += step.size();
  }
}

std::string HashedFile::finish_hex() {
  hash_up_to(file_.size());
  return hash_.finish_hex();
}

std::string file_sha256(const ReadableFile& file,
                        const std::function<void(std::uint64_t)>& progress) {
  constexpr std::uint64_t kStep = std::uint64_t{4} << 20;
  Sha256 hash;
  Bytes buffer(static_cast<std::size_t>(std::min(file.size(), kStep)));
  for (std::uint64_t offset = 0; offset < file.size(); offset += kStep) {
    const MutableByteView step(buffer.data(),
                               static_cast<std::size_t>(std::min(kStep, file.size() - offset)));
    file.read(offset, step);
    hash.update(step);
    if (progress) progress(step.size());
  }
  return hash.finish_hex();
}

}  // namespace dckpt
