#include "raw_strategy.h"

#include <algorithm>

#include "raw_index.h"

namespace raw {
namespace {

struct Options {
  std::uint64_t alignment = 64;
};

std::string inside(const std::string& directory, const std::string& name) {
  return directory.empty() ? name : directory + "/" + name;
}

/// Saves one file per rank, then the index.
class Saver final : public dckpt::SaveStrategy {
 public:
  Saver(const Options& own, const dckpt::WriteOptions& io)
      : alignment_(own.alignment), sync_(io.fsync) {}

  dckpt::WrittenItems write_data(dckpt::Storage& storage, const std::string& directory, int rank,
                                 const dckpt::SavePlan& plan,
                                 dckpt::ItemSource& source) const override {
    dckpt::WrittenItems written;
    if (plan.empty()) return written;
    written.files.push_back("rank_" + std::to_string(rank) + ".bin");
    const auto file = storage.create(inside(directory, written.files.front()));
    for (const dckpt::WriteItem& item : plan) {
      const dckpt::Bytes padding((alignment_ - file->position() % alignment_) % alignment_);
      file->append(padding);
      const std::uint64_t start = file->position();
      if (item.kind == dckpt::WriteItem::Kind::kObject) {
        file->append(source.object(item));
      } else {
        source.tensor(item, [&](dckpt::ByteView part) { file->append(part); });
      }
      written.places.push_back({0, start, file->position() - start});
    }
    if (sync_) file->sync();
    file->close();
    return written;
  }

  std::optional<dckpt::MarkerFile> marker(const dckpt::Storage&, const dckpt::Metadata& metadata,
                                          const dckpt::CommonState* common) const override {
    return dckpt::MarkerFile{kIndexFile, encode(metadata, common)};
  }

 private:
  std::uint64_t alignment_;
  bool sync_;
};

/// Reads the places in the index, where elements are stored row-major.
class Reader final : public dckpt::CheckpointReader {
 public:
  explicit Reader(std::shared_ptr<dckpt::Storage> storage) : storage_(std::move(storage)) {
    const auto file = storage_->open(kIndexFile);
    index_ = decode(dckpt::read_file(*file, kMaxIndexBytes), file->name());
  }

  const dckpt::CheckpointInfo& info() const noexcept override { return info_; }
  const dckpt::Metadata& metadata() const noexcept override { return index_.metadata; }
  const dckpt::Storage& storage() const noexcept override { return *storage_; }

  dckpt::Value common_state() const override {
    return index_.common.empty() ? dckpt::Value()
                                 : dckpt::load_torch_bytes(index_.common, kIndexFile);
  }

  dckpt::ChunkPayload locate(std::size_t tensor, std::size_t chunk,
                             const dckpt::ReadableFile&) const override {
    const dckpt::TensorStorageMetadata& entry = index_.metadata.tensors[tensor];
    return {entry.places[chunk].offset, entry.properties.dtype,
            dckpt::row_major_strides(entry.chunks.sizes(chunk)), true};
  }

  dckpt::Bytes object_bytes(std::size_t object) const override {
    const dckpt::StorageInfo& place = index_.metadata.objects[object].place;
    const auto file = storage_->open(index_.metadata.files[place.file]);
    if (place.offset > file->size() || place.length > file->size() - place.offset) {
      throw dckpt::CheckpointError(
          dckpt::ErrorCode::kCorrupt, "the file ends before the object does; it is truncated",
          {.key = index_.metadata.objects[object].key, .file = file->name()});
    }
    dckpt::Bytes bytes(place.length);
    file->read(place.offset, bytes);
    return bytes;
  }

  dckpt::Value decode_object(std::size_t object, dckpt::ByteView bytes) const override {
    const dckpt::Value stored = dckpt::load_torch_bytes(bytes, index_.metadata.objects[object].key);
    return stored.is_list() && stored.size() == 1 ? stored.items().front() : stored;
  }

  // The format has no checksums.
  bool check_chunk(std::size_t, std::size_t, const dckpt::ReadableFile&) const override {
    return false;
  }
  bool check_object(std::size_t) const override { return false; }

 private:
  std::shared_ptr<dckpt::Storage> storage_;
  dckpt::CheckpointInfo info_{
      .format = "raw", .version = 1, .producer = "the example of a strategy"};
  Index index_;
};

}  // namespace

void register_strategy() {
  const dckpt::config::Schema<Options> schema{
      {dckpt::config::field("alignment", &Options::alignment, dckpt::config::size(1, 1 << 20))}};
  dckpt::register_strategy(dckpt::SaveStrategyEntry{
      .name = "raw",
      .version = 1,
      .about = "raw elements, one file per rank (an example)",
      .make = [schema](const dckpt::SaveOptions& options) {
        return std::make_unique<Saver>(dckpt::read_options(schema, options.strategy), options.io);
      }});
  dckpt::register_strategy(dckpt::LoadStrategyEntry{
      .name = "raw",
      .about = "raw elements, one file per rank (an example)",
      .matches =
          [](std::span<const dckpt::FileInfo> entries) {
            return std::ranges::any_of(
                entries, [](const dckpt::FileInfo& entry) { return entry.name == kIndexFile; });
          },
      .open =
          [](std::shared_ptr<dckpt::Storage> storage, const dckpt::OpenHints&) {
            return std::make_unique<Reader>(std::move(storage));
          }});
}

}  // namespace raw
