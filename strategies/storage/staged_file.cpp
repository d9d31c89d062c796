#include "strategies/storage/staged_file.h"

#include <array>
#include <cstdio>
#include <exception>
#include <memory>
#include <random>
#include <utility>

#include "mapping/base/log.h"
#include "mapping/base/storage_name.h"
#include "strategies/storage/hidden_sibling.h"

namespace dckpt {
namespace {

std::string random_token() {
  std::random_device device;
  std::array<char, 17> text{};
  std::snprintf(text.data(), text.size(), "%08x%08x", device(), device());
  return text.data();
}

}  // namespace

StagedFile::StagedFile(Storage& storage, std::string name, ByteView content)
    : storage_(storage),
      name_(std::move(name)),
      content_(content),
      temporary_(hidden_sibling(name_, "tmp", random_token())),
      open_(storage.capabilities().rename) {
  if (!open_) return;
  try {
    const std::unique_ptr<WritableFile> file = storage_.create(temporary_);
    file->append(content);
    file->sync();
    file->close();
  } catch (...) {
    remove();
    throw;
  }
}

void StagedFile::commit() {
  if (!open_) return storage_.put(name_, content_);
  storage_.rename(temporary_, name_);
  open_ = false;
  storage_.sync_directory(parent_name(name_));
}

StagedFile::~StagedFile() {
  remove();
}

void StagedFile::remove() noexcept {
  if (!std::exchange(open_, false)) return;
  try {
    storage_.remove_all(temporary_);
  } catch (const std::exception& error) {
    try {
      log_warning("a temporary file could not be removed: " + std::string(error.what()));
    } catch (...) {  // there is no memory for a message, and nothing else can be done
    }
  }
}

}  // namespace dckpt
