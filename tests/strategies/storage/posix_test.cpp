#include "strategies/storage/posix.h"

#include <sched.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fcntl.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <random>
#include <thread>
#include <utility>

#include "mapping/base/parallel_for.h"
#include "strategies/storage/open_target.h"
#include "tests/support/code_of.h"
#include "tests/support/no_threads.h"
#include "tests/support/temp_dir.h"

namespace dckpt::posix_test {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

class PosixStorageTest : public ::testing::Test {
 protected:
  void put(const std::string& name, const std::string& content) const {
    std::ofstream(root_ / name) << content;
  }

  std::string error_of(const std::function<void()>& work) const {
    try {
      work();
    } catch (const CheckpointError& error) {
      return std::string(to_string(error.code())) + ": " + error.what();
    }
    return "no error";
  }
  std::string open_error(const std::string& name) const {
    return error_of([&] { storage_->open(name); });
  }

  TempDir root_;
  std::shared_ptr<Storage> storage_ = posix_storage(root_.path());
};

TEST_F(PosixStorageTest, AFifoIsRefusedWithoutBlocking) {
  ASSERT_EQ(::mkfifo((root_ / "fifo").c_str(), 0600), 0);
  EXPECT_THAT(open_error("fifo"), AllOf(HasSubstr("corrupt: "), HasSubstr("a FIFO"),
                                        HasSubstr((root_ / "fifo").string())));
  EXPECT_EQ(storage_->stat("fifo")->kind, FileInfo::Kind::kOther);
  EXPECT_EQ(code_of([&] { open_posix_file(root_ / "fifo"); }), "corrupt");
}

TEST_F(PosixStorageTest, ASocketIsRefused) {
  const int socket = ::socket(AF_UNIX, SOCK_STREAM, 0);
  sockaddr_un address{.sun_family = AF_UNIX, .sun_path = {}};
  (root_ / "socket").string().copy(address.sun_path, sizeof address.sun_path - 1);
  ASSERT_EQ(::bind(socket, reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
  EXPECT_THAT(open_error("socket"), AllOf(HasSubstr("corrupt: "), HasSubstr("a socket")));
  ::close(socket);
}

TEST_F(PosixStorageTest, DevicesAreRefused) {
  EXPECT_EQ(code_of([] { posix_storage("/dev")->open("zero"); }), "corrupt");
  EXPECT_EQ(code_of([] { open_posix_file("/dev/zero"); }), "corrupt");
}

TEST_F(PosixStorageTest, ASymlinkToAFileIsRefusedBelowTheRoot) {
  put("real", "content");
  fs::create_symlink("real", root_ / "link");
  EXPECT_THAT(open_error("link"), AllOf(HasSubstr("corrupt: "), HasSubstr("a symbolic link")));
  EXPECT_EQ(storage_->stat("link")->kind, FileInfo::Kind::kOther);
  EXPECT_EQ(open_posix_file(root_ / "link")->size(), 7u);
  EXPECT_EQ(open_target(*storage_, "link")->size(), 7u);
}

TEST_F(PosixStorageTest, ASymlinkToADirectoryIsRefusedAtAnyDepth) {
  const TempDir outside;
  std::ofstream(outside / "secret") << "secret";
  fs::create_directory(root_ / "d");
  fs::create_directory_symlink(outside.path(), root_ / "d" / "link");
  EXPECT_THAT(open_error("d/link/secret"),
              AllOf(HasSubstr("corrupt: "), HasSubstr("a symbolic link")));
  EXPECT_EQ(code_of([&] { storage_->stat("d/link/secret"); }), "corrupt");
  EXPECT_EQ(code_of([&] { storage_->list("d/link"); }), "corrupt");
  EXPECT_EQ(code_of([&] { storage_->create("d/link/new"); }), "corrupt");
  EXPECT_EQ(code_of([&] { storage_->make_directory("d/link/new"); }), "corrupt");
  EXPECT_EQ(code_of([&] { storage_->make_directory("d/link"); }), "corrupt");
  EXPECT_EQ(code_of([&] { storage_->remove_all("d/link/secret"); }), "corrupt");
  EXPECT_EQ(code_of([&] { storage_->sync_directory("d/link"); }), "corrupt");
  EXPECT_TRUE(fs::exists(outside / "secret"));
  EXPECT_FALSE(fs::exists(outside / "new"));
}

TEST_F(PosixStorageTest, ALinkLoopIsAnError) {
  fs::create_symlink("b", root_ / "a");
  fs::create_symlink("a", root_ / "b");
  EXPECT_EQ(code_of([&] { storage_->open("a"); }), "corrupt");
  EXPECT_EQ(code_of([&] { storage_->open("a/x"); }), "corrupt");
  EXPECT_EQ(code_of([&] { open_posix_file(root_ / "a"); }), "io");
  EXPECT_EQ(code_of([&] { posix_storage(root_ / "a")->list(""); }), "io");
}

TEST_F(PosixStorageTest, RemoveAllTakesLinksAndLeavesTheirTargets) {
  const TempDir outside;
  std::ofstream(outside / "kept") << "kept";
  fs::create_directory(root_ / "d");
  fs::create_directory_symlink(outside.path(), root_ / "d" / "link");
  fs::create_directory_symlink(outside.path(), root_ / "link");
  storage_->remove_all("d");
  storage_->remove_all("link");
  EXPECT_TRUE(fs::exists(outside / "kept"));
  EXPECT_TRUE(storage_->list("").empty());
}

TEST_F(PosixStorageTest, AWriterDoesNotWriteThroughADanglingLink) {
  const TempDir outside;
  fs::create_symlink(outside / "target", root_ / "link");
  EXPECT_EQ(code_of([&] { storage_->create("link"); }), "already-exists");
  EXPECT_FALSE(fs::exists(outside / "target"));
}

TEST_F(PosixStorageTest, TheRootMayBeASymlink) {
  put("a", "content");
  const TempDir elsewhere;
  fs::create_directory_symlink(root_.path(), elsewhere / "root");
  EXPECT_EQ(posix_storage(elsewhere / "root")->open("a")->size(), 7u);
}

TEST_F(PosixStorageTest, TheRootIsMadeWithItsParentsByTheFirstWrite) {
  const auto storage = posix_storage(root_ / "x/y/z");
  EXPECT_FALSE(storage->stat("a"));
  EXPECT_EQ(code_of([&] { storage->open("a"); }), "incomplete");
  EXPECT_EQ(code_of([&] { storage->list(""); }), "io");
  EXPECT_FALSE(fs::exists(root_ / "x"));
  storage->create("a")->close();
  EXPECT_TRUE(fs::exists(root_ / "x/y/z/a"));
}

TEST_F(PosixStorageTest, ARootThatIsAFileIsAnError) {
  put("file", "");
  EXPECT_EQ(code_of([&] { posix_storage(root_ / "file")->list(""); }), "io");
  EXPECT_EQ(code_of([&] { posix_storage(root_ / "file")->create("a"); }), "io");
}

TEST_F(PosixStorageTest, ARelativeRootStaysWhereItWas) {
  const fs::path before = fs::current_path();
  fs::current_path(root_.path());
  const auto storage = posix_storage("run");
  fs::current_path(before);
  storage->create("a")->close();
  EXPECT_TRUE(fs::exists(root_ / "run/a"));
  EXPECT_EQ(storage->display_path("a"), "run/a");
}

TEST_F(PosixStorageTest, AFileTruncatedAfterItWasOpenedIsCorruptAndNotACrash) {
  put("a", std::string(100000, 'x'));
  const auto file = storage_->open("a");
  fs::resize_file(root_ / "a", 50000);
  Bytes into(60000);
  EXPECT_THAT(error_of([&] { file->read(0, into); }),
              AllOf(HasSubstr("corrupt: "), HasSubstr("truncated"), HasSubstr("offset 50000")));
}

TEST_F(PosixStorageTest, AnUnreadableFileNamesTheReason) {
  if (::geteuid() == 0) GTEST_SKIP() << "root reads everything";
  put("a", "x");
  fs::permissions(root_ / "a", fs::perms::none);
  EXPECT_THAT(open_error("a"), AllOf(HasSubstr("io: "), HasSubstr("Permission denied")));
  EXPECT_EQ(code_of([&] { open_posix_file(root_ / "a"); }), "io");
}

TEST_F(PosixStorageTest, MissingFilesNameThePathAndTheReason) {
  EXPECT_THAT(open_error("d/a"),
              AllOf(HasSubstr("No such file or directory"), HasSubstr((root_ / "d/a").string())));
  EXPECT_EQ(code_of([&] { open_posix_file(root_ / "a"); }), "incomplete");
}

TEST_F(PosixStorageTest, FilesBeyondFourGibibytesReadAtTheirOffsets) {
  put("sparse", "");
  const std::uint64_t size = std::uint64_t{5} << 30;
  fs::resize_file(root_ / "sparse", size - 4);
  std::ofstream(root_ / "sparse", std::ios::app) << "tail";
  const auto file = storage_->open("sparse");
  EXPECT_EQ(file->size(), size);
  Bytes into(4);
  file->read(size - 4, into);
  EXPECT_EQ(as_text(into), "tail");
}

/// Limits the size of files written by this process; a write beyond fails as on a full disk.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) {
    ::getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit limited{bytes, before_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &limited);
    handler_ = std::signal(SIGXFSZ, SIG_IGN);
  }
  ~FileSizeLimit() {
    ::setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, handler_);
  }

 private:
  rlimit before_{};
  void (*handler_)(int) = nullptr;
};

TEST_F(PosixStorageTest, PartsOfAllSizesLieOneAfterTheOther) {
  constexpr std::size_t kSizes[] = {
      3, 20'000'001, 0, 5, 8 << 20, (8 << 20) + 1, 1};  // includes more than is written at a time
  Bytes all;
  for (const std::size_t size : kSizes) {
    for (std::size_t i = 0; i < size; ++i)
      all.push_back(static_cast<std::byte>((all.size() * 31) >> 5));
  }
  std::vector<ByteView> parts;
  for (std::size_t at = 0; const std::size_t size : kSizes)
    parts.push_back(ByteView(all).subspan(std::exchange(at, at + size), size));
  Bytes expected = all;
  expected.insert(expected.end(), all.begin(), all.begin() + 3);
  for (const IoEngine engine : {IoEngine::kAuto, IoEngine::kBuffered, IoEngine::kDirect}) {
    const std::string name = "a" + std::to_string(static_cast<int>(engine));
    const auto file =
        storage_->create(name, {.size_hint = all.size(), .durable = true, .engine = engine});
    file->append(parts);
    file->sync();
    file->append(parts[0]);
    EXPECT_EQ(file->position(), expected.size());
    file->close();
    EXPECT_TRUE(read_file(*storage_->open(name), expected.size()) == expected) << name;
  }
}

TEST_F(PosixStorageTest, DirectFilesGrowBetweenSyncsByAnyNumberOfBytes) {
  Bytes expected;
  const auto file = storage_->create("a", {.engine = IoEngine::kDirect});
  for (const std::size_t size : {std::size_t{1}, std::size_t{4095}, std::size_t{1},
                                 std::size_t{5000}, std::size_t{4} << 20, std::size_t{8191}}) {
    const Bytes part(size, static_cast<std::byte>(size % 251));
    expected.insert(expected.end(), part.begin(), part.end());
    file->append(part);
    file->sync();
    EXPECT_TRUE(read_file(*storage_->open("a"), expected.size()) == expected) << expected.size();
  }
}

/// Writes [bounds[i], bounds[i + 1]) of the content in a section each, from several threads.
void write_sections(WritableFile& file, ByteView content, const std::vector<std::size_t>& bounds,
                    int threads) {
  parallel_for(bounds.size() - 1, threads, [&](std::size_t i) {
    const auto section = file.section(bounds[i]);
    for (std::size_t at = bounds[i]; at < bounds[i + 1];) {
      const std::size_t count = std::min<std::size_t>(bounds[i + 1] - at, 700'001);
      section->append(content.subspan(at, count));
      at += count;
      EXPECT_EQ(section->position(), at);
    }
    section->close();
  });
}

TEST_F(PosixStorageTest, SectionsMeetAtAnyByteAndMakeUpTheFile) {
  std::mt19937 random(7);
  std::vector<std::size_t> bounds{0, 1, 3, 100, 4096, 4097, 8192, 8192};  // many in one page
  for (const std::size_t step : {300UL, 5'000'000UL, 4'194'304UL, 9'000'000UL, 40'000UL, 2UL})
    bounds.push_back(bounds.back() + step + random() % 5000);
  Bytes content(bounds.back());
  for (std::size_t i = 0; i < content.size(); ++i) content[i] = static_cast<std::byte>(i * 31 >> 5);
  for (const IoEngine engine : {IoEngine::kBuffered, IoEngine::kDirect}) {
    for (const int threads : {1, 2, 5}) {
      const std::string name = std::to_string(static_cast<int>(engine) * 10 + threads);
      const auto file = storage_->create(
          name, {.size_hint = 2 * content.size(), .durable = true, .engine = engine});
      write_sections(*file, content, bounds, threads);
      file->sync();
      EXPECT_EQ(storage_->stat(name)->size, content.size()) << "what a power failure would leave";
      file->close();
      EXPECT_TRUE(read_file(*storage_->open(name), content.size()) == content) << name;
    }
  }
}

TEST_F(PosixStorageTest, SectionsInAnyOrderLeaveNoByteOfASharedPageOut) {
  const Bytes content(3 * 4096, std::byte{5});
  for (const IoEngine engine : {IoEngine::kBuffered, IoEngine::kDirect}) {
    std::vector<std::size_t> order{0, 1000, 2000, 4096, 5000, 9000};
    do {
      const auto file = storage_->create("a", {.engine = engine});
      for (const std::size_t begin : order) {
        const std::size_t ends[] = {1000, 2000, 4096, 5000, 9000, content.size()};
        const auto section = file->section(begin);
        section->append(
            ByteView(content).subspan(begin, *std::ranges::upper_bound(ends, begin) - begin));
        section->close();
      }
      file->close();
      ASSERT_TRUE(read_file(*storage_->open("a"), content.size()) == content);
      storage_->remove_all("a");
    } while (std::ranges::next_permutation(order).found && order.front() == 0);
  }
}

TEST_F(PosixStorageTest, AFailureInOneSectionIsReportedAndNothingHangs) {
  const FileSizeLimit limit(8 << 20);
  const Bytes content(std::size_t{40} << 20);
  const std::vector<std::size_t> bounds{0, 10'000'001, 20'000'003, 30'000'005, content.size()};
  for (const IoEngine engine : {IoEngine::kBuffered, IoEngine::kDirect}) {
    const auto file =
        storage_->create(std::to_string(static_cast<int>(engine)), {.engine = engine});
    EXPECT_THAT(error_of([&] {
                  write_sections(*file, content, bounds, 2);
                  file->sync();
                }),
                HasSubstr("File too large"));
    file->section(5);  // an abandoned section
    if (engine == IoEngine::kDirect) {
      EXPECT_THAT(error_of([&] { file->sync(); }), HasSubstr("File too large"));
    }
  }
}

TEST_F(PosixStorageTest, AFileForWhichTooMuchWasReservedHasItsSizeBeforeItIsDurable) {
  constexpr std::size_t kPart = 1'000'003;  // blocks begin anywhere in it
  Bytes content(40 * kPart);
  for (std::size_t i = 0; i < content.size(); ++i) content[i] = static_cast<std::byte>(i / 4099);
  for (const IoEngine engine : {IoEngine::kBuffered, IoEngine::kDirect}) {
    const std::string name = "a" + std::to_string(static_cast<int>(engine));
    const auto file = storage_->create(
        name, {.size_hint = 2 * content.size(), .durable = true, .engine = engine});
    for (std::size_t at = 0; at < content.size(); at += kPart)
      file->append(ByteView(content).subspan(at, kPart));
    file->sync();
    EXPECT_EQ(storage_->stat(name)->size, content.size()) << "what a power failure would leave";
    file->close();
    EXPECT_TRUE(read_file(*storage_->open(name), content.size()) == content) << name;
  }
}

TEST_F(PosixStorageTest, DirectFilesAreWrittenWithoutAThreadWhereNoneCanBeStarted) {
  const NoThreads no_threads;
  const Bytes content(std::size_t{9} << 20, std::byte{7});
  const auto file = storage_->create("a", {.engine = IoEngine::kDirect});
  file->append(content);
  file->close();
  EXPECT_TRUE(read_file(*storage_->open("a"), content.size()) == content);
}

TEST_F(PosixStorageTest, AFailureOfABlockWrittenInTheBackgroundIsReportedByWhateverFollows) {
  const FileSizeLimit limit(4096);
  const Bytes block(std::size_t{4} << 20);
  for (const auto* const last : {"append", "sync", "close"}) {
    const auto file = storage_->create(last, {.engine = IoEngine::kDirect});
    file->append(block);
    const auto finish = [&] {
      if (last == std::string("append")) file->append(block);
      last == std::string("sync") ? file->sync() : file->close();
    };
    EXPECT_THAT(error_of(finish), AllOf(HasSubstr("io: cannot write 4,190,208 bytes"),
                                        HasSubstr("File too large"), HasSubstr("offset 4096")));
    EXPECT_THAT(error_of([&] { file->sync(); }), HasSubstr("File too large"))
        << "a file that failed never counts as durable";
  }
}

/// Returns whether the open file of this path is written past the page cache.
bool is_direct(const fs::path& path) {
  for (const auto& entry : fs::directory_iterator("/proc/self/fd")) {
    std::error_code ignored;
    if (fs::read_symlink(entry.path(), ignored) == fs::canonical(path))
      return (::fcntl(std::stoi(entry.path().filename()), F_GETFL) & O_DIRECT) != 0;
  }
  throw std::runtime_error("the file is not open");
}

TEST_F(PosixStorageTest,
       TheEngineIsTheOneAskedForAndAutoTakesDirectForLargeDurableFilesOnLocalDisks) {
  struct statfs system {};
  ASSERT_EQ(::statfs(root_.path().c_str(), &system), 0);
  const bool local_disk = system.f_type == 0xEF53 || system.f_type == 0x58465342;  // ext4, XFS
  constexpr std::uint64_t kLarge = std::uint64_t{8} << 20;
  const auto direct = [&](const std::string& name, const CreateOptions& options) {
    const auto file = storage_->create(name, options);
    EXPECT_EQ(file->engine() == IoEngine::kDirect, is_direct(root_.path() / name))
        << "it says what it is";
    return is_direct(root_.path() / name);
  };
  EXPECT_TRUE(direct("asked", {.engine = IoEngine::kDirect}));
  EXPECT_FALSE(
      direct("not_asked", {.size_hint = kLarge, .durable = true, .engine = IoEngine::kBuffered}));
  EXPECT_EQ(direct("large", {.size_hint = kLarge, .durable = true}), local_disk);
  EXPECT_FALSE(direct("small", {.size_hint = kLarge - 1, .durable = true}));
  EXPECT_FALSE(direct("not_durable", {.size_hint = kLarge}));
}

TEST_F(PosixStorageTest, AWriteThatIsCutShortIsReportedWithTheOffsetReached) {
  const FileSizeLimit limit(100000);
  const auto file = storage_->create("a");
  const Bytes block(60000);
  const std::vector<ByteView> parts = {block, block};
  EXPECT_THAT(error_of([&] { file->append(parts); }),
              AllOf(HasSubstr("io: cannot write 20,000 bytes"), HasSubstr("File too large"),
                    HasSubstr("offset 100000")));
  EXPECT_EQ(file->position(), 100000u);
}

/// Runs `work` in a child process with a small file system of its own at `directory` and returns
/// its result. Empty if this is not permitted.
std::string on_small_disk(const fs::path& directory, const std::function<std::string()>& work) {
  int channel[2];
  if (::pipe(channel) != 0) return {};
  const pid_t child = ::fork();
  if (child == 0) {
    std::string answer;
    if ((::unshare(CLONE_NEWNS) == 0 || ::unshare(CLONE_NEWUSER | CLONE_NEWNS) == 0) &&
        ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
        ::mount("tmpfs", directory.c_str(), "tmpfs", 0, "size=4m") == 0) {
      answer = work();
    }
    ::_exit(::write(channel[1], answer.data(), answer.size()) < 0);
  }
  ::close(channel[1]);
  std::string answer(4096, '\0');
  const ssize_t length = ::read(channel[0], answer.data(), answer.size());
  answer.resize(static_cast<std::size_t>(std::max<ssize_t>(length, 0)));
  ::close(channel[0]);
  ::waitpid(child, nullptr, 0);
  return answer;
}

TEST_F(PosixStorageTest, AFullDiskNamesWhatIsNeededAndWhatIsAvailable) {
  const std::string messages = on_small_disk(root_.path(), [this] {
    std::string answer =
        error_of([&] { storage_->create("reserved", {.size_hint = std::uint64_t{6} << 20}); });
    if (storage_->stat("reserved")) return std::string("a file that was not created is there");
    const auto file = storage_->create("written");
    const Bytes block(std::size_t{3} << 20);
    file->append(block);
    return answer + "\n" + error_of([&] { file->append(std::vector<ByteView>{block, block}); });
  });
  if (messages.empty()) GTEST_SKIP() << "mounting is not allowed here";
  EXPECT_THAT(messages,
              HasSubstr("io: cannot reserve 6,291,456 bytes (6.0 MiB), 4,194,304 bytes (4.0 MiB) "
                        "are available on this file system: No space left on device"));
  EXPECT_THAT(messages, HasSubstr("io: cannot write 5,242,880 bytes (5.0 MiB), 0 bytes (0 B) are "
                                  "available on this file system: No space left on device"));
  EXPECT_THAT(messages, HasSubstr("offset 4194304"));
}

TEST_F(PosixStorageTest, BlocksReservedAndNotUsedAreGivenBack) {
  const auto file = storage_->create("a", {.size_hint = std::uint64_t{16} << 20});
  file->append(as_bytes("small"));
  file->close();
  struct stat status {};
  ASSERT_EQ(::stat((root_ / "a").c_str(), &status), 0);
  EXPECT_EQ(status.st_size, 5);
  EXPECT_LT(status.st_blocks * 512, 1 << 20);
}

TEST_F(PosixStorageTest, NoDescriptorsLeak) {
  const auto open_descriptors = [] {
    return std::distance(fs::directory_iterator("/proc/self/fd"), fs::directory_iterator());
  };
  if (!fs::exists("/proc/self/fd")) GTEST_SKIP() << "no /proc";
  const auto before = open_descriptors();
  storage_->make_directory("d/e");
  for (int i = 0; i < 10; ++i) {
    const std::string name = "d/e/" + std::to_string(i);
    storage_->create(name)->close();
    storage_->create(name + "dropped");
    storage_->create(name + "sections")->section(0)->append(as_bytes("a"));
    storage_->open(name);
    storage_->list("d/e");
    storage_->sync_directory("d/e");
    EXPECT_EQ(code_of([&] { storage_->create(name); }), "already-exists");
    EXPECT_EQ(code_of([&] { storage_->open("d/x/y"); }), "incomplete");
  }
  storage_->exchange("d/e/1", "d/e/2");
  storage_->rename("d", "f");
  storage_->remove_all("f");
  EXPECT_EQ(open_descriptors(), before);
}

}  // namespace
}  // namespace dckpt::posix_test
