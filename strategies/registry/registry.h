#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>

#include "configs/policy/option_rules.h"
#include "configs/policy/options.h"
#include "mapping/base/api.h"
#include "strategies/contract/strategy_entry.h"

// Strategies by action, name and version. torch_dist, dcp and fsdp_dtensor are registered from the
// start, the other formats of dckpt by the library dckpt::formats. Programs register their own
// before any thread saves or loads, because nothing is locked. An entry with the same action, name
// and version is replaced.

namespace DCKPT_API dckpt {

/// Throw CheckpointError (invalid argument) if name or factory is missing. A factory that returns a
/// null pointer is an error (internal) where it is called.
void register_strategy(SaveStrategyEntry entry);
void register_strategy(LoadStrategyEntry entry);

/// Registers strategies of dckpt itself: they keep their place in the order of detection, whatever
/// is registered first, and replace none that a program has registered.
void register_format(StrategyEntries entries);

/// Returns whether dckpt itself has a strategy of this name for loads.
bool is_builtin(const LoadStrategyEntry& strategy);

/// Returns a sentence that names formats of dckpt which this program cannot read since it does not
/// link their library; "" if it reads all.
std::string missing_formats();

/// Returns whether a directory with these entries belongs to the strategy, by `matches` and
/// `holds`.
bool recognizes(const LoadStrategyEntry& strategy, const Storage& directory,
                std::span<const FileInfo> entries);

/// Return all entries; load strategies in the order of detection.
std::span<const SaveStrategyEntry> save_strategies();
std::span<const LoadStrategyEntry> load_strategies();

/// Return the entry, by default of the newest version. Throw CheckpointError (unsupported) that
/// lists the existing ones and suggests the nearest name.
const SaveStrategyEntry& find_save_strategy(const std::string& name,
                                            std::optional<int> version = std::nullopt);
const LoadStrategyEntry& find_load_strategy(const std::string& name,
                                            std::optional<int> version = std::nullopt);

/// Returns the strategy that a load requests, which must not be "auto". Also throws CheckpointError
/// (invalid argument) for options that it does not have.
const LoadStrategyEntry& find_load_strategy(const StrategySpec& strategy);

/// Returns an entry in the form that the rules for options use.
Backend backend_of(const SaveStrategyEntry& entry);

/// Returns the options with strategy and compat in agreement: some readers have a strategy of their
/// own (`compat: dcp` of torch_dist is the strategy dcp, which has no other compat). Invalid
/// options are left to make_save_strategy().
[[nodiscard]] SaveOptions canonical(SaveOptions options);

/// Makes the strategy that `options` names. Throws CheckpointError (unsupported) if there is none,
/// or if it lacks a capability that the options need.
std::unique_ptr<SaveStrategy> make_save_strategy(const SaveOptions& options);

}  // namespace dckpt
