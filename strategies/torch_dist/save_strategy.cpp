#include "strategies/torch_dist/save_strategy.h"

#include "configs/policy/strategy_options.h"
#include "strategies/formats/zstd/zstd.h"
#include "strategies/torch_dist/writer.h"

namespace dckpt {
namespace {

class TorchDistSaveStrategy final : public SaveStrategy {
 public:
  TorchDistSaveStrategy(const SaveOptions& options, StorageCodec codec)
      : options_(options), codec_(codec) {
    if (codec == StorageCodec::kZstd) require_zstd();
  }

  WrittenItems write_data(Storage& storage, const std::string& directory, int rank,
                          const SavePlan& plan, ItemSource& source) const override {
    return write_data_files(storage, directory, rank, plan, source,
                            {options_.io, options_.separation_hint, codec_});
  }

  void write_index(Storage& storage, const std::string& directory, const Metadata& metadata,
                   const CommonState* common) const override {
    write_index_files(storage, directory, {metadata, common, options_.compat}, options_.io.fsync);
  }

  std::optional<MarkerFile> marker(const Storage&, const Metadata& metadata,
                                   const CommonState* common) const override {
    return marker_of({metadata, common, options_.compat});
  }

 private:
  SaveOptions options_;
  StorageCodec codec_;
};

constexpr EnumNames<StorageCodec, 2> kCodecNames{
    {{StorageCodec::kPlain, "none"}, {StorageCodec::kZstd, "zstd"}}};

constexpr int kMaxWrappers = 16;

}  // namespace

std::unique_ptr<SaveStrategy> make_torch_dist_save_strategy(const SaveOptions& options) {
  refuse_options(options.strategy);
  return std::make_unique<TorchDistSaveStrategy>(options, StorageCodec::kPlain);
}

std::unique_ptr<SaveStrategy> make_dcp_save_strategy(const SaveOptions& options) {
  const config::Schema<DcpSaveOptions> schema{
      {config::field("compression", &DcpSaveOptions::compression, config::choice(kCodecNames))}};
  return std::make_unique<TorchDistSaveStrategy>(
      options, read_options(schema, options.strategy).compression);
}

FsdpSaveOptions read_fsdp_save_options(const StrategySpec& strategy) {
  const config::Schema<FsdpSaveOptions> schema{
      {config::field("compression", &FsdpSaveOptions::compression, config::choice(kCodecNames)),
       config::field("wrappers", &FsdpSaveOptions::wrappers, config::integer(0, kMaxWrappers)),
       config::field("names", &FsdpSaveOptions::names, config::choice(kNormNamesNames))}};
  return read_options(schema, strategy);
}

std::unique_ptr<SaveStrategy> make_fsdp_save_strategy(const SaveOptions& options) {
  return std::make_unique<TorchDistSaveStrategy>(
      options, read_fsdp_save_options(options.strategy).compression);
}

WrittenItems measure_torch_dist(const SaveOptions& options, int rank, const SavePlan& plan) {
  return measure_data_files(rank, plan, {options.io, options.separation_hint});
}

}  // namespace dckpt
