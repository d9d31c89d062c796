#pragma once

#include <cstdint>
#include <memory>

#include "migration/adapters/peft_adapter.h"
#include "strategies/contract/reader.h"
#include "strategies/contract/view.h"
#include "strategies/views/low_rank_reader.h"

namespace dckpt {

/// Returns the checkpoint `base`, a model under Hugging Face's keys, with a LoRA adapter merged
/// into it as by PEFT's merge_and_unload():
///
///     weight + alpha / r × lora_B × lora_A          (alpha / √r with use_rslora)
///
/// computed in float32 while the weights are read, and rounded once to the dtype of the base.
/// Tensors that the adapter holds as a whole replace those of the base, in the base's dtype.
/// `memory` limits the bytes of the adapter that are held in memory. The findings say what was
/// merged and rounded. Throws CheckpointError: (mismatch) naming the modules that the base lacks or
/// has in another shape, with both shapes; (unsupported) for weights that are not floats of at
/// least 16 bits.
View merged_adapter(std::unique_ptr<CheckpointReader> base, const PeftAdapter& adapter,
                    std::uint64_t memory = kDefaultFactorMemory);

/// Returns whether the checkpoint has any of the tensors that the adapter changes.
bool fits_adapter(const Metadata& base, const PeftAdapter& adapter);

}  // namespace dckpt
