#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <map>
#include <string>
#include <utility>

#include "dist_checkpointing/open/open.h"
#include "mapping/base/error.h"
#include "operations/convert/convert.h"
#include "operations/inspect/diff.h"
#include "tests/support/temp_dir.h"

namespace dckpt::testing {

/// Returns the files of a folder and their contents.
inline std::map<std::string, std::string> content(const std::filesystem::path& folder) {
  std::map<std::string, std::string> files;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    if (entry.is_directory()) continue;
    std::ifstream file(entry.path(), std::ios::binary);
    files[entry.path().lexically_relative(folder).string()] = {std::istreambuf_iterator<char>(file),
                                                               {}};
  }
  return files;
}

/// Conversions between checkpoints named by a test.
class Conversions : public ::testing::Test {
 protected:
  std::filesystem::path at(const std::string& name) const { return directory_ / name; }

  ConvertReport run(const std::string& from, const std::string& to,
                    const ConvertOptions& options = {}) const {
    return convert(at(from), at(to), options);
  }

  std::size_t differences(const std::filesystem::path& a, const std::filesystem::path& b) const {
    return diff(*open_checkpoint(a), *open_checkpoint(b)).differences.size();
  }

  TempDir directory_;
};

/// Conversions of the golden checkpoint mcore-0.14-flattened-tp2pp2dp2 to several files of each
/// format.
inline const ConvertOptions kForThree{.target = {.ranks = 3, .integrity = true}};
inline const ConvertOptions kHf{
    .source = {.map = {.name = "none"}, .keys = {.include = {"*"}}},
    .target = {.strategy = "hf", .options = OwnOptions::from_yaml("{max_file_size: 200KiB}")}};
inline const ConvertOptions kRanks{
    .source = {.keys = {.exclude = {"optimizer*"}}},
    .target = {.strategy = "torch",
               .options = OwnOptions::from_yaml("{tensor_model_parallel_size: 2, "
                                                "pipeline_model_parallel_size: 2, "
                                                "transformer_impl: local}")}};
inline const ConvertOptions kZarr{
    .source = {.keys = {.include = {"decoder.layers.mlp.linear_fc1.weight"}}},
    .target = {.strategy = "zarr"}};
inline const ConvertOptions kZstd{
    .target = {.strategy = "dcp", .options = OwnOptions::from_yaml("{compression: zstd}")}};

/// The code and the text of the error, or "no error".
using Refusal = std::pair<ErrorCode, std::string>;
inline Refusal refusal_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const CheckpointError& error) {
    return {error.code(), error.what()};
  }
  return {ErrorCode::kIo, "no error"};
}

}  // namespace dckpt::testing
