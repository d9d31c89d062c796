#include "strategies/views/gathered_file.h"

#include <set>
#include <utility>
#include <vector>

#include "mapping/base/error.h"
#include "strategies/tensor_io/read_tensors.h"
#include "strategies/views/made_chunk.h"

namespace dckpt {
namespace {

constexpr std::uint64_t kElementsStaging = std::uint64_t{4} << 20;  // of each read

}  // namespace

class ChunkGatherer::File final : public MadeChunk {
 public:
  File(const ChunkGatherer& gatherer, const GatheredChunk& chunk, const ReadableFile& file,
       DType dtype, std::string key)
      : MadeChunk(file, dtype, chunk.box),
        gatherer_(gatherer),
        chunk_(chunk),
        key_(std::move(key)) {}

 private:
  void make(std::int64_t first, MutableByteView into) const override {
    const auto count = static_cast<std::int64_t>(into.size() / item());
    const Tensor elements(dtype(), Shape{count}, Shape{1}, into.data(), nullptr);
    with_context({.key = key_}, [&] {
      read_tensors(gatherer_.source_,
                   plan_gathering(gatherer_.source_.metadata(), chunk_, first, first + count),
                   {&elements, 1}, {.threads = 1, .staging = kElementsStaging, .verify = false});
    });
  }

  const ChunkGatherer& gatherer_;
  const GatheredChunk& chunk_;
  std::string key_;
};

std::shared_ptr<const ReadableFile> ChunkGatherer::elements(std::size_t chunk,
                                                            const ReadableFile& file, DType dtype,
                                                            std::string key) const {
  return std::make_shared<File>(*this, chunks_[chunk], file, dtype, std::move(key));
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
