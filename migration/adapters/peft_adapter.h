#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "mapping/planning/metadata.h"
#include "migration/adapters/peft_config.h"
#include "strategies/contract/reader.h"
#include "strategies/storage/storage.h"

namespace dckpt {

/// The names of PEFT's wrappers around the model, with which an adapter's keys begin.
inline constexpr std::string_view kPeftPrefix = "base_model.model.";

/// A module with LoRA, and the positions of its tensors in the adapter.
struct LoraModule {
  std::string path;  ///< path in the model: "model.layers.0.self_attn.q_proj"
  bool embedding = false;
  std::optional<std::size_t> a{};     ///< lora_A.weight or lora_embedding_A
  std::optional<std::size_t> b{};     ///< lora_B.weight or lora_embedding_B
  std::optional<std::size_t> bias{};  ///< lora_B.bias
};

/// The fused parameters of a module of experts, in the order in which PEFT wraps them, and the
/// modules of a single expert that have the same weights, row after row.
struct ExpertParameter {
  std::string_view name;
  std::array<std::string_view, 2> singles;
  std::size_t count;  ///< of `singles`
};
inline constexpr std::array<ExpertParameter, 2> kExpertParameters{
    {{"gate_up_proj", {"gate_proj", "up_proj"}, 2}, {"down_proj", {"down_proj"}, 1}}};

/// LoRA of a fused parameter of experts (`target_parameters`), with the factors of all of them:
/// lora_A is (experts · rank, in), expert by expert, and lora_B (out, rank · experts), in which the
/// columns of an expert are as many apart as there are experts.
struct ExpertLora {
  std::string module{};     ///< path in the model: "model.layers.0.mlp.experts"
  std::string parameter{};  ///< "gate_up_proj"
  std::size_t a = 0;        ///< positions of its tensors in the adapter
  std::size_t b = 0;
  std::int64_t experts = 0;
  std::int64_t rank = 0;
  std::int64_t in = 0;
  std::int64_t out = 0;

  std::string path() const { return module + "." + parameter; }
};

/// A tensor that the adapter holds as a whole: one of modules_to_save, or a bias.
struct WholeTensor {
  std::string key;  ///< key in the model
  std::size_t tensor = 0;
};

/// A LoRA adapter in PEFT's layout:
///
///     adapter_config.json          rank, alpha and others
///     adapter_model.safetensors    base_model.model.MODULE.lora_A.weight   (r, in)
///                                  base_model.model.MODULE.lora_B.weight   (out, r)
///                                  base_model.model.MODULE.lora_B.bias     with lora_bias
///                                  base_model.model.MODULE.lora_embedding_A  (r, vocabulary)
///                                  base_model.model.MODULE.lora_embedding_B  (hidden, r)
///                                  base_model.model.KEY                    trained as a whole
///
/// PEFT wraps a module once for each of its parameters among `target_parameters`, the first of them
/// innermost, as MODULE.base_layer.
struct PeftAdapter {
  PeftConfig config;
  std::shared_ptr<const CheckpointReader> reader;
  std::vector<LoraModule> modules;
  std::vector<ExpertLora> experts{};
  std::vector<WholeTensor> whole;
};

/// Opens the folder of an adapter. Throws CheckpointError: (incomplete) if one of the two files is
/// missing, or a module lacks one of its tensors; (unsupported) for weights written by torch.save;
/// (mismatch) for tensors that do not belong to a LoRA adapter, or if there are no tensors. Throws
/// as parse_peft_config(), too.
PeftAdapter open_peft_adapter(std::shared_ptr<const Storage> folder);

/// Returns whether there are tensors and all have keys of an adapter.
bool holds_peft_adapter(const Metadata& metadata);

}  // namespace dckpt
