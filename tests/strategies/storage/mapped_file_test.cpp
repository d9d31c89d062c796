// Files that are mapped, and truncated meanwhile.

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <thread>

#include "strategies/storage/mappable_file.h"
#include "strategies/storage/mapped_reads.h"
#include "strategies/storage/posix.h"
#include "tests/support/temp_dir.h"

namespace dckpt::mapped_file_test {
namespace {

namespace fs = std::filesystem;

class MappedFile : public ::testing::Test {
 protected:
  static constexpr std::size_t kSize = std::size_t{1} << 20;

  /// Opens a file of kSize times 'x', for mapping.
  const MappableFile& open() {
    std::ofstream(root_ / "file") << std::string(kSize, 'x');
    file_ = storage_->open("file");
    return dynamic_cast<const MappableFile&>(*file_);
  }
  void shrink() const { fs::resize_file(root_ / "file", 10'000); }
  static std::size_t count(const std::byte* bytes) {
    return static_cast<std::size_t>(std::count(bytes, bytes + kSize, std::byte{'x'}));
  }

  TempDir root_;
  std::shared_ptr<Storage> storage_ = posix_storage(root_.path());
  std::unique_ptr<ReadableFile> file_;
};

// This test is first: no other test has mapped anything yet when it runs alone in its process.
TEST_F(MappedFile, IsNotMappedAndNoHandlerIsTouchedOnceThatIsTurnedOff) {
  const auto handler = [] {
    struct sigaction now {};
    ::sigaction(SIGBUS, nullptr, &now);
    return now.sa_sigaction;
  };
  const MappableFile& file = open();
  const auto before = handler();
  allow_mapped_reads(false);
  EXPECT_FALSE(file.with_mapped(0, kSize, [](const std::byte*) { FAIL(); }));
  EXPECT_EQ(handler(), before);
  allow_mapped_reads(true);
  EXPECT_TRUE(file.with_mapped(0, kSize, [](const std::byte*) {}));
}

TEST_F(MappedFile, IsThereOrShrinksWithoutASignal) {
  const MappableFile& file = open();
  std::size_t seen = 0;
  EXPECT_TRUE(file.with_mapped(0, kSize, [&](const std::byte* bytes) { seen = count(bytes); }));
  EXPECT_EQ(seen, kSize);
  EXPECT_TRUE(
      file.with_mapped(5000, 1, [&](const std::byte* at) { seen = at[0] == std::byte{'x'}; }));
  EXPECT_EQ(seen, 1u);
  EXPECT_FALSE(file.with_mapped(kSize, 1, [](const std::byte*) { FAIL(); }));
  EXPECT_FALSE(file.with_mapped(0, kSize, [&](const std::byte* bytes) {
    EXPECT_EQ(bytes[0], std::byte{'x'});
    shrink();
    seen = count(bytes);
  })) << "it shrinks while it is read";
  EXPECT_EQ(seen, 10'000u) << "what it has no longer is zero";
  EXPECT_FALSE(file.with_mapped(0, kSize, count)) << "it has shrunk before";
  EXPECT_TRUE(file.with_mapped(0, 10'000, [](const std::byte*) {}));
}

TEST_F(MappedFile, ShrinksWithoutASignalWhereTheTrainerBlocksSignals) {
  std::jthread([&] {
    sigset_t all{};
    sigset_t after{};
    ::sigfillset(&all);
    ::pthread_sigmask(SIG_BLOCK, &all, nullptr);
    EXPECT_FALSE(open().with_mapped(0, kSize, [&](const std::byte* bytes) {
      shrink();
      EXPECT_EQ(count(bytes), 10'000u);
    }));
    ::pthread_sigmask(SIG_SETMASK, nullptr, &after);
    EXPECT_EQ(::sigismember(&after, SIGBUS), 1) << "it is blocked again";
    ::pthread_kill(::pthread_self(), SIGBUS);
    EXPECT_FALSE(open().with_mapped(0, kSize, [](const std::byte*) { FAIL(); }))
        << "one that was sent stays with whoever waits for it";
    const timespec now{};
    EXPECT_EQ(::sigtimedwait(&all, nullptr, &now), SIGBUS);
  }).join();
}

TEST_F(MappedFile, LongRangesMayBeginAndEndAnywhere) {
  constexpr std::size_t kLong = 5 * kSize + 777;  // more than two huge pages
  std::string content(kLong, '\0');
  for (std::size_t i = 0; i < kLong; ++i) content[i] = static_cast<char>('a' + i % 23);
  std::ofstream(root_ / "file") << content;
  file_ = storage_->open("file");
  const auto& file = dynamic_cast<const MappableFile&>(*file_);
  for (const std::size_t begin :
       {std::size_t{0}, std::size_t{4095}, 2 * kSize - 1, 3 * kSize + 5}) {
    for (const std::size_t end : {begin + kSize, begin + 2 * kSize, kLong}) {
      std::string seen;
      EXPECT_TRUE(file.with_mapped(begin, end - begin, [&](const std::byte* bytes) {
        seen.assign(reinterpret_cast<const char*>(bytes), end - begin);
      }));
      EXPECT_EQ(seen, content.substr(begin, end - begin)) << begin << " to " << end;
    }
  }
  EXPECT_FALSE(file.with_mapped(3 * kSize, 2 * kSize, [&](const std::byte* bytes) {
    shrink();
    EXPECT_EQ(bytes[2 * kSize - 1], std::byte{});
  }));
}

using MappedFileDeathTest = MappedFile;

TEST_F(MappedFileDeathTest, OtherBusErrorsAreStillThoseOfTheProgram) {
  const MappableFile& file = open();
  // The process dies of the signal, or of what a sanitizer does about it.
  const auto died = [](int status) { return !WIFEXITED(status) || WEXITSTATUS(status) != 0; };
  const auto map = [&] { return file.with_mapped(0, 1, [](const std::byte*) {}); };
  EXPECT_EXIT((map(), ::raise(SIGBUS)), died, "");
  EXPECT_EXIT(
      {
        void* const mine = ::mmap(nullptr, kSize, PROT_READ, MAP_SHARED,
                                  ::open((root_ / "file").c_str(), O_RDONLY), 0);
        map();
        shrink();
        std::_Exit(count(static_cast<const std::byte*>(mine)) == 0);
      },
      died, "");
  EXPECT_EXIT(
      {
        map();
        std::signal(SIGBUS, [](int) { std::_Exit(7); });
        if (map()) std::_Exit(1);  // a replaced handler stays replaced
        ::raise(SIGBUS);
      },
      ::testing::ExitedWithCode(7), "");
}

}  // namespace
}  // namespace dckpt::mapped_file_test
