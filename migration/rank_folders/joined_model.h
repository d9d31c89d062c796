#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "mapping/base/error.h"
#include "mapping/megatron/model_keys.h"
#include "mapping/planning/rearrange.h"
#include "migration/rank_folders/parameter_cut.h"
#include "migration/rank_folders/rank_files.h"

namespace dckpt {

/// A parameter in a rank's file.
struct LocalParameter {
  std::uint32_t tensor = 0;  ///< position in the ranks' metadata
  ModelParallelRank rank;
  std::int64_t chunk = 0;  ///< model chunk of a virtual pipeline
  ModelKey key;            ///< key with global numbers
};

/// The model whose parameters are spread over the ranks' files, which must outlive it.
class JoinedModel {
 public:
  /// Throws as join_ranks() does.
  explicit JoinedModel(const RankFiles& files);
  JoinedModel(const JoinedModel&) = delete;
  JoinedModel& operator=(const JoinedModel&) = delete;

  /// All parameters, in the order of the files; none if the folders hold no model.
  const std::vector<LocalParameter>& parameters() const { return parameters_; }
  const Shape& shape(const LocalParameter& parameter) const;

  /// Calls visit(key, parts, stack) for every whole tensor. `parts` are the ranks' parts of it,
  /// without copies; `stack` says whether its first axis is that of the layers.
  using Parts = std::vector<const LocalParameter*>;
  void for_each_tensor(const std::function<void(const std::string& key, const Parts& parts,
                                                bool stack)>& visit) const;

  /// Returns the tensor that `parts` make up. `range` locates their elements: box `target` of the
  /// tensor, which has `leading` axes for layers and experts, is box `source` of the parameter.
  using Range = std::function<TensorPart(const LocalParameter& part, Box target, Box source,
                                         std::size_t leading)>;
  RearrangedTensor joined(std::string key, const Parts& parts, bool stack,
                          const Range& range) const;
  /// Returns the joined tensors of the parameters themselves.
  std::vector<RearrangedTensor> tensors() const;

  /// Returns the unique key, as Megatron writes it, of the object under a key of a rank's file
  /// (ModelKey::name, local numbers): "decoder.layers.mlp.linear_fc1._extra_state/shard_3_4".
  std::string object_key(ModelKey key, std::int64_t chunk, const ModelParallelRank& rank) const;
  ModelKey parse_key(std::string_view path) const { return parse_rank_path(path, local_norms_); }

 private:
  [[noreturn]] void fail(ErrorCode code, const std::string& message, std::uint32_t tensor) const;
  void collect_parameters();
  void number_layers();
  void number_experts();
  void group();
  void require_copy(const LocalParameter& first, const LocalParameter& other) const;
  void require_known_experts(const LocalParameter& parameter) const;
  bool is_tied_copy(const LocalParameter& parameter) const;
  TensorParallel split_of(const LocalParameter& parameter) const;
  ParameterCut cut_of(const LocalParameter& parameter) const;
  double checkpoint_version() const;
  std::vector<CutPart> parts_of(const LocalParameter& parameter, const ParameterCut& cut) const;

  const RankFiles& files_;
  const Metadata& metadata_;
  bool local_norms_ = false;
  std::vector<LocalParameter> parameters_;
  std::int64_t layers_ = 0;
  std::map<std::pair<std::int64_t, std::int64_t>, std::int64_t> first_layer_;  // by chunk and stage
  std::int64_t local_experts_ = 0;
  bool homogeneous_ = true;         // all layers are alike
  std::vector<std::string> order_;  // names in groups_, in order
  std::map<std::string, Parts> groups_;
};

}  // namespace dckpt
