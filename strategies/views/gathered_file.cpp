#include "strategies/views/gathered_file.h"

#include <set>
#include <utility>
#include <vector>

#include "mapping/base/checked.h"
#include "mapping/base/error.h"
#include "strategies/tensor_io/read_tensors.h"

namespace dckpt {
namespace {

constexpr std::uint64_t kElementsStaging = std::uint64_t{4} << 20;  // of each read

}  // namespace

class ChunkGatherer::File final : public ReadableFile {
 public:
  File(const ChunkGatherer& gatherer, const GatheredChunk& chunk, DType dtype, std::string key,
       std::string name)
      : gatherer_(gatherer),
        chunk_(chunk),
        dtype_(dtype),
        key_(std::move(key)),
        name_(std::move(name)) {}

  const std::string& name() const noexcept override { return name_; }
  std::uint64_t size() const noexcept override {
    return static_cast<std::uint64_t>(numel(chunk_.box.sizes)) * item_size(dtype_);
  }
  void prefetch(std::uint64_t, std::uint64_t) const override {}

  void read(std::uint64_t offset, MutableByteView into) const override {
    const std::size_t item = item_size(dtype_);
    if (offset % item != 0 || into.size() % item != 0 || !range_fits(offset, into.size(), size()))
      throw CheckpointError(ErrorCode::kCorrupt,
                            "a read goes past the end of gathered elements, or divides an element",
                            {.file = name_, .offset = offset});
    const auto begin = static_cast<std::int64_t>(offset / item);
    const auto count = static_cast<std::int64_t>(into.size() / item);
    const Tensor elements(dtype_, Shape{count}, Shape{1}, into.data(), nullptr);
    with_context({.key = key_}, [&] {
      read_tensors(gatherer_.source_,
                   plan_gathering(gatherer_.source_.metadata(), chunk_, begin, begin + count),
                   {&elements, 1}, {.threads = 1, .staging = kElementsStaging, .verify = false});
    });
  }

 private:
  const ChunkGatherer& gatherer_;
  const GatheredChunk& chunk_;
  DType dtype_;
  std::string key_;
  std::string name_;
};

std::shared_ptr<const ReadableFile> ChunkGatherer::file(std::size_t chunk, DType dtype,
                                                        std::string key, std::string name) const {
  return std::make_shared<File>(*this, chunks_[chunk], dtype, std::move(key), std::move(name));
}

bool ChunkGatherer::check(std::size_t chunk) const {
  const GatheredChunk& gathered = chunks_[chunk];
  std::set<ChunkNumber> stored;
  for (const ReadItem& item :
       plan_gathering(source_.metadata(), gathered, 0, numel(gathered.box.sizes)))
    stored.insert({item.tensor, item.chunk});
  bool all = true;
  for (const ChunkNumber& number : stored) all = check_stored(number) && all;
  return all;
}

bool ChunkGatherer::check_stored(const ChunkNumber& number) const {
  {
    const std::lock_guard lock(mutex_);
    if (const auto known = checked_.find(number); known != checked_.end()) return known->second;
  }
  const TensorStorageMetadata& tensor = source_.metadata().tensors[number.tensor];
  const std::string& name = source_.metadata().files[tensor.places[number.chunk].file];
  return with_context({.key = tensor.key}, [&] {
    const auto file = source_.storage().open(name);
    const bool has_checksums = source_.check_chunk(number.tensor, number.chunk, *file);
    const std::lock_guard lock(mutex_);
    return checked_.emplace(number, has_checksums).first->second;
  });
}

}  // namespace dckpt
