#pragma once

#include <filesystem>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string>

#include "mapping/base/hash.h"
#include "mapping/state/value.h"
#include "strategies/formats/json/json.h"
#include "strategies/tensor_io/read_tensors.h"

namespace dckpt::testing {

/// Returns the path of tests/data/checkpoints/NAME, a checkpoint as its producer left it.
inline std::filesystem::path golden(const std::string& name) {
  return std::filesystem::path(DCKPT_TEST_DATA) / "checkpoints" / name / "ckpt";
}

/// Returns its expected.json (tests/data/README.md).
inline Value golden_expected(const std::string& name) {
  const std::filesystem::path path = golden(name).parent_path() / "expected.json";
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::runtime_error("cannot open " + path.string());
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  return parse_json(as_bytes(text), path.string());
}

/// Returns {"dtype", "shape", "sha256"} of a whole tensor, spelled as in expected.json.
inline Value describe_content(const CheckpointReader& reader, std::size_t tensor) {
  const TensorStorageMetadata& entry = reader.metadata().tensors[tensor];
  const Tensor content = read_box(reader, tensor, whole(entry.size));
  ValueList shape;
  for (const std::int64_t extent : entry.global_shape()) shape.emplace_back(extent);
  return Value::dict({{"dtype", std::string(to_string(content.dtype()))},
                      {"shape", Value::list(std::move(shape))},
                      {"sha256", sha256_hex(content.bytes())}});
}

}  // namespace dckpt::testing
