#pragma once

#include <bit>
#include <complex>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

#include "mapping/base/api.h"
#include "mapping/base/bytes.h"
#include "mapping/state/tensor.h"

namespace DCKPT_API dckpt {

class Value;
class Dict;
bool operator==(const Value& a, const Value& b);
struct LocalNonpersistentObject;
struct Opaque;
struct ShardedObject;
struct ShardedTensor;
struct ShardedTensorFactory;
struct TorchStorage;

/// A state dict is a Value whose root is a dict.
using StateDict = Value;
using ValueList = std::vector<Value>;

/// A named Python object that is referenced, not constructed: a class, a function, a torch dtype
/// ("torch", "float32").
struct Global {
  std::string module;
  std::string name;
  std::string path() const { return module + "." + name; }
  friend bool operator==(const Global&, const Global&) = default;
};

/// An integer outside int64: two's complement, little-endian, as pickle stores it, without
/// redundant bytes.
struct BigInt {
  Bytes bytes;
  std::string to_decimal()
      const;  ///< hexadecimal ("0x…") beyond 4300 digits, as decimal takes quadratic time
  friend bool operator==(const BigInt&, const BigInt&) = default;
};

/// A path as the standard library has it, which is a range of paths.
template <typename T>
concept FilePath = requires(const T& path) {
  { path.native() } -> std::same_as<const std::string&>;
  path.root_path();
};

/// A span, a vector or another range whose elements can be values; neither text nor bytes, nor a
/// ValueList, which Value::list() takes.
template <typename T>
concept ListOfValues =
    !FilePath<T> && !std::same_as<T, ValueList> &&
    !std::convertible_to<const T&, std::string_view> && requires(const T& items) {
  requires !std::same_as<std::remove_cvref_t<decltype(*items.begin())>, T>;
  requires std::convertible_to<decltype(*items.begin()), Value>;
  requires !std::same_as<std::remove_cvref_t<decltype(*items.begin())>, std::byte>;
  items.end();
};

/// A tree of Python's value kinds, so that nothing in a checkpoint is lost, plus Megatron's sharded
/// leaves. Copies are cheap (containers are shared until one side writes) and behave like values.
/// Sharing survives reading and writing a pickle, and so do objects that lead back to themselves:
/// where Python has the object again, the tree has a reference, a leaf with its label. Reading one
/// Value from several threads is safe, writing is not.
class Value {
 public:
  enum class Kind : std::uint8_t {
    kNone,
    kBool,
    kInt,
    kFloat,
    kReference,  // the last kind that is not boxed
    kComplex,
    kBigInt,
    kStr,
    kBytes,
    kByteArray,
    kList,
    kTuple,
    kSet,
    kFrozenSet,
    kDict,
    kTensor,
    kStorage,
    kGlobal,
    kOpaque,
    kShardedTensor,
    kShardedObject,
    kShardedTensorFactory,
    kLocalNonpersistentObject,
  };

  Value() noexcept : scalar_(0) {}
  Value(std::nullptr_t) noexcept : Value() {}
  Value(bool value) noexcept : kind_(Kind::kBool), scalar_(value ? 1 : 0) {}
  template <std::integral T>
  requires(!std::same_as<T, bool> && !std::same_as<T, char>) Value(T value)
      : kind_(Kind::kInt), scalar_(static_cast<std::int64_t>(value)) {
    if constexpr (std::unsigned_integral<T> && sizeof(T) == 8) {
      if (value > static_cast<T>(INT64_MAX)) *this = beyond_int64(value);
    }
  }
  /// An enumerator as its number.
  template <typename T>
  requires(std::is_enum_v<T> && !std::same_as<T, std::byte>) Value(T value)
      : Value(+static_cast<std::underlying_type_t<T>>(value)) {}
  Value(double value) noexcept : kind_(Kind::kFloat), scalar_(std::bit_cast<std::int64_t>(value)) {}
  Value(std::complex<double> value);
  Value(const char* text) : Value(std::string(text)) {}
  Value(std::string_view text) : Value(std::string(text)) {}
  /// Str: UTF-8, with lone surrogates as three bytes each, as in Python's surrogatepass.
  Value(std::string text);
  template <FilePath T>
  Value(const T& path) : Value(path.native()) {}
  template <ListOfValues T>
  Value(const T& items);  ///< a list
  Value(BigInt value);
  Value(Tensor tensor);
  Value(TorchStorage storage);
  Value(Global global);
  Value(Opaque opaque);
  Value(Dict dict);
  Value(ShardedTensor shard);
  Value(ShardedObject object);
  Value(ShardedTensorFactory factory);
  Value(LocalNonpersistentObject object);
  static Value bytes(Bytes value);
  static Value byte_array(Bytes value);
  static Value list(ValueList items = {});
  static Value tuple(ValueList items = {});
  static Value set(ValueList items = {});  ///< order kept, equal members once
  static Value frozen_set(ValueList items = {});
  static Value dict(std::initializer_list<std::pair<Value, Value>> items = {});
  /// Returns a reference, which stands inside a value with this label for that value itself.
  [[nodiscard]] static Value reference(std::uint32_t label);

  Value(const Value& other) noexcept;
  Value(Value&& other) noexcept;
  Value& operator=(const Value& other) noexcept;
  Value& operator=(Value&& other) noexcept;
  ~Value() {
    if (is_boxed()) boxed_.~Boxed();
  }

  Kind kind() const noexcept { return kind_; }
  bool is(Kind wanted) const noexcept { return kind() == wanted; }
  bool is_none() const noexcept { return is(Kind::kNone); }
  bool is_str() const noexcept { return is(Kind::kStr); }
  bool is_int() const noexcept { return is(Kind::kInt); }
  bool is_dict() const noexcept { return is(Kind::kDict); }
  bool is_list() const noexcept { return is(Kind::kList); }
  bool is_sequence() const noexcept { return is(Kind::kList) || is(Kind::kTuple); }
  bool is_tensor() const noexcept { return is(Kind::kTensor); }
  /// ShardedTensor, ShardedObject or ShardedTensorFactory: Megatron's ShardedBase.
  bool is_sharded() const noexcept;

  /// Each throws CheckpointError (invalid argument) naming both kinds if the value is of another
  /// kind. References and pointers are into the value. A temporary value gives away its content, so
  /// that `for (auto& [key, leaf] : load_sharded_metadata(folder).as_dict())` is sound.
  bool as_bool() const;
  std::int64_t as_int() const;
  double as_float() const;  ///< accepts int, too
  std::complex<double> as_complex() const;
  const BigInt& as_big_int() const&;
  BigInt as_big_int() &&;
  const std::string& as_str() const&;
  std::string as_str() &&;
  const Bytes& as_bytes() const&;  ///< bytes or bytearray
  Bytes as_bytes() &&;
  const ValueList& items() const&;  ///< list, tuple, set or frozenset
  ValueList items() &&;
  ValueList& mutable_items();  ///< detaches from other copies
  const Dict& as_dict() const&;
  Dict as_dict() &&;
  Dict& mutable_dict();              ///< detaches; turns none into an empty dict
  const Tensor& as_tensor() const&;  ///< a tensor, or the data of a ShardedTensor or factory
  Tensor as_tensor() &&;
  Tensor& mutable_tensor();
  const TorchStorage& as_storage() const&;
  TorchStorage as_storage() &&;
  const Global& as_global() const&;
  Global as_global() &&;
  const Opaque& as_opaque() const&;
  Opaque as_opaque() &&;
  Opaque& mutable_opaque();
  const ShardedTensor& as_sharded_tensor() const&;
  ShardedTensor as_sharded_tensor() &&;
  ShardedTensor& mutable_sharded_tensor();
  const ShardedObject& as_sharded_object() const&;
  ShardedObject as_sharded_object() &&;
  ShardedObject& mutable_sharded_object();
  const ShardedTensorFactory& as_factory() const&;
  ShardedTensorFactory as_factory() &&;
  const LocalNonpersistentObject& as_local_nonpersistent() const&;
  LocalNonpersistentObject as_local_nonpersistent() &&;

  /// Dict access. `operator[]` turns none into a dict and inserts none for a new key; `at` throws
  /// naming the key; `find` and `contains` do not throw for values that are not dicts.
  Value& operator[](const Value& key);
  Value& operator[](const char* key) { return (*this)[Value(key)]; }
  const Value& at(const Value& key) const&;
  Value at(const Value& key) &&;
  const Value* find(const Value& key) const;
  bool contains(const Value& key) const { return find(key) != nullptr; }
  std::size_t size() const;  ///< of a container; throws for anything else

  /// Python's equality for plain values (1 == 1.0 == True, dict order ignored, list ≠ tuple), but a
  /// NaN equals a NaN with the same bits; tensors by dtype, shape and bytes; opaque objects by
  /// their description; sharded leaves by identity. Throws CheckpointError (unsupported) on values
  /// nested deeper than any pickle may be.
  friend bool operator==(const Value& a, const Value& b);

  /// The address that two copies share until one is written to; null for values without shared
  /// data.
  const void* identity() const noexcept;

  /// A number by which references name this value, or which this reference names; 0 for none.
  /// Copies have it too, and keep it when they are written to.
  std::uint32_t label() const noexcept { return label_; }
  void set_label(std::uint32_t label) noexcept { label_ = label; }
  /// Returns a label that no value of this process has.
  static std::uint32_t new_label() noexcept;

 private:
  using Boxed = std::shared_ptr<void>;

  Value(Kind kind, Boxed boxed) noexcept : kind_(kind), boxed_(std::move(boxed)) {}
  [[nodiscard]] static Value beyond_int64(std::uint64_t value);
  bool is_boxed() const noexcept { return kind_ > Kind::kReference; }
  template <typename T>
  const T& get(Kind kind, const char* wanted) const;
  template <typename T>
  T& unshared();
  template <typename T>
  T give_away(const T& held);

  Kind kind_ = Kind::kNone;
  std::uint32_t label_ = 0;
  union {                  // not a std::variant, whose 21 alternatives every file would instantiate
    std::int64_t scalar_;  // none, bool, int; the bits of a float
    Boxed boxed_;          // the others, by kind: the object that as_…() returns
  };
};

template <ListOfValues T>
Value::Value(const T& items) : Value(list(ValueList(items.begin(), items.end()))) {}

const char* to_string(Value::Kind kind) noexcept;

/// Hash consistent with operator==; reads a bounded number of parts of the value.
std::size_t hash_value(const Value& value) noexcept;

/// Python's dict: keeps insertion order, keys of any hashable kind, constant-time lookup.
class Dict {
 public:
  using Item = std::pair<Value, Value>;
  Dict() = default;
  Dict(std::initializer_list<Item> items);

  std::size_t size() const noexcept { return items_.size(); }
  bool empty() const noexcept { return items_.empty(); }
  const std::vector<Item>& items() const noexcept { return items_; }
  auto begin() const noexcept { return items_.begin(); }
  auto end() const noexcept { return items_.end(); }

  const Value* find(const Value& key) const;
  Value* find(const Value& key);
  Value& operator[](const Value& key);  ///< inserts none
  void set(Value key, Value value);     ///< replaces the value and keeps the place of an equal key
  bool erase(const Value& key);         ///< linear
  /// The value at a position of the order.
  Value& value_at(std::size_t index) { return items_[index].second; }

 private:
  std::optional<std::size_t> position(const Value& key) const;
  std::vector<Item> items_;
  std::unordered_multimap<std::size_t, std::size_t>
      index_;  // hash → position; filled once there are more than a few items
};

/// A torch storage outside a tensor: its class name ("FloatStorage") and its elements as a 1-D
/// tensor.
struct TorchStorage {
  std::string type;
  std::string location = "cpu";
  Tensor elements;
};

/// A Python object as a pickle describes it: never imported, never called, written back unchanged.
/// Covers OrderedDict, Namespace, numpy arrays, io.BytesIO, enums and every unknown class.
struct Opaque {
  enum class Form : std::uint8_t {
    kCall,  ///< callable(*args): REDUCE, INST, OBJ
    kNew,   ///< callable.__new__(callable, *args, **kwargs): NEWOBJ, NEWOBJ_EX
  };
  Form form = Form::kCall;
  Value callable;  ///< mostly a Global; may be an opaque call itself
  Value args = Value::tuple();
  std::optional<Value> kwargs{};                      ///< a dict; only from NEWOBJ_EX
  std::vector<Value> states{};                        ///< from BUILD, mostly none or one
  ValueList list_items{};                             ///< from APPEND(S)
  std::vector<std::pair<Value, Value>> dict_items{};  ///< from SETITEM(S), in order

  /// Returns "module.name" of the callable when it is a Global, else "".
  std::string class_path() const;
};

/// Returns the items of a dict, or of an opaque collections.OrderedDict / defaultdict; null for
/// anything else.
const std::vector<std::pair<Value, Value>>* mapping_items(const Value& value);

}  // namespace dckpt
