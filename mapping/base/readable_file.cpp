#include "mapping/base/readable_file.h"

#include "mapping/base/error.h"
#include "mapping/base/huge_pages.h"

namespace dckpt {

Bytes read_file(const ReadableFile& file, std::uint64_t limit) {
  if (file.size() > limit) {
    throw_error(ErrorCode::kCorrupt, {.file = file.name()},
                "refusing to read the whole file: it has {} bytes, the limit "
                "for this kind of file is {}",
                grouped(file.size()), grouped(limit));
  }
  Bytes content;
  content.reserve(file.size());
  prefer_huge_pages(content.data(), content.capacity());
  content.resize(file.size());
  file.read(0, content);
  return content;
}

}  // namespace dckpt
