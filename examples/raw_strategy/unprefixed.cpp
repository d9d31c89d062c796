#include "unprefixed.h"

#include <dckpt/strategy.h>

namespace raw {
namespace {

struct Options {
  std::string prefix = "model.";
};

class Unprefixed final : public dckpt::ForwardingReader {
 public:
  Unprefixed(std::shared_ptr<const dckpt::CheckpointReader> source, const std::string& prefix)
      : ForwardingReader(std::move(source)), metadata_(source_->metadata()) {
    for (dckpt::TensorStorageMetadata& tensor : metadata_.tensors) {
      if (tensor.key.starts_with(prefix)) tensor.key.erase(0, prefix.size());
    }
  }
  const dckpt::Metadata& metadata() const noexcept override { return metadata_; }

 private:
  dckpt::Metadata metadata_;
};

}  // namespace

void register_unprefixed() {
  const dckpt::config::Schema<Options> schema{{dckpt::config::field(
      "prefix", &Options::prefix, dckpt::config::text("the beginning of keys"))}};
  const auto options_of = [schema](const dckpt::StrategySpec& strategy) {
    return dckpt::read_options(schema, strategy, dckpt::kLoadBackendOptions);
  };
  dckpt::register_strategy(dckpt::LoadStrategyEntry{
      .name = "unprefixed",
      .about = "any checkpoint without a prefix of its keys (an example)",
      .check_options = [options_of](const dckpt::StrategySpec& strategy) { options_of(strategy); },
      .open =
          [options_of](std::shared_ptr<dckpt::Storage> storage, const dckpt::OpenHints& hints) {
            const dckpt::Location files(std::move(storage), hints.file.value_or(""));
            return std::make_unique<Unprefixed>(dckpt::open_checkpoint(files),
                                                options_of(hints.strategy).prefix);
          }});
}

}  // namespace raw
