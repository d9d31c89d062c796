#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "mapping/base/api.h"
#include "mapping/base/bytes.h"
#include "mapping/base/hash.h"
#include "mapping/base/readable_file.h"
#include "mapping/state/value.h"

namespace DCKPT_API dckpt {

/// Whole torch.save files: the zip form (torch 1.6 and later) and the earlier stream form (magic
/// number, protocol, system, pickle, storage keys, storages). The tar form before torch 0.1.10 is
/// refused. Nothing is imported or called: unknown objects become Opaque values.

struct TorchFileOptions {
  /// Describe tensors by Tensor::in_file (offset in `file`, strides as stored) instead of reading
  /// them.
  bool lazy = false;
  /// Upper bound of the tensor bytes to read; more throws (unsupported). Never allocates more than
  /// the file holds.
  std::uint64_t max_tensor_bytes = std::uint64_t{64} << 30;
  /// If lazy, receives the records that have a checksum, in the order in which the pickle names the
  /// storages. May be null.
  std::vector<RecordedCrc>* records = nullptr;
};

/// Returns the object in [base, base + length) of the file. Tensors that share a storage share
/// memory. A Parameter stays an Opaque call around its tensor, and so do tensors with attributes or
/// hooks (see tensor_of). All bytes read are compared with the CRCs of the archive, where it has
/// some. Throws CheckpointError: (corrupt), or (unsupported) for big-endian files, TorchScript
/// archives, compressed members.
Value load_torch_file(const ReadableFile& file, std::uint64_t base, std::uint64_t length,
                      const TorchFileOptions& options = {});
Value load_torch_file(const ReadableFile& file, const TorchFileOptions& options = {});
/// Does the same for bytes in memory; `what` names them in messages. Nothing in the value refers to
/// `bytes` afterwards; `lazy` is ignored.
Value load_torch_bytes(ByteView bytes, const std::string& what,
                       const TorchFileOptions& options = {});

/// Returns the plain tensor of a value of such a file: the tensor itself, that of a Parameter, or
/// that of a tensor with attributes or hooks. Shares the elements. Empty for anything else,
/// including sparse and quantized tensors.
std::optional<Tensor> tensor_of(const Value& value);

enum class TorchFileForm { kZip, kStream };
/// Returns the form that the first bytes indicate; empty if neither. Does not check the rest.
[[nodiscard]] std::optional<TorchFileForm> detect_torch_file(const ReadableFile& file,
                                                             std::uint64_t base,
                                                             std::uint64_t length);

/// Compares all CRCs. Returns false if there are none (the stream form has none). Throws
/// CheckpointError (corrupt).
bool check_torch_file(const ReadableFile& file, std::uint64_t base, std::uint64_t length);
bool check_torch_bytes(ByteView bytes, const std::string& what);

/// Returns a checksum of an archive's content without reading it: the CRC-32 of the CRC-32s of its
/// members (little-endian, in the order of the directory). 0 for other bytes, for archives that
/// cannot be read, and where no CRCs were computed.
std::uint32_t content_crc(const ReadableFile& file, std::uint64_t base, std::uint64_t length);
std::uint32_t content_crc(ByteView bytes);

struct TorchSaveOptions {
  std::string prefix = "archive";  ///< folder of the members; torch uses the file's stem, or
                                   ///< "archive" when it saves into memory
  bool crc = true;
};

/// Returns `value` as torch.save(value) writes it, in the zip form and pickle protocol 2. Each
/// tensor is written with its own elements only, row-major. All tensors must have data in CPU
/// memory. Throws CheckpointError (invalid argument) for values that cannot be pickled (sharded
/// leaves).
Bytes save_torch_file(const Value& value, const TorchSaveOptions& options = {});
/// Delivers the same in pieces; tensor memory is passed on without a copy where it is contiguous.
void save_torch_file(const Value& value, const std::function<void(ByteView)>& sink,
                     const TorchSaveOptions& options = {});
/// Does the same for tensors that are not in memory. `elements` delivers those of the n-th tensor
/// that has elements but no data (Tensor::meta), in the order of `value`, row-major, in pieces of
/// any size. Also throws CheckpointError (invalid argument) if it delivers too few or too many.
using TensorElements =
    std::function<void(std::size_t tensor, const std::function<void(ByteView)>& sink)>;
void save_torch_file(const Value& value, const TensorElements& elements,
                     const std::function<void(ByteView)>& sink,
                     const TorchSaveOptions& options = {});
/// Returns the number of bytes that save_torch_file writes. The tensors need no data
/// (Tensor::meta), but one that is still in a file throws CheckpointError (unsupported).
std::uint64_t torch_file_size(const Value& value, const TorchSaveOptions& options = {});

}  // namespace dckpt
