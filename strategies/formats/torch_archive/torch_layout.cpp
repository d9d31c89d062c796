#include "strategies/formats/torch_archive/torch_layout.h"

#include <optional>
#include <span>

#include "mapping/base/format.h"
#include "mapping/base/hash.h"
#include "mapping/base/text.h"

namespace dckpt {
namespace {

constexpr std::uint64_t kMinVersion = 1;  // version of the archive format, as torch checks it
constexpr std::uint64_t kMaxVersion = 10;
constexpr std::uint64_t kMaxSmallMember = 64;

// FNV-1a.
constexpr std::uint64_t kHashStart = 0xcbf29ce484222325;
std::uint64_t hash_on(std::uint64_t hash, ByteView bytes) noexcept {
  for (const std::byte byte : bytes)
    hash = (hash ^ std::to_integer<std::uint64_t>(byte)) * 0x100000001b3;
  return hash;
}

std::uint64_t hash_on(std::uint64_t hash, std::uint32_t number) noexcept {
  return hash_on(hash, std::as_bytes(std::span(&number, 1)));
}

}  // namespace

TorchArchiveWriter::TorchArchiveWriter(std::string prefix, ByteView pickle, std::uint64_t alignment,
                                       const ZipWriterOptions& options, Bytes& out)
    : zip_(options),
      prefix_(std::move(prefix) + "/"),
      alignment_(alignment),
      names_hash_(kHashStart),
      content_hash_(kHashStart) {
  add("data.pkl", pickle, out);
  add_versions(out);
}

TorchArchiveWriter::TorchArchiveWriter(std::string prefix, Bytes&& pickle, std::uint64_t alignment,
                                       const ZipWriterOptions& options, Bytes& out)
    : zip_(options),
      prefix_(std::move(prefix) + "/"),
      alignment_(alignment),
      names_hash_(kHashStart),
      content_hash_(kHashStart) {
  hash("data.pkl", pickle);
  zip_.add_first_member(prefix_ + "data.pkl", std::move(pickle), out);
  add_versions(out);
}

void TorchArchiveWriter::add_versions(Bytes& out) {
  add(".format_version", as_bytes("1"), out);
  add(".storage_alignment", as_bytes(std::to_string(alignment_)), out);
  add("byteorder", as_bytes("little"), out);
}

void TorchArchiveWriter::add(std::string_view name, ByteView data, Bytes& out) {
  hash(name, data);
  zip_.add_member(prefix_ + std::string(name), data, out);
}

void TorchArchiveWriter::hash(std::string_view name, ByteView data) {
  names_hash_ = hash_on(names_hash_, as_bytes(name));
  content_hash_ = hash_on(content_hash_, crc32(data));
}

void TorchArchiveWriter::begin_storage(std::uint64_t size, Bytes& out) {
  const std::string name = "data/" + std::to_string(next_key_++);
  names_hash_ = hash_on(names_hash_, as_bytes(name));
  zip_.begin_member(prefix_ + name, size, out, alignment_);
}

void TorchArchiveWriter::end_storage(std::uint32_t crc, Bytes& out) {
  content_hash_ = hash_on(content_hash_, zip_.has_crcs() ? crc : 0);
  zip_.end_member(crc, out);
}

void TorchArchiveWriter::finish(Bytes& out) {
  add("version", as_bytes("3\n"), out);
  // Torch also makes it of the names and the CRCs; nobody compares it with them.
  add(".data/serialization_id", as_bytes(str_format("{:020}{:020}", names_hash_, content_hash_)),
      out);
  zip_.finish(out);
}

TorchArchive::TorchArchive(const ReadableFile& file, std::uint64_t base, std::uint64_t length)
    : zip_(file, base, length) {
  // Torch takes the folder of the first member and finds nothing outside it; a second folder can
  // only mislead other readers.
  const std::string_view first = zip_.members().front().name;
  prefix_ = std::string(first.substr(0, first.find('/'))) + "/";
  for (const ZipMember& member : zip_.members()) {
    if (!member.name.starts_with(prefix_))
      fail(ErrorCode::kCorrupt, str_format("the archive holds {} outside its folder {}",
                                           quote(member.name), quote(prefix_)));
  }
  if (find("constants.pkl") != nullptr) {
    fail(ErrorCode::kUnsupported,
         "this is a TorchScript archive (it has constants.pkl); save its "
         "state_dict() with torch.save");
  }
  std::string version(as_text(zip_.read(require("version"), kMaxSmallMember)));
  if (version.ends_with('\n')) version.pop_back();
  const std::optional<std::uint64_t> number = parse_u64(version);
  if (!number || *number < kMinVersion || *number > kMaxVersion) {
    fail(ErrorCode::kCorrupt,
         str_format("the archive has the version {}, expected a number from 1 to 10",
                    quote(version)));
  }
  if (const ZipMember* member = find("byteorder"); member != nullptr) {
    const Bytes order = zip_.read(*member, kMaxSmallMember);
    if (as_text(order) == "big")
      fail(ErrorCode::kUnsupported,
           "the tensors were written on a big-endian machine; load and save them with torch first");
    if (as_text(order) != "little")
      fail(ErrorCode::kCorrupt, str_format("the archive has the byte order {}, expected 'little'",
                                           quote(as_text(order))));
  }
}

void TorchArchive::fail(ErrorCode code, const std::string& message) const {
  throw_error(code, {.file = zip_.file().name(), .offset = zip_.base()},
              "cannot read the torch archive: " + message);
}

const ZipMember* TorchArchive::find(std::string_view name) const {
  return zip_.find(prefix_ + std::string(name));
}

const ZipMember& TorchArchive::require(std::string_view name) const {
  const ZipMember* member = find(name);
  if (member == nullptr)
    fail(ErrorCode::kCorrupt,
         str_format("it has no member {}, which torch.save always writes", quote(name)));
  return *member;
}

Bytes TorchArchive::pickle(std::uint64_t limit) const {
  return zip_.read(require("data.pkl"), limit);
}

const ZipMember& TorchArchive::storage(std::string_view key, std::uint64_t size,
                                       std::uint64_t item_size) const {
  const ZipMember& member = require("data/" + std::string(key));
  // An untyped storage may end with part of an element.
  if (member.size < size || member.size - size >= item_size) {
    fail(ErrorCode::kCorrupt, str_format("storage {} has {} bytes, but the pickle says {}",
                                         quote(key), member.size, size));
  }
  return member;
}

}  // namespace dckpt
