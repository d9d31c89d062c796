#pragma once

#include <fstream>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>

#include "mapping/state/value.h"

namespace dckpt::testing {

using Json = nlohmann::ordered_json;

/// Returns a list of a file of tests/data/tree, which Python libraries made from trees and shards
/// (see generate.py there). Never empty.
inline Json recorded(const std::string& name, const std::string& list) {
  std::ifstream file(std::string(DCKPT_TEST_DATA) + "/tree/" + name);
  Json cases = Json::parse(file).at(list);
  if (cases.empty()) throw std::runtime_error("nothing is recorded under " + list);
  return cases;
}

/// Convert values in the spelling of generate.py; factories build and merge as the script's
/// factories do.
Value decode(const Json& json);
Json encode(const Value& value);

}  // namespace dckpt::testing
