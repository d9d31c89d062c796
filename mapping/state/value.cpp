#include "mapping/state/value.h"

#include <array>
#include <atomic>
#include <type_traits>

#include "mapping/base/error.h"
#include "mapping/state/sharded_object.h"
#include "mapping/state/sharded_tensor.h"

namespace dckpt {
namespace {

[[noreturn]] void throw_kind(const char* wanted, Value::Kind found) {
  throw_error(ErrorCode::kInvalidArgument, "expected {}, found {}", wanted, to_string(found));
}

/// Removes the bytes that only repeat the sign.
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
                                        "float",
                                        "reference",
                                        "complex",
                                        "int",
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

Value::Value(const Value& other) noexcept : kind_(other.kind_), label_(other.label_), scalar_(0) {
  if (other.is_boxed())
    std::construct_at(&boxed_, other.boxed_);
  else
    scalar_ = other.scalar_;
}

Value::Value(Value&& other) noexcept : kind_(other.kind_), label_(other.label_), scalar_(0) {
  if (!other.is_boxed()) {
    scalar_ = other.scalar_;
    return;
  }
  std::construct_at(&boxed_, std::move(other.boxed_));
  std::destroy_at(&other);
  std::construct_at(&other);
}

Value& Value::operator=(const Value& other) noexcept {
  return *this = Value(other);
}

Value& Value::operator=(Value&& other) noexcept {
  Value taken(std::move(other));  // taken first: the old content may hold `other`
  std::destroy_at(this);
  return *std::construct_at(this, std::move(taken));
}

Value Value::beyond_int64(std::uint64_t value) {
  Bytes bytes;
  append_le(bytes, value);
  bytes.push_back(std::byte{0});
  return {Kind::kBigInt, std::make_shared<BigInt>(BigInt{std::move(bytes)})};
}

Value::Value(BigInt value) : Value() {
  trim(value.bytes);
  if (value.bytes.size() <= sizeof(std::int64_t))
    *this = Value(small_integer(value.bytes));
  else
    *this = {Kind::kBigInt, std::make_shared<BigInt>(std::move(value))};
}

Value::Value(std::complex<double> value)
    : Value(Kind::kComplex, std::make_shared<std::complex<double>>(value)) {}
Value::Value(std::string text)
    : Value(Kind::kStr, std::make_shared<std::string>(std::move(text))) {}
Value::Value(Tensor tensor) : Value(Kind::kTensor, std::make_shared<Tensor>(std::move(tensor))) {}
Value::Value(TorchStorage storage)
    : Value(Kind::kStorage, std::make_shared<TorchStorage>(std::move(storage))) {}
Value::Value(Global global) : Value(Kind::kGlobal, std::make_shared<Global>(std::move(global))) {}
Value::Value(Opaque opaque) : Value(Kind::kOpaque, std::make_shared<Opaque>(std::move(opaque))) {}
Value::Value(Dict dict) : Value(Kind::kDict, std::make_shared<Dict>(std::move(dict))) {}
Value::Value(ShardedTensor shard)
    : Value(Kind::kShardedTensor, std::make_shared<ShardedTensor>(std::move(shard))) {}
Value::Value(ShardedObject object)
    : Value(Kind::kShardedObject, std::make_shared<ShardedObject>(std::move(object))) {}
Value::Value(ShardedTensorFactory factory)
    : Value(Kind::kShardedTensorFactory,
            std::make_shared<ShardedTensorFactory>(std::move(factory))) {}
Value::Value(LocalNonpersistentObject object)
    : Value(Kind::kLocalNonpersistentObject,
            std::make_shared<LocalNonpersistentObject>(std::move(object))) {}

Value Value::bytes(Bytes value) {
  return {Kind::kBytes, std::make_shared<Bytes>(std::move(value))};
}

Value Value::byte_array(Bytes value) {
  return {Kind::kByteArray, std::make_shared<Bytes>(std::move(value))};
}

Value Value::list(ValueList items) {
  return {Kind::kList, std::make_shared<ValueList>(std::move(items))};
}

Value Value::tuple(ValueList items) {
  return {Kind::kTuple, std::make_shared<ValueList>(std::move(items))};
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
  return {Kind::kSet, std::make_shared<ValueList>(distinct(std::move(items)))};
}

Value Value::frozen_set(ValueList items) {
  return {Kind::kFrozenSet, std::make_shared<ValueList>(distinct(std::move(items)))};
}

Value Value::dict(std::initializer_list<std::pair<Value, Value>> items) {
  return Value(Dict(items));
}

Value Value::reference(std::uint32_t label) {
  Value value;
  value.kind_ = Kind::kReference;
  value.label_ = label;
  return value;
}

std::uint32_t Value::new_label() noexcept {
  static std::atomic<std::uint32_t> last = 0;
  std::uint32_t label = 0;
  while (label == 0) label = ++last;
  return label;
}

bool Value::is_sharded() const noexcept {
  const Kind own = kind();
  return own == Kind::kShardedTensor || own == Kind::kShardedObject ||
         own == Kind::kShardedTensorFactory;
}

template <typename T>
const T& Value::get(Kind kind, const char* wanted) const {
  if (kind_ != kind) throw_kind(wanted, kind_);
  return *static_cast<const T*>(boxed_.get());
}

/// Returns the boxed object for its only holder: a copy if others hold it, too.
template <typename T>
T& Value::unshared() {
  if (boxed_.use_count() > 1) {
    boxed_ = std::make_shared<T>(*static_cast<const T*>(boxed_.get()));
  } else {
    // Giving back a second reference is an acquire on the counter: whatever another thread did with
    // the object before it let go is over.
    Boxed(boxed_).reset();
  }
  return *static_cast<T*>(boxed_.get());
}

/// Returns the content of a temporary, moved out where nobody else holds it.
template <typename T>
T Value::give_away(const T& /*held*/) {
  return std::move(unshared<T>());
}

bool Value::as_bool() const {
  if (!is(Kind::kBool)) throw_kind("bool", kind_);
  return scalar_ != 0;
}

std::int64_t Value::as_int() const {
  if (!is(Kind::kInt)) throw_kind(is(Kind::kBigInt) ? "an int of 64 bits" : "int", kind_);
  return scalar_;
}

double Value::as_float() const {
  if (is(Kind::kFloat)) return std::bit_cast<double>(scalar_);
  if (is(Kind::kInt)) return static_cast<double>(scalar_);
  throw_kind("float", kind_);
}

std::complex<double> Value::as_complex() const {
  return get<std::complex<double>>(Kind::kComplex, "complex");
}

const BigInt& Value::as_big_int() const& {
  return get<BigInt>(Kind::kBigInt, "an int beyond 64 bits");
}
BigInt Value::as_big_int() && {
  return give_away(std::as_const(*this).as_big_int());
}
const std::string& Value::as_str() const& {
  return get<std::string>(Kind::kStr, "str");
}
std::string Value::as_str() && {
  return give_away(std::as_const(*this).as_str());
}

const Bytes& Value::as_bytes() const& {
  return get<Bytes>(is(Kind::kByteArray) ? kind_ : Kind::kBytes, "bytes");
}
Bytes Value::as_bytes() && {
  return give_away(std::as_const(*this).as_bytes());
}

const ValueList& Value::items() const& {
  const bool other = is(Kind::kTuple) || is(Kind::kSet) || is(Kind::kFrozenSet);
  return get<ValueList>(other ? kind_ : Kind::kList, "list, tuple or set");
}
ValueList Value::items() && {
  return give_away(std::as_const(*this).items());
}

ValueList& Value::mutable_items() {
  items();
  return unshared<ValueList>();
}

const Dict& Value::as_dict() const& {
  return get<Dict>(Kind::kDict, "dict");
}
Dict Value::as_dict() && {
  return give_away(std::as_const(*this).as_dict());
}

Dict& Value::mutable_dict() {
  if (is_none()) *this = Dict();
  as_dict();
  return unshared<Dict>();
}

const Tensor& Value::as_tensor() const& {
  if (is(Kind::kShardedTensorFactory)) return as_factory().data;
  if (!is(Kind::kShardedTensor)) return get<Tensor>(Kind::kTensor, "tensor");
  const ShardedTensor& shard = as_sharded_tensor();
  if (shard.data) return *shard.data;
  throw_error(ErrorCode::kInvalidArgument, {.key = shard.key},
              "the ShardedTensor has no data (a meta tensor)");
}
Tensor Value::as_tensor() && {
  return std::as_const(*this).as_tensor();
}
Tensor& Value::mutable_tensor() {
  get<Tensor>(Kind::kTensor, "tensor");
  return unshared<Tensor>();
}
const TorchStorage& Value::as_storage() const& {
  return get<TorchStorage>(Kind::kStorage, "storage");
}
TorchStorage Value::as_storage() && {
  return give_away(std::as_const(*this).as_storage());
}
const Global& Value::as_global() const& {
  return get<Global>(Kind::kGlobal, "global");
}
Global Value::as_global() && {
  return give_away(std::as_const(*this).as_global());
}
const Opaque& Value::as_opaque() const& {
  return get<Opaque>(Kind::kOpaque, "object");
}
Opaque Value::as_opaque() && {
  return give_away(std::as_const(*this).as_opaque());
}
Opaque& Value::mutable_opaque() {
  get<Opaque>(Kind::kOpaque, "object");
  return unshared<Opaque>();
}
const ShardedTensor& Value::as_sharded_tensor() const& {
  return get<ShardedTensor>(Kind::kShardedTensor, "ShardedTensor");
}
ShardedTensor Value::as_sharded_tensor() && {
  return give_away(std::as_const(*this).as_sharded_tensor());
}
ShardedTensor& Value::mutable_sharded_tensor() {
  get<ShardedTensor>(Kind::kShardedTensor, "ShardedTensor");
  return unshared<ShardedTensor>();
}
const ShardedObject& Value::as_sharded_object() const& {
  return get<ShardedObject>(Kind::kShardedObject, "ShardedObject");
}
ShardedObject Value::as_sharded_object() && {
  return give_away(std::as_const(*this).as_sharded_object());
}
ShardedObject& Value::mutable_sharded_object() {
  get<ShardedObject>(Kind::kShardedObject, "ShardedObject");
  return unshared<ShardedObject>();
}
const ShardedTensorFactory& Value::as_factory() const& {
  return get<ShardedTensorFactory>(Kind::kShardedTensorFactory, "ShardedTensorFactory");
}
ShardedTensorFactory Value::as_factory() && {
  return give_away(std::as_const(*this).as_factory());
}
const LocalNonpersistentObject& Value::as_local_nonpersistent() const& {
  return get<LocalNonpersistentObject>(Kind::kLocalNonpersistentObject, "LocalNonpersistentObject");
}
LocalNonpersistentObject Value::as_local_nonpersistent() && {
  return give_away(std::as_const(*this).as_local_nonpersistent());
}

Value& Value::operator[](const Value& key) {
  return mutable_dict()[key];
}

const Value& Value::at(const Value& key) const& {
  const Dict& dict = as_dict();
  if (const Value* value = dict.find(key)) return *value;
  std::vector<std::string> known;
  for (const auto& [other, unused] : dict) {
    if (other.is_str()) known.push_back(other.as_str());
  }
  const std::string name = key.is_str()   ? quote(key.as_str())
                           : key.is_int() ? std::to_string(key.as_int())
                                          : std::string("of kind ") + to_string(key.kind());
  throw_error(ErrorCode::kInvalidArgument, "the dict has no key {}{}", name,
              known.empty() ? "" : "; it has " + quoted_list(known));
}

Value Value::at(const Value& key) && {
  return std::as_const(*this).at(key);
}

const Value* Value::find(const Value& key) const {
  return is_dict() ? as_dict().find(key) : nullptr;
}

std::size_t Value::size() const {
  return is_dict() ? as_dict().size() : items().size();
}

const void* Value::identity() const noexcept {
  return is_boxed() && !is(Kind::kComplex) ? boxed_.get() : nullptr;
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
