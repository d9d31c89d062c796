#pragma once

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string>
#include <vector>

#include "mapping/base/bytes.h"

namespace dckpt::testing {

inline Bytes read_file(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  const std::string text((std::istreambuf_iterator<char>(in)), {});
  if (!in) throw std::runtime_error("cannot read " + path.string());
  return to_bytes(text);
}

inline std::filesystem::path golden(const std::string& name) {
  return std::filesystem::path(DCKPT_TEST_DATA) / "checkpoints" / name;
}

/// Returns the names of the golden checkpoints that have DCP metadata.
inline std::vector<std::string> golden_names() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(golden(""))) {
    if (std::filesystem::exists(entry.path() / "ckpt" / ".metadata"))
      names.push_back(entry.path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

/// Returns a golden's name as a test's name.
inline std::string test_name(std::string name) {
  std::replace_if(
      name.begin(), name.end(), [](char c) { return c == '-' || c == '.'; }, '_');
  return name;
}

}  // namespace dckpt::testing
