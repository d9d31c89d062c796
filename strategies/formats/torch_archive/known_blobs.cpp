#include "strategies/formats/torch_archive/known_blobs.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <mutex>
#include <utility>

#include "mapping/base/checked.h"
#include "mapping/base/error.h"
#include "strategies/formats/torch_archive/zip_format.h"

namespace dckpt {
namespace {

constexpr std::size_t kMaxFrame = std::size_t{8} << 10;  // bytes of one frame
constexpr std::size_t kMaxFrames = std::size_t{8} << 20;
// The maximum number of blobs kept of one length, which differ in the padding that aligns elements.
constexpr std::size_t kMaxAlike = 64;
constexpr std::uint64_t kAlignment = 64;  // at least that of elements
// Blobs up to this size are read at once.
constexpr std::uint64_t kOneRequest = std::uint64_t{4} << 10;

using FrameBuffer = std::array<std::byte, kMaxFrame>;

}  // namespace

/// A blob without its elements. The frame is the bytes before and after the elements.
class KnownBlobs::Blob {
 public:
  /// Throws CheckpointError if the other members of the archive cannot be read.
  Blob(const ZipArchive& archive, const ZipMember& storage, TensorBlob tensor)
      : base_(archive.base()),
        length_(archive.length()),
        elements_(tensor.storage_offset - base_),
        elements_end_(elements_ + tensor.storage_size),
        tensor_(std::move(tensor)) {
    Bytes scratch;
    for (const auto& [begin, end] :
         {std::pair(std::uint64_t{0}, elements_), {elements_end_, length_}}) {
      const ByteView bytes = archive.window(begin, end - begin, scratch);
      frame_.insert(frame_.end(), bytes.begin(), bytes.end());
    }
    add(archive, storage);
    for (const ZipMember& member : archive.members()) {
      if (member.name.ends_with("/.data/serialization_id")) add(archive, member);
    }
    std::vector<Range> others;
    for (const Member& member : members_) {
      others.insert(others.end(), {crc_at(member.local), member.data, crc_at(member.entry)});
      if (member.descriptor != 0) others.push_back(crc_at(member.descriptor));
    }
    std::ranges::sort(others, {}, &Range::begin);
    std::size_t at = 0;
    for (const Range& other : others) {
      same_.push_back({at, other.begin});
      at = other.end;
    }
    same_.push_back({at, frame_.size()});
  }

  static bool worth_keeping(const ZipArchive& archive, const TensorBlob& tensor) {
    return archive.length() - tensor.storage_size <= kMaxFrame;
  }
  std::size_t frame_size() const noexcept { return frame_.size(); }

  /// Returns whether a blob at `base` would be padded as this one if its elements were aligned in
  /// the file.
  bool is_padded_as_at(std::uint64_t base) const noexcept {
    return base % kAlignment == base_ % kAlignment;
  }
  bool elements_lie_as_in(const Blob& other) const noexcept {
    return elements_ == other.elements_ && elements_end_ == other.elements_end_;
  }
  /// Returns the frame of the blob of the same length at `base`.
  ByteView read_frame(const ReadableFile& file, std::uint64_t base, FrameBuffer& buffer) const {
    const MutableByteView all(buffer);
    const std::size_t tail = length_ - elements_end_;
    if (length_ <= kOneRequest) {
      file.read(base, all.first(length_));
      std::memmove(buffer.data() + elements_, buffer.data() + elements_end_, tail);
    } else {
      file.read(base, all.first(elements_));
      file.read(base + elements_end_, all.subspan(elements_, tail));
    }
    return all.first(frame_.size());
  }

  bool matches(ByteView frame) const {
    const auto equal = [&](const Range& range) {
      return std::memcmp(frame_.data() + range.begin, frame.data() + range.begin,
                         range.end - range.begin) == 0;
    };
    return std::ranges::all_of(same_, equal) &&
           std::ranges::all_of(members_,
                               [&](const Member& member) { return agrees(frame, member); });
  }

  /// Returns the tensor of a matching blob at `base`.
  TensorBlob at(std::uint64_t base, ByteView frame) const {
    TensorBlob tensor = tensor_;
    tensor.offset += base - base_;
    tensor.storage_offset += base - base_;
    if (tensor.crc) tensor.crc = load_le<std::uint32_t>(frame, members_.front().entry);
    return tensor;
  }

 private:
  /// A range of positions in the frame.
  struct Range {
    std::size_t begin = 0;
    std::size_t end = 0;
  };
  /// The positions of a member's CRCs and data.
  struct Member {
    std::size_t local = 0;
    Range data;                  // empty for the elements
    std::size_t descriptor = 0;  // 0: the member has none
    std::size_t entry = 0;
  };

  static Range crc_at(std::size_t offset) { return {offset, offset + sizeof(std::uint32_t)}; }

  std::size_t in_frame(std::uint64_t offset) const {
    return offset < elements_end_ ? std::min(offset, elements_)
                                  : offset - (elements_end_ - elements_);
  }

  void add(const ZipArchive& archive, const ZipMember& member) {
    const std::uint64_t data = archive.data_offset(member) - base_;
    const bool described = (member.flags & zip::kFlagDescriptor) != 0;
    members_.push_back({in_frame(member.header_offset + 14),
                        {in_frame(data), in_frame(data + member.size)},
                        described ? in_frame(data + member.size + 4) : 0,
                        in_frame(member.entry_offset + 16)});
  }

  /// Checks the CRCs as all readers of zip archives do.
  static bool agrees(ByteView frame, const Member& member) {
    const auto crc = load_le<std::uint32_t>(frame, member.entry);
    const auto local = load_le<std::uint32_t>(frame, member.local);
    if (member.descriptor == 0) return local == crc;
    return (local == crc || local == 0) && load_le<std::uint32_t>(frame, member.descriptor) == crc;
  }

  std::uint64_t base_;
  std::uint64_t length_;
  std::uint64_t elements_;  // offset of the elements in the blob
  std::uint64_t elements_end_;
  TensorBlob tensor_;
  Bytes frame_;
  std::vector<Member> members_;  // the storage first
  std::vector<Range> same_;      // ranges that must be equal
};

std::shared_ptr<const KnownBlobs::Alike> KnownBlobs::alike(std::uint64_t length) const {
  const std::shared_lock lock(mutex_);
  const auto found = by_length_.find(length);
  return found == by_length_.end() ? nullptr : found->second;
}

std::optional<TensorBlob> KnownBlobs::find(const ReadableFile& file, std::uint64_t base,
                                           std::uint64_t length) const {
  const std::shared_ptr<const Alike> alike = this->alike(length);
  if (!alike || !range_fits(base, length, file.size())) return std::nullopt;
  FrameBuffer buffer;
  ByteView frame;
  const Blob* before = nullptr;
  for (const bool likely : {true, false}) {
    for (const auto& blob : *alike) {
      if (blob->is_padded_as_at(base) != likely) continue;
      if (before == nullptr || !blob->elements_lie_as_in(*before))
        frame = blob->read_frame(file, base, buffer);
      if (blob->matches(frame)) return blob->at(base, frame);
      before = blob.get();
    }
  }
  return std::nullopt;
}

void KnownBlobs::keep(const ZipArchive& archive, const ZipMember& storage,
                      const TensorBlob& tensor) {
  if (!Blob::worth_keeping(archive, tensor)) return;
  std::shared_ptr<const Blob> blob;
  try {
    blob = std::make_shared<const Blob>(archive, storage, tensor);
  } catch (const CheckpointError&) {
    return;  // a member other than the requested one is malformed
  }
  const std::unique_lock lock(mutex_);
  std::shared_ptr<const Alike>& known = by_length_[archive.length()];
  Alike alike = known ? *known : Alike();
  if (bytes_ + blob->frame_size() > kMaxFrames || alike.size() == kMaxAlike) return;
  bytes_ += blob->frame_size();
  alike.push_back(std::move(blob));
  known = std::make_shared<const Alike>(std::move(alike));
}

}  // namespace dckpt
