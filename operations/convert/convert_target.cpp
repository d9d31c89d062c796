#include "operations/convert/convert_target.h"

#include <algorithm>

#include "dist_checkpointing/training_root/target.h"
#include "mapping/base/error.h"
#include "strategies/formats/dcp/megatron_json.h"

namespace dckpt {
namespace {

/// Requires a writable format. The error lists the existing ones, even if the source's own format
/// cannot be written.
void require_writable(const std::string& format, bool is_sources_own) {
  std::vector<std::string> names;
  for (const SaveStrategyEntry& entry : save_strategies()) names.push_back(entry.name);
  if (std::ranges::find(names, format) != names.end()) return;
  std::string hint = is_sources_own ? " (the source's format); name one of them" : "";
  if (const auto close = nearest(format, names); close && !is_sources_own)
    hint = str_format("; did you mean {}?", quote(*close));
  throw_error(ErrorCode::kUnsupported, "checkpoints can be written as {}, not as {}{}",
              quoted_list(names, names.size()), quote(format), hint);
}

void require_convertible(const CheckpointReader& reader, const std::string& source) {
  if (!reader.info().conventions.per_rank) return;
  throw_error(
      ErrorCode::kUnsupported, {.file = source},
      "the rank folders (mp_rank_*) hold no model whose tensors could be joined, and no Megatron "
      "finds their keys as they are; take single tensors out with dckpt extract");
}

}  // namespace

ChosenTarget choose_target(const CheckpointReader& reader, const std::string& source,
                           const std::string& usual, const ConvertTarget& target,
                           const ConvertOptimizer& optimizer) {
  require_convertible(reader, source);
  ChosenTarget chosen;
  SaveOptions& save = chosen.save;
  const std::string named = target.strategy.empty() && !target.compat ? usual : target.strategy;
  const bool asks_nothing = (named.empty() || named == reader.info().format) && !target.compat &&
                            !optimizer.flattened && !optimizer.sharding;
  if (asks_nothing && !reader.info().common_places.empty() &&
      !reader.info().conventions.keys_are_paths)
    save.compat = Compat::kMegatron019;
  save.compat = target.compat.value_or(save.compat);
  if (!named.empty())
    save.strategy = {named, target.version, {}};
  else if (!target.compat)
    save.strategy.name = reader.info().format;
  save.strategy.options = target.options;
  const std::string asked = save.strategy.name;
  require_writable(asked, named.empty());
  save = canonical(save);
  chosen.format = &find_save_strategy(save.strategy.name, save.strategy.version);
  const std::string& format = chosen.format->name;
  const bool keys_are_paths = chosen.format->conventions.keys_are_paths;
  if ((!named.empty() && format != asked) || (target.compat && save.compat != *target.compat)) {
    throw_error(ErrorCode::kInvalidArgument,
                "the format {} and --compat {} contradict each other; {}", quote(asked),
                to_string(*target.compat),
                keys_are_paths && format == asked
                    ? "Megatron-Core reads 'torch_dist', and plain DCP has only --compat dcp"
                    : "for PyTorch DCP alone say --to dcp, for Megatron-Core --compat megatron or "
                      "megatron-0.19");
  }
  const bool keeps_form =
      (format == reader.info().format || chosen.format->conventions.megatron_keys) &&
      !optimizer.sharding && chosen.format->capabilities.flattened_form;
  save.flattened =
      optimizer.flattened.value_or(keeps_form ? FlattenedForm::kMegatron : FlattenedForm::kBoxes);
  save.separation_hint = target.separation_hint;
  save.overwrite = target.overwrite;
  const bool source_has_one = reader.storage().stat(kIntegrityFile).has_value();
  const bool can_have_one = chosen.format->capabilities.integrity;
  save.integrity = target.integrity.value_or(
      can_have_one && (source_has_one || !chosen.format->conventions.records));
  if (source_has_one && !can_have_one)
    chosen.findings.push_back(
        {FindingCode::kModelFilesLeftOut,
         str_format("the source has a manifest (integrity.json), but the format {} can have none",
                    quote(format))});
  return chosen;
}

void require_outside(const Location& source, const Location& destination) {
  if (!source.is_directory() || !destination.absolute().starts_with(source.absolute() + '/'))
    return;
  throw_error(ErrorCode::kInvalidArgument, {.file = destination.display()},
              "the destination is inside the source, whose files it would be among; "
              "choose a name outside");
}

void require_free_name(const Location& destination, bool overwrite) {
  std::optional<FileInfo> found = destination.stat();
  // Finds a link that leads nowhere, and throws (io) if a component of the path is a file.
  if (!found) found = destination.storage()->stat(destination.name());
  if (!found ||
      (found->kind == FileInfo::Kind::kDirectory && destination.directory()->list("").empty()))
    return;
  if (overwrite && found->kind == FileInfo::Kind::kDirectory) return check_replaceable(destination);
  throw_error(ErrorCode::kAlreadyExists, {.file = destination.display()},
              overwrite ? "the destination exists and is not a directory; choose another "
                          "name"
                        : "the destination exists and is not to be replaced (--overwrite)");
}

void require_space(const Location& destination, std::uint64_t bytes) {
  const std::optional<std::uint64_t> available = destination.storage()->available_space();
  if (!available || bytes <= *available) return;
  throw_error(ErrorCode::kIo, {.file = destination.storage()->display_path("")},
              "the result needs about {}, but only {} are free", human_bytes(bytes),
              human_bytes(*available));
}

}  // namespace dckpt
