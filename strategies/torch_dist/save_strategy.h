#pragma once

#include <cstdint>
#include <memory>

#include "configs/policy/options.h"
#include "mapping/base/enum_names.h"
#include "strategies/contract/save_strategy.h"

namespace dckpt {

/// Returns the strategy that saves torch_dist checkpoints and, with Compat::kDcp, plain DCP
/// directories. It has no options besides SaveOptions.
std::unique_ptr<SaveStrategy> make_torch_dist_save_strategy(const SaveOptions& options);

/// The strategy's own options.
struct DcpSaveOptions {
  /// The compression of items: none, or zstd, which torch reads with the package zstandard or
  /// pyzstd.
  StorageCodec compression = StorageCodec::kPlain;
};

/// Returns the same for the strategy dcp, which has DcpSaveOptions.
std::unique_ptr<SaveStrategy> make_dcp_save_strategy(const SaveOptions& options);

/// The naming of the norms in front of attention and MLP: by Transformer Engine, as in torch_dist,
/// where they are a part of the next module, or by Megatron's local layers.
enum class NormNames : std::uint8_t { kTe, kLocal };
inline constexpr EnumNames<NormNames, 2> kNormNamesNames{
    {{NormNames::kTe, "te"}, {NormNames::kLocal, "local"}}};

/// Options of fsdp_dtensor, which only conversions write.
struct FsdpSaveOptions {
  StorageCodec compression = StorageCodec::kPlain;
  /// The number of modules around the model, each a "module." in front of the keys of the
  /// optimizer's state; 0: the number that Megatron puts around a model of its dtype.
  int wrappers = 0;
  NormNames names = NormNames::kTe;
};
FsdpSaveOptions read_fsdp_save_options(const StrategySpec& strategy);
std::unique_ptr<SaveStrategy> make_fsdp_save_strategy(const SaveOptions& options);

/// Returns what write_data() of all these strategies would return, without compression.
WrittenItems measure_torch_dist(const SaveOptions& options, int rank, const SavePlan& plan);

}  // namespace dckpt
