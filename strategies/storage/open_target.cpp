#include "strategies/storage/open_target.h"

#include <filesystem>
#include <system_error>

#include "strategies/storage/posix.h"

namespace dckpt {

std::unique_ptr<ReadableFile> open_target(const Storage& storage, const std::string& name) {
  const auto entry = storage.stat(name);
  const bool may_be_link = entry && entry->kind == FileInfo::Kind::kOther;
  return may_be_link ? open_posix_file(storage.absolute(name)) : storage.open(name);
}

std::string resolved(const Storage& storage, const std::string& name) {
  std::error_code unknown;
  const std::string place = storage.absolute(name);
  const std::filesystem::path found = std::filesystem::weakly_canonical(place, unknown);
  return unknown || !std::filesystem::exists(found, unknown) ? place : found.string();
}

}  // namespace dckpt
