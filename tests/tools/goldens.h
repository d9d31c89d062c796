#pragma once

#include <filesystem>
#include <fstream>
#include <string>

#include "tests/support/golden.h"
#include "tests/support/temp_dir.h"

// The checkpoints that the commands are tested on.

namespace dckpt::testing {

inline constexpr const char* kSynthetic = "mcore-0.14-synthetic";
inline constexpr const char* kModel = "mcore-0.14-flattened-tp2pp2dp2";

inline std::string path_of(const std::string& name) {
  return golden(name).string();
}

/// A copy that may be damaged.
struct Copy {
  explicit Copy(const std::string& name) {
    std::filesystem::copy(golden(name), path(), std::filesystem::copy_options::recursive);
  }
  std::filesystem::path path() const { return directory / "ckpt"; }
  std::string text() const { return path().string(); }
  TempDir directory;
};

/// A training root: iteration 10 complete, 20 without a data file, the tracker naming 20.
struct Root {
  Root() {
    for (const char* const name : {"iter_0000010", "iter_0000020"}) {
      std::filesystem::copy(golden(kModel), directory / name,
                            std::filesystem::copy_options::recursive);
    }
    std::filesystem::remove(directory / "iter_0000020" / "__2_0.distcp");
    track(20);
  }
  void track(int iteration) {
    std::ofstream(directory / "latest_checkpointed_iteration.txt") << iteration;
  }
  std::string text() const { return directory.path().string(); }
  TempDir directory;
};

}  // namespace dckpt::testing
