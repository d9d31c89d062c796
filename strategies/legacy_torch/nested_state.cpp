#include "strategies/legacy_torch/nested_state.h"

#include <optional>
#include <utility>

#include "mapping/base/format.h"
#include "mapping/state/flatten.h"
#include "strategies/formats/torch_archive/torch_file.h"

namespace dckpt {
namespace {

std::string name_of(const Value& key) {
  if (std::optional<std::string> text = key_text(key)) return *std::move(text);
  if (key.is(Value::Kind::kGlobal)) return key.as_global().path();
  if (!key.is(Value::Kind::kTuple)) return str_format("<{}>", to_string(key.kind()));
  std::string items;
  for (const Value& item : key.items()) items += (items.empty() ? "" : ", ") + name_of(item);
  return str_format("({}{})", items, key.size() == 1 ? "," : "");
}

class TensorExtractor {
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
    Value rest = contents_of(value);
    rest.set_label(value.label());
    return rest;
  }

  Value contents_of(const Value& value) {
    if (value.is_dict()) {
      Dict rest;
      for (const auto& [key, item] : value.as_dict()) {
        if (auto kept = descend(name_of(key), item)) rest.set(key, std::move(*kept));
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
        if (auto kept = descend(name_of(key), item)) items.emplace_back(key, std::move(*kept));
      }
      return copy;
    }
    return value;
  }

  /// Returns the remainder of a member; empty if it is a tensor.
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

NestedState extract_tensors(const Value& state) {
  return TensorExtractor().run(state);
}

}  // namespace dckpt
