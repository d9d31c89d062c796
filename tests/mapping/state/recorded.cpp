#include "tests/mapping/state/recorded.h"

#include "mapping/state/sharded_object.h"

namespace dckpt::testing {
namespace {

Value sharded(const std::string& key) {
  return ShardedTensor::whole(key, Tensor::zeros(DType::kFloat32, {1}));
}

Value factory(const std::string& key) {
  ShardedTensorFactory made{.key = key, .data = Tensor::zeros(DType::kFloat32, {1})};
  made.build = [](const std::string& name, const Tensor&, const ReplicaId&,
                  std::optional<FlattenedRange>) {
    return Value::dict({{"w", sharded(name + "_w")}, {"v", Value::list({sharded(name + "_v")})}});
  };
  made.merge = [key](const Value& tree) { return Value::list({"merged", key, tree}); };
  return made;
}

ValueList decode_items(const Json& json) {
  ValueList items;
  for (const Json& item : json) items.push_back(decode(item));
  return items;
}

Bytes from_hex(const std::string& hex) {
  Bytes bytes;
  for (std::size_t i = 0; i < hex.size(); i += 2)
    bytes.push_back(static_cast<std::byte>(std::stoul(hex.substr(i, 2), nullptr, 16)));
  return bytes;
}

Json tagged(const char* tag, Json content) {
  Json json;
  json[tag] = std::move(content);
  return json;
}

Json encode_items(const ValueList& items) {
  Json json = Json::array();
  for (const Value& item : items) json.push_back(encode(item));
  return json;
}

}  // namespace

Value decode(const Json& json) {
  if (json.is_null()) return {};
  if (json.is_boolean()) return json.get<bool>();
  if (json.is_number_integer()) return json.get<std::int64_t>();
  if (json.is_string()) return json.get<std::string>();
  if (json.is_array()) return Value::list(decode_items(json));
  const std::string& kind = json.begin().key();
  const Json& content = json.begin().value();
  if (kind == "dict") {
    Dict dict;
    for (const Json& item : content) dict.set(decode(item[0]), decode(item[1]));
    return dict;
  }
  if (kind == "tuple") return Value::tuple(decode_items(content));
  if (kind == "set") return Value::set(decode_items(content));
  if (kind == "frozenset") return Value::frozen_set(decode_items(content));
  if (kind == "bytes") return Value::bytes(from_hex(content));
  if (kind == "bytearray") return Value::byte_array(from_hex(content));
  if (kind == "int") return BigInt{from_hex(content[0])};
  if (kind == "float") return std::strtod(content.get<std::string>().c_str(), nullptr);
  if (kind == "complex") {
    return std::complex<double>(std::strtod(content[0].get<std::string>().c_str(), nullptr),
                                std::strtod(content[1].get<std::string>().c_str(), nullptr));
  }
  if (kind == "tensor") return Tensor::zeros(DType::kFloat32, {content.get<std::int64_t>()});
  if (kind == "sharded") return sharded(content);
  if (kind == "empty")
    return ShardedTensor::from_rank_offsets_flat(content, Tensor::zeros(DType::kFloat32, {0}), {4},
                                                 {}, {2, 2});
  if (kind == "object") return ShardedObject{.key = content, .data = 1};
  if (kind == "factory") return factory(content);
  if (kind == "local") return LocalNonpersistentObject{decode(content)};
  throw std::runtime_error("unknown kind in recorded data: " + kind);
}

Json encode(const Value& value) {
  switch (value.kind()) {
    case Value::Kind::kNone: return nullptr;
    case Value::Kind::kBool: return value.as_bool();
    case Value::Kind::kInt: return value.as_int();
    case Value::Kind::kStr: return value.as_str();
    case Value::Kind::kList: return encode_items(value.items());
    case Value::Kind::kTuple: return tagged("tuple", encode_items(value.items()));
    case Value::Kind::kDict: {
      Json items = Json::array();
      for (const auto& [key, item] : value.as_dict())
        items.push_back(Json::array({encode(key), encode(item)}));
      return tagged("dict", std::move(items));
    }
    case Value::Kind::kTensor: return tagged("tensor", value.as_tensor().numel());
    case Value::Kind::kShardedTensor:
      return tagged(value.as_sharded_tensor().flattened_range ? "empty" : "sharded",
                    value.as_sharded_tensor().key);
    case Value::Kind::kShardedObject: return tagged("object", value.as_sharded_object().key);
    case Value::Kind::kShardedTensorFactory: return tagged("factory", value.as_factory().key);
    case Value::Kind::kLocalNonpersistentObject:
      return tagged("local", encode(value.as_local_nonpersistent().value));
    default: throw std::runtime_error(std::string("no spelling for ") + to_string(value.kind()));
  }
}

}  // namespace dckpt::testing
