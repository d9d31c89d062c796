#pragma once

#include <gmock/gmock.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "mapping/base/storage_name.h"
#include "strategies/storage/storage.h"
#include "tests/support/code_of.h"

// What every Storage must do. One file of a test program includes this and instantiates the suite:
//   INSTANTIATE_TEST_SUITE_P(Memory, StorageConformance,
//       testing::Values(StorageWorld{"memory", [] { return memory_storage(); }}), name_of_storage);
namespace dckpt {

struct StorageWorld {
  std::string name;
  std::function<std::shared_ptr<Storage>()> make;  ///< a new, empty one
  std::string above = {};  ///< the name of the root in another storage, which counts in names
};

inline void PrintTo(const StorageWorld& world, std::ostream* out) {
  *out << world.name;
}
inline std::string name_of_storage(const testing::TestParamInfo<StorageWorld>& test) {
  return test.param.name;
}

class StorageConformance : public testing::TestWithParam<StorageWorld> {
 protected:
  void write(const std::string& name, const std::string& content) {
    const auto file = storage_->create(name);
    file->append(as_bytes(content));
    file->sync();
    file->close();
  }

  std::string content(const std::string& name) {
    return std::string(as_text(read_file(*storage_->open(name), std::uint64_t{1} << 30)));
  }

  std::vector<std::string> names(const std::string& directory) {
    std::vector<std::string> found;
    for (const FileInfo& entry : storage_->list(directory)) found.push_back(entry.name);
    return found;
  }

  std::shared_ptr<Storage> storage_ = GetParam().make();
};

TEST_P(StorageConformance, AWrittenFileReadsBack) {
  write("a.bin", "hello");
  EXPECT_EQ(content("a.bin"), "hello");
  EXPECT_EQ(storage_->open("a.bin")->size(), 5u);
}

TEST_P(StorageConformance, AppendsFollowEachOther) {
  const auto file = storage_->create("a");
  const std::vector<ByteView> parts = {as_bytes("one,"), {}, as_bytes("two,")};
  file->append(parts);
  EXPECT_EQ(file->position(), 8u);
  file->append(std::span<const ByteView>());
  file->append(as_bytes("three"));
  EXPECT_EQ(file->position(), 13u);
  file->close();
  EXPECT_EQ(content("a"), "one,two,three");
}

TEST_P(StorageConformance, ThousandsOfPartsInOneAppendArriveInOrder) {
  std::vector<std::string> texts;
  std::string expected;
  for (int i = 0; i < 5000; ++i)
    expected += texts.emplace_back(i % 7 == 0 ? "" : std::to_string(i) + ";");
  std::vector<ByteView> parts;
  for (const std::string& text : texts) parts.push_back(as_bytes(text));
  const auto file = storage_->create("a", {.size_hint = expected.size()});
  file->append(parts);
  file->close();
  EXPECT_EQ(content("a"), expected);
}

TEST_P(StorageConformance, ASizeHintDoesNotChangeTheSize) {
  for (const std::uint64_t hint : {std::uint64_t{3}, std::uint64_t{8} << 20}) {
    const std::string name = "hint" + std::to_string(hint);
    const auto file = storage_->create(name, {.size_hint = hint});
    file->append(as_bytes("12345"));
    file->close();
    EXPECT_EQ(storage_->stat(name)->size, 5u);
  }
}

TEST_P(StorageConformance, RangesReadFromTheirOffsets) {
  write("a", "0123456789");
  const auto file = storage_->open("a");
  Bytes into(4);
  file->prefetch(2, 4);
  file->prefetch(100, 4);
  file->read(3, into);
  EXPECT_EQ(as_text(into), "3456");
  file->read(10, {});
}

TEST_P(StorageConformance, RangesOutsideTheFileAreCorrupt) {
  write("a", "0123456789");
  const auto file = storage_->open("a");
  Bytes into(4);
  EXPECT_EQ(code_of([&] { file->read(7, into); }), "corrupt");
  EXPECT_EQ(code_of([&] { file->read(11, {}); }), "corrupt");
  EXPECT_EQ(code_of([&] { file->read(~std::uint64_t{0} - 1, into); }), "corrupt");
}

TEST_P(StorageConformance, ErrorsNameTheFileAndTheOffset) {
  write("a", "0123456789");
  try {
    Bytes into(4);
    storage_->open("a")->read(7, into);
    FAIL();
  } catch (const CheckpointError& error) {
    EXPECT_EQ(error.context().file, storage_->describe("a"));
    EXPECT_EQ(error.context().offset, 7u);
    EXPECT_THAT(error.what(), testing::HasSubstr("only 10"));
  }
}

TEST_P(StorageConformance, ReadFileRefusesMoreThanTheLimit) {
  write("a", "0123456789");
  EXPECT_EQ(read_file(*storage_->open("a"), 10).size(), 10u);
  EXPECT_EQ(code_of([&] { read_file(*storage_->open("a"), 9); }), "corrupt");
}

TEST_P(StorageConformance, CreateRefusesAnExistingFile) {
  write("a", "first");
  EXPECT_EQ(code_of([&] { storage_->create("a"); }), "io");
  EXPECT_EQ(content("a"), "first");
}

TEST_P(StorageConformance, CreateNeedsTheDirectory) {
  EXPECT_EQ(code_of([&] { storage_->create("d/a"); }), "io");
}

TEST_P(StorageConformance, MissingFilesAreIncomplete) {
  EXPECT_EQ(code_of([&] { storage_->open("a"); }), "incomplete");
  EXPECT_EQ(code_of([&] { storage_->open("d/e/a"); }), "incomplete");
}

TEST_P(StorageConformance, ADirectoryIsNoFile) {
  storage_->make_directory("d");
  EXPECT_EQ(code_of([&] { storage_->open("d"); }), "corrupt");
}

TEST_P(StorageConformance, AFileIsNoDirectory) {
  write("a", "");
  EXPECT_EQ(code_of([&] { storage_->open("a/b"); }), "corrupt");
  EXPECT_EQ(code_of([&] { storage_->create("a/b"); }), "corrupt");
  EXPECT_EQ(code_of([&] { storage_->list("a"); }), "corrupt");
  EXPECT_EQ(code_of([&] { storage_->make_directory("a/b"); }), "corrupt");
}

TEST_P(StorageConformance, MakeDirectoryMakesParentsAndMayBeRepeated) {
  storage_->make_directory("d/e/f");
  storage_->make_directory("d/e/f");
  EXPECT_EQ(storage_->stat("d/e")->kind, FileInfo::Kind::kDirectory);
  write("d/e/f/a", "x");
  storage_->make_directory("d/e/f");
  EXPECT_EQ(content("d/e/f/a"), "x");
}

TEST_P(StorageConformance, ListIsInNameOrderWithKindsAndSizes) {
  storage_->make_directory("d");
  write("d/b", "12");
  write("d/B", "1");
  write("d/.hidden", "");
  storage_->make_directory("d/a");
  const auto entries = storage_->list("d");
  EXPECT_THAT(names("d"), testing::ElementsAre(".hidden", "B", "a", "b"));
  EXPECT_EQ(entries[1].size, 1u);
  EXPECT_EQ(entries[2].kind, FileInfo::Kind::kDirectory);
  EXPECT_EQ(entries[3].kind, FileInfo::Kind::kRegular);
  EXPECT_EQ(entries[3].size, 2u);
  EXPECT_THAT(names(""), testing::ElementsAre("d"));
}

TEST_P(StorageConformance, ListOfAMissingDirectoryThrows) {
  EXPECT_EQ(code_of([&] { storage_->list("nowhere"); }), "io");
}

TEST_P(StorageConformance, StatOfNothingIsEmpty) {
  EXPECT_FALSE(storage_->stat("a"));
  EXPECT_FALSE(storage_->stat("d/e/f"));
}

TEST_P(StorageConformance, RenameReplacesFiles) {
  write("a", "new");
  write("b", "old");
  storage_->rename("a", "b");
  EXPECT_EQ(content("b"), "new");
  EXPECT_FALSE(storage_->stat("a"));
}

TEST_P(StorageConformance, RenameMovesATree) {
  storage_->make_directory("d/e");
  write("d/e/a", "x");
  storage_->make_directory("f");
  storage_->rename("d", "f/g");
  EXPECT_EQ(content("f/g/e/a"), "x");
  EXPECT_FALSE(storage_->stat("d"));
}

TEST_P(StorageConformance, RenameNeverReplacesADirectory) {
  storage_->make_directory("d");
  storage_->make_directory("empty");
  write("a", "x");
  EXPECT_EQ(code_of([&] { storage_->rename("d", "empty"); }), "io");
  EXPECT_EQ(code_of([&] { storage_->rename("a", "empty"); }), "io");
  EXPECT_EQ(code_of([&] { storage_->rename("d", "a"); }), "io");
  EXPECT_THAT(names(""), testing::ElementsAre("a", "d", "empty"));
}

TEST_P(StorageConformance, RenameOfNothingAndIntoItselfThrows) {
  storage_->make_directory("d");
  EXPECT_EQ(code_of([&] { storage_->rename("a", "b"); }), "io");
  EXPECT_EQ(code_of([&] { storage_->rename("d", "nowhere/d"); }), "io");
  EXPECT_EQ(code_of([&] { storage_->rename("d", "d/e"); }), "io");
}

TEST_P(StorageConformance, OpenFilesSurviveRenameAndRemoval) {
  write("a", "content");
  const auto file = storage_->open("a");
  storage_->rename("a", "b");
  storage_->remove_all("b");
  EXPECT_EQ(as_text(read_file(*file, 100)), "content");
}

TEST_P(StorageConformance, ExchangeSwapsDirectories) {
  storage_->make_directory("d");
  storage_->make_directory("e");
  write("d/a", "of d");
  write("e/b", "of e");
  storage_->exchange("d", "e");
  EXPECT_THAT(names("d"), testing::ElementsAre("b"));
  EXPECT_EQ(content("e/a"), "of d");
}

TEST_P(StorageConformance, ExchangeNeedsBoth) {
  storage_->make_directory("d");
  EXPECT_EQ(code_of([&] { storage_->exchange("d", "e"); }), "io");
}

TEST_P(StorageConformance, RemoveAllTakesFilesAndTreesAndNothing) {
  storage_->make_directory("d/e/f");
  write("d/a", "x");
  write("d/e/b", "x");
  write("c", "x");
  storage_->remove_all("d");
  storage_->remove_all("d");
  storage_->remove_all("d/e/f");
  storage_->remove_all("c");
  EXPECT_TRUE(names("").empty());
}

TEST_P(StorageConformance, DirectoriesCanBeSynced) {
  storage_->make_directory("d");
  storage_->sync_directory("d");
  storage_->sync_directory("");
  EXPECT_EQ(code_of([&] { storage_->sync_directory("nowhere"); }), "io");
}

TEST_P(StorageConformance, NamesThatLeaveTheRootOrAreNoNamesAreRefused) {
  using namespace std::string_literals;
  const std::vector<std::string> tricks = {
      "",
      ".",
      "..",
      "../a",
      "/",
      "/a",
      "a/",
      "a//b",
      "a/..",
      "a/../b",
      "./a",
      "a/./b",
      "a\0b"s,
      "\0"s,
      std::string(kMaxComponentBytes + 1, 'x'),
      "d/" + std::string(kMaxComponentBytes + 1, 'x'),
  };
  for (const std::string& name : tricks) {
    SCOPED_TRACE(testing::PrintToString(name));
    EXPECT_EQ(code_of([&] { storage_->open(name); }), "corrupt");
    EXPECT_EQ(code_of([&] { storage_->create(name); }), "corrupt");
    EXPECT_EQ(code_of([&] { storage_->stat(name); }), "corrupt");
    EXPECT_EQ(code_of([&] { storage_->rename(name, "b"); }), "corrupt");
    EXPECT_EQ(code_of([&] { storage_->rename("b", name); }), "corrupt");
    EXPECT_EQ(code_of([&] { storage_->exchange(name, "b"); }), "corrupt");
    EXPECT_EQ(code_of([&] { storage_->remove_all(name); }), "corrupt");
    if (name.empty()) continue;  // the root, where a directory is meant
    EXPECT_EQ(code_of([&] { storage_->list(name); }), "corrupt");
    EXPECT_EQ(code_of([&] { storage_->make_directory(name); }), "corrupt");
    EXPECT_EQ(code_of([&] { storage_->sync_directory(name); }), "corrupt");
  }
}

TEST_P(StorageConformance, NamesWorkUpToTheirLimitsAndNotBeyond) {
  const std::string longest(kMaxComponentBytes, 'x');
  write(longest, "x");
  EXPECT_EQ(content(longest), "x");
  storage_->remove_all(longest);

  std::string deep = "d";
  const std::string& above = GetParam().above;
  for (std::size_t depth = directory_components(above).size() + 1; depth < kMaxNameDepth; ++depth)
    deep += "/d";
  storage_->make_directory(deep);
  EXPECT_TRUE(storage_->stat(deep));
  EXPECT_EQ(code_of([&] { storage_->stat(deep + "/d"); }), "corrupt");
  storage_->remove_all("d");
  EXPECT_FALSE(storage_->stat("d"));

  std::string huge = longest;
  const std::size_t limit = kMaxNameBytes - (above.empty() ? 0 : above.size() + 1);
  while (huge.size() + 1 + longest.size() <= limit) huge += "/" + longest;
  EXPECT_FALSE(storage_->stat(huge));
  const std::string beyond = huge + "/" + std::string(limit - huge.size(), 'y');
  EXPECT_EQ(code_of([&] { storage_->stat(beyond); }), "corrupt");
  EXPECT_EQ(code_of([&] { storage_->stat(std::string(std::size_t{1} << 20, 'x')); }), "corrupt");
}

TEST_P(StorageConformance, OddCharactersInNamesAreJustCharacters) {
  for (const std::string& name : {std::string("a b"), std::string("ü"), std::string("\xff"),
                                  std::string("-rf"), std::string("a\nb"), std::string("...")}) {
    write(name, name);
    EXPECT_EQ(content(name), name);
  }
  EXPECT_EQ(names("").size(), 6u);
}

}  // namespace dckpt
