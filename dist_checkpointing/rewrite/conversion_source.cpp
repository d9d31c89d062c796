#include "dist_checkpointing/rewrite/conversion_source.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <utility>

#include "configs/option_rules.h"
#include "dist_checkpointing/inspect/diff.h"
#include "dist_checkpointing/inspect/inspect.h"
#include "dist_checkpointing/inspect/optimizer_form.h"
#include "dist_checkpointing/open.h"
#include "dist_checkpointing/rewrite/megatron_fsdp.h"
#include "dist_checkpointing/rewrite/missing_data.h"
#include "dist_checkpointing/rewrite/optimizer_conversion.h"
#include "mapping/base/counted.h"
#include "mapping/base/error.h"
#include "mapping/base/format.h"
#include "mapping/base/problem_list.h"
#include "mapping/base/text.h"
#include "strategies/contract/registry.h"
#include "strategies/key_map/mapped_reader.h"
#include "strategies/safetensors/hub_cache.h"

namespace dckpt {
namespace {

/// The folder whose config.json says which model it is.
std::shared_ptr<const Storage> model_files_of(const ConvertOptions& options) {
  if (!options.model_files) return nullptr;
  if (!options.model_files->is_directory())
    throw CheckpointError(ErrorCode::kIo, "there is no such folder of a model's files",
                          {.file = options.model_files->display()});
  return with_hub_cache(options.model_files->directory());
}

/// What a map is applied to: Megatron-FSDP's keys as Megatron-Core's, which maps know.
std::unique_ptr<CheckpointReader> open_for_map(const Location& source,
                                               const ConvertOptions& options,
                                               std::vector<std::string>& remarks) {
  auto reader = open_checkpoint(source, {.iteration = options.iteration, .strategy = options.from});
  if (!reader->info().conventions.megatron_fsdp) return reader;
  return from_megatron_fsdp(std::move(reader), remarks);
}

/// Through the map and back: what does not return as it was. Padding of a vocabulary is not
/// compared: it has no meaning and is lost. The progress of what follows goes on from this one's.
void check_round_trip(const MapRequest& request, const MappedSource& source,
                      ConvertOptions& options) {
  const auto [before, after] = round_trip_of(request, source);
  std::uint64_t bytes = 0;
  const auto progress = [&](std::uint64_t done, std::uint64_t total) {
    require_not_stopped(options);
    bytes = done;
    if (options.progress) options.progress(done, options.dry_run ? total : 2 * total);
  };
  const DiffReport found = diff(*before, *after,
                                {.common = false,
                                 .threads = options.read_threads.value_or(options.io.threads),
                                 .memory = options.max_memory,
                                 .progress = progress});
  ProblemList problems;
  for (const Difference& difference : found.differences)
    problems.add(str_format("{}: {}{}", quote(difference.key), to_string(difference.kind),
                            difference.a.empty() || difference.b.empty()
                                ? std::string()
                                : str_format(" {} became {}", difference.a, difference.b)));
  problems.raise_if_any(ErrorCode::kMismatch,
                        "through the map and back, these are not what they were:");
  if (!options.progress) return;
  options.progress = [bytes, show = options.progress](std::uint64_t done, std::uint64_t total) {
    show(bytes + done, bytes + total);
  };
}

/// Adds to `report` what patterns left out before the map.
void describe_left_out(const MappedSource& source, ConvertReport& report) {
  std::vector<std::string> gone = source.gone_tensors;
  gone.insert(gone.end(), source.gone_objects.begin(), source.gone_objects.end());
  report.left_out += gone.size();
  if (!gone.empty())
    report.remarks.push_back(str_format("left out before the map: {}, {}",
                                        counted(gone.size(), "key"), quoted_list(gone)));
}

/// Whether `keys` takes any state of the optimizer once that has keys made of the model's.
bool takes_state(const KeyFilter& keys, const Metadata& metadata) {
  if (keys.include.empty() && keys.exclude.empty()) return true;
  std::vector<std::string> names = optimizer_states(metadata);
  names.insert(names.end(), {"param", "fp32_param", "exp_avg"});
  return std::ranges::any_of(metadata.tensors, [&](const TensorStorageMetadata& tensor) {
    return !is_optimizer_key(tensor.key) &&
           std::ranges::any_of(names, [&](const std::string& name) {
             return keys(str_format("optimizer.state.{}.{}", name, tensor.key));
           });
  });
}

}  // namespace

void require_not_stopped(const ConvertOptions& options) {
  if (!options.stop.stop_requested()) return;
  throw CheckpointError(
      ErrorCode::kCancelled,
      options.resume ? "the conversion was stopped before it was complete; what it had finished "
                       "is kept, and --resume goes on with it"
                     : "the conversion was stopped before it was complete; what it had begun is "
                       "removed");
}

MappedSource open_source(const Location& source, ConvertOptions& options, ConvertReport& report) {
  require_rules(Call::kConvert,
                {.save = {.io = options.io},
                 .load = {.strategy = options.from,
                          .map = options.map,
                          .threads = options.read_threads.value_or(options.io.threads)}},
                nullptr);
  if (options.map.name.empty()) {
    if (options.check_round_trip)
      throw CheckpointError(ErrorCode::kInvalidArgument,
                            "a round trip is checked through a map; name one");
    MappedSource opened{.behind = options.keys};
    opened.reader =
        open_checkpoint(source, {.iteration = options.iteration, .strategy = options.from});
    return opened;
  }
  const std::shared_ptr<const Storage> files = model_files_of(options);
  std::vector<std::string> said;
  const MapRequest request{.open =
                               [&] {
                                 said.clear();
                                 return open_for_map(source, options, said);
                               },
                           .map = options.map,
                           .keys = options.keys,
                           .model_files = files.get()};
  MappedSource mapped = map_source(request);
  if (options.check_round_trip) check_round_trip(request, mapped, options);
  if (options.to.empty() && !options.compat)
    options.to = mapped.report.keys.to == KeyNames::kHf ? "hf" : "torch_dist";
  std::ranges::move(said, std::back_inserter(report.remarks));
  describe_left_out(mapped, report);
  std::ranges::move(mapped.report.remarks, std::back_inserter(report.remarks));
  return mapped;
}

void require_map_for_models(const CheckpointReader& reader, const Location& source,
                            const ConvertTarget& target, const ConvertOptions& options) {
  if (!target.format->conventions.model_folder || reader.info().conventions.model_folder ||
      !options.map.name.empty())
    return;
  const auto& tensors = reader.metadata().tensors;
  if (std::ranges::none_of(tensors, [](const auto& tensor) {
        return !is_optimizer_key(tensor.key) && is_megatron_key(tensor.key);
      }))
    return;
  std::vector<std::string> ignored;
  std::string fitting;
  for (const std::string& map :
       fitting_maps(*open_for_map(source, options, ignored), model_files_of(options).get()))
    fitting += (fitting.empty() ? "--map " : " or --map ") + map;
  throw CheckpointError(
      ErrorCode::kInvalidArgument,
      str_format("the keys are Megatron's, and transformers finds none of them; {}; --map none "
                 "insists on these keys",
                 fitting.empty() ? "no shipped map fits this model, so write one (docs/maps.md)"
                                 : "it has the keys and shapes of a model for " + fitting));
}

void leave_optimizer(const CheckpointReader& reader, const ConvertTarget& target, bool optimizer,
                     KeyFilter& keys, std::vector<std::string>& remarks) {
  if (!target.format->conventions.model_folder || reader.info().conventions.model_folder ||
      !keys.include.empty() || optimizer)
    return;
  const Metadata& metadata = reader.metadata();
  std::vector<std::string> of_optimizer, of_model;
  for (const TensorStorageMetadata& tensor : metadata.tensors)
    (is_optimizer_key(tensor.key) ? of_optimizer : of_model).push_back(tensor.key);
  if (of_optimizer.empty() || of_model.empty()) return;
  for (const char* const pattern : {"optimizer.*", "chained_[0-9]*.optimizer.*", "optim.*"}) {
    if (std::ranges::any_of(of_optimizer,
                            [&](const auto& key) { return glob_match(pattern, key); }))
      keys.exclude.emplace_back(pattern);
  }
  remarks.push_back(str_format("the optimizer stays behind: {}; --include '*' takes them",
                               counted(of_optimizer.size(), "tensor")));
}

std::unique_ptr<CheckpointReader> in_target_form(std::unique_ptr<CheckpointReader> reader,
                                                 const ConvertTarget& target,
                                                 const ConvertOptions& options,
                                                 const KeyFilter& keys,
                                                 std::vector<std::string>& of_optimizer,
                                                 std::vector<std::string>& remarks) {
  const bool of_fsdp = reader->info().conventions.megatron_fsdp;
  if (of_fsdp && target.format->conventions.megatron_keys)
    reader = from_megatron_fsdp(std::move(reader), remarks);
  if (options.optimizer) {
    if (!takes_state(keys, reader->metadata()))
      throw CheckpointError(
          ErrorCode::kInvalidArgument,
          str_format("the patterns (--include, --exclude) leave out the optimizer's "
                     "state, which is to become {}; leave out one of them",
                     name_of(kOptimizerShardingNames, *options.optimizer)));
    reader = with_optimizer_sharding(std::move(reader), *options.optimizer, of_optimizer,
                                     {.threads = options.read_threads.value_or(options.io.threads),
                                      .staging = std::min(options.staging, options.max_memory)},
                                     [&] { require_not_stopped(options); });
  }
  if (!target.format->conventions.megatron_fsdp || of_fsdp) return reader;
  require_no_lost_data(*reader, reader->metadata(),
                       "fsdp_dtensor is made of whole checkpoints; first convert what is whole "
                       "to torch_dist (--allow-partial)");
  return to_megatron_fsdp(std::move(reader), read_fsdp_save_options(target.save.strategy), remarks);
}

}  // namespace dckpt
