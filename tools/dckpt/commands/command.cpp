#include "tools/dckpt/commands/command.h"

#include <algorithm>
#include <string_view>
#include <thread>
#include <unordered_set>

#include "configs/policy/policy.h"
#include "dist_checkpointing/open/open.h"
#include "dist_checkpointing/planner/planner_registry.h"
#include "dist_checkpointing/ranks/shared_work.h"
#include "mapping/base/error.h"
#include "tools/dckpt/render/output_file.h"
#include "tools/dckpt/render/terminal.h"

namespace dckpt::tool {

constexpr int kMaxThreads = 1024;

void require_one_rank(const Communicator& ranks, const std::string& command) {
  if (ranks.size() == 1) return;
  throw_error(ErrorCode::kUnsupported, "{} is not shared by several processes: start one process",
              command);
}

OpenOptions CheckpointArgument::open_options() const {
  OpenOptions options{.iteration = iteration, .planner = {.name = planner}, .map = map};
  if (policy.empty()) return options;
  const LoadOptions named = Policy::find(policy).load;
  options.strategy = named.strategy;
  if (!planner.empty() && !named.registered_planner.name.empty())
    options.planner = named.registered_planner;
  return options;
}

std::unique_ptr<CheckpointReader> CheckpointArgument::open() const {
  const OpenOptions options = open_options();
  return with_context({.file = path}, [&] { return open_checkpoint(path, options); });
}

CheckpointArgument::Shown CheckpointArgument::open_shown() const {
  CheckpointArgument as_stored = *this;
  as_stored.planner.clear();
  auto reader = as_stored.open();
  if (open_options().planner.name != kAutoStrategy) return {open(), std::move(reader)};
  const auto& meta = reader->metadata().storage_meta;
  if (!meta || !meta->load_planner) return {std::move(reader)};
  if (std::ranges::find(load_planners(), *meta->load_planner, &LoadPlannerEntry::name) !=
      load_planners().end())
    return {open(), std::move(reader)};
  print_note(
      str_format("the load planner {} reads the checkpoint, and this program does not have "
                 "it: what is stored is shown as it is",
                 quote(*meta->load_planner)));
  return {std::move(reader)};
}

std::unique_ptr<CheckpointReader> CheckpointArgument::open(Communicator& ranks) const {
  std::unique_ptr<CheckpointReader> reader;
  std::string place;
  SharedWork opening(ranks, "opening the checkpoint", 1);
  opening.on_all_ranks([&] {
    reader = open();
    if (ranks.size() > 1) place = resolved();
  });
  opening.require_same("checkpoints", [&] { return place; });
  return reader;
}

Location CheckpointArgument::location() const {
  return resolve_checkpoint(path, {.iteration = iteration});
}

std::string CheckpointArgument::resolved() const {
  return location().display();
}

bool lead_to_the_same(const CheckpointArgument& a, const CheckpointArgument& b) {
  const Location location = a.location();
  const bool in_one_directory = location == Location(a.path);
  return location == b.location() && (!in_one_directory || a.iteration == b.iteration);
}

void require_outside(const std::string& output, const CheckpointArgument& read) {
  require_outside(output, read.path);
  std::string found = read.path;
  try {
    found = read.location().absolute();
  } catch (const CheckpointError&) {  // open() says why
  }
  require_outside(output, found);
  require_replaceable(output);
}

std::unique_ptr<CheckpointReader> open_to_compare(const CheckpointReader& a,
                                                  const CheckpointArgument& first,
                                                  const CheckpointArgument& second,
                                                  Communicator& ranks) {
  auto b = second.open(ranks);
  if (first.map.name.empty()) return b;
  std::unordered_set<std::string_view> keys;
  for (const TensorStorageMetadata& tensor : a.metadata().tensors) keys.insert(tensor.key);
  if (std::ranges::any_of(b->metadata().tensors, [&](const TensorStorageMetadata& tensor) {
        return keys.contains(tensor.key);
      }))
    return b;
  CheckpointArgument mapped = second;
  mapped.map = first.map;
  return mapped.open(ranks);
}

void add_iteration(Parser command, const std::string& option,
                   std::optional<IterationName>& iteration, const std::string& of) {
  const auto take = [&iteration](const std::string& text) {
    iteration = text == "latest" ? std::nullopt : parse_iteration_name(text);
    if (iteration || text == "latest") return std::string();
    return str_format("found {}, expected an iteration (1000 or iter_0001000), release or latest",
                      quote(text));
  };
  command.add_option(option, take, of + ": this iteration, 'release', or 'latest'")
      .type_name("N")
      .takes(Takes::kIteration);
}

void add_checkpoint(Parser command, CheckpointArgument& argument, bool required) {
  Option path = command.add_option(
      "PATH", argument.path, "Checkpoint directory, training root, or a file of a checkpoint");
  path.type_name("").takes(Takes::kCheckpoint);
  if (required) path.required();
  add_iteration(command, "--iteration", argument.iteration);
}

void add_root(Parser command, std::string& root) {
  command.add_option("ROOT", root, "Training root: the directory above the iterations")
      .required()
      .type_name("")
      .takes(Takes::kCheckpoint);
}

void add_apply(Parser command, bool& dry_run, bool& apply) {
  Option shows = command.add_flag("--dry-run", dry_run, "Show what would be done, as by default");
  command.add_flag("--apply", apply, "Do it").excludes(shows);
}

void add_backend(Parser command, CheckpointArgument& argument) {
  command
      .add_option("--policy", argument.policy,
                  "Open it with load.backend of this policy (see dckpt config)")
      .type_name("FILE")
      .takes(Takes::kPolicy);
}

void add_map(Parser command, KeyMapOptions& map) {
  command
      .add_option("--map", map.name,
                  "Other keys, by a map from Megatron's to others: name, file or auto")
      .type_name("MAP")
      .takes(Takes::kMap);
  command
      .add_option("--set", map.set,
                  "For the map: vocab_size=32000, or another number or setting; repeatable")
      .type_name("NAME=VALUE")
      .takes(Takes::kMapSetting);
}

void add_model_files(Parser command, std::optional<Location>& folder, const std::string& about) {
  const auto take = [&folder](const std::string& path) {
    folder = Location(path);
    return std::string();
  };
  command.add_option("--model-files", take, about).type_name("FOLDER").takes(Takes::kFolder);
}

void add_json(Parser command, bool& json) {
  command.add_flag("--json", json, "Print JSON for programs");
}

void add_key_filter(Parser command, KeyFilter& filter) {
  command
      .add_option("--keys", filter.include,
                  "Only keys that match this pattern (* ? [a-z]); repeatable")
      .type_name("GLOB")
      .takes(Takes::kKeyPattern);
  command.add_option("--exclude", filter.exclude, "No keys that match this pattern; repeatable")
      .type_name("GLOB")
      .takes(Takes::kKeyPattern);
}

void add_number(Parser command, const std::string& option, const std::string& about, int largest,
                std::function<void(int)> take) {
  const auto parse = [largest, take = std::move(take)](const std::string& text) {
    const std::optional<std::uint64_t> number = parse_u64(text);
    if (!number || *number < 1 || *number > static_cast<std::uint64_t>(largest)) {
      return str_format("found {}, expected a number from 1 to {}", quote(text),
                        grouped(static_cast<std::uint64_t>(largest)));
    }
    take(static_cast<int>(*number));
    return std::string();
  };
  command.add_option(option, parse, about).type_name("N");
}

int all_cores() {
  return static_cast<int>(std::max(std::thread::hardware_concurrency(), 1U));
}

void add_threads(Parser command, std::optional<int>& threads) {
  add_number(command, "--threads", "Threads that read and compute [all cores]", kMaxThreads,
             [&threads](int number) { threads = number; });
}

void add_threads(Parser command, int& threads) {
  add_number(command, "--threads", str_format("Threads that read and compute [{}]", threads),
             kMaxThreads, [&threads](int number) { threads = number; });
}

void print_json(const std::string& text) {
  print_bytes(text.data(), text.size());
}

}  // namespace dckpt::tool
