#include "operations/inspect/extract/render.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <string>

#include "mapping/base/error.h"
#include "mapping/base/hash.h"
#include "mapping/state/sharded_object.h"
#include "mapping/state/sharded_tensor.h"
#include "operations/inspect/element.h"
#include "operations/inspect/extract/renderer.h"
#include "strategies/formats/json/json.h"

namespace dckpt {
namespace {

constexpr std::size_t kShortBytes = 64;   // up to this many bytes are shown in hex
constexpr std::size_t kLongNumbers = 64;  // more numbers are hashed
constexpr std::size_t kFirst = 4;
constexpr std::int64_t kExactInts =
    std::int64_t{1} << 53;  // from here on JSON readers that use doubles would round

using Kind = Value::Kind;

bool is_number(const Value& value) {
  return value.is(Kind::kBool) || value.is(Kind::kInt) || value.is(Kind::kBigInt) ||
         value.is(Kind::kFloat);
}

std::string python_repr(const Value& number) {
  switch (number.kind()) {
    case Kind::kBool: return number.as_bool() ? "True" : "False";
    case Kind::kBigInt: return number.as_big_int().to_decimal();
    case Kind::kFloat: return dckpt::python_repr(number.as_float());
    default: return std::to_string(number.as_int());
  }
}

/// Sorts numbers by value, everything else by its JSON text.
void sort_members(ValueList& rendered) {
  const auto plain_number = [](const Value& value) {
    return value.is(Kind::kBool) || value.is(Kind::kInt) || value.is(Kind::kFloat);
  };
  if (std::ranges::all_of(rendered, plain_number)) {
    const auto as_double = [](const Value& value) {
      return value.is(Kind::kBool) ? static_cast<double>(value.as_bool()) : value.as_float();
    };
    std::ranges::stable_sort(rendered, {}, as_double);
    return;
  }
  std::vector<std::pair<std::string, Value>> by_text;
  for (Value& member : rendered) by_text.emplace_back(to_json(member), std::move(member));
  std::ranges::stable_sort(by_text, {},
                           [](const auto& entry) -> const std::string& { return entry.first; });
  rendered.clear();
  for (auto& [text, member] : by_text) rendered.push_back(std::move(member));
}

Value render_global(const Global& global) {
  if (global.module == "torch") {
    if (const std::optional<DType> dtype = parse_dtype(global.name))
      return tagged("__torch.dtype__", std::string(to_string(*dtype)));
  }
  return tagged("__global__", modern_path(global));
}

Value render_element(Renderer& renderer, const Element& element) {
  if (const auto* truth = std::get_if<bool>(&element)) return *truth;
  if (const auto* real = std::get_if<double>(&element)) return renderer.real(*real);
  if (const auto* complex = std::get_if<ComplexElement>(&element))
    return Value::list({renderer.real(complex->real), renderer.real(complex->imag)});
  if (const auto* large = std::get_if<std::uint64_t>(&element))
    return renderer.value(Value(*large));
  return renderer.value(Value(std::get<std::int64_t>(element)));
}

}  // namespace

std::string python_repr(double value) {
  if (!std::isfinite(value)) return shortest(value);
  char text[32];
  const std::string scientific(
      text, std::to_chars(text, text + sizeof text, value, std::chars_format::scientific).ptr);
  const int exponent = std::stoi(scientific.substr(scientific.find('e') + 1));
  if (exponent < -4 || exponent >= 16) return scientific;
  char fixed[64];
  std::string result(
      fixed, std::to_chars(fixed, fixed + sizeof fixed, value, std::chars_format::fixed).ptr);
  if (result.find('.') == std::string::npos) result += ".0";
  return result;
}

Value tagged(const char* name, Value content) {
  return Value::dict({{name, std::move(content)}});
}

Value render_bytes(ByteView bytes) {
  Value result = Value::dict({{"len", bytes.size()}, {"sha256", sha256_hex(bytes)}});
  if (bytes.size() <= kShortBytes) result["hex"] = to_hex(bytes);
  return result;
}

Value render_tensor(const Tensor& tensor) {
  ValueList shape(tensor.shape().begin(), tensor.shape().end());
  Value result = Value::dict({{"dtype", std::string(to_string(tensor.dtype()))},
                              {"shape", Value::list(std::move(shape))}});
  if (!tensor.has_data()) return result;
  if (tensor.device().kind != Device::Kind::kCpu)
    throw_error(ErrorCode::kInvalidArgument, "cannot render a tensor that is not in CPU memory");
  const Tensor dense = tensor.contiguous();
  ValueList first;
  Renderer renderer;
  const std::size_t size = item_size(dense.dtype());
  for (std::size_t i = 0; i < std::min(kFirst, dense.bytes().size() / size); ++i) {
    first.push_back(
        render_element(renderer, load_element(dense.dtype(), dense.bytes().data() + i * size)));
  }
  result["sha256"] = sha256_hex(dense.bytes());
  result["first"] = Value::list(std::move(first));
  return result;
}

Value Renderer::value(const Value& value) {
  struct Level {
    Level(std::vector<std::uint32_t>& all, std::uint32_t label) : labels(all) {
      all.push_back(label);
    }
    ~Level() { labels.pop_back(); }
    std::vector<std::uint32_t>& labels;
  } const level(labels_, value.is(Kind::kReference) ? 0 : value.label());
  // Pairs and tags put up to three levels of JSON around one level of a value.
  if (static_cast<int>(labels_.size()) > kMaxRenderDepth / 3)
    throw_error(ErrorCode::kUnsupported, "a value is nested too deep to be shown as JSON");

  switch (value.kind()) {
    case Kind::kNone:
    case Kind::kBool:
    case Kind::kStr: return value;
    case Kind::kInt:
      if (value.as_int() >= kExactInts || value.as_int() <= -kExactInts)
        return tagged("__int__", std::to_string(value.as_int()));
      return value;
    case Kind::kBigInt: return tagged("__int__", value.as_big_int().to_decimal());
    case Kind::kFloat: return real(value.as_float());
    case Kind::kReference: return reference(value.label());
    case Kind::kComplex:
      return tagged("__complex__", Value::list({real(value.as_complex().real()),
                                                real(value.as_complex().imag())}));
    case Kind::kBytes: return tagged("__bytes__", render_bytes(value.as_bytes()));
    case Kind::kByteArray: return tagged("__bytearray__", render_bytes(value.as_bytes()));
    case Kind::kList: return sequence("list", value.items());
    case Kind::kTuple: return sequence("tuple", value.items());
    case Kind::kSet: return set("__set__", value.items());
    case Kind::kFrozenSet: return set("__frozenset__", value.items());
    case Kind::kDict: return dict(value.as_dict());
    case Kind::kTensor: return tagged("__tensor__", render_tensor(value.as_tensor()));
    case Kind::kStorage: return tagged("__storage__", render_tensor(value.as_storage().elements));
    case Kind::kGlobal: return render_global(value.as_global());
    case Kind::kOpaque: return opaque(value.as_opaque());
    case Kind::kShardedTensor:
      return Value::dict(
          {{"__repr__", to_string(value.as_sharded_tensor())}, {"class", "ShardedTensor"}});
    case Kind::kShardedObject:
      return Value::dict(
          {{"__repr__", to_string(value.as_sharded_object())}, {"class", "ShardedObject"}});
    case Kind::kShardedTensorFactory:
      return Value::dict({{"__repr__", value.as_factory().key}, {"class", "ShardedTensorFactory"}});
    case Kind::kLocalNonpersistentObject: return this->value(value.as_local_nonpersistent().value);
  }
  return {};
}

Value Renderer::reference(std::uint32_t label) {
  const auto target = std::find(labels_.rbegin(), labels_.rend(), label);
  return tagged("__reference__",
                target == labels_.rend() ? Value() : Value(target - labels_.rbegin()));
}

Value Renderer::array(const ValueList& items) {
  ValueList result;
  result.reserve(items.size());
  for (const Value& item : items) result.push_back(value(item));
  return Value::list(std::move(result));
}

Value Renderer::pairs(const std::vector<std::pair<Value, Value>>& items) {
  ValueList result;
  result.reserve(items.size());
  for (const auto& [key, content] : items)
    result.push_back(Value::list({value(key), value(content)}));
  return Value::list(std::move(result));
}

Value Renderer::real(double value) {
  if (std::isfinite(value)) return value;
  return tagged("__float__", shortest(value));
}

Value Renderer::sequence(const char* kind, const ValueList& items) {
  if (items.size() > kLongNumbers && std::ranges::all_of(items, is_number)) {
    Sha256 hash;
    for (std::size_t i = 0; i < items.size(); ++i)
      hash.update(as_bytes((i > 0 ? "," : "") + python_repr(items[i])));
    const ValueList first(items.begin(), items.begin() + kFirst);
    return Value::dict({{"__long__", kind},
                        {"len", items.size()},
                        {"sha256", hash.finish_hex()},
                        {"first", array(first)}});
  }
  return std::string_view(kind) == "list" ? array(items) : tagged("__tuple__", array(items));
}

Value Renderer::set(const char* tag, const ValueList& items) {
  Value members = array(items);
  sort_members(members.mutable_items());
  return tagged(tag, std::move(members));
}

Value Renderer::dict(const Dict& dict) {
  if (!std::ranges::all_of(dict, [](const auto& item) { return item.first.is_str(); }))
    return tagged("__dict__", pairs(dict.items()));
  Value result = Value::dict();
  for (const auto& [key, content] : dict) result[key] = value(content);
  return result;
}

Value Renderer::opaque(const Opaque& object) {
  if (std::optional<Value> known = render_known_object(*this, object)) return std::move(*known);
  Value result = Value::dict();
  if (object.callable.is(Kind::kGlobal)) {
    result["class"] = modern_class_path(object);
  } else {
    result["class"] = value(object.callable);
  }
  result["args"] = object.args.is_sequence() ? array(object.args.items()) : value(object.args);
  if (object.kwargs) result["kwargs"] = value(*object.kwargs);
  result["state"] = object.states.size() == 1 ? value(object.states.front())
                    : object.states.empty()   ? Value()
                                              : array(object.states);
  if (!object.list_items.empty()) result["items"] = array(object.list_items);
  if (!object.dict_items.empty()) result["pairs"] = pairs(object.dict_items);
  return tagged("__opaque__", std::move(result));
}

Value render(const Value& value) {
  return Renderer().value(value);
}

}  // namespace dckpt
