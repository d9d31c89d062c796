#include "mapping/state/value.h"

#include <array>
#include <type_traits>

#include "mapping/base/error.h"
#include "mapping/base/format.h"
#include "mapping/base/text.h"
#include "mapping/state/sharded_object.h"
#include "mapping/state/sharded_tensor.h"

namespace dckpt {
namespace {

[[noreturn]] void throw_kind(const char* wanted, Value::Kind found) {
  throw CheckpointError(ErrorCode::kInvalidArgument,
                        str_format("expected {}, found {}", wanted, to_string(found)));
}

/// The object for its only holder: a copy if others hold it, too.
template <typename T>
T& detached(std::shared_ptr<T>& held) {
  if (held.use_count() > 1) {
    held = std::make_shared<T>(*held);
  } else {
    // Giving a second reference back is an acquire on the counter: what another thread did with the
    // object before it let go is over.
    std::shared_ptr<T>(held).reset();
  }
  return *held;
}

/// Without the bytes that only repeat the sign.
void trim(Bytes& number) {
  while (number.size() > 1) {
    const bool negative = (number[number.size() - 2] & std::byte{0x80}) != std::byte{0};
    if (number.back() != (negative ? std::byte{0xFF} : std::byte{0})) return;
    number.pop_back();
  }
}

std::int64_t small_integer(const Bytes& number) {
  std::uint64_t bits =
      !number.empty() && (number.back() & std::byte{0x80}) != std::byte{0} ? ~std::uint64_t{0} : 0;
  if (!number.empty()) std::memcpy(&bits, number.data(), number.size());
  return static_cast<std::int64_t>(bits);
}

}  // namespace

const char* to_string(Value::Kind kind) noexcept {
  static constexpr std::array kNames = {"None",
                                        "bool",
                                        "int",
                                        "int",
                                        "float",
                                        "complex",
                                        "str",
                                        "bytes",
                                        "bytearray",
                                        "list",
                                        "tuple",
                                        "set",
                                        "frozenset",
                                        "dict",
                                        "tensor",
                                        "storage",
                                        "global",
                                        "object",
                                        "ShardedTensor",
                                        "ShardedObject",
                                        "ShardedTensorFactory",
                                        "LocalNonpersistentObject"};
  return kNames[static_cast<std::size_t>(kind)];
}

Value::Data Value::big(std::uint64_t value) {
  Bytes bytes;
  append_le(bytes, value);
  bytes.push_back(std::byte{0});
  return std::make_shared<BigInt>(BigInt{std::move(bytes)});
}

Value::Value(BigInt value) {
  trim(value.bytes);
  if (value.bytes.size() <= sizeof(std::int64_t)) {
    data_ = small_integer(value.bytes);
  } else {
    data_ = std::make_shared<BigInt>(std::move(value));
  }
}

Value::Value(std::string text) : data_(std::make_shared<std::string>(std::move(text))) {}
Value::Value(Tensor tensor) : data_(std::make_shared<Tensor>(std::move(tensor))) {}
Value::Value(TorchStorage storage) : data_(std::make_shared<TorchStorage>(std::move(storage))) {}
Value::Value(Global global) : data_(std::make_shared<Global>(std::move(global))) {}
Value::Value(Opaque opaque) : data_(std::make_shared<Opaque>(std::move(opaque))) {}
Value::Value(Dict dict) : data_(std::make_shared<Dict>(std::move(dict))) {}
Value::Value(ShardedTensor shard) : data_(std::make_shared<ShardedTensor>(std::move(shard))) {}
Value::Value(ShardedObject object) : data_(std::make_shared<ShardedObject>(std::move(object))) {}
Value::Value(ShardedTensorFactory factory)
    : data_(std::make_shared<ShardedTensorFactory>(std::move(factory))) {}
Value::Value(LocalNonpersistentObject object)
    : data_(std::make_shared<LocalNonpersistentObject>(std::move(object))) {}

Value Value::bytes(Bytes value) {
  Value result;
  result.data_ = std::make_shared<Bytes>(std::move(value));
  return result;
}

Value Value::byte_array(Bytes value) {
  Value result;
  result.data_ = std::make_shared<ByteArrayData>(ByteArrayData{std::move(value)});
  return result;
}

Value Value::list(ValueList items) {
  Value result;
  result.data_ = std::make_shared<ValueList>(std::move(items));
  return result;
}

Value Value::tuple(ValueList items) {
  Value result;
  result.data_ = std::make_shared<TupleData>(TupleData{std::move(items)});
  return result;
}

namespace {

ValueList distinct(ValueList items) {
  Dict seen;
  for (Value& item : items) {
    if (seen.find(item) == nullptr) seen.set(std::move(item), {});
  }
  ValueList members;
  members.reserve(seen.size());
  for (const auto& [member, unused] : seen) members.push_back(member);
  return members;
}

}  // namespace

Value Value::set(ValueList items) {
  Value result;
  result.data_ = std::make_shared<SetData>(SetData{distinct(std::move(items)), false});
  return result;
}

Value Value::frozen_set(ValueList items) {
  Value result;
  result.data_ = std::make_shared<SetData>(SetData{distinct(std::move(items)), true});
  return result;
}

Value Value::dict(std::initializer_list<std::pair<Value, Value>> items) {
  return Value(Dict(items));
}

Value::Kind Value::kind() const noexcept {
  struct KindOf {
    Kind operator()(std::monostate) const { return Kind::kNone; }
    Kind operator()(bool) const { return Kind::kBool; }
    Kind operator()(std::int64_t) const { return Kind::kInt; }
    Kind operator()(double) const { return Kind::kFloat; }
    Kind operator()(const std::complex<double>&) const { return Kind::kComplex; }
    Kind operator()(const Ref<BigInt>&) const { return Kind::kBigInt; }
    Kind operator()(const Ref<std::string>&) const { return Kind::kStr; }
    Kind operator()(const Ref<Bytes>&) const { return Kind::kBytes; }
    Kind operator()(const Ref<ByteArrayData>&) const { return Kind::kByteArray; }
    Kind operator()(const Ref<ValueList>&) const { return Kind::kList; }
    Kind operator()(const Ref<TupleData>&) const { return Kind::kTuple; }
    Kind operator()(const Ref<SetData>& set) const {
      return set->frozen ? Kind::kFrozenSet : Kind::kSet;
    }
    Kind operator()(const Ref<Dict>&) const { return Kind::kDict; }
    Kind operator()(const Ref<Tensor>&) const { return Kind::kTensor; }
    Kind operator()(const Ref<TorchStorage>&) const { return Kind::kStorage; }
    Kind operator()(const Ref<Global>&) const { return Kind::kGlobal; }
    Kind operator()(const Ref<Opaque>&) const { return Kind::kOpaque; }
    Kind operator()(const Ref<ShardedTensor>&) const { return Kind::kShardedTensor; }
    Kind operator()(const Ref<ShardedObject>&) const { return Kind::kShardedObject; }
    Kind operator()(const Ref<ShardedTensorFactory>&) const { return Kind::kShardedTensorFactory; }
    Kind operator()(const Ref<LocalNonpersistentObject>&) const {
      return Kind::kLocalNonpersistentObject;
    }
  };
  return std::visit(KindOf{}, data_);
}

bool Value::is_sharded() const noexcept {
  const Kind own = kind();
  return own == Kind::kShardedTensor || own == Kind::kShardedObject ||
         own == Kind::kShardedTensorFactory;
}

template <typename T>
const T& Value::get(const char* wanted) const {
  if (const auto* held = std::get_if<Ref<T>>(&data_)) return **held;
  throw_kind(wanted, kind());
}

template <typename T>
T& Value::get_mutable(const char* wanted) {
  if (auto* held = std::get_if<Ref<T>>(&data_)) return detached(*held);
  throw_kind(wanted, kind());
}

bool Value::as_bool() const {
  if (const bool* value = std::get_if<bool>(&data_)) return *value;
  throw_kind("bool", kind());
}

std::int64_t Value::as_int() const {
  if (const std::int64_t* value = std::get_if<std::int64_t>(&data_)) return *value;
  if (is(Kind::kBigInt)) throw_kind("an int of 64 bits", kind());
  throw_kind("int", kind());
}

double Value::as_float() const {
  if (const double* value = std::get_if<double>(&data_)) return *value;
  if (const std::int64_t* value = std::get_if<std::int64_t>(&data_))
    return static_cast<double>(*value);
  throw_kind("float", kind());
}

std::complex<double> Value::as_complex() const {
  if (const auto* value = std::get_if<std::complex<double>>(&data_)) return *value;
  throw_kind("complex", kind());
}

const BigInt& Value::as_big_int() const {
  return get<BigInt>("an int beyond 64 bits");
}
const std::string& Value::as_str() const {
  return get<std::string>("str");
}

const Bytes& Value::as_bytes() const {
  if (const auto* array = std::get_if<Ref<ByteArrayData>>(&data_)) return (*array)->bytes;
  return get<Bytes>("bytes");
}

const ValueList& Value::items() const {
  if (const auto* tuple = std::get_if<Ref<TupleData>>(&data_)) return (*tuple)->items;
  if (const auto* set = std::get_if<Ref<SetData>>(&data_)) return (*set)->items;
  return get<ValueList>("list, tuple or set");
}

ValueList& Value::mutable_items() {
  if (auto* tuple = std::get_if<Ref<TupleData>>(&data_)) return detached(*tuple).items;
  if (auto* set = std::get_if<Ref<SetData>>(&data_)) return detached(*set).items;
  return get_mutable<ValueList>("list, tuple or set");
}

const Dict& Value::as_dict() const {
  return get<Dict>("dict");
}

Dict& Value::mutable_dict() {
  if (is_none()) data_ = std::make_shared<Dict>();
  return get_mutable<Dict>("dict");
}

const Tensor& Value::as_tensor() const {
  if (is(Kind::kShardedTensorFactory)) return as_factory().data;
  if (!is(Kind::kShardedTensor)) return get<Tensor>("tensor");
  const ShardedTensor& shard = as_sharded_tensor();
  if (shard.data) return *shard.data;
  throw CheckpointError(ErrorCode::kInvalidArgument,
                        "the ShardedTensor has no data (a meta tensor)", {.key = shard.key});
}
Tensor& Value::mutable_tensor() {
  return get_mutable<Tensor>("tensor");
}
const TorchStorage& Value::as_storage() const {
  return get<TorchStorage>("storage");
}
const Global& Value::as_global() const {
  return get<Global>("global");
}
const Opaque& Value::as_opaque() const {
  return get<Opaque>("object");
}
Opaque& Value::mutable_opaque() {
  return get_mutable<Opaque>("object");
}
const ShardedTensor& Value::as_sharded_tensor() const {
  return get<ShardedTensor>("ShardedTensor");
}
ShardedTensor& Value::mutable_sharded_tensor() {
  return get_mutable<ShardedTensor>("ShardedTensor");
}
const ShardedObject& Value::as_sharded_object() const {
  return get<ShardedObject>("ShardedObject");
}
ShardedObject& Value::mutable_sharded_object() {
  return get_mutable<ShardedObject>("ShardedObject");
}
const ShardedTensorFactory& Value::as_factory() const {
  return get<ShardedTensorFactory>("ShardedTensorFactory");
}
const LocalNonpersistentObject& Value::as_local_nonpersistent() const {
  return get<LocalNonpersistentObject>("LocalNonpersistentObject");
}

Value& Value::operator[](const Value& key) {
  return mutable_dict()[key];
}

const Value& Value::at(const Value& key) const {
  const Dict& dict = as_dict();
  if (const Value* value = dict.find(key)) return *value;
  std::vector<std::string> known;
  for (const auto& [other, unused] : dict) {
    if (other.is_str()) known.push_back(other.as_str());
  }
  const std::string name = key.is_str()   ? quote(key.as_str())
                           : key.is_int() ? std::to_string(key.as_int())
                                          : std::string("of kind ") + to_string(key.kind());
  throw CheckpointError(ErrorCode::kInvalidArgument,
                        str_format("the dict has no key {}{}", name,
                                   known.empty() ? "" : "; it has " + quoted_list(known)));
}

const Value* Value::find(const Value& key) const {
  const auto* dict = std::get_if<Ref<Dict>>(&data_);
  return dict == nullptr ? nullptr : std::as_const(**dict).find(key);
}

std::size_t Value::size() const {
  return is_dict() ? as_dict().size() : items().size();
}

const void* Value::identity() const noexcept {
  return std::visit(
      [](const auto& held) -> const void* {
        if constexpr (requires { held.get(); }) {
          return held.get();
        } else {
          return nullptr;
        }
      },
      data_);
}

std::string Opaque::class_path() const {
  return callable.is(Value::Kind::kGlobal) ? callable.as_global().path() : std::string();
}

const std::vector<std::pair<Value, Value>>* mapping_items(const Value& value) {
  if (value.is_dict()) return &value.as_dict().items();
  if (!value.is(Value::Kind::kOpaque)) return nullptr;
  const Opaque& object = value.as_opaque();
  const std::string path = object.class_path();
  return path == "collections.OrderedDict" || path == "collections.defaultdict" ? &object.dict_items
                                                                                : nullptr;
}

}  // namespace dckpt
