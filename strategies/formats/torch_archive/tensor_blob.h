#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "mapping/base/bytes.h"
#include "mapping/base/readable_file.h"
#include "mapping/geometry/dtype.h"
#include "mapping/geometry/shape.h"

namespace dckpt {

class TorchArchiveWriter;

/// One tensor as torch.save(tensor) writes it: a zip archive with the members
///
///     archive/data.pkl                  a pickle: _rebuild_tensor_v2(storage "0", offset, size,
///                                       stride, …)
///     archive/.format_version           "1"
///     archive/.storage_alignment        "64"
///     archive/byteorder                 "little"
///     archive/data/0                    the elements
///     archive/version                   "3\n"
///     archive/.data/serialization_id    40 digits
///
/// all stored uncompressed. A .distcp file is a sequence of such blobs.

struct TensorBlobOptions {
  /// The alignment of the payload in the file, in bytes: a power of two up to 32 KiB.
  std::uint64_t alignment = 64;
  std::uint64_t file_offset = 0;  ///< offset in the file at which the blob starts
  /// If false, every CRC of the blob is 0, "not computed", as with
  /// torch.serialization.set_crc32_options(False).
  bool crc = true;
  bool requires_grad = false;
};

/// Writes the bytes around a payload, so that the payload can go from the tensor's memory straight
/// into the file: head, payload_size() bytes of row-major elements, tail. The bytes are those of
/// torch 2.11, except for the serialization id. Sizes are known before anything is written; the CRC
/// is needed only for the tail.
class TensorBlobWriter {
 public:
  /// Throws CheckpointError (invalid argument) for an invalid shape or alignment.
  TensorBlobWriter(DType dtype, ShapeView shape, const TensorBlobOptions& options = {});

  const Bytes& head() const noexcept { return head_; }
  std::uint64_t payload_size() const noexcept { return payload_size_; }
  std::uint64_t tail_size() const noexcept { return tail_size_; }
  std::uint64_t size() const noexcept { return head_.size() + payload_size_ + tail_size_; }
  /// `crc` is that of the payload (crc32 of checksum.h); ignored if CRCs are off.
  Bytes tail(std::uint32_t crc = 0) const;

 private:
  std::shared_ptr<const TorchArchiveWriter> archive_;  // the state after the head
  Bytes head_;
  std::uint64_t payload_size_ = 0;
  std::uint64_t tail_size_ = 0;
};

/// Makes writers of blobs. Blobs of one dtype and shape at equally aligned offsets share a writer,
/// which is remembered, since a checkpoint has many of them. Safe to share between threads.
class TensorBlobWriters {
 public:
  /// `options` apply to all blobs; each has its own offset.
  explicit TensorBlobWriters(const TensorBlobOptions& options);
  ~TensorBlobWriters();

  /// Returns a writer for a blob at `file_offset`. Throws as the constructor of TensorBlobWriter
  /// does.
  std::shared_ptr<const TensorBlobWriter> at(DType dtype, ShapeView shape,
                                             std::uint64_t file_offset);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// The content of a blob, and its position.
struct TensorBlob {
  DType dtype = DType::kFloat32;
  Shape shape;
  Shape strides;             ///< in elements
  std::uint64_t offset = 0;  ///< offset in the file of element 0
  bool contiguous = true;    ///< strides are row-major for the shape
  bool requires_grad = false;
  /// Offset in the file of the stored bytes; a view may lie anywhere in them.
  std::uint64_t storage_offset = 0;
  std::uint64_t storage_size = 0;      ///< in bytes
  std::optional<std::uint32_t> crc{};  ///< CRC of the stored bytes, if it was computed
};

/// Remembers the pickles and the small blobs that were already parsed: those of a checkpoint repeat
/// a few. Safe to share between threads.
class TensorBlobCache {
 public:
  TensorBlobCache();
  ~TensorBlobCache();

 private:
  friend struct TensorBlob locate_tensor_blob(const ReadableFile& file, std::uint64_t base,
                                              std::uint64_t length, TensorBlobCache* cache);
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Finds the tensor in [base, base + length) of the file. Reads at most a few KiB at both ends,
/// never the elements. Every element of the tensor lies inside the stored bytes, and these lie
/// inside the blob. Throws CheckpointError: (corrupt) if it is not one archive with one tensor,
/// (unsupported) for compressed members, big-endian elements, conjugated views and the like.
TensorBlob locate_tensor_blob(const ReadableFile& file, std::uint64_t base, std::uint64_t length,
                              TensorBlobCache* cache = nullptr);

/// Compares the CRC of every member with its bytes. Returns false if none was computed. Throws
/// CheckpointError (corrupt).
bool check_tensor_blob(const ReadableFile& file, std::uint64_t base, std::uint64_t length);

}  // namespace dckpt
