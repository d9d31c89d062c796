#include "strategies/formats/torch_archive/zip_directory.h"

#include <algorithm>
#include <optional>

#include "mapping/base/checked.h"
#include "mapping/base/counted.h"
#include "mapping/base/format.h"
#include "mapping/base/text.h"
#include "strategies/formats/torch_archive/zip_format.h"

namespace dckpt {
namespace {

constexpr std::uint64_t kHeadBytes =
    4096;  // holds all but the payload of a tensor blob, even one padded to pages
constexpr std::uint64_t kTailBytes =
    2048;  // holds the directory of a tensor blob and the two members after the payload
constexpr std::uint64_t kWholeBytes = 16384;  // archives up to this size are read at once

constexpr const char* kSeveralDisks =
    "the zip archive is one of several parts; unpack them together, and zip the files as one "
    "archive "
    "without compression";

bool is_sound_name(std::string_view name) noexcept {
  if (name.empty() || name.size() > ZipLimits::kMaxNameBytes || !is_utf8(name)) return false;
  if (std::any_of(name.begin(), name.end(),
                  [](char c) { return (c >= 0 && c < 0x20) || c == 0x7f; }))
    return false;
  for (std::size_t start = 0; start <= name.size();) {
    const std::size_t end = std::min(name.find('/', start), name.size());
    if (name.substr(start, end - start) == "..") return false;
    start = end + 1;
  }
  return true;
}

class ZipDirectoryReader {
 public:
  explicit ZipDirectoryReader(ZipBytes& archive) : archive_(archive) {}

  ZipDirectory read() {
    const End end = read_end();
    result_.offset = end.offset;
    if (end.count > end.size / zip::kEntrySize)
      archive_.corrupt(str_format("the zip archive claims {}, more than fit into its directory",
                                  counted(end.count, "member")),
                       end.offset);
    if (end.count == 0) archive_.corrupt("the zip archive is empty", end.offset);
    archive_.keep_from(end.offset);  // the names point into it
    Bytes unused;
    const ByteView directory = archive_.window(end.offset, end.size, unused);
    result_.members.reserve(end.count);
    std::size_t at = 0;
    for (std::uint64_t i = 0; i < end.count; ++i) {
      const std::uint64_t entry_offset = end.offset + at;
      if (directory.size() - at < zip::kEntrySize ||
          load_le<std::uint32_t>(directory, at) != zip::kEntrySignature) {
        archive_.corrupt(str_format("entry {} of the zip directory is damaged or missing", i),
                         entry_offset);
      }
      const ByteView entry = directory.subspan(at);
      const std::size_t name_size = load_le<std::uint16_t>(entry, 28);
      const std::size_t extra_size = load_le<std::uint16_t>(entry, 30);
      const std::size_t comment_size = load_le<std::uint16_t>(entry, 32);
      const std::size_t total = zip::kEntrySize + name_size + extra_size + comment_size;
      if (entry.size() < total)
        archive_.corrupt(str_format("entry {} of the zip directory runs over its end", i),
                         entry_offset);
      at += total;

      result_.members.push_back(read_entry(entry.first(total), entry_offset));
    }
    if (at != directory.size())
      archive_.corrupt("the zip directory has more entries than the end record counts",
                       end.offset + at);
    return std::move(result_);
  }

 private:
  /// The content of the end records.
  struct End {
    std::uint64_t count = 0;
    std::uint64_t size = 0;    // size of the directory
    std::uint64_t offset = 0;  // offset of the directory
  };

  End read_end() const {
    if (archive_.length() < zip::kEndSize)
      archive_.corrupt(str_format("not a zip archive: {} bytes are too few for an end record",
                                  archive_.length()),
                       0);
    Bytes scratch;
    const std::uint64_t end_offset = archive_.length() - zip::kEndSize;
    const ByteView end = archive_.window(end_offset, zip::kEndSize, scratch);
    if (load_le<std::uint32_t>(end, 0) != zip::kEndSignature) {
      archive_.corrupt(
          "not a valid zip archive: it does not end with an end record; the file may be truncated, "
          "or data was appended to it",
          end_offset);
    }
    if (load_le<std::uint16_t>(end, 20) != 0)
      archive_.corrupt(
          "the end record of the zip archive announces a comment, which no checkpoint has",
          end_offset);
    if (load_le<std::uint16_t>(end, 4) != 0 || load_le<std::uint16_t>(end, 6) != 0) {
      archive_.fail(ErrorCode::kUnsupported, kSeveralDisks, end_offset);
    }
    const auto here16 = load_le<std::uint16_t>(end, 8);
    const auto count16 = load_le<std::uint16_t>(end, 10);
    const auto size32 = load_le<std::uint32_t>(end, 12);
    const auto offset32 = load_le<std::uint32_t>(end, 16);
    if (here16 != count16) archive_.fail(ErrorCode::kUnsupported, kSeveralDisks, end_offset);

    const End classic{count16, size32, offset32};
    const std::optional<End> large = read_end64(end_offset, classic);
    const End result = large.value_or(classic);
    const std::uint64_t directory_end =
        large ? end_offset - zip::kLocatorSize - zip::kEnd64Size : end_offset;
    const std::optional<std::uint64_t> expected_end = checked_add(result.offset, result.size);
    if (expected_end != directory_end) {
      archive_.corrupt(
          str_format("the directory of the zip archive does not end where the end records begin: "
                     "offset {} + size {}, expected to reach {}",
                     result.offset, result.size, directory_end),
          directory_end);
    }
    if (result.size > ZipLimits::kMaxDirectoryBytes) {
      archive_.fail(
          ErrorCode::kUnsupported,
          str_format("the directory of the zip archive has {} bytes, more than the limit of {}",
                     result.size, ZipLimits::kMaxDirectoryBytes),
          result.offset);
    }
    return result;
  }

  /// Reads the zip64 records before the classic one, if there are any.
  std::optional<End> read_end64(std::uint64_t end_offset, const End& classic) const {
    if (end_offset < zip::kLocatorSize + zip::kEnd64Size) return std::nullopt;
    Bytes scratch;
    const std::uint64_t locator_offset = end_offset - zip::kLocatorSize;
    const std::uint64_t end64_offset = locator_offset - zip::kEnd64Size;
    const ByteView records =
        archive_.window(end64_offset, zip::kEnd64Size + zip::kLocatorSize, scratch);
    const ByteView locator = records.subspan(zip::kEnd64Size);
    if (load_le<std::uint32_t>(locator, 0) != zip::kLocatorSignature) return std::nullopt;
    if (load_le<std::uint32_t>(locator, 4) != 0 || load_le<std::uint32_t>(locator, 16) != 1)
      archive_.fail(ErrorCode::kUnsupported, kSeveralDisks, locator_offset);
    if (load_le<std::uint64_t>(locator, 8) != end64_offset ||
        load_le<std::uint32_t>(records, 0) != zip::kEnd64Signature ||
        load_le<std::uint64_t>(records, 4) != zip::kEnd64Size - 12)
      archive_.corrupt("the zip64 end record is not where its locator says, directly before it",
                       locator_offset);
    if (load_le<std::uint32_t>(records, 16) != 0 || load_le<std::uint32_t>(records, 20) != 0 ||
        load_le<std::uint64_t>(records, 24) != load_le<std::uint64_t>(records, 32))
      archive_.fail(ErrorCode::kUnsupported, kSeveralDisks, end64_offset);
    const End large{load_le<std::uint64_t>(records, 32), load_le<std::uint64_t>(records, 40),
                    load_le<std::uint64_t>(records, 48)};
    if ((classic.count != zip::kMarker16 && classic.count != large.count) ||
        (classic.size != zip::kMarker32 && classic.size != large.size) ||
        (classic.offset != zip::kMarker32 && classic.offset != large.offset))
      archive_.corrupt("the zip64 end record and the classic one describe different directories",
                       end64_offset);
    return large;
  }

  ZipMember read_entry(ByteView entry, std::uint64_t entry_offset) const {
    const std::size_t name_size = load_le<std::uint16_t>(entry, 28);
    const std::size_t extra_size = load_le<std::uint16_t>(entry, 30);
    ZipMember member;
    member.entry_offset = entry_offset;
    member.name = as_text(entry.subspan(zip::kEntrySize, name_size));
    if (!is_sound_name(member.name))
      archive_.corrupt("the zip archive has a member with the unusable name " + quote(member.name),
                       entry_offset);
    member.flags = load_le<std::uint16_t>(entry, 8);
    member.method = load_le<std::uint16_t>(entry, 10);
    member.crc = load_le<std::uint32_t>(entry, 16);
    std::uint64_t stored_size = load_le<std::uint32_t>(entry, 20);
    member.size = load_le<std::uint32_t>(entry, 24);
    member.header_offset = load_le<std::uint32_t>(entry, 42);
    if (load_le<std::uint16_t>(entry, 34) != 0)
      archive_.fail(ErrorCode::kUnsupported, kSeveralDisks, entry_offset);

    const auto [zip64, sound] = find_zip64(entry.subspan(zip::kEntrySize + name_size, extra_size));
    std::size_t used = 0;
    bool complete = sound;
    for (std::uint64_t* field :
         {&member.size, &stored_size, &member.header_offset}) {  // in the order of the zip64 field
      if (*field != zip::kMarker32) continue;
      if (zip64.size() < used + 8) {
        complete = false;
        break;
      }
      *field = load_le<std::uint64_t>(zip64, used);
      used += 8;
    }
    if (!complete || used != zip64.size())
      archive_.corrupt(str_format("the extra fields of member {} do not fit its directory entry",
                                  quote(member.name)),
                       entry_offset);
    if (member.method == zip::kMethodStored && stored_size != member.size) {
      archive_.corrupt(str_format("member {} is stored uncompressed, but has two sizes: {} and {}",
                                  quote(member.name), stored_size, member.size),
                       entry_offset);
    }
    if (!range_fits(member.header_offset, zip::kLocalSize + name_size, result_.offset) ||
        !range_fits(member.header_offset + zip::kLocalSize + name_size, stored_size,
                    result_.offset)) {
      archive_.corrupt(str_format("member {} lies outside the archive", quote(member.name)),
                       entry_offset);
    }
    return member;
  }

  ZipBytes& archive_;
  ZipDirectory result_;
};

}  // namespace

ZipBytes::ZipBytes(const ReadableFile& file, std::uint64_t base, std::uint64_t length)
    : file_(&file), base_(base), length_(length) {
  if (!range_fits(base, length, file.size())) {
    fail(ErrorCode::kCorrupt,
         str_format("cannot read a zip archive of {} bytes: the file has only {} bytes; it may "
                    "have been truncated",
                    length, file.size()),
         0);
  }
  const std::uint64_t head = length <= kWholeBytes ? length : kHeadBytes;
  head_.resize(head);
  file.read(base, head_);
  if (head < length) {
    tail_.resize(kTailBytes);
    tail_offset_ = length - kTailBytes;
    file.read(base + tail_offset_, tail_);
  } else {
    tail_offset_ = length;
  }
}

void ZipBytes::fail(ErrorCode code, const std::string& message, std::uint64_t offset) const {
  throw_error(code, {.file = file_->name(), .offset = base_ + offset}, message);
}

ByteView ZipBytes::window(std::uint64_t offset, std::uint64_t size, Bytes& scratch) const {
  if (range_fits(offset, size, head_.size())) return ByteView(head_).subspan(offset, size);
  if (offset >= tail_offset_ && range_fits(offset - tail_offset_, size, tail_.size()))
    return ByteView(tail_).subspan(offset - tail_offset_, size);
  scratch.resize(size);
  file_->read(base_ + offset, scratch);
  return scratch;
}

void ZipBytes::keep_from(std::uint64_t offset) {
  if (head_.size() == length_ || offset >= tail_offset_) return;
  tail_.resize(length_ - offset);
  tail_offset_ = offset;
  file_->read(base_ + tail_offset_, tail_);
}

std::pair<ByteView, bool> find_zip64(ByteView extra) noexcept {
  ByteView found;
  bool seen = false;
  for (std::size_t at = 0; at < extra.size();) {
    if (extra.size() - at < zip::kExtraHeaderSize) return {found, false};
    const auto id = load_le<std::uint16_t>(extra, at);
    const std::size_t size = load_le<std::uint16_t>(extra, at + 2);
    at += zip::kExtraHeaderSize;
    if (extra.size() - at < size || (id == zip::kZip64Extra && seen)) return {found, false};
    if (id == zip::kZip64Extra) {
      found = extra.subspan(at, size);
      seen = true;
    }
    at += size;
  }
  return {found, true};
}

ZipDirectory read_zip_directory(ZipBytes& archive) {
  return ZipDirectoryReader(archive).read();
}

}  // namespace dckpt
