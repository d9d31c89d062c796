#include "strategies/contract/run_args.h"

namespace dckpt {

const Value* run_args(const Value& common) {
  const Value* const args = common.is_dict() ? common.find("args") : nullptr;
  if (args == nullptr || args->is_dict()) return args;
  if (!args->is(Value::Kind::kOpaque) || args->as_opaque().states.empty()) return nullptr;
  const Value& attributes = args->as_opaque().states.front();
  return attributes.is_dict() ? &attributes : nullptr;
}

std::optional<std::int64_t> run_arg(const Value* args, const char* name) {
  const Value* const found = args == nullptr || !args->is_dict() ? nullptr : args->find(name);
  if (found == nullptr || !found->is_int()) return std::nullopt;
  return found->as_int();
}

}  // namespace dckpt
