#include "mapping/torch/optimizer_params.h"

#include <algorithm>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "mapping/base/error.h"
#include "mapping/torch/tensor.h"

namespace dckpt::torch {
namespace {

struct NamedParam {
  std::string name;
  at::Tensor tensor;
};

/// Returns the parameters, tied ones once, under their first name.
std::vector<NamedParam> params_of(const ::torch::nn::Module& module) {
  std::vector<NamedParam> params;
  std::unordered_set<const c10::TensorImpl*> seen;
  for (const auto& item : module.named_parameters()) {
    if (seen.insert(item.value().unsafeGetTensorImpl()).second)
      params.push_back({item.key(), item.value()});
  }
  return params;
}

bool same_storage(const at::Tensor& a, const at::Tensor& b) {
  return a.has_storage() && b.has_storage() &&
         a.storage().unsafeGetStorageImpl() == b.storage().unsafeGetStorageImpl();
}

/// Returns the parameters that a 1-D piece of memory extends over.
std::vector<ParamFragment> fragments_of(const at::Tensor& piece,
                                        const std::vector<NamedParam>& params) {
  std::vector<ParamFragment> fragments;
  if (piece.dim() != 1 || !piece.is_contiguous()) return fragments;
  const std::int64_t piece_begin = piece.storage_offset();
  const std::int64_t piece_end = piece_begin + piece.numel();
  for (const auto& [name, param] : params) {
    if (!same_storage(param, piece) || param.dtype() != piece.dtype() || !param.is_contiguous())
      continue;
    const std::int64_t first = param.storage_offset();
    const std::int64_t begin = std::max(piece_begin, first);
    const std::int64_t end = std::min(piece_end, first + param.numel());
    if (begin < end)
      fragments.push_back(
          {name, param, FlattenedRange{begin - first, end - first}, begin - piece_begin});
  }
  return fragments;
}

}  // namespace

std::vector<OptimizerParam> optimizer_params(const ::torch::nn::Module& module,
                                             const ::torch::optim::Optimizer& optimizer,
                                             bool distributed) {
  const std::vector<NamedParam> params = params_of(module);
  std::unordered_map<const c10::TensorImpl*, const NamedParam*> whole;
  for (const NamedParam& param : params) whole.emplace(param.tensor.unsafeGetTensorImpl(), &param);

  std::vector<OptimizerParam> result;
  const auto& groups = optimizer.param_groups();
  for (std::size_t group = 0; group < groups.size(); ++group) {
    for (std::size_t i = 0; i < groups[group].params().size(); ++i) {
      const at::Tensor& tensor = groups[group].params()[i];
      if (tensor.numel() == 0) continue;
      OptimizerParam param{tensor, group, {}};
      const auto found = whole.find(tensor.unsafeGetTensorImpl());
      if (found != whole.end())
        param.fragments.push_back({found->second->name, tensor});
      else if (distributed)
        param.fragments = fragments_of(tensor, params);
      if (param.fragments.empty()) {
        throw_error(ErrorCode::kInvalidArgument,
                    "parameter {} of group {} of the optimizer, {}, is not a parameter of the "
                    "module{}",
                    i, group, to_string(from_torch(tensor)),
                    distributed ? ", nor a contiguous 1-D piece of the memory of contiguous ones"
                                : "; make the optimizer from module.parameters() (for 1-D pieces "
                                  "of their memory, set distributed_optimizer)");
      }
      result.push_back(std::move(param));
    }
  }
  return result;
}

}  // namespace dckpt::torch
