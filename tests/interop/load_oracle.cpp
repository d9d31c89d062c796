// load_oracle: prints what the library loads, for the comparison with torch in test_loads_torch.py
// and with Megatron-Core in test_pads_megatron.py. One case of JSON per line of standard input, one
// line of answer per case: {"state": rendered as extract does it}, or {"refused": message}.
//
//   {"path", "keys": [text, …]}                load_state_dict
//   {"path", "into": TREE, "partial": bool}    load_plain
//   {"path", "replicate": bool, "into": TREE}  the same of tensors whose shapes may differ, padded with the last stored row or with zeros
//
// A TREE is {"dict": [[key, TREE], …]}, {"list": [TREE, …]}, {"tensor": [dtype, shape]} (of zeros),
// {"shard": [key, dtype, local shape, global shape, offset]} or a scalar.

#include <cstdio>
#include <exception>
#include <iostream>
#include <string>

#include <nlohmann/json.hpp>

#include "dist_checkpointing/load/load.h"
#include "mapping/base/error.h"
#include "operations/inspect/extract/render.h"
#include "strategies/formats/json/json.h"
#include "tests/interop/json_shape.h"

namespace {

using namespace dckpt;
using Json = nlohmann::json;

Tensor tensor_of(const Json& dtype, const Json& shape) {
  return Tensor::zeros(parse_dtype(dtype.get<std::string>()).value(), shape_of(shape));
}

Value tree_of(const Json& json) {
  if (json.is_object() && json.contains("tensor"))
    return tensor_of(json["tensor"][0], json["tensor"][1]);
  if (json.is_object() && json.contains("shard")) {
    const Json& shard = json["shard"];
    return ShardedTensor::from_box(shard[0].get<std::string>(), tensor_of(shard[1], shard[2]),
                                   shape_of(shard[3]), shape_of(shard[4]),
                                   {.allow_shape_mismatch = true});
  }
  if (json.is_object() && json.contains("list")) {
    Value list = Value::list();
    for (const Json& item : json["list"]) list.mutable_items().push_back(tree_of(item));
    return list;
  }
  if (json.is_object()) {
    Value dict = Value::dict();
    for (const Json& item : json.at("dict")) dict[item[0].get<std::string>()] = tree_of(item[1]);
    return dict;
  }
  if (json.is_null()) return {};
  if (json.is_boolean()) return json.get<bool>();
  if (json.is_number_integer()) return json.get<std::int64_t>();
  if (json.is_number()) return json.get<double>();
  return json.get<std::string>();
}

std::string answer(const Json& job) {
  const auto path = job.at("path").get<std::string>();
  try {
    StateDict state;
    if (job.contains("into")) {
      state = tree_of(job["into"]);
      load_plain(state, path,
                 {.allow_partial_load = job.value("partial", false),
                  .allow_truncation = {"*"},
                  .padding = job.value("replicate", false) ? Padding::kReplicate : Padding::kZero,
                  .validate_access_integrity = false});
    } else {
      state = load_state_dict(path, job.at("keys").get<std::vector<std::string>>(),
                              {.allow_partial_load = true});
    }
    return to_json(render(Value::dict({{"state", state}})));
  } catch (const CheckpointError& error) {
    return Json{{"refused", error.message()}}.dump();
  }
}

}  // namespace

int main() {
  try {
    for (std::string line; std::getline(std::cin, line);)
      std::cout << answer(Json::parse(line)) << '\n';
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "load_oracle: %s\n", error.what());
    return 1;
  }
}
