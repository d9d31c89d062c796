#include "conformance/storage_conformance.h"

#include <string>
#include <vector>

#include "conformance/storage_trial.h"
#include "mapping/base/storage_name.h"

namespace dckpt {
namespace {

/// Checks single files: writing, reading, and names that are not files.
struct FileChecks : StorageTrial {
  using StorageTrial::StorageTrial;

  void writing() {
    check("a written file reads back", [&](Storage& storage) {
      write("a.bin", "hello");
      equal(content("a.bin"), "hello");
      equal(storage.open("a.bin")->size(), 5U);
    });
    check("appends follow each other", [&](Storage& storage) {
      const auto file = storage.create("a");
      const std::vector<ByteView> parts = {as_bytes("one,"), {}, as_bytes("two,")};
      file->append(parts);
      equal(file->position(), 8U);
      file->append(std::span<const ByteView>());
      file->append(as_bytes("three"));
      equal(file->position(), 13U);
      file->close();
      equal(content("a"), "one,two,three");
    });
    check("thousands of parts in one append arrive in order", [&](Storage& storage) {
      std::vector<std::string> texts;
      std::string expected;
      for (int i = 0; i < 5000; ++i)
        expected += texts.emplace_back(i % 7 == 0 ? "" : std::to_string(i) + ";");
      std::vector<ByteView> parts;
      for (const std::string& text : texts) parts.push_back(as_bytes(text));
      const auto file = storage.create("a", {.size_hint = expected.size()});
      file->append(parts);
      file->close();
      equal(content("a"), expected);
    });
  }

  void sections_and_size_hints() {
    check("sections make up the file, in whatever order they are written", [&](Storage& storage) {
      const auto file = storage.create("a", {.size_hint = 9});
      auto first = file->section(0);
      if (!first) return file->close();
      auto last = file->section(8);
      equal(last->position(), 8U);
      last->append(as_bytes("9"));
      last->close();
      auto middle = file->section(3);
      middle->append(as_bytes("456"));
      first->append(as_bytes("123"));
      middle->append(as_bytes("78"));
      equal(middle->position(), 8U);
      first->close();
      middle->close();
      file->sync();
      file->close();
      equal(content("a"), "123456789");
    });
    check("a size hint does not change the size", [&](Storage& storage) {
      for (const std::uint64_t hint : {std::uint64_t{3}, std::uint64_t{8} << 20}) {
        const std::string name = "hint" + std::to_string(hint);
        const auto file = storage.create(name, {.size_hint = hint});
        file->append(as_bytes("12345"));
        file->close();
        const auto found = storage.stat(name);
        that(found && found->size == 5);
      }
    });
  }

  void ranges() {
    check("ranges read from their offsets", [&](Storage& storage) {
      write("a", "0123456789");
      const auto file = storage.open("a");
      Bytes into(4);
      file->prefetch(2, 4);
      file->prefetch(100, 4);
      file->read(3, into);
      equal(as_text(into), "3456");
      file->read(10, {});
    });
    check("ranges outside the file are corrupt", [&](Storage& storage) {
      write("a", "0123456789");
      const auto file = storage.open("a");
      Bytes into(4);
      fails("corrupt", [&] { file->read(7, into); });
      fails("corrupt", [&] { file->read(11, {}); });
      fails("corrupt", [&] { file->read(~std::uint64_t{0} - 1, into); });
    });
    check("errors name the file and the offset", [&](Storage& storage) {
      write("a", "0123456789");
      try {
        Bytes into(4);
        storage.open("a")->read(7, into);
        that(false);
      } catch (const CheckpointError& error) {
        equal(error.context().file.value_or("none"), storage.display_path("a"));
        equal(error.context().offset.value_or(0), 7U);
      }
    });
    check("read_file refuses more than the limit", [&](Storage& storage) {
      write("a", "0123456789");
      equal(read_file(*storage.open("a"), 10).size(), 10U);
      fails("corrupt", [&] { read_file(*storage.open("a"), 9); });
    });
  }

  void wrong_kinds() {
    check("create refuses an existing file", [&](Storage& storage) {
      write("a", "first");
      fails("already-exists", [&] { storage.create("a"); });
      equal(content("a"), "first");
    });
    check("create needs the directory",
          [&](Storage& storage) { fails("io", [&] { storage.create("d/a"); }); });
    check("missing files are incomplete", [&](Storage& storage) {
      fails("incomplete", [&] { storage.open("a"); });
      fails("incomplete", [&] { storage.open("d/e/a"); });
    });
    check("a directory is not a file", [&](Storage& storage) {
      storage.make_directory("d");
      fails("corrupt", [&] { storage.open("d"); });
    });
    check("a file is not a directory", [&](Storage& storage) {
      write("a", "");
      fails("corrupt", [&] { storage.open("a/b"); });
      fails("corrupt", [&] { storage.create("a/b"); });
      fails("corrupt", [&] { storage.list("a"); });
      fails("corrupt", [&] { storage.make_directory("a/b"); });
    });
  }
};

/// Checks directories, and moves within them.
struct TreeChecks : StorageTrial {
  using StorageTrial::StorageTrial;

  void directories() {
    check("make_directory makes parents and may be repeated", [&](Storage& storage) {
      storage.make_directory("d/e/f");
      storage.make_directory("d/e/f");
      const auto made = storage.stat("d/e");
      that(made && made->kind == FileInfo::Kind::kDirectory);
      write("d/e/f/a", "x");
      storage.make_directory("d/e/f");
      equal(content("d/e/f/a"), "x");
    });
    check("list is in name order with kinds and sizes", [&](Storage& storage) {
      storage.make_directory("d");
      write("d/b", "12");
      write("d/B", "1");
      write("d/.hidden", "");
      storage.make_directory("d/a");
      lists("d", Names{".hidden", "B", "a", "b"});
      const auto entries = storage.list("d");
      if (entries.size() != 4) return;
      equal(entries[1].size, 1U);
      that(entries[2].kind == FileInfo::Kind::kDirectory);
      that(entries[3].kind == FileInfo::Kind::kRegular);
      equal(entries[3].size, 2U);
      lists("", Names{"d"});
    });
    check("list of a missing directory throws",
          [&](Storage& storage) { fails("io", [&] { storage.list("nowhere"); }); });
    check("stat of nothing is empty", [&](Storage& storage) {
      that(!storage.stat("a"));
      that(!storage.stat("d/e/f"));
    });
    check("directories can be synced", [&](Storage& storage) {
      storage.make_directory("d");
      storage.sync_directory("d");
      storage.sync_directory("");
      fails("io", [&] { storage.sync_directory("nowhere"); });
    });
  }

  void replacements() {
    check("put makes and replaces a small file", [&](Storage& storage) {
      storage.make_directory("d");
      storage.put("d/a", as_bytes("first"));
      equal(content("d/a"), "first");
      storage.put("d/a", as_bytes("2"));
      equal(content("d/a"), "2");
      lists("d", Names{"a"});
    });
    check("of two who create a file, one does", [&](Storage& storage) {
      int created = 0;
      const auto create = [&] {
        auto file = storage.create("a");
        file->append(as_bytes("x"));
        return file;
      };
      std::unique_ptr<WritableFile> first = create();
      std::unique_ptr<WritableFile> second;
      const std::string at_creation = code_of([&] { second = create(); });
      created += code_of([&] { first->close(); }) == "no error" ? 1 : 0;
      if (second) created += code_of([&] { second->close(); }) == "no error" ? 1 : 0;
      equal(static_cast<std::uint64_t>(created), 1U);
      that(second || at_creation == "already-exists");
      equal(content("a"), "x");
    });
  }

  void renames() {
    check("rename replaces files", [&](Storage& storage) {
      write("a", "new");
      write("b", "old");
      storage.rename("a", "b");
      equal(content("b"), "new");
      that(!storage.stat("a"));
    });
    check("rename moves a tree", [&](Storage& storage) {
      storage.make_directory("d/e");
      write("d/e/a", "x");
      storage.make_directory("f");
      storage.rename("d", "f/g");
      equal(content("f/g/e/a"), "x");
      that(!storage.stat("d"));
    });
    check("an id, if there are any, belongs to one directory and is kept by rename",
          [&](Storage& storage) {
            storage.make_directory("d");
            const std::uint64_t id = storage.stat("d")->id;
            storage.rename("d", "e");
            equal(storage.stat("e")->id, id);
            equal(storage.list("").front().id, id);
            storage.make_directory("d");
            that(id == 0 || storage.stat("d")->id != id);
          });
    check("rename never replaces a directory", [&](Storage& storage) {
      storage.make_directory("d");
      storage.make_directory("empty");
      write("a", "x");
      fails("already-exists", [&] { storage.rename("d", "empty"); });
      fails("already-exists", [&] { storage.rename("a", "empty"); });
      fails("already-exists", [&] { storage.rename("d", "a"); });
      lists("", Names{"a", "d", "empty"});
    });
    check("rename of nothing and into itself throws", [&](Storage& storage) {
      storage.make_directory("d");
      fails("io", [&] { storage.rename("a", "b"); });
      fails("io", [&] { storage.rename("d", "nowhere/d"); });
      fails("io", [&] { storage.rename("d", "d/e"); });
    });
  }

  void removals() {
    check("open files survive removal", [&](Storage& storage) {
      write("a", "content");
      const auto file = storage.open("a");
      storage.remove_all("a");
      equal(std::string(as_text(read_file(*file, 100))), "content");
    });
    check("remove_all takes files, trees and nothing", [&](Storage& storage) {
      storage.make_directory("d/e/f");
      write("d/a", "x");
      write("d/e/b", "x");
      write("c", "x");
      storage.remove_all("d");
      storage.remove_all("d");
      storage.remove_all("d/e/f");
      storage.remove_all("c");
      lists("", Names{});
    });
  }

  void exchanges() {
    check("exchange swaps directories", [&](Storage& storage) {
      storage.make_directory("d");
      storage.make_directory("e");
      write("d/a", "of d");
      write("e/b", "of e");
      if (!storage.exchange("d", "e")) return lists("d", Names{"a"});
      that(storage.capabilities().exchange);
      lists("d", Names{"b"});
      equal(content("e/a"), "of d");
    });
    check("exchange needs both", [&](Storage& storage) {
      storage.make_directory("d");
      bool done = false;
      const std::string code = code_of([&] { done = storage.exchange("d", "e"); });
      that(code == "io" || (code == "no error" && !done));
    });
  }
};

struct NameChecks : StorageTrial {
  NameChecks(const MakeStorage& make, ConformanceReport& report, const std::string& above)
      : StorageTrial(make, report), above_(above) {}

  void refused() {
    check("names that leave the root or are not names are refused", [&](Storage& storage) {
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
        set_subject("the name " + quote(name));
        fails("corrupt", [&] { storage.open(name); });
        fails("corrupt", [&] { storage.create(name); });
        fails("corrupt", [&] { storage.stat(name); });
        if (storage.capabilities().rename) {
          fails("corrupt", [&] { storage.rename(name, "b"); });
          fails("corrupt", [&] { storage.rename("b", name); });
          bool done = false;
          const std::string code = code_of([&] { done = storage.exchange(name, "b"); });
          that(code == "corrupt" || (code == "no error" && !done));
        }
        fails("corrupt", [&] { storage.put(name, {}); });
        fails("corrupt", [&] { storage.remove_all(name); });
        if (name.empty()) continue;  // the root, where a directory is expected
        fails("corrupt", [&] { storage.list(name); });
        fails("corrupt", [&] { storage.make_directory(name); });
        fails("corrupt", [&] { storage.sync_directory(name); });
      }
    });
  }

  void at_their_limits() {
    check("names work up to their limits and not beyond", [&](Storage& storage) {
      const std::string longest(kMaxComponentBytes, 'x');
      write(longest, "x");
      equal(content(longest), "x");
      storage.remove_all(longest);

      std::string deep = "d";
      for (std::size_t depth = directory_components(above_).size() + 1; depth < kMaxNameDepth;
           ++depth)
        deep += "/d";
      storage.make_directory(deep);
      that(storage.stat(deep).has_value());
      fails("corrupt", [&] { storage.stat(deep + "/d"); });
      storage.remove_all("d");
      that(!storage.stat("d"));

      std::string huge = longest;
      const std::size_t limit = kMaxNameBytes - (above_.empty() ? 0 : above_.size() + 1);
      while (huge.size() + 1 + longest.size() <= limit) huge += "/" + longest;
      that(!storage.stat(huge));
      const std::string beyond = huge + "/" + std::string(limit - huge.size(), 'y');
      fails("corrupt", [&] { storage.stat(beyond); });
      fails("corrupt", [&] { storage.stat(std::string(std::size_t{1} << 20, 'x')); });
    });
  }

  void with_odd_characters() {
    check("odd characters in names are just characters", [&](Storage&) {
      for (const std::string& name :
           {std::string("a b"), std::string("ü"), std::string("\xff"), std::string("-rf"),
            std::string("a\nb"), std::string("...")}) {
        write(name, name);
        equal(content(name), name);
      }
      lists("", Names{"-rf", "...", "a\nb", "a b", "ü", "\xff"});
    });
  }

  const std::string& above_;
};

}  // namespace

ConformanceReport check_storage(const std::function<std::shared_ptr<Storage>()>& make,
                                const std::string& above) {
  ConformanceReport report;
  FileChecks files(make, report);
  files.writing();
  files.sections_and_size_hints();
  files.ranges();
  files.wrong_kinds();
  TreeChecks tree(make, report);
  tree.directories();
  tree.replacements();
  tree.removals();
  const std::shared_ptr<Storage> any = make();
  if (any && any->capabilities().rename) {
    tree.renames();
    tree.exchanges();
  }
  NameChecks names(make, report, above);
  names.refused();
  names.at_their_limits();
  names.with_odd_characters();
  return report;
}

}  // namespace dckpt
