#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "configs/policy/options.h"
#include "strategies/contract/save_strategy.h"
#include "strategies/formats/torch_archive/tensor_blob.h"

namespace dckpt {

inline constexpr std::uint64_t kBlobOverhead =
    1200;  ///< bytes of a tensor archive beside its elements, to reserve space and balance files

/// Returns how the archives of a save are written.
TensorBlobOptions blob_options(const WriteOptions& io);

/// Returns the archive of a tensor item at this offset of a file.
std::shared_ptr<const TensorBlobWriter> blob_of(TensorBlobWriters& blobs, const WriteItem& item,
                                                std::uint64_t file_offset);

/// The parameters that all data files of a rank have in common.
struct DataFileTarget {
  Storage& storage;
  const std::string& directory;
  int rank;
  const SavePlan& plan;
  ItemSource& source;
  const WriteOptions& io;
  StorageCodec codec;
  TensorBlobWriters& blobs;
};

/// Writes one data file, with several threads where the storage takes it in sections.
class DataFileWriter {
 public:
  /// `items`: positions in the plan, in the order of the file, objects first.
  DataFileWriter(const DataFileTarget& target, std::string name, std::vector<std::size_t> items);

  std::size_t sections() const noexcept { return sections_.size(); }
  /// Writes a section. The first call creates the file and writes the objects, and the last one to
  /// end makes it durable. Must be called once for each section, in any order, from any threads.
  /// Once a call has thrown, others may return without having written.
  void write(std::size_t section);

  const std::vector<std::size_t>& items() const noexcept { return items_; }
  /// The places of the items, once all sections are written, without the number of the file.
  const std::vector<StorageInfo>& places() const noexcept { return places_; }

 private:
  /// A tensor of which each section writes some parts; the last one to end adds the tail.
  struct SharedTensor {
    explicit SharedTensor(std::size_t parts) : crcs(parts), left(parts) {}
    std::vector<std::uint32_t> crcs;
    std::atomic<std::size_t> left;  ///< parts to be written
  };

  struct Section {
    std::size_t begin = 0;  ///< positions in items_
    std::size_t end = 0;
    SharedTensor* tensor = nullptr;  ///< the only item, if it is shared with other sections
    std::size_t first_part = 0;
    std::size_t end_part = 0;
  };

  void plan_sections();

  PlannedFile planned() const { return {name_, target_.plan, items_}; }
  void begin();
  void write_front_to_back(std::unique_ptr<WritableFile> file);
  /// Appends [begin, end) of items_.
  void write_items(FileSection& section, IoEngine engine, std::size_t begin, std::size_t end);
  void write_parts(const Section& section);
  /// Returns the number of parts that a section has of a shared tensor; 0 if no tensor is shared.
  std::size_t parts_of_section() const;
  void finish(WritableFile& file);

  const DataFileTarget& target_;
  std::string name_;
  std::vector<std::size_t> items_;
  std::deque<SharedTensor> shared_;
  std::vector<Section> sections_;
  std::vector<StorageInfo> places_;
  std::mutex mutex_;
  bool begun_ = false;
  std::unique_ptr<WritableFile> file_;  ///< while sections are being written
  std::atomic<std::size_t> left_;       ///< sections to be written
};

}  // namespace dckpt
