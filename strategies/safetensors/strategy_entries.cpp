#include "strategies/safetensors/strategy_entries.h"

#include <string>
#include <utility>

#include "strategies/safetensors/model_files.h"
#include "strategies/safetensors/safetensors_reader.h"
#include "strategies/safetensors/save_strategy.h"

namespace dckpt {
namespace {

SaveStrategyEntry hugging_face_entry(const char* name) {
  return {.name = name,
          .version = 1,
          .about = "safetensors as transformers loads them: tensors only, each whole",
          .capabilities = {.objects = false,
                           .common_state = false,
                           .cut_tensors = false,
                           .integrity = true,
                           .resume = true},
          .conventions = {.model_folder = true},
          .make = make_safetensors_save_strategy,
          .measure = measure_safetensors};
}

}  // namespace

StrategyEntries safetensors_strategies() {
  StrategyEntries entries;
  for (const char* const name : {"hf", "safetensors"})
    entries.save.push_back(hugging_face_entry(name));
  entries.load.push_back(
      {.name = "safetensors",
       .about = "models of Hugging Face, PyTorch DCP's HuggingFaceStorageWriter, single files",
       .capabilities = {.objects = false, .common_state = false},
       .matches = holds_safetensors,
       .marks = {std::string(kSafetensorsNames.usual_index)},
       .reads_file = is_safetensors_file,
       .open = [](std::shared_ptr<Storage> storage, const OpenHints& hints) {
         return open_safetensors(std::move(storage), hints.file);
       }});
  return entries;
}

}  // namespace dckpt
