#include "migration/rank_folders/whole_model.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "mapping/base/counted.h"
#include "mapping/base/error.h"
#include "mapping/megatron/model_keys.h"
#include "mapping/megatron/run_args.h"

namespace dckpt {
namespace {

constexpr std::int64_t kMostModules = 1'000'000;            // layers, experts
constexpr std::int64_t kMostParts = std::int64_t{1} << 24;  // tensors in all files

class Cutting {
 public:
  Cutting(const Metadata& metadata, const Value* args, RankLayout& layout)
      : metadata_(metadata), args_(args), layout_(layout) {}

  WholeModel run() {
    collect_parameters();
    count();
    require_few_parts();
    cut_parameters();
    return std::move(model_);
  }

 private:
  void collect_parameters() {
    for (std::uint32_t i = 0; i < metadata_.tensors.size(); ++i) {
      const TensorStorageMetadata& tensor = metadata_.tensors[i];
      WholeParameter parameter{.tensor = i, .key = parse_rank_path(tensor.key, false)};
      parameter.layers = has_layer_axis(parameter.key);
      parameter.experts = has_expert_axis(parameter.key);
      const Shape& shape = tensor.global_shape();
      if (shape.size() < parameter.leading())
        throw_error(ErrorCode::kUnsupported, {.key = tensor.key},
                    "the tensor has too few axes for its layers and experts");
      parameter.shape.assign(shape.begin() + static_cast<std::ptrdiff_t>(parameter.leading()),
                             shape.end());
      model_.parameters.push_back(std::move(parameter));
    }
    if (model_.parameters.empty())
      throw_error(ErrorCode::kInvalidArgument,
                  "the selection has no parameter of a model to write");
  }

  void count() {
    const auto agree = [&](std::int64_t& count, std::int64_t found, const WholeParameter& parameter,
                           const char* what) {
      if (count == 0) count = found;
      if (count != found || found > kMostModules)
        throw_error(ErrorCode::kUnsupported, {.key = metadata_.tensors[parameter.tensor].key},
                    "the tensor has {} {}, others have {} (at most {})", found, what, count,
                    kMostModules);
    };
    std::int64_t numbered = 0;
    for (const WholeParameter& parameter : model_.parameters) {
      const Shape& shape = metadata_.tensors[parameter.tensor].global_shape();
      if (parameter.layers) agree(layout_.layers, shape[0], parameter, "layers");
      if (parameter.key.layer) numbered = std::max(numbered, *parameter.key.layer + 1);
      if (parameter.experts)
        agree(model_.experts, shape[parameter.leading() - 1], parameter, "experts");
    }
    layout_.layers = std::max(layout_.layers, numbered);
    const std::int64_t stages = layout_.stages();
    if (layout_.layers == 0)
      throw_error(
          ErrorCode::kUnsupported, {.key = metadata_.tensors[model_.parameters.front().tensor].key},
          "rank folders are written of models whose layers Megatron-Core calls decoder.layers, and "
          "there are none; a map gives Hugging Face's keys these names (--map)");
    if (layout_.layers % stages != 0)
      throw_error(ErrorCode::kInvalidArgument,
                  "{} cannot be divided evenly among {}{}; pass a "
                  "pipeline_model_parallel_size (--pipeline-parallel) that divides them",
                  counted(layout_.layers, "layer"),
                  counted(layout_.sizes.pipeline, "pipeline stage"),
                  layout_.chunks > 1 ? str_format(" of {} chunks", layout_.chunks) : "");
    if (layout_.sizes.expert > 1 &&
        (model_.experts == 0 || model_.experts % layout_.sizes.expert != 0))
      throw_error(ErrorCode::kInvalidArgument,
                  "{} cannot be divided evenly among {} ranks; pass an "
                  "expert_model_parallel_size (--expert-parallel) that divides them",
                  counted(model_.experts, "expert"), layout_.sizes.expert);
  }

  /// Limits the number of parts: sizes may come from args, and tensors without elements have any
  /// shape.
  void require_few_parts() const {
    std::int64_t parts = 0;
    for (const WholeParameter& parameter : model_.parameters) {
      const std::int64_t modules =
          (parameter.layers ? layout_.layers : 1) * (parameter.experts ? model_.experts : 1);
      const std::int64_t copies =
          layout_.sizes.tensor *
          (parameter.experts || parameter.key.expert ? 1 : layout_.sizes.expert);
      if (modules > kMostParts || (parts += modules * copies) > kMostParts)
        throw_error(ErrorCode::kInvalidArgument,
                    "rank folders for these sizes hold more than {} tensors",
                    grouped(static_cast<std::uint64_t>(kMostParts)));
    }
  }

  void cut_parameters() {
    std::map<std::pair<std::string, std::int64_t>, const Shape*> shapes;
    const auto place = [](const WholeParameter& parameter, std::string name) {
      return std::pair{std::move(name), parameter.key.layer.value_or(-1)};
    };
    for (const WholeParameter& parameter : model_.parameters)
      shapes[place(parameter, parameter.key.name)] = &parameter.shape;
    require_whole_heads();
    for (WholeParameter& parameter : model_.parameters) {
      const std::string& key = metadata_.tensors[parameter.tensor].key;
      const auto axis = tensor_parallel(parameter.key.name);
      if (!axis && layout_.sizes.tensor > 1)
        throw_error(ErrorCode::kUnsupported, {.key = key},
                    "it is not known how {} tensor-parallel ranks share this parameter; leave it "
                    "out (--exclude), or write one (--tensor-parallel 1)",
                    layout_.sizes.tensor);
      parameter.cut.axis = axis.value_or(TensorParallel::kReplicated);
      if (const auto partner = gated_partner(parameter.key.name)) {
        const auto fc2 = shapes.find(place(parameter, *partner));
        if (fc2 == shapes.end() && layout_.sizes.tensor > 1)
          throw_error(ErrorCode::kUnsupported, {.key = key},
                      "whether there is a gate in it, by which tensor-parallel ranks "
                      "share it, only {} tells, which is not there; leave this out, too "
                      "(--exclude), or write one rank (--tensor-parallel 1)",
                      quote(*partner));
        parameter.cut.gated = fc2 != shapes.end() && is_gated(parameter.shape, *fc2->second);
      }
      if (!local_shape(parameter.cut, parameter.shape, layout_.sizes.tensor))
        throw_error(ErrorCode::kInvalidArgument, {.key = key},
                    "{} cannot be divided evenly among {} tensor-parallel ranks; pass a "
                    "tensor_model_parallel_size (--tensor-parallel) that divides it",
                    to_string(parameter.shape), layout_.sizes.tensor);
    }
  }

  /// Checks that a rank has whole groups of query, key and value, or whole heads of the query:
  /// where several ranks share a group, Megatron-Core cuts its rows evenly and gathers them to
  /// compute.
  void require_whole_heads() const {
    for (const char* const name : {"num_query_groups", "num_attention_heads"}) {
      const auto heads = run_arg(args_, name);
      if (!heads || *heads < 1) continue;
      if (*heads % layout_.sizes.tensor == 0) return;
      if (layout_.sizes.tensor % *heads == 0 &&
          run_arg(args_, "num_attention_heads").value_or(1) % layout_.sizes.tensor == 0)
        return;
      if (std::string_view(name) == "num_query_groups" &&
          !is_flag_set(args_, "group_query_attention") &&
          args_->find("group_query_attention") != nullptr)
        continue;
      throw_error(ErrorCode::kInvalidArgument,
                  "{} {} cannot be divided evenly among {} tensor-parallel ranks; pass a "
                  "tensor_model_parallel_size (--tensor-parallel) that divides it",
                  name, *heads, layout_.sizes.tensor);
    }
  }

  const Metadata& metadata_;
  const Value* args_;
  RankLayout& layout_;
  WholeModel model_;
};

}  // namespace

bool has_layer_axis(const ModelKey& key) {
  return !key.layer && key.name.starts_with(kLayersPrefix);
}
bool has_expert_axis(const ModelKey& key) {
  return !key.expert && key.name.find(".experts.experts.") != std::string::npos;
}

WholeModel whole_model(const Metadata& metadata, const Value* args, RankLayout& layout) {
  return Cutting(metadata, args, layout).run();
}

}  // namespace dckpt
