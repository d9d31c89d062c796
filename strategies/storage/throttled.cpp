#include "strategies/storage/throttled.h"

#include <algorithm>
#include <utility>

#include "mapping/base/error.h"
#include "strategies/storage/forwarding.h"

namespace dckpt {
namespace {

class ThrottledFile final : public ReadableFile {
 public:
  ThrottledFile(std::unique_ptr<ReadableFile> file, std::shared_ptr<ReadRate> rate)
      : file_(std::move(file)), rate_(std::move(rate)) {}

  const std::string& name() const noexcept override { return file_->name(); }
  std::uint64_t size() const noexcept override { return file_->size(); }
  void read(std::uint64_t offset, MutableByteView into) const override {
    rate_->wait_for(into.size());
    file_->read(offset, into);
  }
  void prefetch(std::uint64_t offset, std::uint64_t length) const override {
    if (!rate_->is_limited()) file_->prefetch(offset, length);  // it would escape the limit
  }

 private:
  std::unique_ptr<ReadableFile> file_;
  std::shared_ptr<ReadRate> rate_;
};

class ThrottledStorage final : public ForwardingStorage {
 public:
  ThrottledStorage(std::shared_ptr<Storage> storage, std::shared_ptr<ReadRate> rate)
      : ForwardingStorage(std::move(storage)), rate_(std::move(rate)) {}

  std::unique_ptr<ReadableFile> open(const std::string& name) const override {
    return std::make_unique<ThrottledFile>(storage_->open(name), rate_);
  }
  std::shared_ptr<Storage> subtree(const std::string& name) override {
    return throttled_storage(storage_->subtree(name), rate_);
  }

 private:
  std::shared_ptr<ReadRate> rate_;
};

}  // namespace

void ReadRate::wait_for(std::uint64_t bytes) {
  constexpr std::chrono::milliseconds kFullest{250};
  std::unique_lock lock(mutex_);
  if (rate_ > 0) {
    const Clock::time_point begin = std::max(free_, Clock::now() - kFullest);
    constexpr double kLongest = 1e6;  // seconds
    const std::chrono::duration<double> cost(
        std::min(static_cast<double>(bytes) / rate_, kLongest));
    free_ = begin + std::chrono::duration_cast<Clock::duration>(cost);
    stopped_.wait_until(lock, stop_, begin, [] { return false; });
  }
  if (stop_.stop_requested())
    throw_error(ErrorCode::kCancelled, "a stop was requested while a file was read");
}

std::shared_ptr<Storage> throttled_storage(std::shared_ptr<Storage> storage,
                                           std::shared_ptr<ReadRate> rate) {
  return std::make_shared<ThrottledStorage>(std::move(storage), std::move(rate));
}

}  // namespace dckpt
