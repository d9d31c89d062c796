#include "strategies/contract/run_args.h"

namespace dckpt {
namespace {

const Value* find(const Value* args, const char* name) {
  return args == nullptr || !args->is_dict() ? nullptr : args->find(name);
}

}  // namespace

const Value* run_args(const Value& common) {
  const Value* const args = common.is_dict() ? common.find("args") : nullptr;
  if (args == nullptr || args->is_dict()) return args;
  if (!args->is(Value::Kind::kOpaque) || args->as_opaque().states.empty()) return nullptr;
  const Value& attributes = args->as_opaque().states.front();
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

DType compute_dtype(const Value* args) {
  if (run_flag(args, "bf16").value_or(false)) return DType::kBFloat16;
  return run_flag(args, "fp16").value_or(false) ? DType::kFloat16 : DType::kFloat32;
}

}  // namespace dckpt
