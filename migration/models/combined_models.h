#pragma once

#include <memory>
#include <string>
#include <vector>

#include "strategies/contract/reader.h"
#include "strategies/contract/view.h"

namespace dckpt {

/// Another model that is combined with a first one.
struct OtherModel {
  std::shared_ptr<const CheckpointReader> reader;
  std::string name;   ///< as messages call it
  double weight = 0;  ///< in an average
};

/// Returns `source` with the optimizer's main parameters ("param", "fp32_param") in place of the
/// weights, from `same`, the same checkpoint. The findings name weights that have none. Throws
/// CheckpointError: (mismatch) if there are none, as without optimizer state or in buckets, or if
/// shapes differ.
View with_main_parameters(std::unique_ptr<CheckpointReader> source,
                          std::shared_ptr<const CheckpointReader> same);

/// Returns `first` with the weighted sums of the tensors of all models, in the dtypes of the first
/// (see averaged_reader()). The optimizer's state stays that of the first. Tensors that are not
/// floats of at least 16 bits have to be equal in all models. The findings say what is rounded.
/// Throws CheckpointError: (mismatch) naming the tensors that only one of the models has, or that
/// differ in shape, or elements that cannot be averaged and differ; (invalid argument) if the
/// weights do not sum to 1; (unsupported) for large tensors that cannot be averaged.
View averaged_models(std::unique_ptr<CheckpointReader> first, double weight,
                     const std::vector<OtherModel>& others);

/// Returns `first` with the tensors that it lacks from the others: each from the first of them that
/// has it. The findings name those that another model has as well, which are not taken from it, and
/// the objects and the common state that only others have. Throws CheckpointError (mismatch) if a
/// model adds nothing, for a tensor whose key an object of `first` has, and for tensors that a
/// model before has under another prefix.
View joined_models(std::unique_ptr<CheckpointReader> first, const std::vector<OtherModel>& others);

}  // namespace dckpt
