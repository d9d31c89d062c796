#include "migration/megatron_fsdp/recorded_names.h"

#include <algorithm>
#include <utility>

#include "mapping/megatron/model_keys.h"
#include "mapping/megatron/optimizer_keys.h"
#include "mapping/megatron/run_args.h"
#include "mapping/state/flatten.h"

namespace dckpt {
namespace {

constexpr const char* kRecord = "dckpt_fsdp_dtensor";  // in the common state of either form
constexpr int kMaxWrappers = 16;

bool is_weight(const TensorStorageMetadata& tensor) {
  return !is_optimizer_key(tensor.key) && !is_extra_state(tensor.key);
}

bool has_half_precision(const Metadata& core) {
  return std::ranges::any_of(core.tensors, [](const TensorStorageMetadata& tensor) {
    return is_weight(tensor) && (tensor.properties.dtype == DType::kBFloat16 ||
                                 tensor.properties.dtype == DType::kFloat16);
  });
}

/// Returns whether linear_fc1's `key` has a gate in front: args say so, or it has twice as many
/// rows as linear_fc2 has columns.
bool is_gated(const Metadata& core, const Value* args, const std::string& key) {
  if (!is_gated_key(key)) return false;
  if (const auto swiglu = run_flag(args, "swiglu")) return *swiglu;
  std::string first = key.substr(0, key.rfind('.')) + ".weight";
  std::string second = first;
  second.replace(second.rfind(".linear_fc1."), 12, ".linear_fc2.");
  const TensorStorageMetadata* const one = core.find_tensor(first);
  const TensorStorageMetadata* const two = core.find_tensor(second);
  return one != nullptr && two != nullptr && one->size.size() >= 2 && !two->size.empty() &&
         *(one->size.end() - 2) == 2 * two->size.back();
}

Value list_of(const std::set<std::string>& texts) {
  ValueList items;
  for (const std::string& text : texts) items.emplace_back(text);
  return Value::list(std::move(items));
}

std::set<std::string> texts(const Value& record, const char* name) {
  std::set<std::string> found;
  const Value* const list = record.find(name);
  if (list == nullptr || !list->is_list()) return found;
  for (const Value& item : list->items()) {
    if (item.is_str()) found.insert(item.as_str());
  }
  return found;
}

/// Removes the record and returns it; none if there is no record.
Value take_record(Value& common) {
  const Value* const found = common.is_dict() ? common.find(kRecord) : nullptr;
  if (found == nullptr) return {};
  Value record = found->is_dict() ? *found : Value();
  common.mutable_dict().erase(Value(kRecord));
  return record;
}

void put(Value& common, Value record) {
  if (record.size() > 0) common[kRecord] = std::move(record);
}

}  // namespace

FsdpNames usual_fsdp_names(const Metadata& core, const Value* args) {
  const bool said = run_flag(args, "bf16") || run_flag(args, "fp16");
  FsdpNames names;
  names.wrappers =
      (said ? compute_dtype(args) != DType::kFloat32 : has_half_precision(core)) ? 3 : 2;
  names.grouped = run_flag(args, "moe_grouped_gemm").value_or(true);
  for (const TensorStorageMetadata& tensor : core.tensors) {
    if (is_weight(tensor) && is_gated(core, args, tensor.key)) names.halves.insert(tensor.key);
  }
  return names;
}

std::optional<FsdpNames> take_fsdp_names(Value& common) {
  const Value record = take_record(common);
  if (record.is_none()) return std::nullopt;
  const auto number = run_arg(&record, "wrappers");
  FsdpNames names;
  if (number && *number >= 0 && *number <= kMaxWrappers) names.wrappers = static_cast<int>(*number);
  names.local_norms = run_flag(&record, "local_norms").value_or(false);
  names.grouped = run_flag(&record, "grouped").value_or(true);
  names.halves = texts(record, "halves");
  names.others = texts(record, "others");
  names.added = texts(record, "added");
  names.added_extra_state = run_flag(&record, "added_extra_state").value_or(false);
  return names;
}

void record(const FsdpNames& names, Value& common) {
  put(common, Value::dict({{"wrappers", names.wrappers},
                           {"local_norms", names.local_norms},
                           {"grouped", names.grouped},
                           {"halves", list_of(names.halves)},
                           {"others", list_of(names.others)},
                           {"added", list_of(names.added)},
                           {"added_extra_state", names.added_extra_state}}));
}

CoreNames take_core_names(Value& common) {
  const Value record = take_record(common);
  CoreNames names{.without_main = texts(record, "without_main")};
  const Value* const chains = record.find("chains");
  if (chains == nullptr || !chains->is_list()) return names;
  for (const Value& chain : chains->items()) {
    if (!chain.is_list() || chain.size() != 2) continue;
    const Value& key = chain.items()[0];
    const Value& prefix = chain.items()[1];
    if (key.is_str() && prefix.is_str()) names.chains.emplace(key.as_str(), prefix.as_str());
  }
  return names;
}

void record(const CoreNames& names, Value& common) {
  Value made = Value::dict();
  ValueList chains;
  for (const auto& [key, prefix] : names.chains) chains.push_back(Value::list({key, prefix}));
  if (!chains.empty()) made["chains"] = Value::list(std::move(chains));
  if (!names.without_main.empty()) made["without_main"] = list_of(names.without_main);
  put(common, std::move(made));
}

void remove_entry(Value& tree, std::string_view path) {
  if (!tree.is_dict()) return;
  const std::string_view name = path.substr(0, path.find('.'));
  for (std::size_t i = 0; i < tree.size(); ++i) {
    const Value key = tree.as_dict().items()[i].first;
    if (key_text(key) != name) continue;
    Value& inner = tree.mutable_dict().value_at(i);
    if (name.size() < path.size()) remove_entry(inner, path.substr(name.size() + 1));
    if (name.size() == path.size() || (inner.is_dict() && inner.size() == 0))
      tree.mutable_dict().erase(key);
    return;
  }
}

}  // namespace dckpt
