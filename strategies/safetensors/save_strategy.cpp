#include "strategies/safetensors/save_strategy.h"

#include "configs/policy/strategy_options.h"
#include "configs/yaml/schema.h"
#include "mapping/base/error.h"
#include "strategies/formats/safetensors/header.h"
#include "strategies/safetensors/writer.h"

namespace dckpt {
namespace {

constexpr std::uint64_t kLeastFileSize = std::uint64_t{1} << 10;
constexpr std::uint64_t kMostFileSize = std::uint64_t{1} << 50;

/// Returns the type of a mapping of names to texts.
config::Type<std::vector<std::pair<std::string, std::string>>> annotations() {
  using Annotations = std::vector<std::pair<std::string, std::string>>;
  return {
      [](const config::Input& in, Annotations& into) {
        if (in.node.kind != YamlNode::Kind::kMap) return in.unfit("names, each with a text");
        for (std::size_t i = 0; i < in.node.keys.size(); ++i) {
          const std::string& name = in.node.keys[i].text;
          if (is_reserved(name))
            in.of(in.node.keys[i]).unfit("a name that the format does not use");
          else if (in.node.values[i].kind != YamlNode::Kind::kText)
            config::Input{in.node.values[i], str_format("{}.{}", in.path, name), in.problems}.unfit(
                "a text");
          else
            into.emplace_back(name, in.node.values[i].text);
        }
      },
      [](const Annotations& texts) {
        YamlNode map{.kind = YamlNode::Kind::kMap};
        for (const auto& [name, text] : texts) {
          map.keys.push_back(YamlNode::string(name));
          map.values.push_back(YamlNode::string(text));
        }
        return map;
      }};
}

SafetensorsOptions own_options(const StrategySpec& strategy) {
  static const config::Schema<SafetensorsOptions> schema{
      {config::field("max_file_size", &SafetensorsOptions::max_file_size,
                     config::size(kLeastFileSize, kMostFileSize)),
       config::field(kSafetensorsNamesOption, &SafetensorsOptions::names,
                     config::choice(kSafetensorsNamesNames)),
       config::field(kSafetensorsMetadataOption, &SafetensorsOptions::metadata, annotations())}};
  SafetensorsOptions options = read_options(schema, strategy);
  if (options.names == SafetensorsNames::kAdapter) options.max_file_size = kMostFileSize;
  return options;
}

/// Refuses options that would otherwise be silently ignored.
void refuse_other_layouts(const WriteOptions& io) {
  const WriteOptions usual;
  if (io.page_aligned)
    throw_error(ErrorCode::kUnsupported,
                "save.io.page_aligned: tensors in safetensors lie one after the other, "
                "without gaps; leave it at false");
  if (io.files_per_rank != usual.files_per_rank)
    throw_error(ErrorCode::kUnsupported,
                "save.io.files_per_rank: safetensors are spread over files by size; set "
                "max_file_size of the strategy's options instead");
}

class SafetensorsSaveStrategy final : public SaveStrategy {
 public:
  explicit SafetensorsSaveStrategy(const SaveOptions& options)
      : own_(own_options(options.strategy)) {
    own_.io = options.io;
    refuse_other_layouts(own_.io);
  }

  WrittenItems write_data(Storage& storage, const std::string& directory, int rank,
                          const SavePlan& plan, ItemSource& source) const override {
    return write_safetensors(storage, directory, rank, plan, source, own_);
  }

  void write_index(Storage& storage, const std::string& directory, const Metadata& metadata,
                   const CommonState*) const override {
    if (storage.capabilities().rename) name_safetensors(storage, directory, metadata, own_.names);
  }

  std::optional<MarkerFile> marker(const Storage& storage, const Metadata& metadata,
                                   const CommonState*) const override {
    return safetensors_marker(metadata, storage.capabilities().rename, own_.names);
  }

 private:
  SafetensorsOptions own_;
};

}  // namespace

std::unique_ptr<SaveStrategy> make_safetensors_save_strategy(const SaveOptions& options) {
  return std::make_unique<SafetensorsSaveStrategy>(options);
}

WrittenItems measure_safetensors(const SaveOptions& options, int rank, const SavePlan& plan) {
  return measure_safetensors_files(rank, plan, own_options(options.strategy));
}

}  // namespace dckpt
