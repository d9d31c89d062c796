#include "strategies/registry/registry.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include "configs/policy/strategy_options.h"
#include "mapping/base/error.h"
#include "mapping/base/hash.h"
#include "strategies/torch_dist/strategy_entries.h"

namespace dckpt {
namespace {

constexpr const char* kFormatsLibrary = "dckpt::formats";

// The strategies of dckpt in the order in which they are listed and, for loads, tried.
constexpr std::array kBuiltInSaves{"torch_dist",  "dcp",  "fsdp_dtensor", "hf",
                                   "safetensors", "zarr", "torch"};
constexpr std::array kBuiltInLoads{"torch_dist",          "zarr", "torch",        "local",
                                   "torch_checkpointing", "dcp",  "fsdp_dtensor", "safetensors"};

std::span<const char* const> built_in(const SaveStrategyEntry&) {
  return kBuiltInSaves;
}
std::span<const char* const> built_in(const LoadStrategyEntry&) {
  return kBuiltInLoads;
}

/// Returns the place among dckpt's own strategies, after which all others come.
template <typename Entry>
std::size_t place_of(const Entry& entry) {
  const std::span<const char* const> names = built_in(entry);
  return static_cast<std::size_t>(std::ranges::find(names, entry.name) - names.begin());
}

struct Registry {
  std::vector<SaveStrategyEntry> save{};
  std::vector<LoadStrategyEntry> load{};

  Registry() { add_all(torch_dist_strategies(), false); }
  void add_all(StrategyEntries entries, bool replaces);
};

// The registry is never destroyed, because readers may outlive static destruction.
Registry& registry() {
  static auto* const instance = new Registry;
  return *instance;
}

bool has_version(const SaveStrategyEntry& entry, int version) {
  return entry.version == version;
}
bool has_version(const LoadStrategyEntry& entry, int version) {
  return std::ranges::find(entry.versions, version) != entry.versions.end();
}
bool same_place(const SaveStrategyEntry& a, const SaveStrategyEntry& b) {
  return a.name == b.name && a.version == b.version;
}
bool same_place(const LoadStrategyEntry& a, const LoadStrategyEntry& b) {
  return a.name == b.name && a.versions == b.versions;
}
int newest(const SaveStrategyEntry& entry) {
  return entry.version;
}
int newest(const LoadStrategyEntry& entry) {
  return entry.versions.empty() ? 0 : *std::ranges::max_element(entry.versions);
}

std::string described(const SaveStrategyEntry& entry) {
  return str_format("{} version {}", entry.name, entry.version);
}
std::string described(const LoadStrategyEntry& entry) {
  std::string text = entry.name;
  for (const int version : entry.versions) text += " version " + std::to_string(version);
  return text;
}

template <typename Entry>
void add(std::vector<Entry>& entries, Entry entry, bool replaces) {
  const auto same = std::ranges::find_if(
      entries, [&](const Entry& existing) { return same_place(existing, entry); });
  if (same != entries.end()) {
    if (replaces) *same = std::move(entry);
    return;
  }
  const auto behind = std::ranges::upper_bound(entries, place_of(entry), {},
                                               [](const Entry& each) { return place_of(each); });
  entries.insert(behind, std::move(entry));
}

template <typename Entry>
const Entry& find(const std::vector<Entry>& entries, const std::string& verb,
                  const std::string& name, std::optional<int> version) {
  const Entry* best = nullptr;
  std::vector<std::string> names;
  std::vector<std::string> all;
  for (const Entry& entry : entries) {
    names.push_back(entry.name);
    all.push_back(described(entry));
    if (entry.name != name || (version && !has_version(entry, *version))) continue;
    if (best == nullptr || newest(entry) > newest(*best)) best = &entry;
  }
  if (best != nullptr) return *best;
  if (std::ranges::find(built_in(Entry()), name) != built_in(Entry()).end() &&
      std::ranges::find(names, name) == names.end())
    throw_error(ErrorCode::kUnsupported,
                "{} is a format of {}, which this program does not link, or which was built "
                "without it (DCKPT_FORMATS); what there is: {}",
                quote(name), kFormatsLibrary, quoted_list(all, 20));
  std::string message =
      str_format("no strategy {} backend {}{}; there are: {}", verb, quote(name),
                 version ? " version " + std::to_string(*version) : "", quoted_list(all, 20));
  if (const auto close = nearest(name, names); close && *close != name)
    message += str_format(" (did you mean {}?)", quote(*close));
  throw_error(ErrorCode::kUnsupported, message);
}

void check_entry(const std::string& name, bool complete) {
  if (name.empty() || !complete)
    throw_error(ErrorCode::kInvalidArgument,
                "cannot register strategy {}: name and factory are both required", quote(name));
}

/// Returns the factory, made to throw instead of returning null, which no caller expects.
template <typename Factory>
Factory never_null(Factory factory, const std::string& name) {
  return [factory = std::move(factory), name](auto&&... arguments) {
    auto made = factory(std::forward<decltype(arguments)>(arguments)...);
    if (made == nullptr)
      throw_error(ErrorCode::kInternal, "factory of strategy {} returned null", quote(name));
    return made;
  };
}

void Registry::add_all(StrategyEntries entries, bool replaces) {
  for (SaveStrategyEntry& entry : entries.save) {
    check_entry(entry.name, static_cast<bool>(entry.make));
    entry.make = never_null(std::move(entry.make), entry.name);
    add(save, std::move(entry), replaces);
  }
  for (LoadStrategyEntry& entry : entries.load) {
    check_entry(entry.name, static_cast<bool>(entry.open));
    entry.open = never_null(std::move(entry.open), entry.name);
    add(load, std::move(entry), replaces);
  }
}

}  // namespace

void register_strategy(SaveStrategyEntry entry) {
  registry().add_all({.save = {std::move(entry)}}, true);
}

void register_strategy(LoadStrategyEntry entry) {
  registry().add_all({.load = {std::move(entry)}}, true);
}

void register_format(StrategyEntries entries) {
  registry().add_all(std::move(entries), false);
}

bool is_builtin(const LoadStrategyEntry& strategy) {
  return place_of(strategy) < kBuiltInLoads.size();
}

std::string missing_formats() {
  std::vector<std::string> missing;
  for (const char* const name : kBuiltInLoads) {
    if (std::ranges::find(registry().load, name, &LoadStrategyEntry::name) == registry().load.end())
      missing.emplace_back(name);
  }
  if (missing.empty()) return "";
  return str_format("this program does not read {}, for which it would have to link {}",
                    quoted_list(missing), kFormatsLibrary);
}

bool recognizes(const LoadStrategyEntry& strategy, const Storage& directory,
                std::span<const FileInfo> entries) {
  return strategy.matches && strategy.matches(entries) &&
         (!strategy.holds || strategy.holds(directory));
}

std::span<const SaveStrategyEntry> save_strategies() {
  return registry().save;
}
std::span<const LoadStrategyEntry> load_strategies() {
  return registry().load;
}

const SaveStrategyEntry& find_save_strategy(const std::string& name, std::optional<int> version) {
  return find(registry().save, "saves with", name, version);
}
const LoadStrategyEntry& find_load_strategy(const std::string& name, std::optional<int> version) {
  return find(registry().load, "reads", name, version);
}

const LoadStrategyEntry& find_load_strategy(const StrategySpec& strategy) {
  const LoadStrategyEntry& entry = find_load_strategy(strategy.name, strategy.version);
  if (entry.check_options)
    entry.check_options(strategy);
  else
    refuse_options(strategy, kLoadBackendOptions);
  return entry;
}

Backend backend_of(const SaveStrategyEntry& entry) {
  return {entry.name, entry.capabilities, entry.conventions};
}

SaveOptions canonical(SaveOptions options) {
  const auto find_entry = [](const StrategySpec& strategy) {
    const auto found = std::ranges::find_if(registry().save, [&](const SaveStrategyEntry& entry) {
      return entry.name == strategy.name &&
             has_version(entry, strategy.version.value_or(entry.version));
    });
    return found == registry().save.end() ? nullptr : &*found;
  };
  const SaveStrategyEntry* entry = find_entry(options.strategy);
  if (entry == nullptr) return options;
  const bool plain = options.compat == Compat::kDcp && options.strategy.options.empty();
  if (plain && !entry->plain_dcp.empty()) {
    options.strategy = {.name = entry->plain_dcp};
    entry = find_entry(options.strategy);
  }
  if (entry != nullptr && entry->conventions.keys_are_paths &&
      options.compat == SaveOptions{}.compat)
    options.compat = Compat::kDcp;
  return options;
}

std::unique_ptr<SaveStrategy> make_save_strategy(const SaveOptions& given) {
  const SaveOptions options = canonical(given);
  const SaveStrategyEntry& entry =
      find_save_strategy(options.strategy.name, options.strategy.version);
  const Backend backend = backend_of(entry);
  require_rules(Call::kSave, {.save = options}, &backend);
  if (options.integrity) require_sha256();
  return entry.make(options);
}

}  // namespace dckpt
