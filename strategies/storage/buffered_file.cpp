#include "strategies/storage/buffered_file.h"

#include <span>
#include <utility>

namespace dckpt {
namespace {

constexpr std::size_t kBufferBytes = std::size_t{1} << 20;

}  // namespace

BufferedFile::BufferedFile(std::unique_ptr<WritableFile> file) : file_(std::move(file)) {
  buffer_.reserve(kBufferBytes);
}

void BufferedFile::append(ByteView part) {
  if (part.size() >= kBufferBytes / 4) {
    const ByteView parts[] = {buffer_, part};
    file_->append(std::span(buffer_.empty() ? parts + 1 : parts, buffer_.empty() ? 1 : 2));
    position_ += part.size();
    buffer_.clear();
    return;
  }
  if (buffer_.size() + part.size() > kBufferBytes) flush();
  buffer_.insert(buffer_.end(), part.begin(), part.end());
  position_ += part.size();
}

void BufferedFile::finish(bool sync) {
  flush();
  if (sync) file_->sync();
  file_->close();
}

void BufferedFile::flush() {
  if (!buffer_.empty()) file_->append(ByteView(buffer_));
  buffer_.clear();
}

void write_small_file(Storage& storage, const std::string& name, ByteView content, bool sync) {
  const auto file = storage.create(name, {.size_hint = content.size(), .durable = sync});
  file->append(content);
  if (sync) file->sync();
  file->close();
}

}  // namespace dckpt
