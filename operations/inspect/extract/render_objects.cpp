#include <algorithm>
#include <array>
#include <string_view>

#include "mapping/base/format.h"
#include "mapping/base/hash.h"
#include "operations/inspect/element.h"
#include "operations/inspect/extract/known_enums.h"
#include "operations/inspect/extract/numpy_value.h"
#include "operations/inspect/extract/render.h"
#include "operations/inspect/extract/renderer.h"

namespace dckpt {
namespace {

using Kind = Value::Kind;

bool is_plain_call(const Opaque& object) {
  return !object.kwargs && object.states.empty() && object.list_items.empty() &&
         object.dict_items.empty() && object.args.is(Kind::kTuple);
}

/// The class and the only state of an object, made by a call without arguments or by
/// `Class.__new__(Class)`.
struct Instance {
  std::string class_path;
  const Value* state = nullptr;
};

std::optional<Instance> as_instance(const Opaque& object) {
  if (object.kwargs || !object.list_items.empty() || !object.dict_items.empty() ||
      object.states.size() > 1 || !object.args.is(Kind::kTuple) || !object.args.items().empty())
    return std::nullopt;
  return Instance{modern_class_path(object),
                  object.states.empty() ? nullptr : &object.states.front()};
}

std::optional<Value> render_namespace(Renderer& renderer, const Opaque& object) {
  const std::optional<Instance> instance = as_instance(object);
  if (!instance || (instance->class_path != "argparse.Namespace" &&
                    instance->class_path != "types.SimpleNamespace"))
    return std::nullopt;
  if (instance->state == nullptr) return tagged("__namespace__", Value::dict());
  if (!instance->state->is_dict()) return std::nullopt;
  return tagged("__namespace__", renderer.value(*instance->state));
}

const Bytes* bytes_io_content(const Opaque& object) {
  const std::optional<Instance> instance = as_instance(object);
  if (!instance || (instance->class_path != "_io.BytesIO" && instance->class_path != "io.BytesIO"))
    return nullptr;
  // State: (content, position, attributes).
  if (instance->state == nullptr || !instance->state->is(Kind::kTuple) ||
      instance->state->size() != 3)
    return nullptr;
  const Value& content = instance->state->items().front();
  return content.is(Kind::kBytes) ? &content.as_bytes() : nullptr;
}

std::optional<Value> render_bytes_io(Renderer&, const Opaque& object) {
  const Bytes* const content = bytes_io_content(object);
  if (content == nullptr) return std::nullopt;
  return tagged("__BytesIO__", render_bytes(*content));
}

std::optional<Value> render_mapping(Renderer& renderer, const Opaque& object) {
  if (object.kwargs || !object.states.empty() || !object.list_items.empty() ||
      !object.args.is(Kind::kTuple))
    return std::nullopt;
  const bool ordered = modern_class_path(object) == "collections.OrderedDict";
  if (object.args.size() > (ordered ? 0 : 1))
    return std::nullopt;  // defaultdict's factory is not part of its value
  return tagged(ordered ? "__OrderedDict__" : "__defaultdict__", renderer.pairs(object.dict_items));
}

std::optional<Value> render_ndarray(Renderer&, const Opaque& object) {
  const std::optional<NumpyArray> array = numpy_array(object);
  if (!array) return std::nullopt;
  ValueList shape(array->shape.begin(), array->shape.end());
  return tagged("__ndarray__", Value::dict({{"dtype", array->dtype.spelling()},
                                            {"shape", Value::list(std::move(shape))},
                                            {"sha256", sha256_hex(array->bytes)}}));
}

std::optional<Value> render_numpy_scalar(Renderer& renderer, const Opaque& object) {
  const std::optional<NumpyScalar> scalar = numpy_scalar(object);
  if (!scalar) return std::nullopt;
  const std::optional<DType> dtype = parse_dtype(scalar->dtype.name());
  if (!dtype) return std::nullopt;
  const Element element = load_element(*dtype, scalar->bytes.data());
  const Value value = std::visit(
      [&](const auto& number) -> Value {
        using Number = std::decay_t<decltype(number)>;
        if constexpr (std::is_same_v<Number, ComplexElement>)
          return std::complex<double>(number.real, number.imag);
        else
          return number;
      },
      element);
  return Value::dict({{"__npscalar__", scalar->dtype.name()}, {"value", renderer.value(value)}});
}

std::optional<Value> render_torch_size(Renderer& renderer, const Opaque& object) {
  if (!is_plain_call(object) || object.args.size() != 1 || !object.args.items()[0].is_sequence())
    return std::nullopt;
  return tagged("__torch.Size__", renderer.array(object.args.items()[0].items()));
}

std::optional<Value> render_device(Renderer&, const Opaque& object) {
  if (!is_plain_call(object)) return std::nullopt;
  const ValueList& args = object.args.items();
  if (args.empty() || args.size() > 2 || !args[0].is_str() ||
      (args.size() == 2 && !args[1].is_int()))
    return std::nullopt;
  return tagged("__torch.device__", args.size() == 1
                                        ? args[0].as_str()
                                        : str_format("{}:{}", args[0].as_str(), args[1].as_int()));
}

std::optional<Value> render_parameter(Renderer& renderer, const Opaque& object) {
  if (!object.args.is(Kind::kTuple) || object.args.size() < 1 ||
      !object.args.items()[0].is_tensor())
    return std::nullopt;
  return renderer.value(object.args.items()[0]);
}

std::optional<Value> render_slice(Renderer&, const Opaque& object) {
  if (!is_plain_call(object) || object.args.size() != 3) return std::nullopt;
  std::string text = "slice(";
  for (const Value& bound : object.args.items()) {
    if (!bound.is_none() && !bound.is_int()) return std::nullopt;
    if (text.back() != '(') text += ", ";
    text += bound.is_none() ? "None" : std::to_string(bound.as_int());
  }
  return Value::dict({{"__repr__", text + ")"}, {"class", "builtins.slice"}});
}

Value enum_member(const std::string& class_path, std::string_view name, std::int64_t value) {
  return Value::dict({{"__enum__", class_path}, {"name", std::string(name)}, {"value", value}});
}

/// Renders `Class(value)`.
std::optional<Value> render_enum(const Opaque& object, const std::string& class_path) {
  if (!is_plain_call(object) || object.args.size() != 1 || !object.args.items()[0].is_int())
    return std::nullopt;
  const std::int64_t value = object.args.items()[0].as_int();
  const std::optional<std::string_view> name = enum_name(class_path, value);
  if (!name) return std::nullopt;
  return enum_member(class_path, *name, value);
}

/// Renders `getattr(Class, "name")`.
std::optional<Value> render_getattr(Renderer&, const Opaque& object) {
  if (!is_plain_call(object) || object.args.size() != 2) return std::nullopt;
  const ValueList& args = object.args.items();
  if (!args[0].is(Kind::kGlobal) || !args[1].is_str()) return std::nullopt;
  const std::string class_path = args[0].as_global().path();
  const std::optional<std::int64_t> value = enum_value(class_path, args[1].as_str());
  if (!value) return std::nullopt;
  return enum_member(class_path, args[1].as_str(), *value);
}

using Render = std::optional<Value> (*)(Renderer&, const Opaque&);
struct Known {
  std::string_view callable;
  Render render;
};

constexpr std::array kKnown = {
    Known{"argparse.Namespace", render_namespace},
    Known{"types.SimpleNamespace", render_namespace},
    Known{"_io.BytesIO", render_bytes_io},
    Known{"io.BytesIO", render_bytes_io},
    Known{"collections.OrderedDict", render_mapping},
    Known{"collections.defaultdict", render_mapping},
    Known{"numpy._core.multiarray._reconstruct", render_ndarray},
    Known{"numpy._core.numeric._frombuffer", render_ndarray},
    Known{"numpy._core.multiarray.scalar", render_numpy_scalar},
    Known{"torch.Size", render_torch_size},
    Known{"torch.device", render_device},
    Known{"torch._utils._rebuild_parameter", render_parameter},
    Known{"torch._utils._rebuild_parameter_with_state", render_parameter},
    Known{"builtins.slice", render_slice},
    Known{"builtins.getattr", render_getattr},
};

}  // namespace

std::string modern_path(const Global& global) {
  // Renames of Python 3.13 and of NumPy 2. Python 3.14 has the old path name again.
  constexpr std::array<std::pair<std::string_view, std::string_view>, 2> kMoved = {
      {{"numpy.core", "numpy._core"}, {"pathlib._local", "pathlib"}}};
  constexpr std::array kNumpyScalars = {"bool_", "str_", "bytes_"};
  if (global.module == "numpy" &&
      std::ranges::find(kNumpyScalars, global.name) != kNumpyScalars.end())
    return "numpy." + global.name.substr(0, global.name.size() - 1);
  for (const auto& [before, now] : kMoved) {
    const std::string_view module = global.module;
    if (module == before || (module.starts_with(before) && module[before.size()] == '.'))
      return str_format("{}{}.{}", now, module.substr(before.size()), global.name);
  }
  return global.path();
}

std::string modern_class_path(const Opaque& object) {
  return object.callable.is(Kind::kGlobal) ? modern_path(object.callable.as_global()) : "";
}

std::optional<Value> render_known_object(Renderer& renderer, const Opaque& object) {
  const std::string class_path = modern_class_path(object);
  if (is_known_enum(class_path)) return render_enum(object, class_path);
  const auto known = std::ranges::find(kKnown, class_path, &Known::callable);
  return known == kKnown.end() ? std::nullopt : known->render(renderer, object);
}

std::optional<Bytes> content_bytes(const Value& value) {
  if (value.is(Kind::kBytes) || value.is(Kind::kByteArray)) return value.as_bytes();
  if (value.is(Kind::kTensor) && value.as_tensor().dtype() == DType::kUInt8 &&
      value.as_tensor().has_data()) {
    const Tensor whole = value.as_tensor().contiguous();
    return Bytes(whole.bytes().begin(), whole.bytes().end());
  }
  if (!value.is(Kind::kOpaque)) return std::nullopt;
  const Bytes* const content = bytes_io_content(value.as_opaque());
  return content == nullptr ? std::nullopt : std::optional<Bytes>(*content);
}

}  // namespace dckpt
