#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "mapping/base/bytes.h"
#include "mapping/base/error.h"
#include "strategies/formats/torch_archive/zip_reader.h"
#include "strategies/formats/torch_archive/zip_writer.h"

namespace dckpt {

/// Writes the members of a torch.save archive, in torch 2.11's order: data.pkl, .format_version,
/// .storage_alignment, byteorder, data/0, data/1, …, version, .data/serialization_id, all in one
/// folder. As with ZipWriter, `out` receives the records, and the caller sends the storages itself.
class TorchArchiveWriter {
 public:
  TorchArchiveWriter(std::string prefix, ByteView pickle, std::uint64_t alignment,
                     const ZipWriterOptions& options, Bytes& out);
  /// Does the same without copying a large pickle: it becomes `out`.
  TorchArchiveWriter(std::string prefix, Bytes&& pickle, std::uint64_t alignment,
                     const ZipWriterOptions& options, Bytes& out);

  /// Storages have the keys 0, 1, 2, …
  void begin_storage(std::uint64_t size, Bytes& out);
  void end_storage(std::uint32_t crc, Bytes& out);
  void finish(Bytes& out);

 private:
  void add_versions(Bytes& out);
  void add(std::string_view name, ByteView data, Bytes& out);
  void hash(std::string_view name, ByteView data);

  ZipWriter zip_;
  std::string prefix_;
  std::uint64_t alignment_;
  std::uint64_t next_key_ = 0;
  std::uint64_t names_hash_;
  std::uint64_t content_hash_;
};

/// A torch.save archive that is open for reading: one folder, with a pickle and a version that
/// torch accepts, in little-endian order.
class TorchArchive {
 public:
  /// Throws CheckpointError: (corrupt), or (unsupported) for TorchScript, big-endian elements and
  /// compressed members.
  TorchArchive(const ReadableFile& file, std::uint64_t base, std::uint64_t length);

  const ZipArchive& zip() const noexcept { return zip_; }
  /// Returns data.pkl, at most `limit` bytes.
  Bytes pickle(std::uint64_t limit) const;
  /// Returns the member that holds a storage. Throws (corrupt) if it is missing or does not have
  /// the size given in the pickle.
  const ZipMember& storage(std::string_view key, std::uint64_t size, std::uint64_t item_size) const;
  [[noreturn]] void fail(ErrorCode code, const std::string& message) const;

 private:
  const ZipMember* find(std::string_view name) const;
  const ZipMember& require(std::string_view name) const;

  ZipArchive zip_;
  std::string prefix_;  // with the slash
};

}  // namespace dckpt
