// Whatever is wrong with a file, each error names the file.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>

#include "dist_checkpointing/open/open.h"
#include "operations/inspect/verify.h"
#include "strategies/tensor_io/read_tensors.h"
#include "tests/support/golden.h"
#include "tests/support/temp_dir.h"

namespace dckpt::damaged_files_test {
namespace {

namespace fs = std::filesystem;

using Damage = void (*)(std::string& bytes);

const std::map<std::string, Damage> kDamages{
    {"empty", [](std::string& bytes) { bytes.clear(); }},
    {"cut in the middle", [](std::string& bytes) { bytes.resize(bytes.size() / 2); }},
    {"last byte lost", [](std::string& bytes) { bytes.pop_back(); }},
    {"zeros in front",
     [](std::string& bytes) {
       std::fill_n(bytes.begin(), std::min<std::size_t>(bytes.size(), 64), '\0');
     }},
    {"noise in the middle",
     [](std::string& bytes) {
       for (std::size_t i = bytes.size() / 3; i < bytes.size() / 3 + 16 && i < bytes.size(); ++i)
         bytes[i] = static_cast<char>(~bytes[i]);
     }},
    {"something else", [](std::string& bytes) { bytes = "{\"a\": [1, null, {}]}"; }},
};

std::string slurp(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

void write(const fs::path& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

/// Returns the errors of reading everything in a checkpoint.
std::vector<CheckpointError> errors_of(const fs::path& checkpoint) {
  std::vector<CheckpointError> errors;
  const auto attempt = [&](const auto& work) {
    try {
      work();
    } catch (const CheckpointError& error) {
      errors.push_back(error);
    }
  };
  attempt([&] {
    const auto reader = open_checkpoint(checkpoint);
    attempt([&] { reader->common_state(); });
    for (std::size_t i = 0; i < reader->metadata().objects.size(); ++i)
      attempt([&] { reader->object(i); });
    for (std::size_t i = 0; i < reader->metadata().tensors.size(); ++i)
      attempt([&] { read_box(*reader, i, whole(reader->metadata().tensors[i].global_shape())); });
    attempt([&] {
      const VerifyReport report = verify(*reader, {.deep = true});
      errors.insert(errors.end(), report.problems.begin(), report.problems.end());
    });
  });
  return errors;
}

/// Returns a few files of a checkpoint, of all kinds that it has.
std::vector<fs::path> some_files(const fs::path& checkpoint) {
  constexpr int kOfAKind = 2;
  std::map<std::string, int> kinds;
  std::vector<fs::path> files;
  for (const auto& entry : fs::recursive_directory_iterator(checkpoint)) {
    const std::string extension = entry.path().extension().string();
    const std::string kind = extension.empty() ? entry.path().filename().string() : extension;
    if (entry.is_regular_file() && fs::file_size(entry.path()) > 0 && kinds[kind]++ < kOfAKind)
      files.push_back(entry.path());
  }
  return files;
}

class DamagedFiles : public ::testing::TestWithParam<const char*> {};

TEST_P(DamagedFiles, EachErrorNamesAFile) {
  TempDir directory;
  const fs::path checkpoint = directory / "ckpt";
  fs::copy(testing::golden(GetParam()), checkpoint, fs::copy_options::recursive);
  ASSERT_THAT(errors_of(checkpoint), ::testing::IsEmpty());
  std::size_t errors = 0;
  for (const fs::path& file : some_files(checkpoint)) {
    const std::string sound = slurp(file);
    for (const auto& [name, damage] : kDamages) {
      std::string bytes = sound;
      damage(bytes);
      write(file, bytes);
      for (const CheckpointError& error : errors_of(checkpoint)) {
        const bool names_a_file =
            error.context().file && (error.context().file != checkpoint.string() ||
                                     error.message().starts_with(file.filename().string()));
        EXPECT_TRUE(names_a_file) << file << ", " << name << ": " << error.what();
        ++errors;
      }
    }
    write(file, sound);
  }
  EXPECT_GT(errors, 0U);
}

INSTANTIATE_TEST_SUITE_P(Formats, DamagedFiles,
                         ::testing::Values("mcore-0.14-flattened-single", "mcore-head-moe-ep2",
                                           "mcore-0.14-zarr-tp2pp1dp2", "mcore-0.16-nvrx-local",
                                           "legacy-torch-tp2pp2", "dcp-hf-safetensors",
                                           "dcp-zstd-torch2.15", "tc-0.1-native-2d", "tc-0.1-async",
                                           "tc-0.1-safetensors", "tc-0.1-single"));

}  // namespace
}  // namespace dckpt::damaged_files_test
