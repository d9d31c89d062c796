#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "mapping/base/error.h"
#include "mapping/base/hash.h"
#include "strategies/formats/torch_archive/zip_format.h"
#include "strategies/formats/torch_archive/zip_reader.h"
#include "strategies/formats/torch_archive/zip_writer.h"
#include "tests/strategies/formats/torch_archive/archive_files.h"

namespace dckpt::zip_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Members = std::vector<std::pair<std::string, std::string>>;

const Members kMembers = {{"a/first", "one"},
                          {"a/second", "two and more"},
                          {"a/empty", ""},
                          {"a/last", std::string(300, 'x')}};

Bytes write(const Members& members, const ZipWriterOptions& options = {},
            std::uint64_t alignment = 64) {
  Bytes out;
  ZipWriter writer(options);
  for (const auto& [name, data] : members) writer.add_member(name, as_bytes(data), out, alignment);
  writer.finish(out);
  EXPECT_EQ(writer.position(), out.size());
  return out;
}

Members read(ByteView bytes) {
  const auto file = testing::file_of(bytes);
  const ZipArchive archive(*file, 0, bytes.size());
  Members members;
  for (const ZipMember& member : archive.members())
    members.emplace_back(member.name, as_text(archive.read(member, 1 << 20)));
  return members;
}

/// An archive whose fields can be changed.
struct Bent {
  explicit Bent(Bytes sound = write(kMembers)) : bytes(std::move(sound)) {}

  std::size_t nth(std::uint32_t signature, std::size_t n) const {
    for (std::size_t at = 0; at + 4 <= bytes.size(); ++at) {
      if (load_le<std::uint32_t>(bytes, at) == signature && n-- == 0) return at;
    }
    throw std::logic_error("no such record");
  }
  std::size_t local(std::size_t n) const { return nth(zip::kLocalSignature, n); }
  std::size_t entry(std::size_t n) const { return nth(zip::kEntrySignature, n); }
  std::size_t end64() const { return nth(zip::kEnd64Signature, 0); }
  std::size_t locator() const { return nth(zip::kLocatorSignature, 0); }
  std::size_t end() const { return nth(zip::kEndSignature, 0); }

  template <typename T>
  Bent& put(std::size_t at, T value) {
    std::memcpy(bytes.data() + at, &value, sizeof value);
    return *this;
  }
  Bent& text(std::size_t at, std::string_view text) {
    std::memcpy(bytes.data() + at, text.data(), text.size());
    return *this;
  }

  /// Returns the error of opening the archive and reading all members.
  std::pair<ErrorCode, std::string> error() const {
    try {
      read(bytes);
    } catch (const CheckpointError& error) {
      EXPECT_EQ(error.context().file, "memory:archive.pt") << error.what();
      return {error.code(), error.what()};
    }
    ADD_FAILURE() << "the archive was accepted";
    return {};
  }
  void expect_corrupt(const std::string& part) const {
    const auto [code, message] = error();
    EXPECT_EQ(code, ErrorCode::kCorrupt) << message;
    EXPECT_THAT(message, HasSubstr(part));
  }
  void expect_unsupported(const std::string& part) const {
    const auto [code, message] = error();
    EXPECT_EQ(code, ErrorCode::kUnsupported) << message;
    EXPECT_THAT(message, HasSubstr(part));
  }

  Bytes bytes;
};

TEST(Zip, ReadsWhatItWrites) {
  EXPECT_EQ(read(write(kMembers)), kMembers);
}

TEST(Zip, ReadsWhatPythonWrites) {
  EXPECT_THAT(read(testing::torch_file("zipfile.zip")),
              ElementsAre(std::pair("archive/first", "one"),
                          std::pair("archive/second", std::string(5000, '2'))));
  EXPECT_THAT(read(testing::torch_file("zipfile_zip64.zip")),
              ElementsAre(std::pair("archive/first", "one"),
                          std::pair("archive/second", std::string(5000, '2'))));
}

TEST(Zip, AlignsDataInTheFile) {
  for (const std::uint64_t alignment : {1, 64, 512, 4096, 32768}) {
    for (const std::uint64_t file_offset : {0, 1, 63, 64, 100000}) {
      const Bytes bytes = write(kMembers, {.file_offset = file_offset}, alignment);
      Bytes whole(file_offset);
      whole.insert(whole.end(), bytes.begin(), bytes.end());
      const auto file = testing::file_of(whole);
      const ZipArchive archive(*file, file_offset, bytes.size());
      for (const ZipMember& member : archive.members())
        EXPECT_EQ(archive.data_offset(member) % alignment, 0u);
    }
  }
}

TEST(Zip, FindsMembersAmongFewAndMany) {
  for (const int count : {1, 16, 17, 3000}) {
    Members members;
    for (int i = 0; i < count; ++i)
      members.emplace_back("a/Member" + std::to_string(i), std::to_string(i));
    const Bytes bytes = write(members, {}, 1);
    const auto file = testing::file_of(bytes);
    const ZipArchive archive(*file, 0, bytes.size());
    for (const auto& [name, data] : members) {
      const ZipMember* member = archive.find(name);
      ASSERT_NE(member, nullptr) << name;
      EXPECT_EQ(as_text(archive.read(*member, 100)), data);
    }
    EXPECT_EQ(archive.find("a/member0"), nullptr);
    EXPECT_EQ(archive.find("a/Member"), nullptr);
    EXPECT_EQ(archive.find("b"), nullptr);
  }
}

TEST(Zip, ReadsAnArchiveInTheMiddleOfAFileAndNoByteBeside) {
  const Bytes bytes = write({{"a/x", std::string(50000, 'x')}, {"a/y", "tail"}});
  Bytes whole = to_bytes("before");
  whole.insert(whole.end(), bytes.begin(), bytes.end());
  whole.insert(whole.end(), 100, std::byte{'P'});
  const auto file = testing::file_of(whole);
  const ZipArchive archive(*file, 6, bytes.size());
  EXPECT_EQ(as_text(archive.read(*archive.find("a/y"), 100)), "tail");
  EXPECT_THROW(ZipArchive(*file, 5, bytes.size()), CheckpointError);
  EXPECT_THROW(ZipArchive(*file, 6, bytes.size() + 1), CheckpointError);
  EXPECT_THROW(ZipArchive(*file, 6, bytes.size() - 1), CheckpointError);
  EXPECT_THROW(ZipArchive(*file, 6, whole.size()), CheckpointError);
  EXPECT_THROW(ZipArchive(*file, whole.size() + 1, 0), CheckpointError);
}

TEST(Zip, LimitsTheSizeOfAMember) {
  const Bytes bytes = write(kMembers);
  const auto file = testing::file_of(bytes);
  const ZipArchive archive(*file, 0, bytes.size());
  EXPECT_EQ(archive.read(*archive.find("a/last"), 300).size(), 300u);
  EXPECT_THROW(archive.read(*archive.find("a/last"), 299), CheckpointError);
}

// The records of torch 2.11 for a member of 5 GiB and the member after it, which torch left out
// together with its CRC (see the generator).
TEST(Zip, WritesZip64RecordsAsTorchDoes) {
  const Bytes expected = testing::torch_file("zip64_records.bin");
  const std::string_view text = as_text(expected);
  const std::string_view id = text.substr(text.rfind("PK\7\b") - 40, 40);
  Bytes records;
  ZipWriter writer;
  writer.begin_member("big/data/0", std::uint64_t{5} << 30, records);
  writer.end_member(0, records);
  writer.begin_member("big/data/1", 12, records);
  records.insert(records.end(), 12, std::byte{0});
  writer.end_member(0, records);
  writer.add_member("big/version", as_bytes("3\n"), records);
  writer.add_member("big/byteorder", as_bytes("little"), records);
  writer.add_member("big/.data/serialization_id", as_bytes(id), records);
  writer.finish(records);
  EXPECT_EQ(to_hex(records), to_hex(expected));
}

TEST(Zip, ReadsZip64Sizes) {
  // The same archive with a hole of 5 GiB, read through a file that has only zeros there.
  class Hole final : public ReadableFile {
   public:
    Hole(Bytes head, std::uint64_t hole, Bytes tail)
        : head_(std::move(head)), hole_(hole), tail_(std::move(tail)) {}
    const std::string& name() const noexcept override { return name_; }
    std::uint64_t size() const noexcept override { return head_.size() + hole_ + tail_.size(); }
    void read(std::uint64_t offset, MutableByteView into) const override {
      for (std::size_t i = 0; i < into.size(); ++i) {
        const std::uint64_t at = offset + i;
        into[i] = at < head_.size()           ? head_[at]
                  : at < head_.size() + hole_ ? std::byte{0}
                                              : tail_.at(at - head_.size() - hole_);
      }
    }
    void prefetch(std::uint64_t, std::uint64_t) const override {}

   private:
    std::string name_ = "hole";
    Bytes head_;
    std::uint64_t hole_;
    Bytes tail_;
  };
  Bytes head;
  Bytes tail;
  ZipWriter writer;
  writer.begin_member("a/big", std::uint64_t{5} << 30, head);
  writer.end_member(1, tail);
  writer.add_member("a/small", as_bytes("after the hole"), tail);
  writer.finish(tail);
  const Hole file(head, std::uint64_t{5} << 30, tail);
  const ZipArchive archive(file, 0, file.size());
  EXPECT_EQ(archive.find("a/big")->size, std::uint64_t{5} << 30);
  EXPECT_EQ(archive.data_offset(*archive.find("a/big")), head.size());
  EXPECT_EQ(as_text(archive.read(*archive.find("a/small"), 100)), "after the hole");
  EXPECT_TRUE(archive.check(*archive.find("a/small")));
}

TEST(ZipCheck, ComparesEveryByte) {
  const Bytes sound = write(kMembers);
  for (std::size_t at = 0; at < sound.size(); ++at) {
    Bytes bytes = sound;
    bytes[at] ^= std::byte{0x10};
    const auto file = testing::file_of(bytes);
    try {
      const ZipArchive archive(*file, 0, bytes.size());
      for (const ZipMember& member : archive.members()) archive.check(member);
      Members members = read(bytes);  // undetected: the damage did not matter, or is in a name,
                                      // which has no checksum when the directory agrees
      for (std::size_t i = 0; i < members.size(); ++i)
        EXPECT_EQ(members[i].second, kMembers[i].second) << at;
    } catch (const CheckpointError&) {
    }
  }
}

TEST(ZipCheck, TakesZeroEverywhereForNotComputed) {
  const Bytes bytes = write(kMembers, {.crc = false});
  const auto file = testing::file_of(bytes);
  const ZipArchive archive(*file, 0, bytes.size());
  EXPECT_FALSE(archive.has_crcs());
  EXPECT_FALSE(archive.check(archive.members()[0]));
}

TEST(ZipCheck, TakesASingleZeroForDamage) {
  Bent bent;
  bent.put(bent.entry(1) + 16, std::uint32_t{0});
  const auto file = testing::file_of(bent.bytes);
  const ZipArchive archive(*file, 0, bent.bytes.size());
  EXPECT_THROW(archive.check(archive.members()[1]), CheckpointError);
}

// Each rule has one test. zip_reader.cpp explains the rules.

TEST(ZipRefuses, NoArchive) {
  Bent(to_bytes("<!DOCTYPE html><html><body>404 Not Found</body></html>"))
      .expect_corrupt("not end with an end record");
}
TEST(ZipRefuses, TooFewBytes) {
  Bent(to_bytes("P")).expect_corrupt("too few");
}
TEST(ZipRefuses, NoBytes) {
  Bent(Bytes()).expect_corrupt("too few");
}
TEST(ZipRefuses, AnEmptyArchive) {
  Bent(write({})).expect_corrupt("empty");
}

TEST(ZipRefuses, EveryTruncation) {
  const Bytes sound = write(kMembers);
  for (std::size_t size = 0; size < sound.size(); size += 7)
    EXPECT_THROW(read(ByteView(sound).first(size)), CheckpointError) << size;
}

TEST(ZipRefuses, BytesBeforeTheArchive) {
  Bytes bytes(64, std::byte{'J'});
  const Bytes sound = write(kMembers);
  bytes.insert(bytes.end(), sound.begin(), sound.end());
  Bent(bytes).expect_corrupt("where its locator says");
}

TEST(ZipRefuses, BytesBeforeTheFirstMember) {
  Bytes bytes(64, std::byte{'J'});
  ZipWriter writer;
  Bytes records;
  for (const auto& [name, data] : kMembers) writer.add_member(name, as_bytes(data), records);
  writer.finish(records);
  bytes.insert(bytes.end(), records.begin(), records.end());
  Bent bent(bytes);
  for (std::size_t i = 0; i < kMembers.size(); ++i)
    bent.put(bent.entry(i) + 42, static_cast<std::uint32_t>(bent.local(i)));
  const auto directory = static_cast<std::uint32_t>(bent.entry(0));
  bent.put(bent.end() + 16, directory)
      .put(bent.end64() + 48, std::uint64_t{directory})
      .put(bent.locator() + 8, std::uint64_t{bent.end64()});
  bent.expect_corrupt("bytes before it");
}

TEST(ZipRefuses, BytesAfterTheArchive) {
  Bent bent;
  bent.bytes.insert(bent.bytes.end(), 64, std::byte{'J'});
  bent.expect_corrupt("not end with an end record");
}

TEST(ZipRefuses, AComment) {
  Bent bent;
  bent.put(bent.end() + 20, std::uint16_t{22});
  bent.bytes.insert(bent.bytes.end(), 22, std::byte{0});
  bent.text(bent.bytes.size() - 22, "PK\5\6");
  bent.expect_corrupt("directory");
  Bent announced;
  announced.put(announced.end() + 20, std::uint16_t{1});
  announced.expect_corrupt("comment");
}

TEST(ZipRefuses, SeveralDisks) {
  Bent classic;
  classic.put(classic.end() + 4, std::uint16_t{1}).expect_unsupported("several parts");
  Bent zip64;
  zip64.put(zip64.end64() + 16, std::uint32_t{1}).expect_unsupported("several parts");
  Bent locator;
  locator.put(locator.locator() + 16, std::uint32_t{2}).expect_unsupported("several parts");
  Bent entry;
  entry.put(entry.entry(0) + 34, std::uint16_t{1}).expect_unsupported("several parts");
}

TEST(ZipRefuses, EndRecordsThatContradictEachOther) {
  Bent count;
  count.put(count.end() + 8, std::uint16_t{3})
      .put(count.end() + 10, std::uint16_t{3})
      .expect_corrupt("different directories");
  Bent size;
  size.put(size.end() + 12, std::uint32_t{46}).expect_corrupt("different directories");
  Bent offset;
  offset.put(offset.end() + 16, std::uint32_t{1}).expect_corrupt("different directories");
}

TEST(ZipRefuses, AZip64RecordElsewhere) {
  Bent beyond;
  beyond.put(beyond.locator() + 8, std::uint64_t{1} << 60).expect_corrupt("locator");
  Bent self;
  self.put(self.locator() + 8, std::uint64_t{self.locator()}).expect_corrupt("locator");
  Bent extended;
  extended.put(extended.end64() + 4, std::uint64_t{100}).expect_corrupt("locator");
}

TEST(ZipRefuses, ADirectoryThatWraps) {
  Bent bent;
  bent.put(bent.end() + 12, zip::kMarker32).put(bent.end() + 16, zip::kMarker32);
  bent.put(bent.end64() + 40, ~std::uint64_t{9})
      .put(bent.end64() + 48, std::uint64_t{20})
      .expect_corrupt("does not end where");
}

TEST(ZipRefuses, ADirectoryBeyondTheFile) {
  Bent bent;
  bent.put(bent.end() + 16, zip::kMarker32)
      .put(bent.end64() + 48, std::uint64_t{1} << 63)
      .expect_corrupt("does not end where");
}

TEST(ZipRefuses, AnotherCountOfMembers) {
  for (const std::uint64_t count : {std::uint64_t{3}, std::uint64_t{5}, std::uint64_t{1} << 63}) {
    Bent bent;
    bent.put(bent.end() + 8, zip::kMarker16).put(bent.end() + 10, zip::kMarker16);
    bent.put(bent.end64() + 24, count).put(bent.end64() + 32, count);
    EXPECT_EQ(bent.error().first, ErrorCode::kCorrupt);
  }
}

TEST(ZipRefuses, DuplicateNames) {
  Bent(write({{"a/x", "1"}, {"a/x", "2"}})).expect_corrupt("readers may confuse");
}
TEST(ZipRefuses, NamesThatDifferInCase) {
  Bent(write({{"a/data.pkl", "1"}, {"a/DATA.PKL", "2"}})).expect_corrupt("readers may confuse");
}

TEST(ZipRefuses, DuplicatesAmongMany) {
  Members members;
  for (int i = 0; i < 100; ++i) members.emplace_back("a/" + std::to_string(i), "");
  members.emplace_back("a/NAME", "");
  members.emplace_back("a/name", "");
  Bent(write(members)).expect_corrupt("'a/NAME' and 'a/name'");
}

TEST(ZipRefuses, UnusableNames) {
  for (const std::string_view name :
       {"a/nul\0", "a/\x1b[2J", "a/../x", "../xxx", "xxx/..", "a/b\xff/", "a/b\x7f/"}) {
    Bent bent(write({{std::string(std::max<std::size_t>(name.size(), 5), 'n'), "data"}}));
    const std::string_view same_size = name.size() == 5 ? std::string_view("a/n\0l", 5) : name;
    bent.text(bent.entry(0) + 46, same_size)
        .text(bent.local(0) + 30, same_size)
        .expect_corrupt("unusable name");
  }
}

TEST(ZipRefuses, LongNames) {
  EXPECT_EQ(read(write({{std::string(ZipLimits::kMaxNameBytes, 'n'), ""}})).size(), 1u);
  EXPECT_THROW(write({{std::string(ZipLimits::kMaxNameBytes + 1, 'n'), ""}}), CheckpointError);
}

TEST(ZipRefuses, CompressedMembers) {
  Bent(testing::torch_file("deflated.zip")).expect_unsupported("'archive/second' is compressed");
}

TEST(ZipRefuses, EncryptedMembers) {
  Bent both;
  both.put(both.entry(1) + 8, std::uint16_t{0x809})
      .put(both.local(1) + 6, std::uint16_t{0x809})
      .expect_unsupported("'a/second' is encrypted");
  Bent local;
  local.put(local.local(1) + 6, std::uint16_t{0x809}).expect_corrupt("disagree about flags");
}

TEST(ZipRefuses, UnknownFlags) {
  Bent bent;
  bent.put(bent.entry(1) + 8, std::uint16_t{0x828})
      .put(bent.local(1) + 6, std::uint16_t{0x828})
      .expect_unsupported("unknown zip flags");
}

TEST(ZipRefuses, ALocalHeaderWithAnotherName) {
  Bent bent;
  bent.text(bent.local(1) + 30, "a/zecond").expect_corrupt("names another member");
  Bent longer;
  longer.put(longer.local(1) + 26, std::uint16_t{9}).expect_corrupt("names another member");
}

TEST(ZipRefuses, ALocalHeaderWithAnotherMethod) {
  Bent bent;
  bent.put(bent.local(1) + 8, std::uint16_t{8}).expect_corrupt("disagree about flags or method");
}

TEST(ZipRefuses, ALocalHeaderWithAnotherSizeOrCrc) {
  Bent crc;
  crc.put(crc.local(1) + 14, std::uint32_t{0xdeadbeef})
      .expect_corrupt("disagree about CRC or size");
  Bent size;
  size.put(size.local(1) + 22, std::uint32_t{5}).expect_corrupt("disagree about CRC or size");
}

TEST(ZipRefuses, DataShiftedByTheLocalExtraField) {
  Bent bent;
  const auto size = load_le<std::uint16_t>(bent.bytes, bent.local(1) + 28);
  bent.put(bent.local(1) + 28, static_cast<std::uint16_t>(size + 4))
      .expect_corrupt("overlaps what follows");
}

TEST(ZipRefuses, AMissingLocalHeader) {
  Bent bent;
  bent.text(bent.local(2), "XX").expect_corrupt("no local header");
}

TEST(ZipRefuses, MembersOutsideTheArchive) {
  Bent offset;
  offset.put(offset.entry(1) + 42, std::uint32_t{1000000000})
      .expect_corrupt("lies outside the archive");
  Bent directory;
  directory.put(directory.entry(1) + 42, static_cast<std::uint32_t>(directory.entry(0)))
      .expect_corrupt("lies outside the archive");
  Bent size;
  size.put(size.entry(1) + 20, std::uint32_t{1000000000})
      .put(size.entry(1) + 24, std::uint32_t{1000000000})
      .expect_corrupt("lies outside the archive");
}

TEST(ZipRefuses, MembersThatOverlap) {
  Bent size;
  size.put(size.entry(1) + 20, std::uint32_t{200})
      .put(size.entry(1) + 24, std::uint32_t{200})
      .expect_corrupt("overlaps");
  Bent same;
  same.put(same.entry(3) + 42, static_cast<std::uint32_t>(same.local(1)))
      .expect_corrupt("overlaps");
}

TEST(ZipRefuses, AStoredMemberWithTwoSizes) {
  Bent bent;
  bent.put(bent.entry(1) + 24, std::uint32_t{4096}).expect_corrupt("two sizes");
}

TEST(ZipRefuses, Zip64FieldsThatDoNotFit) {
  Bent missing;
  missing.put(missing.entry(1) + 20, zip::kMarker32)
      .put(missing.entry(1) + 24, zip::kMarker32)
      .expect_corrupt("extra fields");
  Bytes big;
  ZipWriter writer;
  writer.begin_member("a/b", std::uint64_t{1} << 62, big);
  writer.finish(big);
  Bent(big).expect_corrupt("lies outside the archive");  // its 2^62 bytes do not exist
  Bent shorter(big);
  shorter.put(shorter.entry(0) + 46 + 3 + 2, std::uint16_t{8}).expect_corrupt("extra fields");
}

TEST(ZipRefuses, ADamagedDirectory) {
  Bent bent;
  bent.text(bent.entry(2), "XX").expect_corrupt("entry 2");
  Bent name;
  name.put(name.entry(3) + 28, std::uint16_t{60000}).expect_corrupt("runs over its end");
}

TEST(ZipWriter, RefusesOddAlignments) {
  EXPECT_THROW(write(kMembers, {}, 0), CheckpointError);
  EXPECT_THROW(write(kMembers, {}, 48), CheckpointError);
  EXPECT_THROW(write(kMembers, {}, 65536), CheckpointError);
  EXPECT_THROW(write({{"", "nameless"}}), CheckpointError);
}

}  // namespace
}  // namespace dckpt::zip_test
