#include "strategies/torch_dist/decoded_items.h"

#include <algorithm>
#include <string>
#include <vector>

#include "mapping/base/checked.h"
#include "mapping/base/error.h"
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
      throw_error(ErrorCode::kCorrupt, {.file = name_},
                  "cannot read {} bytes at {} of the decoded item, which has {}", into.size(),
                  offset, content_.size());
    }
    std::copy_n(content_.begin() + static_cast<std::ptrdiff_t>(offset), into.size(), into.begin());
  }
  void prefetch(std::uint64_t, std::uint64_t) const override {}

 private:
  std::string name_;
  Bytes content_;
};

constexpr std::uint64_t kEnd = std::uint64_t{64} << 10;
constexpr std::uint64_t kStep = std::uint64_t{256} << 10;
constexpr std::size_t kMostCursors = 4;

/// A large item, decoded again by its readers. Its head and tail, which say where the elements are,
/// are kept.
class StreamedFile final : public ReadableFile {
 public:
  StreamedFile(const ReadableFile& file, DecodedItems::Open open, const StorageInfo& place,
               std::uint64_t limit)
      : name_(file.name()), open_(std::move(open)), place_(place) {
    ZstdDecoder decoder(file, place.offset, place.length);
    Bytes step(kStep);
    for (std::size_t count = step.size(); count == step.size();) {
      count = decoder.read(step);
      size_ += count;
      if (size_ > limit)
        throw_error(ErrorCode::kCorrupt,
                    "the zstd frame of {} bytes decodes to more than {}, the most that can be "
                    "stored here",
                    grouped(place.length), grouped(limit));
      if (head_.empty())
        head_.assign(step.begin(), step.begin() + static_cast<std::ptrdiff_t>(
                                                      std::min<std::uint64_t>(count, kEnd)));
      tail_.insert(tail_.end(), step.begin(), step.begin() + static_cast<std::ptrdiff_t>(count));
      if (tail_.size() > kEnd)
        tail_.erase(tail_.begin(), tail_.end() - static_cast<std::ptrdiff_t>(kEnd));
    }
  }

  const std::string& name() const noexcept override { return name_; }
  std::uint64_t size() const noexcept override { return size_; }
  void prefetch(std::uint64_t, std::uint64_t) const override {}

  void read(std::uint64_t offset, MutableByteView into) const override {
    if (!range_fits(offset, into.size(), size_)) throw_outside(offset, into.size());
    if (offset + into.size() <= head_.size()) {
      std::copy_n(head_.begin() + static_cast<std::ptrdiff_t>(offset), into.size(), into.begin());
    } else if (offset >= size_ - tail_.size()) {
      std::copy_n(tail_.begin() + static_cast<std::ptrdiff_t>(offset - (size_ - tail_.size())),
                  into.size(), into.begin());
    } else {
      std::unique_ptr<Cursor> cursor = cursor_for(offset);
      cursor->read(offset, into);
      const std::lock_guard lock(mutex_);
      if (idle_.size() < kMostCursors) idle_.push_back(std::move(cursor));
    }
  }

 private:
  /// Decodes from front to back, and keeps the last step.
  class Cursor {
   public:
    Cursor(std::unique_ptr<ReadableFile> file, const StorageInfo& place)
        : file_(std::move(file)), decoder_(*file_, place.offset, place.length), step_(kStep) {}

    std::uint64_t begin() const noexcept { return begin_; }

    void read(std::uint64_t offset, MutableByteView into) {
      while (!into.empty()) {
        if (offset >= begin_ + count_) {
          begin_ += count_;
          count_ = decoder_.read(step_);
          if (count_ == 0)
            throw_error(ErrorCode::kCorrupt, {.file = file_->name()},
                        "the compressed item has become shorter while it was read");
          continue;
        }
        const auto known = std::min<std::uint64_t>(into.size(), begin_ + count_ - offset);
        std::copy_n(step_.begin() + static_cast<std::ptrdiff_t>(offset - begin_), known,
                    into.begin());
        into = into.subspan(known);
        offset += known;
      }
    }

   private:
    std::unique_ptr<ReadableFile> file_;
    ZstdDecoder decoder_;
    Bytes step_;
    std::uint64_t begin_ = 0;  ///< offset of the step
    std::size_t count_ = 0;
  };

  /// Returns the idle cursor with the least to decode, or a new one.
  std::unique_ptr<Cursor> cursor_for(std::uint64_t offset) const {
    {
      const std::lock_guard lock(mutex_);
      auto best = idle_.end();
      for (auto cursor = idle_.begin(); cursor != idle_.end(); ++cursor) {
        if ((*cursor)->begin() <= offset &&
            (best == idle_.end() || (*cursor)->begin() > (*best)->begin()))
          best = cursor;
      }
      if (best != idle_.end()) {
        std::unique_ptr<Cursor> cursor = std::move(*best);
        idle_.erase(best);
        return cursor;
      }
      if (!idle_.empty()) idle_.pop_back();
    }
    return std::make_unique<Cursor>(open_(), place_);
  }

  [[noreturn]] void throw_outside(std::uint64_t offset, std::uint64_t count) const {
    throw_error(ErrorCode::kCorrupt, {.file = name_},
                "cannot read {} bytes at {} of the decoded item, which has {}", count, offset,
                size_);
  }

  std::string name_;
  DecodedItems::Open open_;
  StorageInfo place_;
  std::uint64_t size_ = 0;
  Bytes head_;
  Bytes tail_;
  mutable std::mutex mutex_;
  mutable std::vector<std::unique_ptr<Cursor>> idle_;
};

}  // namespace

std::shared_ptr<const ReadableFile> DecodedItems::get(const ReadableFile& file, const Open& open,
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
    if (likely > kWholeDecodedItem)
      content = std::make_shared<StreamedFile>(file, open, place, limit);
    else
      content = std::make_shared<DecodedFile>(
          file.name(), zstd_decode(file, place.offset, place.length, likely, limit));
    item->content = content;
  }
  const std::lock_guard lock(mutex_);
  return last_ = content;
}

}  // namespace dckpt
