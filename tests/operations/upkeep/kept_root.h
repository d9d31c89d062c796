#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "dist_checkpointing/open/tracker.h"
#include "dist_checkpointing/save/save.h"
#include "dist_checkpointing/training_root/staging_token.h"
#include "mapping/state/sharded_tensor.h"
#include "tests/support/temp_dir.h"

namespace dckpt::testing {

/// A training root to be looked after.
class KeptRoot : public ::testing::Test {
 protected:
  void make(const std::string& name) const {
    StateDict state;
    state["w"] = ShardedTensor::whole("w", Tensor::zeros(DType::kFloat32, {4}));
    save(state, root_ / name);
  }
  void make(std::uint64_t iteration) const { make(iteration_directory(iteration)); }
  std::filesystem::path path(std::uint64_t iteration) const {
    return root_ / iteration_directory(iteration);
  }
  void write(const std::filesystem::path& name, const std::string& text) const {
    std::ofstream(root_ / name, std::ios::trunc) << text;
  }
  std::string read(const std::filesystem::path& name) const {
    std::ifstream file(root_ / name);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  void track(const std::string& text) const { write(kTrackerFile, text); }
  std::string tracker() const { return read(kTrackerFile); }

  /// The data of a checkpoint become zeros, as after a power failure.
  void zero(const std::string& name) const {
    const std::filesystem::path file = root_ / name / "__0_0.distcp";
    std::ofstream(file, std::ios::in | std::ios::out | std::ios::binary)
        << std::string(std::filesystem::file_size(file), '\0');
  }
  void zero(std::uint64_t iteration) const { zero(iteration_directory(iteration)); }

  /// A complete, an unfinished and a damaged iteration, the last of which the tracker names.
  void make_sick() const {
    for (const std::uint64_t iteration : {1, 2, 3}) make(iteration);
    std::filesystem::remove(path(2) / ".metadata");
    std::filesystem::remove(path(2) / "metadata.json");
    make_old(path(2));
    std::filesystem::resize_file(path(3) / "__0_0.distcp", 20);
    track("3");
  }

  /// Nobody has been writing what is below a directory.
  static void make_old(const std::filesystem::path& directory) {
    const auto then = std::filesystem::file_time_type::clock::now() - std::chrono::hours(48);
    for (const auto& entry : std::filesystem::recursive_directory_iterator(directory))
      std::filesystem::last_write_time(entry.path(), then);
    std::filesystem::last_write_time(directory, then);
  }

  /// A token of this process, of one of this host that has ended, and of one of another host.
  static std::string mine() { return staging_token(); }
  static std::string ended() {
    std::string host = staging_token();
    for (int part = 0; part < 3; ++part) host.erase(host.rfind('-'));
    return host + "-4194305-1-abcd";
  }
  static std::string elsewhere() { return "host.of.others-1-1-abcd"; }

  /// Returns all names directly in the root but the lock.
  std::vector<std::string> names() const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(root_.path()))
      if (entry.path().filename() != ".dckpt.lock") names.push_back(entry.path().filename());
    std::ranges::sort(names);
    return names;
  }

  TempDir root_;
};

}  // namespace dckpt::testing
