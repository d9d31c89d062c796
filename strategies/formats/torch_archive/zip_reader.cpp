#include "strategies/formats/torch_archive/zip_reader.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "mapping/base/checked.h"
#include "mapping/base/counted.h"
#include "mapping/base/format.h"
#include "mapping/base/hash.h"
#include "mapping/base/text.h"
#include "strategies/formats/torch_archive/zip_format.h"

// What is refused, beside plain damage, because readers (torch's miniz, Python's zipfile, scanners)
// take it differently:
//  - bytes before the first member or after the end record, archive comments, several disks;
//  - a zip64 end record that contradicts the classic one, that is not where the locator says, or
//  that has an extension;
//  - names that are equal but for case, empty, not UTF-8, with control bytes or "..";
//  - members that overlap each other or the directory;
//  - local headers whose name, flags, method, CRC or sizes contradict the directory;
//  - a size that is different before and after "compression" by storing.

namespace dckpt {
namespace {

constexpr std::uint64_t kHeadBytes =
    4096;  // holds all but the payload of a tensor blob, even one padded to pages
constexpr std::uint64_t kTailBytes =
    2048;  // holds the directory of a tensor blob and the two members after the payload
constexpr std::uint64_t kWholeBytes = 16384;  // archives up to here are read at once
constexpr std::size_t kFewMembers = 16;  // up to here names are found by looking at all of them
constexpr std::size_t kCheckBuffer = std::size_t{1} << 20;

char fold(char c) noexcept {
  return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
}

/// Order without regard to the case of ASCII letters.
bool folded_less(std::string_view a, std::string_view b) noexcept {
  return std::lexicographical_compare(a.begin(), a.end(), b.begin(), b.end(),
                                      [](char x, char y) { return fold(x) < fold(y); });
}

bool folded_equal(std::string_view a, std::string_view b) noexcept {
  return a.size() == b.size() && std::equal(a.begin(), a.end(), b.begin(),
                                            [](char x, char y) { return fold(x) == fold(y); });
}

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

/// The zip64 field of an extra area; empty if there is none. False as second result if the area is
/// not a sequence of fields or has two of them.
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

}  // namespace

struct ZipArchive::End {
  std::uint64_t count = 0;
  std::uint64_t size = 0;    // of the directory
  std::uint64_t offset = 0;  // of the directory
};

ZipArchive::ZipArchive(const ReadableFile& file, std::uint64_t base, std::uint64_t length)
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
  read_directory(read_end());
  refuse_ambiguous_names();
  refuse_overlaps();
}

void ZipArchive::fail(ErrorCode code, const std::string& message, std::uint64_t offset) const {
  throw CheckpointError(code, message, {.file = file_->name(), .offset = base_ + offset});
}

ByteView ZipArchive::window(std::uint64_t offset, std::uint64_t size, Bytes& scratch) const {
  if (range_fits(offset, size, head_.size())) return ByteView(head_).subspan(offset, size);
  if (offset >= tail_offset_ && range_fits(offset - tail_offset_, size, tail_.size()))
    return ByteView(tail_).subspan(offset - tail_offset_, size);
  scratch.resize(size);
  file_->read(base_ + offset, scratch);
  return scratch;
}

ZipArchive::End ZipArchive::read_end() {
  if (length_ < zip::kEndSize)
    corrupt(str_format("not a zip archive: {} bytes are too few for an end record", length_), 0);
  Bytes scratch;
  const std::uint64_t end_offset = length_ - zip::kEndSize;
  const ByteView end = window(end_offset, zip::kEndSize, scratch);
  if (load_le<std::uint32_t>(end, 0) != zip::kEndSignature) {
    corrupt(
        "not a valid zip archive: it does not end with an end record; the file may be truncated, "
        "or data was appended to it",
        end_offset);
  }
  if (load_le<std::uint16_t>(end, 20) != 0)
    corrupt("the end record of the zip archive announces a comment, which no checkpoint has",
            end_offset);
  if (load_le<std::uint16_t>(end, 4) != 0 || load_le<std::uint16_t>(end, 6) != 0) {
    fail(ErrorCode::kUnsupported, "the zip archive spans several disks", end_offset);
  }
  const auto here16 = load_le<std::uint16_t>(end, 8);
  const auto count16 = load_le<std::uint16_t>(end, 10);
  const auto size32 = load_le<std::uint32_t>(end, 12);
  const auto offset32 = load_le<std::uint32_t>(end, 16);
  if (here16 != count16)
    fail(ErrorCode::kUnsupported, "the zip archive spans several disks", end_offset);

  const End classic{count16, size32, offset32};
  const std::optional<End> large = read_end64(end_offset, classic);
  const End result = large.value_or(classic);
  const std::uint64_t directory_end =
      large ? end_offset - zip::kLocatorSize - zip::kEnd64Size : end_offset;
  const std::optional<std::uint64_t> expected_end = checked_add(result.offset, result.size);
  if (expected_end != directory_end) {
    corrupt(str_format("the directory of the zip archive does not end where the end records begin: "
                       "offset {} + size {}, expected to reach {}",
                       result.offset, result.size, directory_end),
            directory_end);
  }
  if (result.size > ZipLimits::kMaxDirectoryBytes) {
    fail(ErrorCode::kUnsupported,
         str_format("the directory of the zip archive has {} bytes, more than the limit of {}",
                    result.size, ZipLimits::kMaxDirectoryBytes),
         result.offset);
  }
  return result;
}

std::optional<ZipArchive::End> ZipArchive::read_end64(std::uint64_t end_offset,
                                                      const End& classic) {
  if (end_offset < zip::kLocatorSize + zip::kEnd64Size) return std::nullopt;
  Bytes scratch;
  const std::uint64_t locator_offset = end_offset - zip::kLocatorSize;
  const std::uint64_t end64_offset = locator_offset - zip::kEnd64Size;
  const ByteView records = window(end64_offset, zip::kEnd64Size + zip::kLocatorSize, scratch);
  const ByteView locator = records.subspan(zip::kEnd64Size);
  if (load_le<std::uint32_t>(locator, 0) != zip::kLocatorSignature) return std::nullopt;
  if (load_le<std::uint32_t>(locator, 4) != 0 || load_le<std::uint32_t>(locator, 16) != 1)
    fail(ErrorCode::kUnsupported, "the zip archive spans several disks", locator_offset);
  if (load_le<std::uint64_t>(locator, 8) != end64_offset ||
      load_le<std::uint32_t>(records, 0) != zip::kEnd64Signature ||
      load_le<std::uint64_t>(records, 4) != zip::kEnd64Size - 12)
    corrupt("the zip64 end record is not where its locator says, directly before it",
            locator_offset);
  if (load_le<std::uint32_t>(records, 16) != 0 || load_le<std::uint32_t>(records, 20) != 0 ||
      load_le<std::uint64_t>(records, 24) != load_le<std::uint64_t>(records, 32))
    fail(ErrorCode::kUnsupported, "the zip archive spans several disks", end64_offset);
  const End large{load_le<std::uint64_t>(records, 32), load_le<std::uint64_t>(records, 40),
                  load_le<std::uint64_t>(records, 48)};
  if ((classic.count != zip::kMarker16 && classic.count != large.count) ||
      (classic.size != zip::kMarker32 && classic.size != large.size) ||
      (classic.offset != zip::kMarker32 && classic.offset != large.offset))
    corrupt("the zip64 end record and the classic one describe different directories",
            end64_offset);
  return large;
}

ZipMember ZipArchive::read_entry(ByteView entry, std::uint64_t entry_offset) const {
  const std::size_t name_size = load_le<std::uint16_t>(entry, 28);
  const std::size_t extra_size = load_le<std::uint16_t>(entry, 30);
  ZipMember member;
  member.entry_offset = entry_offset;
  member.name = as_text(entry.subspan(zip::kEntrySize, name_size));
  if (!is_sound_name(member.name))
    corrupt("the zip archive has a member with the unusable name " + quote(member.name),
            entry_offset);
  member.flags = load_le<std::uint16_t>(entry, 8);
  member.method = load_le<std::uint16_t>(entry, 10);
  member.crc = load_le<std::uint32_t>(entry, 16);
  std::uint64_t stored_size = load_le<std::uint32_t>(entry, 20);
  member.size = load_le<std::uint32_t>(entry, 24);
  member.header_offset = load_le<std::uint32_t>(entry, 42);
  if (load_le<std::uint16_t>(entry, 34) != 0)
    fail(ErrorCode::kUnsupported, "the zip archive spans several disks", entry_offset);

  const auto [zip64, sound] = find_zip64(entry.subspan(zip::kEntrySize + name_size, extra_size));
  std::size_t used = 0;
  bool complete = sound;
  for (std::uint64_t* field :
       {&member.size, &stored_size, &member.header_offset}) {  // the order of the zip64 field
    if (*field != zip::kMarker32) continue;
    if (zip64.size() < used + 8) {
      complete = false;
      break;
    }
    *field = load_le<std::uint64_t>(zip64, used);
    used += 8;
  }
  if (!complete || used != zip64.size())
    corrupt(str_format("the extra fields of member {} do not fit its directory entry",
                       quote(member.name)),
            entry_offset);
  if (member.method == zip::kMethodStored && stored_size != member.size) {
    corrupt(str_format("member {} is stored uncompressed, but has two sizes: {} and {}",
                       quote(member.name), stored_size, member.size),
            entry_offset);
  }
  if (!range_fits(member.header_offset, zip::kLocalSize + name_size, directory_offset_) ||
      !range_fits(member.header_offset + zip::kLocalSize + name_size, stored_size,
                  directory_offset_)) {
    corrupt(str_format("member {} lies outside the archive", quote(member.name)), entry_offset);
  }
  return member;
}

void ZipArchive::read_directory(const End& end) {
  directory_offset_ = end.offset;
  if (end.count > end.size / zip::kEntrySize)
    corrupt(str_format("the zip archive claims {}, more than fit into its directory",
                       counted(end.count, "member")),
            end.offset);
  if (end.count == 0) corrupt("the zip archive is empty", end.offset);
  if (head_.size() < length_ && end.offset < tail_offset_) {  // the names point into the tail
    tail_.resize(length_ - end.offset);
    tail_offset_ = end.offset;
    file_->read(base_ + tail_offset_, tail_);
  }
  Bytes unused;
  const ByteView directory = window(end.offset, end.size, unused);
  members_.reserve(end.count);
  std::size_t at = 0;
  for (std::uint64_t i = 0; i < end.count; ++i) {
    const std::uint64_t entry_offset = end.offset + at;
    if (directory.size() - at < zip::kEntrySize ||
        load_le<std::uint32_t>(directory, at) != zip::kEntrySignature) {
      corrupt(str_format("entry {} of the zip directory is damaged or missing", i), entry_offset);
    }
    const ByteView entry = directory.subspan(at);
    const std::size_t name_size = load_le<std::uint16_t>(entry, 28);
    const std::size_t extra_size = load_le<std::uint16_t>(entry, 30);
    const std::size_t comment_size = load_le<std::uint16_t>(entry, 32);
    const std::size_t total = zip::kEntrySize + name_size + extra_size + comment_size;
    if (entry.size() < total)
      corrupt(str_format("entry {} of the zip directory runs over its end", i), entry_offset);
    at += total;

    members_.push_back(read_entry(entry.first(total), entry_offset));
    has_crcs_ = has_crcs_ || members_.back().crc != 0;
  }
  if (at != directory.size())
    corrupt("the zip directory has more entries than the end record counts", end.offset + at);
}

void ZipArchive::refuse_ambiguous_names() {
  const auto refuse = [this](const ZipMember& a, const ZipMember& b) {
    corrupt(str_format("the zip archive has two members that readers may confuse: {} and {}",
                       quote(a.name), quote(b.name)),
            directory_offset_);
  };
  if (members_.size() <= kFewMembers) {
    for (std::size_t i = 1; i < members_.size(); ++i) {
      for (std::size_t j = 0; j < i; ++j) {
        if (folded_equal(members_[i].name, members_[j].name)) refuse(members_[j], members_[i]);
      }
    }
    return;
  }
  by_name_.resize(members_.size());
  for (std::uint32_t i = 0; i < by_name_.size(); ++i) by_name_[i] = i;
  std::sort(by_name_.begin(), by_name_.end(), [this](std::uint32_t a, std::uint32_t b) {
    return folded_less(members_[a].name, members_[b].name);
  });
  for (std::size_t i = 1; i < by_name_.size(); ++i) {
    if (folded_equal(members_[by_name_[i - 1]].name, members_[by_name_[i]].name))
      refuse(members_[by_name_[i - 1]], members_[by_name_[i]]);
  }
}

/// By the directory alone: what local headers add is looked at when a member is used.
void ZipArchive::refuse_overlaps() {
  header_offsets_.reserve(members_.size());
  for (const ZipMember& member : members_) header_offsets_.push_back(member.header_offset);
  std::sort(header_offsets_.begin(), header_offsets_.end());
  if (header_offsets_.front() != 0)
    corrupt("the zip archive does not start with a member: there are bytes before it", 0);
  for (const ZipMember& member : members_) {
    const auto next =
        std::upper_bound(header_offsets_.begin(), header_offsets_.end(), member.header_offset);
    const bool repeated = next - header_offsets_.begin() > 1 && *(next - 2) == member.header_offset;
    const std::uint64_t least_end = member.header_offset + zip::kLocalSize + member.name.size() +
                                    (member.method == zip::kMethodStored ? member.size : 0);
    if (repeated || (next != header_offsets_.end() && least_end > *next))
      corrupt(str_format("member {} overlaps another one", quote(member.name)),
              member.header_offset);
  }
}

const ZipMember* ZipArchive::find(std::string_view name) const noexcept {
  if (members_.size() <= kFewMembers) {
    const auto found =
        std::find_if(members_.begin(), members_.end(),
                     [name](const ZipMember& member) { return member.name == name; });
    return found == members_.end() ? nullptr : &*found;
  }
  const auto found = std::lower_bound(by_name_.begin(), by_name_.end(), name,
                                      [this](std::uint32_t i, std::string_view wanted) {
                                        return folded_less(members_[i].name, wanted);
                                      });
  return found == by_name_.end() || members_[*found].name != name ? nullptr : &members_[*found];
}

std::uint64_t ZipArchive::data_offset(const ZipMember& member) const {
  const std::uint64_t at = member.header_offset;
  const auto who = [&member] { return "member " + quote(member.name); };
  if ((member.flags &
       (zip::kFlagEncrypted | zip::kFlagStrongEncryption | zip::kFlagMaskedHeader)) != 0)
    fail(ErrorCode::kUnsupported, who() + " is encrypted", at);
  if (member.method != zip::kMethodStored) {
    fail(ErrorCode::kUnsupported,
         str_format("{} is compressed (method {}); torch stores members uncompressed. Unpack the "
                    "archive and zip it without compression",
                    who(), member.method),
         at);
  }
  if ((member.flags & ~(zip::kFlagsLevel | zip::kFlagDescriptor | zip::kFlagUtf8)) != 0)
    fail(ErrorCode::kUnsupported, who() + " has unknown zip flags", at);

  Bytes scratch;
  const ByteView header = window(at, zip::kLocalSize + member.name.size(), scratch);
  if (load_le<std::uint32_t>(header, 0) != zip::kLocalSignature)
    corrupt(who() + " has no local header", at);
  const std::size_t name_size = load_le<std::uint16_t>(header, 26);
  const std::size_t extra_size = load_le<std::uint16_t>(header, 28);
  if (name_size != member.name.size() || as_text(header.subspan(zip::kLocalSize)) != member.name)
    corrupt(str_format("the local header of {} names another member", who()), at);
  if (load_le<std::uint16_t>(header, 6) != member.flags ||
      load_le<std::uint16_t>(header, 8) != member.method) {
    corrupt(str_format("the local header of {} and the directory disagree about flags or method",
                       who()),
            at);
  }
  const bool descriptor = (member.flags & zip::kFlagDescriptor) != 0;
  const std::uint64_t data = at + zip::kLocalSize + name_size + extra_size;
  const auto next = std::upper_bound(header_offsets_.begin(), header_offsets_.end(), at);
  const std::uint64_t end = next == header_offsets_.end() ? directory_offset_ : *next;
  if (data > end || member.size > end - data ||
      (descriptor && zip::kDescriptorSize > end - data - member.size)) {
    corrupt(who() + " overlaps what follows it", at);
  }

  const auto agrees = [descriptor](std::uint64_t local, std::uint64_t central) {
    return local == central || (descriptor && local == 0);
  };
  const auto crc = load_le<std::uint32_t>(header, 14);
  std::uint64_t stored_size = load_le<std::uint32_t>(header, 18);
  std::uint64_t size = load_le<std::uint32_t>(header, 22);
  if (stored_size == zip::kMarker32 && size == zip::kMarker32) {
    Bytes extra_scratch;
    const auto [zip64, sound] = find_zip64(window(data - extra_size, extra_size, extra_scratch));
    if (!sound || zip64.size() < 16)
      corrupt(str_format("the zip64 field of the local header of {} is missing or damaged", who()),
              at);
    size = load_le<std::uint64_t>(zip64, 0);
    stored_size = load_le<std::uint64_t>(zip64, 8);
  }
  if (!agrees(crc, member.crc) || !agrees(stored_size, member.size) || !agrees(size, member.size)) {
    corrupt(
        str_format("the local header of {} and the directory disagree about CRC or size", who()),
        at);
  }
  return base_ + data;
}

void ZipArchive::damaged(const ZipMember& member) const {
  corrupt(str_format("the bytes of member {} do not match the CRC-32 in the archive: they were "
                     "damaged after writing",
                     quote(member.name)),
          data_offset(member) - base_);
}

Bytes ZipArchive::read(const ZipMember& member, std::uint64_t limit) const {
  const std::uint64_t offset = data_offset(member);
  if (member.size > limit) {
    corrupt(str_format("member {} has {} bytes, more than the limit of {}", quote(member.name),
                       member.size, limit),
            member.header_offset);
  }
  Bytes scratch;
  const ByteView view = window(offset - base_, member.size, scratch);
  if (has_crcs_ && crc32(view) != member.crc) damaged(member);
  if (view.data() == scratch.data()) return scratch;
  return {view.begin(), view.end()};
}

bool ZipArchive::check(const ZipMember& member) const {
  const std::uint64_t offset = data_offset(member);
  if (!has_crcs_) return false;
  Bytes buffer(std::min<std::uint64_t>(member.size, kCheckBuffer));
  std::uint32_t crc = 0;
  for (std::uint64_t done = 0; done < member.size;) {
    const std::size_t part = std::min<std::uint64_t>(buffer.size(), member.size - done);
    const MutableByteView into(buffer.data(), part);
    file_->read(offset + done, into);
    crc = crc32(into, crc);
    done += part;
  }
  if (crc != member.crc) damaged(member);
  if ((member.flags & zip::kFlagDescriptor) != 0) {
    Bytes scratch;
    const std::uint64_t at = offset - base_ + member.size;
    const ByteView record = window(at, zip::kDescriptorSize, scratch);
    if (load_le<std::uint32_t>(record, 0) != zip::kDescriptorSignature ||
        load_le<std::uint32_t>(record, 4) != member.crc ||
        load_le<std::uint32_t>(record, 8) != static_cast<std::uint32_t>(member.size)) {
      corrupt(
          str_format("the record after member {} contradicts the directory", quote(member.name)),
          at);
    }
  }
  return true;
}

}  // namespace dckpt
