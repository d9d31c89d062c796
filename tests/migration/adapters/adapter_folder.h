#pragma once

#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

namespace dckpt::testing {

/// Returns the path of a model, an adapter for it, or what PEFT merges of both:
/// tests/data/adapters/NAME/PART.
inline std::filesystem::path adapter_data(const std::string& name, const std::string& part) {
  return std::filesystem::path(DCKPT_TEST_DATA) / "adapters" / name / part;
}

/// Writes a file of the safetensors format, whose tensors are float32 and zero.
inline void write_zeros(const std::filesystem::path& file,
                        const std::vector<std::pair<std::string, std::vector<int>>>& tensors) {
  std::string header = "{";
  int end = 0;
  for (const auto& [key, shape] : tensors) {
    int bytes = 4;
    std::string extents;
    for (const int extent : shape) {
      bytes *= extent;
      extents += (extents.empty() ? "" : ",") + std::to_string(extent);
    }
    header += (end == 0 && header.size() == 1 ? "\"" : ",\"") + key +
              "\":{\"dtype\":\"F32\",\"shape\":[" + extents + "],\"data_offsets\":[" +
              std::to_string(end) + "," + std::to_string(end + bytes) + "]}";
    end += bytes;
  }
  header += "}";
  std::ofstream stream(file, std::ios::binary);
  for (std::size_t i = 0, size = header.size(); i < 8; ++i, size >>= 8)
    stream.put(static_cast<char>(size & 0xFF));
  stream << header << std::string(static_cast<std::size_t>(end), '\0');
}

inline void write_text(const std::filesystem::path& file, const std::string& text) {
  std::ofstream(file, std::ios::binary) << text;
}

}  // namespace dckpt::testing
