#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>

#include "configs/option_rules.h"
#include "configs/options.h"
#include "dist_checkpointing/strategy_entry.h"
#include "mapping/base/api.h"

// Strategies by action, name and version. The built-in ones are registered from the start. Programs
// register their own before they, or any other thread, save or load: nothing is locked. An entry
// with the same action, name and version is replaced.

namespace DCKPT_API dckpt {

/// Throw CheckpointError (invalid argument) if name or factory is missing. A factory that makes a
/// null pointer is (internal) where it is called.
void register_strategy(SaveStrategyEntry entry);
void register_strategy(LoadStrategyEntry entry);

/// Whether a directory with these entries is of the strategy, by `matches` and `holds`.
bool recognizes(const LoadStrategyEntry& strategy, const Storage& directory,
                std::span<const FileInfo> entries);

/// All entries; load strategies in the order of detection.
std::span<const SaveStrategyEntry> save_strategies();
std::span<const LoadStrategyEntry> load_strategies();

/// Throw CheckpointError (unsupported) that lists the existing ones and suggests the nearest name.
/// Without a version: the newest.
const SaveStrategyEntry& find_save_strategy(const std::string& name,
                                            std::optional<int> version = std::nullopt);
const LoadStrategyEntry& find_load_strategy(const std::string& name,
                                            std::optional<int> version = std::nullopt);

/// The strategy that a load asks for, which must not be "auto". Throws also CheckpointError
/// (invalid argument) for options that it does not have.
const LoadStrategyEntry& find_load_strategy(const StrategySpec& strategy);

/// An entry as the rules for options see it.
Backend backend_of(const SaveStrategyEntry& entry);

/// The same with strategy and compat in agreement: some readers are served by a strategy of their
/// own (`compat: dcp` of torch_dist is the strategy dcp, which has no other). What cannot be is
/// left to make_save_strategy().
[[nodiscard]] SaveOptions canonical(SaveOptions options);

/// The strategy that `options` names. Throws CheckpointError (unsupported) if there is none, or if
/// it lacks a capability that the options need.
std::unique_ptr<SaveStrategy> make_save_strategy(const SaveOptions& options);

}  // namespace dckpt
