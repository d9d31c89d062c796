#include "operations/inspect/run_facts.h"

#include <algorithm>
#include <optional>
#include <span>

#include "mapping/base/error.h"
#include "mapping/megatron/run_args.h"
#include "migration/maps/numbers/map_numbers.h"

namespace dckpt {
namespace {

struct Fact {
  const char* name;
  const char* megatron;
  const char* hf = nullptr;
};
constexpr Fact kModel[] = {
    {"layers", "num_layers", "num_hidden_layers"},
    {"hidden", "hidden_size", "hidden_size"},
    {"ffn", "ffn_hidden_size", "intermediate_size"},
    {"heads", "num_attention_heads", "num_attention_heads"},
    {"query groups", "num_query_groups", "num_key_value_heads"},
    {"experts", "num_experts", "num_local_experts"},
    {"vocabulary", "padded_vocab_size", "vocab_size"},
};
constexpr Fact kParallel[] = {
    {"TP", "tensor_model_parallel_size"},
    {"PP", "pipeline_model_parallel_size"},
    {"VPP", "virtual_pipeline_model_parallel_size"},
    {"CP", "context_parallel_size"},
    {"EP", "expert_model_parallel_size"},
    {"DP", "data_parallel_size"},
    {"ranks", "world_size"},
};

/// Returns the run's configuration without files that cannot be parsed, which other code reports.
ModelConfig configuration(const CheckpointReader& reader) {
  ModelConfig config;
  try {
    config = model_config(reader);
  } catch (const CheckpointError&) {
    if (const Value* const args = run_args(reader.common_state())) config.args = *args;
  }
  if (!config.args.is_none()) return config;
  const auto& objects = reader.metadata().objects;  // plain DCP
  const auto args = std::ranges::find(objects, "args", &BytesStorageMetadata::key);
  if (args == objects.end()) return config;
  const Value common =
      Value::dict({{"args", reader.object(static_cast<std::size_t>(args - objects.begin()))}});
  if (const Value* const attributes = run_args(common)) config.args = *attributes;
  return config;
}

void add(std::span<const Fact> facts, const ModelConfig& config,
         std::vector<RunFacts::Number>& into) {
  for (const Fact& fact : facts) {
    std::optional<std::int64_t> number = run_arg(&config.args, fact.megatron);
    if (!number) number = run_arg(&config.run_config, fact.megatron);
    if (!number && fact.hf != nullptr) number = run_arg(&config.hf, fact.hf);
    if (number) into.emplace_back(fact.name, *number);
  }
}

}  // namespace

RunFacts run_facts(const CheckpointReader& reader) {
  const ModelConfig config = configuration(reader);
  RunFacts facts;
  add(kModel, config, facts.model);
  // Megatron's args have 1 query group if attention heads are not grouped.
  if (!run_flag(&config.args, "group_query_attention").value_or(true))
    std::erase_if(facts.model, [](const auto& fact) { return fact.first == "query groups"; });
  add(kParallel, config, facts.parallel);
  // Args that a conversion made up describe no run.
  if (!run_arg(&config.args, "world_size") && !run_arg(&config.args, "data_parallel_size") &&
      config.run_config.is_none())
    facts.parallel.clear();
  const Value* const optimizer = config.args.find("optimizer");
  if (optimizer != nullptr && optimizer->is_str()) facts.optimizer = optimizer->as_str();
  return facts;
}

}  // namespace dckpt
