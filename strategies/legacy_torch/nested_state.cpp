#include "strategies/legacy_torch/nested_state.h"

#include <optional>
#include <utility>

#include "strategies/formats/torch_archive/torch_file.h"

namespace dckpt {
namespace {

std::string key_text(const Value& key) {
  switch (key.kind()) {
    case Value::Kind::kStr: return key.as_str();
    case Value::Kind::kInt: return std::to_string(key.as_int());
    case Value::Kind::kBigInt: return key.as_big_int().to_decimal();
    case Value::Kind::kBool: return key.as_bool() ? "True" : "False";
    case Value::Kind::kNone: return "None";
    case Value::Kind::kGlobal: return key.as_global().path();
    case Value::Kind::kTuple: {
      std::string text;
      for (const Value& item : key.items()) text += (text.empty() ? "" : ", ") + key_text(item);
      return "(" + text + (key.size() == 1 ? ",)" : ")");
    }
    default: return std::string("<") + to_string(key.kind()) + ">";
  }
}

class Dissection {
 public:
  NestedState run(const Value& state) {
    if (const auto tensor = tensor_of(state)) {
      result_.tensors.emplace_back("tensor", *tensor);
    } else {
      result_.rest = rest_of(state);
    }
    return std::move(result_);
  }

 private:
  Value rest_of(const Value& value) {
    if (value.is_dict()) {
      Dict rest;
      for (const auto& [key, item] : value.as_dict()) {
        if (auto kept = descend(key_text(key), item)) rest.set(key, std::move(*kept));
      }
      return rest;
    }
    if (value.is_list()) {
      ValueList rest;
      for (std::size_t index = 0; index < value.items().size(); ++index) {
        rest.push_back(descend(std::to_string(index), value.items()[index]).value_or(Value()));
      }
      return Value::list(std::move(rest));
    }
    if (mapping_items(value) != nullptr) {
      Value copy = value;
      auto& items = copy.mutable_opaque().dict_items;
      const auto all = std::exchange(items, {});
      for (const auto& [key, item] : all) {
        if (auto kept = descend(key_text(key), item)) items.emplace_back(key, std::move(*kept));
      }
      return copy;
    }
    return value;
  }

  /// What stays of a member; nothing if it is a tensor.
  std::optional<Value> descend(const std::string& name, const Value& item) {
    const std::size_t length = path_.size();
    path_ += (path_.empty() ? "" : ".") + name;
    std::optional<Value> kept;
    if (const auto tensor = tensor_of(item)) {
      result_.tensors.emplace_back(path_, *tensor);
    } else {
      kept = rest_of(item);
    }
    path_.resize(length);
    return kept;
  }

  std::string path_;
  NestedState result_;
};

}  // namespace

NestedState take_apart(const Value& state) {
  return Dissection().run(state);
}

}  // namespace dckpt
