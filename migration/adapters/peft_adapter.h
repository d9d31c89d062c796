#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
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
struct PeftAdapter {
  PeftConfig config;
  std::shared_ptr<const CheckpointReader> reader;
  std::vector<LoraModule> modules;
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
