#include "strategies/formats/pickle/plain_values.h"

#include <algorithm>
#include <unordered_map>

#include "mapping/base/error.h"
#include "mapping/base/utf8.h"

namespace dckpt::pickle {
namespace {

using Kind = Value::Kind;

std::string describe(const Value& value) {
  if (value.is_str()) return quote(value.as_str(), 60);
  if (value.is_int()) return std::to_string(value.as_int());
  return std::string("a ") + to_string(value.kind());
}

std::optional<Bytes> latin1_bytes(const ValueList& args) {
  if (args.size() != 2 || !args[0].is_str() || !args[1].is_str()) return std::nullopt;
  if (args[1].as_str() != "latin1" && args[1].as_str() != "latin-1") return std::nullopt;
  return encode_latin1(args[0].as_str());
}

std::optional<Value> byte_array_of(const ValueList& args) {
  if (args.empty()) return Value::byte_array({});
  if (args.size() == 1 && args[0].is(Kind::kBytes)) return Value::byte_array(args[0].as_bytes());
  std::optional<Bytes> content = latin1_bytes(args);
  if (!content) return std::nullopt;
  return Value::byte_array(std::move(*content));
}

std::optional<Value> set_of(const ValueList& args, bool frozen) {
  if (args.size() != 1 || !args[0].is_list()) return std::nullopt;
  return make_set(args[0].items(), frozen);
}

std::optional<Value> value_of_builtin(const std::string& name, const ValueList& args) {
  if (name == "set") return set_of(args, false);
  if (name == "frozenset") return set_of(args, true);
  if (name == "bytes" && args.empty()) return Value::bytes({});
  if (name == "bytearray") return byte_array_of(args);
  if (name == "complex" && args.size() == 2 && args[0].is(Kind::kFloat) &&
      args[1].is(Kind::kFloat)) {
    return Value(std::complex<double>(args[0].as_float(), args[1].as_float()));
  }
  return std::nullopt;
}

/// Limits keys or members with equal hashes, which take quadratic time; only hostile pickles have
/// many.
class CollisionLimit {
 public:
  explicit CollisionLimit(std::size_t keys) : active_(keys > kMaxCollisions) {}

  void add(const Value& key) {
    if (!active_ || ++seen_[hash_value(key)] <= kMaxCollisions) return;
    throw_error(ErrorCode::kUnsupported,
                "a dict or set has more than {} keys with the same hash, which is the limit",
                kMaxCollisions);
  }

 private:
  static constexpr std::size_t kMaxCollisions = 256;
  bool active_;
  std::unordered_map<std::size_t, std::size_t> seen_;
};

bool has_extras(const Opaque& object) {
  return !object.states.empty() || !object.list_items.empty() || !object.dict_items.empty();
}

/// Converts copyreg.__newobj__(class, *args) and copyreg.__newobj_ex__(class, args, kwargs).
std::optional<Value> new_object_of(const Opaque& call, const std::string& name) {
  const ValueList& args = call.args.items();
  Opaque object = call;
  object.form = Opaque::Form::kNew;
  if (args.empty() || !is_callable(args[0])) return std::nullopt;
  if (name == "__newobj__") {
    object.callable = args[0];
    object.args = Value::tuple({args.begin() + 1, args.end()});
  } else if (name == "__newobj_ex__" && args.size() == 3 && args[1].is(Kind::kTuple) &&
             args[2].is_dict()) {
    object.callable = args[0];
    object.args = args[1];
    object.kwargs = args[2];
  } else {
    return std::nullopt;
  }
  return Value(std::move(object));
}

}  // namespace

bool is_hashable(const Value& value) {
  switch (value.kind()) {
    case Kind::kList:
    case Kind::kDict:
    case Kind::kSet:
    case Kind::kByteArray: return false;
    case Kind::kTuple: return std::all_of(value.items().begin(), value.items().end(), is_hashable);
    default: return true;
  }
}

bool is_callable(const Value& value) {
  return value.is(Kind::kGlobal) || value.is(Kind::kOpaque);
}

Dict make_dict(std::vector<std::pair<Value, Value>>&& items) {
  Dict dict;
  CollisionLimit collisions(items.size());
  for (auto& [key, value] : items) {
    if (!is_hashable(key))
      throw_error(ErrorCode::kCorrupt, "a dict has {} as key, which Python cannot hash",
                  describe(key));
    collisions.add(key);
    if (dict.find(key) != nullptr)
      throw_error(ErrorCode::kCorrupt, "a dict has the key {} twice", describe(key));
    dict.set(std::move(key), std::move(value));
  }
  return dict;
}

Value make_set(ValueList members, bool frozen) {
  CollisionLimit collisions(members.size());
  for (const Value& member : members) {
    if (!is_hashable(member))
      throw_error(ErrorCode::kCorrupt, "a set has {} as member, which Python cannot hash",
                  describe(member));
    collisions.add(member);
  }
  const std::size_t count = members.size();
  Value set = frozen ? Value::frozen_set(std::move(members)) : Value::set(std::move(members));
  if (set.size() != count) throw_error(ErrorCode::kCorrupt, "a set has the same member twice");
  return set;
}

std::optional<Value> plain_value_of(const Opaque& call) {
  if (call.form != Opaque::Form::kCall || !call.callable.is(Kind::kGlobal)) return std::nullopt;
  const Global& function = call.callable.as_global();
  if (function.module == "copyreg") return new_object_of(call, function.name);
  if (has_extras(call)) return std::nullopt;
  if (function.module == "builtins") return value_of_builtin(function.name, call.args.items());
  if (function.module == "_codecs" && function.name == "encode") {
    if (std::optional<Bytes> content = latin1_bytes(call.args.items()))
      return Value::bytes(std::move(*content));
  }
  return std::nullopt;
}

}  // namespace dckpt::pickle
