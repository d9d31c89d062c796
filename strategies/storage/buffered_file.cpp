#include "strategies/storage/buffered_file.h"

#include <span>

namespace dckpt {
namespace {

constexpr std::size_t kBufferBytes = std::size_t{1} << 20;

}  // namespace

SectionBuffer::SectionBuffer(FileSection& section, IoEngine engine)
    : section_(section), limit_(engine == IoEngine::kDirect ? 0 : kBufferBytes) {
  buffer_.reserve(limit_);
}

void SectionBuffer::append(ByteView part) {
  if (part.size() >= limit_ / 4) {
    const ByteView parts[] = {buffer_, part};
    section_.append(std::span(buffer_.empty() ? parts + 1 : parts, buffer_.empty() ? 1 : 2));
    buffer_.clear();
    return;
  }
  if (buffer_.size() + part.size() > limit_) flush();
  buffer_.insert(buffer_.end(), part.begin(), part.end());
}

void SectionBuffer::flush() {
  if (!buffer_.empty()) section_.append(ByteView(buffer_));
  buffer_.clear();
}

void BufferedFile::finish(bool sync) {
  buffer_.flush();
  if (sync) file_->sync();
  file_->close();
}

void write_small_file(Storage& storage, const std::string& name, ByteView content, bool sync) {
  const auto file = storage.create(name, {.size_hint = content.size(), .durable = sync});
  file->append(content);
  if (sync) file->sync();
  file->close();
}

}  // namespace dckpt
