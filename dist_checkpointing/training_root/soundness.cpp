#include "dist_checkpointing/training_root/soundness.h"

#include <algorithm>

#include "dist_checkpointing/verify/data_files.h"
#include "mapping/base/counted.h"
#include "mapping/base/error.h"
#include "strategies/contract/common_state.h"
#include "strategies/torch_dist/reader.h"

namespace dckpt {
namespace {

/// Returns whether metadata.json is missing from Megatron's checkpoint, which writes it last and
/// would pass for a plain DCP one without it. Plain DCP directories have no common state, or copies
/// of its values from a conversion.
bool lacks_config(const CheckpointReader& reader) {
  return reader.info().conventions.keys_are_paths && reader.info().common_places.size() == 1;
}

/// Returns whether an error says nothing about the checkpoint itself, because reading it failed.
bool says_nothing(ErrorCode code) {
  return code == ErrorCode::kIo || code == ErrorCode::kUnavailable || code == ErrorCode::kAborted ||
         code == ErrorCode::kInternal;
}

/// Returns what check_stored() has found.
std::optional<Unfinished> find_problem(const CheckpointReader& reader, const StoredCheck& options) {
  const VerifyReport report = check_stored(reader, options);
  if (report.ok()) return std::nullopt;
  for (const CheckpointError& problem : report.problems)
    if (says_nothing(problem.code())) throw problem;
  std::string why = report.problems.front().what();
  if (const std::size_t more = report.problems.size() - 1; more > 0)
    why += str_format(", and {}", counted(more, "more problem"));
  return Unfinished{Unfinished::Kind::kUnsound, std::move(why)};
}

std::optional<Unfinished> examine(const Location& checkpoint, const StrategySpec& strategy,
                                  const StoredCheck* verification) {
  using Kind = Unfinished::Kind;
  bool opened = false;
  try {
    const auto reader = open_in_root(checkpoint, strategy);
    if (lacks_config(*reader)) {
      return Unfinished{Kind::kNoMetadata,
                        "metadata.json is missing: the save was interrupted before it finished"};
    }
    opened = true;
    reader->common_state();
    const DataFiles files = check_data_files(*reader);
    if (files.complete())
      return verification == nullptr ? std::nullopt : find_problem(*reader, *verification);
    const Kind kind = files.missing.empty() ? Kind::kFileTruncated : Kind::kFileMissing;
    return Unfinished{kind, describe(files)};
  } catch (const CheckpointError& error) {
    // An error about the strategy's options is not about the checkpoint either.
    const bool is_of_policy =
        error.code() == ErrorCode::kInvalidArgument && strategy.name != kAutoStrategy;
    if (is_of_policy || says_nothing(error.code()) || error.code() == ErrorCode::kUnsupported)
      throw;
    // The metadata come last, so that a save which lacks only its common state has lost it.
    const bool lost_common = error.context().file.value_or("").ends_with(kCommonFile);
    const Kind incomplete = opened || lost_common ? Kind::kFileMissing : Kind::kNoMetadata;
    const bool is_incomplete = error.code() == ErrorCode::kIncomplete;
    return Unfinished{is_incomplete ? incomplete : Kind::kDamaged, error.what()};
  }
}

}  // namespace

std::unique_ptr<CheckpointReader> open_in_root(const Location& checkpoint,
                                               const StrategySpec& strategy) {
  try {
    return open_checkpoint(checkpoint, {.strategy = strategy});
  } catch (const CheckpointError& error) {
    if (strategy.name == kAutoStrategy || error.code() != ErrorCode::kMismatch) throw;
  }
  return open_checkpoint(checkpoint);
}

std::optional<Unfinished> find_unfinished(const Location& checkpoint,
                                          const StrategySpec& strategy) {
  return examine(checkpoint, strategy, nullptr);
}

std::optional<std::string> why_incomplete(const Location& checkpoint,
                                          const StrategySpec& strategy) {
  std::optional<Unfinished> unfinished = find_unfinished(checkpoint, strategy);
  if (!unfinished) return std::nullopt;
  return std::move(unfinished->why);
}

std::optional<Unfinished> find_unsound(const Location& checkpoint, const StrategySpec& strategy,
                                       const StoredCheck& options) {
  return examine(checkpoint, strategy, &options);
}

}  // namespace dckpt
