#include "strategies/torch_dist/decoded_items.h"

#include <algorithm>
#include <string>

#include "mapping/base/checked.h"
#include "mapping/base/error.h"
#include "mapping/base/format.h"
#include "strategies/formats/zstd/zstd.h"

namespace dckpt {
namespace {

class DecodedFile final : public ReadableFile {
 public:
  DecodedFile(std::string name, Bytes content)
      : name_(std::move(name)), content_(std::move(content)) {}

  const std::string& name() const noexcept override { return name_; }
  std::uint64_t size() const noexcept override { return content_.size(); }
  void read(std::uint64_t offset, MutableByteView into) const override {
    if (!range_fits(offset, into.size(), content_.size())) {
      throw CheckpointError(
          ErrorCode::kCorrupt,
          str_format("cannot read {} bytes at {} of the decoded item, which has {}", into.size(),
                     offset, content_.size()),
          {.file = name_});
    }
    std::copy_n(content_.begin() + static_cast<std::ptrdiff_t>(offset), into.size(), into.begin());
  }
  void prefetch(std::uint64_t, std::uint64_t) const override {}

 private:
  std::string name_;
  Bytes content_;
};

}  // namespace

std::shared_ptr<const ReadableFile> DecodedItems::get(const ReadableFile& file,
                                                      const StorageInfo& place,
                                                      std::uint64_t likely,
                                                      std::uint64_t limit) const {
  const std::shared_ptr<Item> item = [&] {
    const std::lock_guard lock(mutex_);
    std::shared_ptr<Item>& entry = items_[{place.file, place.offset}];
    if (!entry) entry = std::make_shared<Item>();
    return entry;
  }();
  const std::lock_guard decoding(item->mutex);
  std::shared_ptr<const ReadableFile> content = item->content.lock();
  if (!content) {
    content = std::make_shared<DecodedFile>(
        file.name(), zstd_decode(file, place.offset, place.length, likely, limit));
    item->content = content;
  }
  const std::lock_guard lock(mutex_);
  return last_ = content;
}

}  // namespace dckpt
