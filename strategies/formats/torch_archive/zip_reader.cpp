#include "strategies/formats/torch_archive/zip_reader.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "mapping/base/format.h"
#include "mapping/base/hash.h"
#include "mapping/base/text.h"
#include "strategies/formats/torch_archive/zip_format.h"

// Archives that are refused, besides damaged ones, because readers (torch's miniz, Python's
// zipfile, scanners) interpret them differently:
//  - bytes before the first member or after the end record, archive comments, several disks;
//  - a zip64 end record that contradicts the classic one, that is not where the locator says, or
//    that has an extension;
//  - names that are equal but for case, empty, not UTF-8, with control bytes or "..";
//  - members that overlap each other or the directory;
//  - local headers whose name, flags, method, CRC or sizes contradict the directory;
//  - a size that is different before and after "compression" by storing.

namespace dckpt {
namespace {

// Names of up to this many members are found by a linear search.
constexpr std::size_t kFewMembers = 16;
constexpr std::size_t kCheckBuffer = std::size_t{1} << 20;

char fold(char c) noexcept {
  return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
}

/// Orders names without regard to the case of ASCII letters.
bool folded_less(std::string_view a, std::string_view b) noexcept {
  return std::lexicographical_compare(a.begin(), a.end(), b.begin(), b.end(),
                                      [](char x, char y) { return fold(x) < fold(y); });
}

bool folded_equal(std::string_view a, std::string_view b) noexcept {
  return a.size() == b.size() && std::equal(a.begin(), a.end(), b.begin(),
                                            [](char x, char y) { return fold(x) == fold(y); });
}

std::string shown(const ZipMember& member) {
  return "member " + quote(member.name);
}

}  // namespace

ZipArchive::ZipArchive(const ReadableFile& file, std::uint64_t base, std::uint64_t length)
    : ZipBytes(file, base, length) {
  ZipDirectory directory = read_zip_directory(*this);
  directory_offset_ = directory.offset;
  members_ = std::move(directory.members);
  has_crcs_ =
      std::ranges::any_of(members_, [](const ZipMember& member) { return member.crc != 0; });
  refuse_ambiguous_names();
  refuse_overlaps();
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

/// Checks the directory alone; the local header is checked when a member is used.
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

void ZipArchive::require_plain(const ZipMember& member) const {
  const std::uint64_t at = member.header_offset;
  if ((member.flags &
       (zip::kFlagEncrypted | zip::kFlagStrongEncryption | zip::kFlagMaskedHeader)) != 0)
    fail(ErrorCode::kUnsupported, shown(member) + " is encrypted; decrypt the archive first", at);
  if (member.method != zip::kMethodStored) {
    fail(ErrorCode::kUnsupported,
         str_format("{} is compressed (method {}); torch stores members uncompressed. Unpack the "
                    "archive and zip it without compression",
                    shown(member), member.method),
         at);
  }
  if ((member.flags & ~(zip::kFlagsLevel | zip::kFlagDescriptor | zip::kFlagUtf8)) != 0)
    fail(ErrorCode::kUnsupported,
         shown(member) + " has unknown zip flags; load the file with torch and save it again", at);
}

void ZipArchive::require_same_sizes(const ZipMember& member, ByteView header,
                                    std::uint64_t extra) const {
  const auto agrees = [descriptor = (member.flags & zip::kFlagDescriptor) != 0](
                          std::uint64_t local, std::uint64_t central) {
    return local == central || (descriptor && local == 0);
  };
  const std::uint64_t at = member.header_offset;
  const auto crc = load_le<std::uint32_t>(header, 14);
  std::uint64_t stored_size = load_le<std::uint32_t>(header, 18);
  std::uint64_t size = load_le<std::uint32_t>(header, 22);
  if (stored_size == zip::kMarker32 && size == zip::kMarker32) {
    Bytes extra_scratch;
    const auto [zip64, sound] =
        find_zip64(window(extra, load_le<std::uint16_t>(header, 28), extra_scratch));
    if (!sound || zip64.size() < 16)
      corrupt(str_format("the zip64 field of the local header of {} is missing or damaged",
                         shown(member)),
              at);
    size = load_le<std::uint64_t>(zip64, 0);
    stored_size = load_le<std::uint64_t>(zip64, 8);
  }
  if (!agrees(crc, member.crc) || !agrees(stored_size, member.size) || !agrees(size, member.size)) {
    corrupt(str_format("the local header of {} and the directory disagree about CRC or size",
                       shown(member)),
            at);
  }
}

std::uint64_t ZipArchive::data_offset(const ZipMember& member) const {
  const std::uint64_t at = member.header_offset;
  require_plain(member);
  Bytes scratch;
  const ByteView header = window(at, zip::kLocalSize + member.name.size(), scratch);
  if (load_le<std::uint32_t>(header, 0) != zip::kLocalSignature)
    corrupt(shown(member) + " has no local header", at);
  const std::size_t name_size = load_le<std::uint16_t>(header, 26);
  const std::size_t extra_size = load_le<std::uint16_t>(header, 28);
  if (name_size != member.name.size() || as_text(header.subspan(zip::kLocalSize)) != member.name)
    corrupt(str_format("the local header of {} names another member", shown(member)), at);
  if (load_le<std::uint16_t>(header, 6) != member.flags ||
      load_le<std::uint16_t>(header, 8) != member.method) {
    corrupt(str_format("the local header of {} and the directory disagree about flags or method",
                       shown(member)),
            at);
  }
  const bool descriptor = (member.flags & zip::kFlagDescriptor) != 0;
  const std::uint64_t data = at + zip::kLocalSize + name_size + extra_size;
  const auto next = std::upper_bound(header_offsets_.begin(), header_offsets_.end(), at);
  const std::uint64_t end = next == header_offsets_.end() ? directory_offset_ : *next;
  if (data > end || member.size > end - data ||
      (descriptor && zip::kDescriptorSize > end - data - member.size)) {
    corrupt(shown(member) + " overlaps what follows it", at);
  }
  require_same_sizes(member, header, data - extra_size);
  return base() + data;
}

void ZipArchive::damaged(const ZipMember& member) const {
  corrupt(str_format("the bytes of member {} do not match the CRC-32 in the archive: they were "
                     "damaged after writing",
                     quote(member.name)),
          data_offset(member) - base());
}

Bytes ZipArchive::read(const ZipMember& member, std::uint64_t limit) const {
  const std::uint64_t offset = data_offset(member);
  if (member.size > limit) {
    corrupt(str_format("member {} has {} bytes, more than the limit of {}", quote(member.name),
                       member.size, limit),
            member.header_offset);
  }
  Bytes scratch;
  const ByteView view = window(offset - base(), member.size, scratch);
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
    file().read(offset + done, into);
    crc = crc32(into, crc);
    done += part;
  }
  if (crc != member.crc) damaged(member);
  if ((member.flags & zip::kFlagDescriptor) != 0) {
    Bytes scratch;
    const std::uint64_t at = offset - base() + member.size;
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
