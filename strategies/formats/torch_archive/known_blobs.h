#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <shared_mutex>
#include <unordered_map>
#include <vector>

#include "mapping/base/readable_file.h"
#include "strategies/formats/torch_archive/tensor_blob.h"
#include "strategies/formats/torch_archive/zip_reader.h"

namespace dckpt {

/// Remembers parsed blobs. A blob of the same dtype and shape that is written in the same manner
/// differs from a known one only in the elements, the serialization id, which nobody reads, and the
/// CRCs of both: comparing the other bytes replaces parsing it. Safe to share between threads.
class KnownBlobs {
 public:
  /// Returns the tensor of a blob; empty if the blob does not match a known one or lies outside the
  /// file.
  std::optional<TensorBlob> find(const ReadableFile& file, std::uint64_t base,
                                 std::uint64_t length) const;
  /// Adds a blob whose member `storage` holds the elements of `tensor`. Does nothing if enough
  /// blobs are known.
  void keep(const ZipArchive& archive, const ZipMember& storage, const TensorBlob& tensor);

 private:
  class Blob;
  using Alike = std::vector<std::shared_ptr<const Blob>>;
  /// Returns the known blobs of a length; null if there are none.
  std::shared_ptr<const Alike> alike(std::uint64_t length) const;

  mutable std::shared_mutex mutex_;
  /// Lists are replaced, not changed, so that they can be searched without the lock.
  std::unordered_map<std::uint64_t, std::shared_ptr<const Alike>> by_length_;
  std::size_t bytes_ = 0;
};

}  // namespace dckpt
