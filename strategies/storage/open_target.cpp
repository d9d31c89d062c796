#include "strategies/storage/open_target.h"

#include "strategies/storage/posix.h"

namespace dckpt {

std::unique_ptr<ReadableFile> open_target(const Storage& storage, const std::string& name) {
  const auto entry = storage.stat(name);
  const bool may_be_link = entry && entry->kind == FileInfo::Kind::kOther;
  return may_be_link ? open_posix_file(storage.absolute(name)) : storage.open(name);
}

}  // namespace dckpt
