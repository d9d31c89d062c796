#include "strategies/formats/torch_archive/tensor_rebuild.h"

#include <algorithm>
#include <array>
#include <utility>

#include "mapping/base/checked.h"
#include "mapping/base/counted.h"
#include "mapping/base/error.h"
#include "strategies/formats/torch_archive/torch_file.h"

namespace dckpt {
namespace {

constexpr std::string_view kUntyped = "UntypedStorage";
/// A tensor that repeats stored elements (stride 0) may describe more bytes than the file has. Up
/// to this size that is taken for an expanded tensor.
constexpr std::uint64_t kMaxExpandedBytes = std::uint64_t{1} << 30;

constexpr std::array<std::pair<std::string_view, DType>, 16> kStorageClasses = {{
    {"FloatStorage", DType::kFloat32},
    {"BFloat16Storage", DType::kBFloat16},
    {"HalfStorage", DType::kFloat16},
    {"DoubleStorage", DType::kFloat64},
    {"LongStorage", DType::kInt64},
    {"IntStorage", DType::kInt32},
    {"ShortStorage", DType::kInt16},
    {"CharStorage", DType::kInt8},
    {"ByteStorage", DType::kUInt8},
    {"BoolStorage", DType::kBool},
    {"ComplexFloatStorage", DType::kComplex64},
    {"ComplexDoubleStorage", DType::kComplex128},
    {"QInt8Storage", DType::kQInt8},
    {"QUInt8Storage", DType::kQUInt8},
    {"QInt32Storage", DType::kQInt32},
    {kUntyped, DType::kUInt8},
}};

bool is_global(const Value& value, std::string_view module, std::string_view name) {
  return value.is(Value::Kind::kGlobal) && value.as_global().module == module &&
         value.as_global().name == name;
}

bool is_plain_call(const Opaque& object) {
  return object.form == Opaque::Form::kCall && object.args.is(Value::Kind::kTuple) &&
         object.states.empty() && object.list_items.empty() && object.dict_items.empty();
}

/// Matches torch's spelling of "no hooks": None or an empty OrderedDict; a dict in hand-made files.
bool is_empty_mapping(const Value& value) {
  if (value.is_none()) return true;
  if (value.is(Value::Kind::kOpaque) &&
      value.as_opaque().class_path() == "collections.OrderedDict") {
    return is_plain_call(value.as_opaque()) && value.as_opaque().args.items().empty();
  }
  return value.is_dict() && value.as_dict().empty();
}

Shape parse_extents(const Value& value, const char* what) {
  if (!value.is_sequence())
    throw_error(ErrorCode::kCorrupt, "the {} of a tensor is {}, expected a tuple", what,
                to_string(value.kind()));
  const ValueList& items = value.items();
  if (items.size() > kMaxDims)
    throw_error(ErrorCode::kCorrupt, "a tensor has {} dimensions, more than the limit of {}",
                items.size(), kMaxDims);
  Shape extents;
  for (const Value& item : items) {
    if (!item.is_int() || item.as_int() < 0)
      throw_error(ErrorCode::kCorrupt,
                  "the {} of a tensor has an entry that is not a number from 0 to 2^63", what);
    extents.push_back(item.as_int());
  }
  return extents;
}

/// Returns the position after the last element that a view touches, in elements of the storage;
/// empty on overflow. Axes of extent 1 do not count.
std::optional<std::int64_t> view_end(std::int64_t offset, ShapeView shape, ShapeView strides) {
  std::optional<std::int64_t> last = offset;
  for (std::size_t axis = 0; axis < shape.size() && last; ++axis) {
    if (shape[axis] <= 1) continue;
    const auto reach = checked_mul(shape[axis] - 1, strides[axis]);
    last = reach ? checked_add(*last, *reach) : std::nullopt;
  }
  return last ? checked_add(*last, std::int64_t{1}) : std::nullopt;
}

Tensor view_storage(const TorchStorage& storage, DType dtype, const ValueList& args) {
  if (!args[1].is_int() || args[1].as_int() < 0)
    throw_error(ErrorCode::kCorrupt,
                "the storage offset of a tensor is not a number from 0 to 2^63");
  const std::int64_t offset = args[1].as_int();
  Shape shape = parse_extents(args[2], "shape");
  Shape strides = parse_extents(args[3], "stride");
  if (shape.size() != strides.size())
    throw_error(ErrorCode::kCorrupt, "a tensor of shape {} has {} strides", to_string(shape),
                strides.size());
  const std::optional<std::int64_t> count = checked_numel(shape);
  const auto nbytes =
      count ? checked_mul(*count, static_cast<std::int64_t>(item_size(dtype))) : std::nullopt;
  if (!nbytes)
    throw_error(ErrorCode::kCorrupt, "a tensor of shape {} is larger than any memory",
                to_string(shape));
  if (*count == 0)
    return slice_storage(storage.elements, dtype, 0, std::move(shape), std::move(strides));

  const std::uint64_t available = storage.elements.nbytes() / item_size(dtype);
  const std::optional<std::int64_t> end = view_end(offset, shape, strides);
  if (!end || static_cast<std::uint64_t>(*end) > available) {
    throw_error(ErrorCode::kCorrupt,
                "a tensor of shape {}, stride {} at offset {} reaches beyond its storage of {}",
                to_string(shape), to_string(strides), offset, counted(available, "element"));
  }
  if (static_cast<std::uint64_t>(*nbytes) >
      std::max(storage.elements.nbytes(), kMaxExpandedBytes)) {
    throw_error(ErrorCode::kUnsupported,
                "a tensor of shape {} repeats {} stored elements; more than {} are not expanded",
                to_string(shape), available, human_bytes(kMaxExpandedBytes));
  }
  return slice_storage(storage.elements, dtype, offset, std::move(shape), std::move(strides));
}

/// Returns the tensor of _rebuild_tensor_v2's or _v3's arguments. Empty if its elements are not its
/// values, and for a tensor with hooks unless they are to be ignored.
std::optional<Tensor> rebuild(const std::string& function, const ValueList& args,
                              bool ignore_hooks) {
  const bool v3 = function == "_rebuild_tensor_v3";
  const std::size_t required = v3 ? 7 : 6;
  if (args.size() < required || args.size() > required + 1)
    throw_error(ErrorCode::kCorrupt, "torch._utils.{} is called with {} arguments", function,
                args.size());
  if (!args[0].is(Value::Kind::kStorage))
    throw_error(ErrorCode::kCorrupt,
                "torch._utils.{} is called with {} where a storage is expected", function,
                to_string(args[0].kind()));
  const TorchStorage& storage = args[0].as_storage();
  DType dtype = storage.elements.dtype();
  if (v3) {
    const std::optional<DType> named =
        args[6].is(Value::Kind::kGlobal) && args[6].as_global().module == "torch"
            ? parse_dtype(args[6].as_global().name)
            : std::nullopt;
    if (!named) return std::nullopt;  // an element type of another torch version
    dtype = *named;
  }
  if (!args[4].is(Value::Kind::kBool))
    throw_error(ErrorCode::kCorrupt, "requires_grad of a tensor is {}, expected a bool",
                to_string(args[4].kind()));
  if (args.size() > required && !is_empty_mapping(args[required]))
    return std::nullopt;  // conjugated or negated: the elements are not the values
  if (!ignore_hooks && !is_empty_mapping(args[5])) return std::nullopt;
  Tensor tensor = view_storage(storage, dtype, args);
  tensor.requires_grad = args[4].as_bool();
  return tensor;
}

bool is_rebuild(const Value& callable) {
  return is_global(callable, "torch._utils", "_rebuild_tensor_v2") ||
         is_global(callable, "torch._utils", "_rebuild_tensor_v3");
}

}  // namespace

std::string_view storage_class(DType dtype) {
  if (!is_torch_dtype(dtype))
    throw_error(ErrorCode::kUnsupported,
                "torch has no elements of {}; leave the tensor out "
                "(--exclude), or write safetensors",
                to_string(dtype));
  const auto found = std::find_if(kStorageClasses.begin(), kStorageClasses.end(),
                                  [dtype](const auto& entry) { return entry.second == dtype; });
  return found == kStorageClasses.end() ? kUntyped : found->first;
}

std::optional<DType> storage_dtype(std::string_view class_name) noexcept {
  const auto found =
      std::find_if(kStorageClasses.begin(), kStorageClasses.end(),
                   [class_name](const auto& entry) { return entry.first == class_name; });
  return found == kStorageClasses.end() ? std::nullopt : std::optional(found->second);
}

StorageId parse_storage_id(const Value& id) {
  if (!id.is(Value::Kind::kTuple) || id.size() != 5 || !id.items()[0].is_str() ||
      id.items()[0].as_str() != "storage") {
    throw_error(ErrorCode::kCorrupt,
                "a persistent id of the pickle is not ('storage', type, key, location, size)");
  }
  const ValueList& items = id.items();
  if (!items[1].is(Value::Kind::kGlobal) || !items[2].is_str() || !items[3].is_str() ||
      !items[4].is_int() || items[4].as_int() < 0) {
    throw_error(ErrorCode::kCorrupt, "a storage id of the pickle has a field of the wrong kind");
  }
  StorageId result;
  const Global& type = items[1].as_global();
  const std::optional<DType> dtype =
      type.module.starts_with("torch") ? storage_dtype(type.name) : std::nullopt;
  if (!dtype)
    throw_error(ErrorCode::kUnsupported,
                "a tensor has a storage of unknown type {}; load the file with torch and save a "
                "copy of the tensor that is of another dtype",
                quote(type.path()));
  result.type = type.name;
  result.dtype = *dtype;
  result.key = items[2].as_str();
  result.location = items[3].as_str();
  result.numel = items[4].as_int();
  if (!checked_mul(result.numel, static_cast<std::int64_t>(item_size(result.dtype)))) {
    throw_error(ErrorCode::kCorrupt, "storage {} claims {} elements, more than any memory holds",
                quote(result.key), result.numel);
  }
  return result;
}

Value make_storage_id(const TorchStorage& storage, const std::string& key) {
  const bool untyped = storage.type == kUntyped;
  const std::uint64_t size =
      untyped ? storage.elements.nbytes() : static_cast<std::uint64_t>(storage.elements.numel());
  return Value::tuple({"storage", Global{untyped ? "torch.storage" : "torch", storage.type}, key,
                       storage.location, size});
}

Tensor slice_storage(const Tensor& elements, DType dtype, std::int64_t offset, Shape shape,
                     Shape strides) {
  const std::uint64_t bytes = static_cast<std::uint64_t>(offset) * item_size(dtype);
  if (const FileRange* range = elements.file_range(); range != nullptr) {
    return Tensor::in_file(dtype, std::move(shape), std::move(strides),
                           {range->file, range->offset + bytes});
  }
  std::byte* data = elements.mutable_data();
  return Tensor(dtype, std::move(shape), std::move(strides),
                data == nullptr ? nullptr : data + bytes, elements.owner());
}

std::optional<Tensor> rebuild_tensor(const Opaque& object) {
  if (!is_rebuild(object.callable) || !is_plain_call(object)) return std::nullopt;
  return rebuild(object.callable.as_global().name, object.args.items(), false);
}

std::optional<Tensor> tensor_of(const Value& value) {
  if (value.is_tensor()) return value.as_tensor();
  if (!value.is(Value::Kind::kOpaque)) return std::nullopt;
  const Opaque& object = value.as_opaque();
  if (object.form != Opaque::Form::kCall || !object.args.is(Value::Kind::kTuple))
    return std::nullopt;
  const ValueList& args = object.args.items();
  if (is_rebuild(object.callable)) return rebuild(object.callable.as_global().name, args, true);
  if (is_global(object.callable, "torch._tensor", "_rebuild_from_type_v2") && args.size() == 4 &&
      is_rebuild(args[0]) && args[2].is(Value::Kind::kTuple)) {
    return rebuild(args[0].as_global().name, args[2].items(), true);
  }
  if (object.class_path() == "torch._utils._rebuild_parameter" ||
      object.class_path() == "torch._utils._rebuild_parameter_with_state") {
    if (args.size() < 2 || !args[0].is_tensor() || !args[1].is(Value::Kind::kBool))
      return std::nullopt;
    Tensor tensor = args[0].as_tensor();
    tensor.requires_grad = args[1].as_bool();
    return tensor;
  }
  return std::nullopt;
}

Value reduce_tensor(const Tensor& tensor) {
  const std::string_view type = storage_class(tensor.dtype());
  const bool untyped = type == kUntyped;
  const auto tuple_of = [](ShapeView extents) {
    ValueList items;
    for (const std::int64_t extent : extents) items.emplace_back(extent);
    return Value::tuple(std::move(items));
  };
  // The storage keeps the tensor as it is, even if strided: the writer of the storage makes it
  // row-major, one at a time.
  ValueList args = {
      TorchStorage{.type = std::string(type), .elements = tensor},
      0,
      tuple_of(tensor.shape()),
      tuple_of(row_major_strides(tensor.shape())),
      tensor.requires_grad,
      Opaque{.callable = Global{
                 "collections",
                 "OrderedDict"}}};  // a new one each time, or all tensors would share their hooks
  if (untyped) args.emplace_back(Global{"torch", std::string(to_string(tensor.dtype()))});
  return Opaque{
      .callable = Global{"torch._utils", untyped ? "_rebuild_tensor_v3" : "_rebuild_tensor_v2"},
      .args = Value::tuple(std::move(args))};
}

}  // namespace dckpt
