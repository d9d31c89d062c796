#pragma once

#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string>

#include "mapping/base/bytes.h"
#include "mapping/base/error.h"
#include "strategies/formats/pickle/graph.h"
#include "strategies/formats/pickle/value.h"

namespace dckpt::pickle {

inline Bytes read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) throw std::runtime_error("cannot open " + path);
  return to_bytes(std::string(std::istreambuf_iterator<char>(in), {}));
}

/// Returns tests/data/pickles/NAME.pkl, written by Python.
inline Bytes golden(const std::string& name) {
  return read_file(std::string(DCKPT_TEST_DATA) + "/pickles/" + name + ".pkl");
}

inline Value load(ByteView pickle, ValueHooks hooks = {}, const Limits& limits = {}) {
  return value_from_graph(read_graph(pickle, "test.pkl", limits), std::move(hooks), limits);
}

inline Value load(std::string_view pickle) {
  return load(as_bytes(pickle));
}

/// Returns the error that `body` throws. If it throws none, fails the calling test with an
/// exception of another type.
template <typename Body>
CheckpointError error_of(Body&& body) {
  try {
    body();
  } catch (const CheckpointError& error) {
    return error;
  }
  throw std::runtime_error("no CheckpointError was thrown");
}

}  // namespace dckpt::pickle
