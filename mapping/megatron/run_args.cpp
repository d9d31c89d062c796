#include "mapping/megatron/run_args.h"

namespace dckpt {
namespace {

constexpr std::array kUnevenStages{
    "num_virtual_stages_per_pipeline_rank",    "decoder_first_pipeline_num_layers",
    "decoder_last_pipeline_num_layers",        "pipeline_model_parallel_layout",
    "account_for_embedding_in_pipeline_split", "account_for_loss_in_pipeline_split"};

const Value* find(const Value* args, const char* name) {
  return args == nullptr || !args->is_dict() ? nullptr : args->find(name);
}

}  // namespace

const Value* run_args(const Value& common) {
  return as_run_args(common.is_dict() ? common.find("args") : nullptr);
}

const Value* as_run_args(const Value* stored) {
  if (stored == nullptr || stored->is_dict()) return stored;
  if (!stored->is(Value::Kind::kOpaque) || stored->as_opaque().states.empty()) return nullptr;
  const Value& attributes = stored->as_opaque().states.front();
  return attributes.is_dict() ? &attributes : nullptr;
}

std::optional<std::int64_t> run_arg(const Value* args, const char* name) {
  const Value* const found = find(args, name);
  if (found == nullptr || !found->is_int()) return std::nullopt;
  return found->as_int();
}

std::optional<bool> run_flag(const Value* args, const char* name) {
  const Value* const found = find(args, name);
  return found != nullptr && found->is(Value::Kind::kBool) ? std::optional(found->as_bool())
                                                           : std::nullopt;
}

bool is_flag_set(const Value* args, const char* name) {
  return run_flag(args, name).value_or(false);
}

std::vector<std::string> uneven_stages(const Value* args) {
  std::vector<std::string> names;
  for (const char* const name : kUnevenStages) {
    const Value* const value = find(args, name);
    if (value != nullptr && !value->is_none() && *value != Value(false)) names.emplace_back(name);
  }
  return names;
}

DType compute_dtype(const Value* args) {
  if (run_flag(args, "bf16").value_or(false)) return DType::kBFloat16;
  return run_flag(args, "fp16").value_or(false) ? DType::kFloat16 : DType::kFloat32;
}

}  // namespace dckpt
