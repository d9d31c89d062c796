#include "migration/rank_folders/rank_files.h"

#include <algorithm>

#include "mapping/megatron/run_args.h"
#include "strategies/formats/torch_archive/lazy_tensor.h"
#include "strategies/formats/torch_archive/torch_file.h"

namespace dckpt {
namespace {

constexpr std::string_view kRankOptimizer = "optim";  // stem, before May 2023

}  // namespace

RankFiles::RankFiles(const CheckpointReader& ranks)
    : ranks_(ranks), metadata_(ranks.metadata()), states_(ranks.common_state()) {
  bool has_main = false;
  for (const std::string& name : metadata_.files) {
    const std::size_t slash = name.find('/');
    const RankFile file{.folder = name.substr(0, slash),
                        .stem = name.substr(slash + 1, name.size() - slash - 4),
                        .state = nullptr};
    const std::vector<int> numbers = *rank_folder_numbers(file.folder);
    files_.push_back({file.stem, {.tensor = numbers[0]}, file.is_main()});
    if (!file.is_main()) continue;
    if (!has_main) main_ = files_.size() - 1;
    has_main = true;
    if (args_ == nullptr) args_ = run_args(state(files_.size() - 1));
  }
  const auto expert_size = run_arg(args_, "expert_model_parallel_size").value_or(1);
  const auto pipeline_size = run_arg(args_, "pipeline_model_parallel_size");
  const bool second_is_expert = expert_size > 1 && pipeline_size == 1;
  for (std::size_t i = 0; i < files_.size(); ++i) {
    if (files_[i].stem == kRankOptimizer) continue;  // it is in a folder of a data-parallel rank
    const std::string& name = metadata_.files[i];
    const std::vector<int> numbers = *rank_folder_numbers(name.substr(0, name.find('/')));
    ModelParallelRank& rank = files_[i].rank;
    ambiguous_folders_ |= numbers.size() == 2;
    if (numbers.size() > 1) (second_is_expert ? rank.expert : rank.pipeline) = numbers[1];
    if (numbers.size() > 2) rank.expert = numbers[2];
    sizes_.tensor = std::max(sizes_.tensor, rank.tensor + 1);
    sizes_.pipeline = std::max(sizes_.pipeline, rank.pipeline + 1);
    sizes_.expert = std::max(sizes_.expert, rank.expert + 1);
  }
}

const RankFiles::File& RankFiles::file_of(std::uint32_t tensor) const {
  return files_[metadata_.tensors[tensor].places.front().file];
}

bool RankFiles::flag(const char* name) const {
  const Value* const found = args_ == nullptr ? nullptr : args_->find(name);
  return found != nullptr && *found == Value(true);
}

const Value& RankFiles::state(std::size_t file) const {
  return metadata_.files.size() == 1 ? states_ : states_.at(metadata_.files[file]);
}

std::string_view RankFiles::path_in_file(std::uint32_t tensor) const {
  std::string_view path = metadata_.tensors[tensor].key;
  const File& file = file_of(tensor);
  if (path.starts_with("mp_rank_")) path.remove_prefix(path.find('/') + 1);
  if (path.starts_with(file.stem + ".") && !file.is_main) path.remove_prefix(file.stem.size() + 1);
  return path;
}

RankFiles::Loaded RankFiles::load(std::size_t file) const {
  Loaded loaded{.file = ranks_.storage().open(metadata_.files[file])};
  loaded.state = load_torch_file(*loaded.file, {.lazy = true, .records = &loaded.records});
  std::ranges::sort(loaded.records, {}, &RecordedCrc::offset);
  return loaded;
}

Value RankFiles::Loaded::with_tensors(const Value& part) const {
  return replace_tensors(
      part, [&](const Tensor& tensor) { return read_lazy_tensor(tensor, *file, records); });
}

}  // namespace dckpt
