#include "dist_checkpointing/training_root/soundness.h"

#include <gmock/gmock.h>

#include "tests/operations/upkeep/kept_root.h"

namespace dckpt::testing::soundness_test {
namespace {

namespace fs = std::filesystem;
using Kind = Unfinished::Kind;

/// Damage to a checkpoint, and what each examination says of it.
struct Damage {
  const char* what;
  void (*to)(const fs::path& checkpoint);
  std::optional<Kind> finished{};  ///< find_unfinished()
  std::optional<Kind> sound{};     ///< find_unsound(), as are the next
  std::optional<Kind> deep{};
};

void overwrite(const fs::path& file, std::size_t offset, const std::string& bytes) {
  std::fstream(file, std::ios::in | std::ios::out | std::ios::binary)
          .seekp(static_cast<std::streamoff>(offset))
      << bytes;
}

const std::vector<Damage> kDamages{
    {"none", [](const fs::path&) {}},
    {"data that are zeros, as after a power failure",
     [](const fs::path& at) {
       overwrite(at / "__0_0.distcp", 0, std::string(fs::file_size(at / "__0_0.distcp"), '\0'));
     },
     {},
     Kind::kUnsound,
     Kind::kUnsound},
    {"the head of a chunk",
     [](const fs::path& at) { overwrite(at / "__0_0.distcp", 0, "X"); },
     {},
     Kind::kUnsound,
     Kind::kUnsound},
    {"an element",
     [](const fs::path& at) {
       std::ifstream file(at / "__0_0.distcp", std::ios::binary);
       const std::string content{std::istreambuf_iterator<char>(file), {}};
       overwrite(at / "__0_0.distcp", content.find(std::string(16, '\0'), 60), "X");
     },
     {},
     {},
     Kind::kUnsound},
    {"a file too short", [](const fs::path& at) { fs::resize_file(at / "__0_0.distcp", 20); },
     Kind::kFileTruncated, Kind::kFileTruncated, Kind::kFileTruncated},
    {"a file missing", [](const fs::path& at) { fs::remove(at / "__0_0.distcp"); },
     Kind::kFileMissing, Kind::kFileMissing, Kind::kFileMissing},
    {"metadata", [](const fs::path& at) { fs::resize_file(at / ".metadata", 20); }, Kind::kDamaged,
     Kind::kDamaged, Kind::kDamaged},
    {"no end", [](const fs::path& at) { fs::remove(at / "metadata.json"); }, Kind::kNoMetadata,
     Kind::kNoMetadata, Kind::kNoMetadata},
};

class Soundness : public KeptRoot {};

TEST_F(Soundness, SaysWhatIsNotToBeReliedOn) {
  const auto kind = [](const std::optional<Unfinished>& found) {
    return found ? std::optional(found->kind) : std::nullopt;
  };
  for (const Damage& damage : kDamages) {
    SCOPED_TRACE(damage.what);
    fs::remove_all(path(1));
    make(1);
    damage.to(path(1));
    const OpenOptions open;
    EXPECT_EQ(kind(find_unfinished(path(1))), damage.finished);
    EXPECT_EQ(kind(find_unsound(path(1))), damage.sound);
    EXPECT_EQ(kind(find_unsound(path(1), open.strategy, {.deep = true})), damage.deep);
  }
}

}  // namespace
}  // namespace dckpt::testing::soundness_test
