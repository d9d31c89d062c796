#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "mapping/megatron/model_keys.h"
#include "mapping/planning/metadata.h"
#include "mapping/state/value.h"
#include "migration/rank_folders/parameter_cut.h"
#include "migration/rank_folders/rank_layout.h"

namespace dckpt {

inline constexpr std::string_view kWordEmbeddings = "embedding.word_embeddings.weight";
inline constexpr std::string_view kOutputLayer = "output_layer.weight";

/// A parameter of a whole model.
struct WholeParameter {
  std::uint32_t tensor = 0;  ///< position in the metadata
  ModelKey key;              ///< key with global numbers; none for an axis of its own
  bool layers = false;       ///< the first axis is that of the layers
  bool experts = false;      ///< the next axis is that of the experts
  Shape shape{};             ///< shape without these axes
  ParameterCut cut{};

  std::size_t leading() const { return (layers ? 1U : 0U) + (experts ? 1U : 0U); }
};

bool has_layer_axis(const ModelKey& key);
bool has_expert_axis(const ModelKey& key);

/// The parameters under the keys of Megatron's distributed checkpoints, and their partition.
struct WholeModel {
  std::vector<WholeParameter> parameters;
  std::int64_t experts = 0;  ///< 0 if the model has none
};

/// Collects the parameters and sets the layout's number of layers. Throws as split_ranks() does.
WholeModel whole_model(const Metadata& metadata, const Value* args, RankLayout& layout);

}  // namespace dckpt
