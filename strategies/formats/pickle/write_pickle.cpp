#include <deque>
#include <string>
#include <unordered_map>
#include <utility>

#include "mapping/base/error.h"
#include "strategies/formats/pickle/value.h"
#include "strategies/formats/pickle/writer.h"

namespace dckpt::pickle {
namespace {

using Kind = Value::Kind;

constexpr int kMaxDepth = 1100;  // what value_from_graph accepts, and what tensors add to it

class ValueWriter {
 public:
  explicit ValueWriter(const WriteOptions& options) : options_(options), out_(options.protocol) {}

  Bytes write(const Value& root) {
    value(root);
    return out_.finish();
  }

 private:
  void value(const Value& value) {
    switch (value.kind()) {
      case Kind::kNone: return out_.none();
      case Kind::kBool: return out_.boolean(value.as_bool());
      case Kind::kInt: return out_.integer(value.as_int());
      case Kind::kBigInt: return out_.big_integer(value.as_big_int().bytes);
      case Kind::kFloat: return out_.real(value.as_float());
      case Kind::kComplex: return out_.complex(value.as_complex().real(), value.as_complex().imag());
      case Kind::kStr: return out_.text(value.as_str());
      case Kind::kGlobal: return out_.global(value.as_global().module, value.as_global().name);
      case Kind::kTuple:
        if (value.items().empty()) return out_.empty_tuple();
        break;
      default: break;
    }
    if (const auto known = slots_.find(value.identity()); known != slots_.end()) return out_.get(known->second);
    if (++depth_ > kMaxDepth) {
      throw CheckpointError(ErrorCode::kInvalidArgument, "values nested more than " + std::to_string(kMaxDepth) + " deep cannot be pickled");
    }
    shared(value);
    --depth_;
    slots_.emplace(value.identity(), out_.put());
  }

  /// Values with an identity of their own.
  void shared(const Value& value) {
    switch (value.kind()) {
      case Kind::kBytes: return out_.bytes(value.as_bytes());
      case Kind::kByteArray: return out_.byte_array(value.as_bytes());
      case Kind::kList: return list(value.items());
      case Kind::kTuple: return tuple(value.items());
      case Kind::kSet: return set(value.items(), "set");
      case Kind::kFrozenSet: return frozen_set(value.items());
      case Kind::kDict:
        out_.empty_dict();
        return dict_items(value.as_dict().items());
      case Kind::kOpaque: return object(value.as_opaque());
      case Kind::kTensor:
        if (!options_.reduce_tensor) refuse(value);
        return this->value(kept(options_.reduce_tensor(value.as_tensor())));
      case Kind::kStorage:
        if (!options_.persistent_id) refuse(value);
        this->value(kept(options_.persistent_id(value.as_storage())));
        return out_.persistent_id();
      default: refuse(value);
    }
  }

  [[noreturn]] static void refuse(const Value& value) {
    throw CheckpointError(ErrorCode::kInvalidArgument, std::string("a ") + to_string(value.kind()) + " cannot be written into this pickle");
  }

  /// The memo knows values by address, so those made on the way have to stay.
  const Value& kept(Value value) { return kept_.emplace_back(std::move(value)); }

  void list(const ValueList& items) {
    out_.empty_list();
    list_items(items);
  }

  void list_items(const ValueList& items) {
    if (items.empty()) return;
    out_.mark();
    for (const Value& item : items) value(item);
    out_.append_items();
  }

  void tuple(const ValueList& items) {
    const bool has_mark = items.size() > 3;
    if (has_mark) out_.mark();
    for (const Value& item : items) value(item);
    has_mark ? out_.tuple() : out_.tuple(static_cast<int>(items.size()));
  }

  void set(const ValueList& members, const char* builtin) {
    if (options_.protocol < 4) {
      out_.global("builtins", builtin);
      list(members);
      out_.tuple(1);
      return out_.reduce();
    }
    out_.empty_set();
    out_.mark();
    for (const Value& member : members) value(member);
    out_.add_items();
  }

  void frozen_set(const ValueList& members) {
    if (options_.protocol < 4) return set(members, "frozenset");
    out_.mark();
    for (const Value& member : members) value(member);
    out_.frozen_set();
  }

  void dict_items(const std::vector<std::pair<Value, Value>>& items) {
    if (items.empty()) return;
    out_.mark();
    for (const auto& [key, item] : items) {
      value(key);
      value(item);
    }
    out_.set_items();
  }

  void object(const Opaque& object) {
    const bool with_kwargs = object.form == Opaque::Form::kNew && object.kwargs.has_value();
    if (with_kwargs && options_.protocol < 4) {
      out_.global("copyreg", "__newobj_ex__");
      value(object.callable);
      value(object.args);
      value(*object.kwargs);
      out_.tuple(3);
      out_.reduce();
    } else {
      value(object.callable);
      value(object.args);
      if (with_kwargs) value(*object.kwargs);
      with_kwargs ? out_.new_object_ex() : object.form == Opaque::Form::kNew ? out_.new_object() : out_.reduce();
    }
    list_items(object.list_items);
    dict_items(object.dict_items);
    for (const Value& state : object.states) {
      value(state);
      out_.build();
    }
  }

  const WriteOptions& options_;
  PickleWriter out_;
  int depth_ = 0;
  std::unordered_map<const void*, PickleWriter::Slot> slots_;
  std::deque<Value> kept_;
};

}  // namespace

Bytes write_pickle(const Value& value, const WriteOptions& options) { return ValueWriter(options).write(value); }

}  // namespace dckpt::pickle
