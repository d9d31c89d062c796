#pragma once

#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <string>

#include "mapping/base/hash.h"
#include "strategies/formats/json/json.h"
#include "strategies/storage/posix.h"
#include "strategies/tensor_io/read_tensors.h"
#include "strategies/torch_dist/reader.h"
#include "tests/dist_checkpointing/fake_reader.h"

namespace dckpt::testing {

/// Returns the path of a model as written by Hugging Face and by Megatron:
/// tests/data/hf_pairs/NAME.
inline std::filesystem::path hf_pair(const std::string& name) {
  return std::filesystem::path(DCKPT_TEST_DATA) / "hf_pairs" / name;
}

inline std::string bytes_of(const std::filesystem::path& file) {
  std::ifstream stream(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), {}};
}

inline Value json_of(const std::filesystem::path& file) {
  const std::string text = bytes_of(file);
  return parse_json(as_bytes(text), file.string());
}

inline std::unique_ptr<CheckpointReader> megatron_of(const std::string& name) {
  return open_torch_dist(posix_storage(hf_pair(name) / "mcore"));
}

/// Adds a file beside a checkpoint in memory.
inline void add_file(const CheckpointReader& reader, const std::string& name,
                     const std::string& text) {
  const auto storage = std::const_pointer_cast<Storage>(reader.storage().shared_from_this());
  const auto file = storage->create(name);
  file->append(as_bytes(text));
  file->close();
}

/// Reads the safetensors files of a pair by their specification.
inline std::unique_ptr<FakeReader> hugging_face_of(const std::string& name) {
  auto reader = std::make_unique<FakeReader>();
  for (const auto& entry : std::filesystem::directory_iterator(hf_pair(name) / "hf")) {
    if (entry.path().extension() != ".safetensors") continue;
    const std::string bytes = bytes_of(entry.path());
    std::uint64_t header = 0;
    std::memcpy(&header, bytes.data(), sizeof header);
    const Value tensors =
        parse_json(as_bytes(std::string_view(bytes).substr(8, header)), entry.path().string());
    for (const auto& named : tensors.as_dict()) {
      const std::string& key = named.first.as_str();
      const Value& tensor = named.second;
      if (key == "__metadata__") continue;
      Shape shape;
      for (const Value& extent : tensor.at("shape").items()) shape.push_back(extent.as_int());
      const auto& range = tensor.at("data_offsets").items();
      const std::string content =
          bytes.substr(8 + header + static_cast<std::size_t>(range[0].as_int()),
                       static_cast<std::size_t>(range[1].as_int() - range[0].as_int()));
      const auto add = [&]<typename T>(DType dtype, T) {
        std::vector<T> elements(content.size() / sizeof(T));
        std::memcpy(elements.data(), content.data(), content.size());
        reader->tensor(key, dtype, shape, elements);
      };
      tensor.at("dtype").as_str() == "F32" ? add(DType::kFloat32, 0.0F)
                                           : add(DType::kBFloat16, std::uint16_t{0});
    }
  }
  reader->write();
  add_file(*reader, "config.json", bytes_of(hf_pair(name) / "hf" / "config.json"));
  return reader;
}

/// Returns key → "float32 (2, 3) SHA-256".
inline std::map<std::string, std::string> contents_of(const CheckpointReader& reader) {
  std::map<std::string, std::string> contents;
  for (std::size_t i = 0; i < reader.metadata().tensors.size(); ++i) {
    const TensorStorageMetadata& tensor = reader.metadata().tensors[i];
    const Tensor content = read_box(reader, i, whole(tensor.size));
    contents[tensor.key] = std::string(to_string(content.dtype())) + " " +
                           to_string(content.shape()) + " " + sha256_hex(content.bytes());
  }
  return contents;
}

}  // namespace dckpt::testing
