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

constexpr int kMaxNesting = 1100;  // the limit of value_from_graph, and the levels that tensors add

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
      case Kind::kComplex:
        return out_.complex(value.as_complex().real(), value.as_complex().imag());
      case Kind::kReference: return reference(value.label());
      case Kind::kGlobal: return out_.global(value.as_global().module, value.as_global().name);
      case Kind::kTuple:
        if (value.items().empty()) return out_.empty_tuple();
        break;
      default: break;
    }
    if (const auto known = slots_.find(value.identity()); known != slots_.end())
      return out_.get(known->second);
    if (value.label() != 0) labeled_.insert_or_assign(value.label(), &value);
    if (++depth_ > kMaxNesting) {
      throw_error(ErrorCode::kInvalidArgument, "values nested more than {} deep cannot be pickled",
                  kMaxNesting);
    }
    shared(value);
    --depth_;
  }

  /// Writes values with an identity of their own. Each is remembered when Python's pickler does so:
  /// containers before they are filled.
  void shared(const Value& value) {
    switch (value.kind()) {
      case Kind::kStr: return text(value);
      case Kind::kBytes:
        out_.bytes(value.as_bytes());
        remember(value);
        return;
      case Kind::kByteArray:
        out_.byte_array(value.as_bytes());
        remember(value);
        return;
      case Kind::kList:
        out_.empty_list();
        remember(value);
        return list_items(value.items());
      case Kind::kTuple:
        tuple(value.items());
        remember(value);
        return;
      case Kind::kSet: return options_.protocol < 4 ? set_call(value, "set") : set(value);
      case Kind::kFrozenSet:
        return options_.protocol < 4 ? set_call(value, "frozenset") : frozen_set(value);
      case Kind::kDict:
        out_.empty_dict();
        remember(value);
        return dict_items(value.as_dict().items());
      case Kind::kOpaque: return object(value);
      case Kind::kTensor:
        if (!options_.reduce_tensor) refuse(value);
        this->value(kept(options_.reduce_tensor(value.as_tensor())));
        remember(value);
        return;
      case Kind::kStorage:
        if (!options_.persistent_id) refuse(value);
        this->value(kept(options_.persistent_id(value.as_storage())));
        out_.persistent_id();
        remember(value);
        return;
      default: refuse(value);
    }
  }

  /// Acts as Python's pickler does: if a part has led back to the value and has thus written it,
  /// the second one is dropped. Returns whether this is the first one.
  bool remember(const Value& value) {
    if (const auto known = slots_.find(value.identity()); known != slots_.end()) {
      out_.pop();
      out_.get(known->second);
      return false;
    }
    slots_.emplace(value.identity(), out_.put());
    return true;
  }

  /// Mostly the value is remembered. Otherwise a tuple, or an object whose arguments lead back to
  /// it, is written inside itself; this ends at the container between the two.
  void reference(std::uint32_t label) {
    const auto known = labeled_.find(label);
    if (known == labeled_.end())
      throw_error(
          ErrorCode::kInvalidArgument,
          "a value refers back to an object that is not written with it; write both, or neither");
    value(*known->second);
  }

  [[noreturn]] static void refuse(const Value& value) {
    throw_error(ErrorCode::kInvalidArgument, "a {} cannot be written into this pickle",
                to_string(value.kind()));
  }

  /// Keeps a value made on the way: the memo knows values by address.
  const Value& kept(Value value) { return kept_.emplace_back(std::move(value)); }

  /// Equal texts are also written once, as long as they are short.
  void text(const Value& value) {
    out_.text(value.as_str());
    if (value.as_str().size() > PickleWriter::kLongestSharedText) remember(value);
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
    if (has_mark) return out_.tuple();
    out_.tuple(static_cast<int>(items.size()));
  }

  void set(const Value& set) {
    out_.empty_set();
    remember(set);
    out_.mark();
    for (const Value& member : set.items()) value(member);
    out_.add_items();
  }

  void frozen_set(const Value& set) {
    out_.mark();
    for (const Value& member : set.items()) value(member);
    out_.frozen_set();
    remember(set);
  }

  void set_call(const Value& set, const char* builtin) {
    out_.global("builtins", builtin);
    out_.empty_list();
    list_items(set.items());
    out_.tuple(1);
    out_.reduce();
    remember(set);
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

  void object(const Value& shared_object) {
    const Opaque& object = shared_object.as_opaque();
    if (!object.args.is(Kind::kTuple))
      throw_error(
          ErrorCode::kInvalidArgument,
          "cannot write an object whose arguments are not a tuple; wrap them in Value::tuple()");
    if (object.form == Opaque::Form::kCall) {
      value(object.callable);
      value(object.args);
      out_.reduce();
    } else if (!object.kwargs) {
      value(object.callable);
      value(object.args);
      out_.new_object();
    } else if (options_.protocol >= 4) {
      value(object.callable);
      value(object.args);
      value(*object.kwargs);
      out_.new_object_ex();
    } else {
      out_.global("copyreg", "__newobj_ex__");
      value(object.callable);
      value(object.args);
      value(*object.kwargs);
      out_.tuple(3);
      out_.reduce();
    }
    if (!remember(shared_object)) return;
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
  std::unordered_map<std::uint32_t, const Value*> labeled_;
  std::deque<Value> kept_;
};

}  // namespace

Bytes write_pickle(const Value& value, const WriteOptions& options) {
  return ValueWriter(options).write(value);
}

}  // namespace dckpt::pickle
