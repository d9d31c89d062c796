#include "operations/convert/conversion_facts.h"

#include <algorithm>
#include <map>

#include "configs/maps/key_map.h"
#include "configs/yaml/yaml.h"
#include "dist_checkpointing/training_root/root_lock.h"
#include "mapping/base/fingerprint.h"
#include "mapping/base/format.h"
#include "mapping/base/problem_list.h"
#include "mapping/base/storage_name.h"
#include "mapping/base/text.h"
#include "mapping/planning/save/messages.h"
#include "operations/convert/source/conversion_source.h"
#include "strategies/formats/json/json.h"
#include "strategies/storage/hidden_sibling.h"

namespace dckpt {
namespace {

std::string text_of(const Fingerprint& print) {
  return str_format("{}-{}", print.high, print.low);
}

constexpr std::string_view kFilePrefix = "file ";
constexpr std::string_view kBehindSize = ", of ";  // the time of its last change follows

/// Tells how the value of a fact has changed.
std::string change(const std::string& name, const std::string& then, const std::string& now) {
  const auto size = [](const std::string& of) { return of.substr(0, of.find(kBehindSize)); };
  if (name == "plan") return "what goes where: another plan";
  if (!name.starts_with(kFilePrefix)) return str_format("{}: {} then, {} now", name, then, now);
  if (size(then) == size(now)) return name + " has been changed, or copied anew";
  return str_format("{}: {} then, {} now", name, size(then), size(now));
}

class FactList {
 public:
  explicit FactList(FileWatch& watch) : watch_(watch) {}
  void add(std::string name, std::string value) {
    facts_.emplace_back(std::move(name), std::move(value));
  }
  void add(std::string name, const std::vector<std::string>& values) {
    add(std::move(name), quoted_list(values, values.size()));
  }
  void add_file(const Storage& storage, const std::string& name) {
    const auto info = watch_.note(storage, name);  // a file in Hugging Face's cache is a link
    if (info)
      add(std::string(kFilePrefix) + quote(name),
          str_format("{} bytes{}{}", info->size, kBehindSize, info->modified));
  }
  /// Skips hidden siblings of a target inside the source, and the lock of a conversion that
  /// replaces it; they do not belong to it.
  void add_files(const Storage& storage, const std::string& directory) {
    for (const FileInfo& entry : storage.list(directory)) {
      const std::string name = join_name(directory, entry.name);
      if (parse_hidden_sibling(entry.name) || entry.name == kRemovalLock) continue;
      if (entry.kind == FileInfo::Kind::kDirectory)
        add_files(storage, name);
      else
        add_file(storage, name);
    }
  }
  ConversionFacts take() { return std::move(facts_); }

 private:
  FileWatch& watch_;
  ConversionFacts facts_;
};

std::string text_of(const StrategySpec& strategy) {
  std::string text = strategy.name.empty() ? "as found" : strategy.name;
  if (strategy.version) text += str_format(", version {}", *strategy.version);
  if (!strategy.options.tree().keys.empty()) text += ", " + to_yaml_text(strategy.options.tree());
  return text;
}

std::string yes_or_no(bool value) {
  return value ? "yes" : "no";
}

}  // namespace

ConversionFacts conversion_facts(const Location& source, const ConvertOptions& options,
                                 const ChosenTarget& target, const ModelFolder& folder,
                                 std::span<const SavePlan> ranks, FileWatch& watch) {
  FactList facts(watch);
  facts.add("release of dckpt", DCKPT_VERSION);
  facts.add("source", quote(source.absolute()));
  facts.add("reader", text_of(options.source.strategy));
  facts.add("format", text_of(target.save.strategy));
  facts.add("readers", std::string(to_string(target.save.compat)));
  facts.add("flattened", std::string(name_of(kFlattenedFormNames, target.save.flattened)));
  facts.add("optimizer",
            options.optimizer.sharding
                ? std::string(name_of(kOptimizerShardingNames, *options.optimizer.sharding))
                : std::string("as it is"));
  facts.add("ranks", options.target.ranks ? std::to_string(*options.target.ranks)
                                          : std::string("as stored"));
  facts.add("map", quote(has_map(options) ? options.source.map.name : ""));
  if (has_map(options) && options.source.map.name != kAutoStrategy)
    facts.add("content of the map",
              text_of(fingerprint_of(as_bytes(find_key_map(options.source.map.name).yaml))));
  facts.add("settings of the map", options.source.map.set);
  facts.add("keys to include", options.source.keys.include);
  facts.add("keys to exclude", options.source.keys.exclude);
  for (const RenameRule& rule : options.target.rename)
    facts.add("rule to rename " + quote(rule.from), quote(rule.to));
  facts.add("separation hint", quote(options.target.separation_hint));
  facts.add("manifest", yes_or_no(target.save.integrity));
  facts.add("files per rank", std::to_string(options.limits.io.files_per_rank));
  facts.add("checksums", yes_or_no(options.limits.io.checksums));
  facts.add("page alignment", yes_or_no(options.limits.io.page_aligned));
  Fingerprinter plans;
  for (const SavePlan& plan : ranks) plans.update(encode_plan(plan));
  facts.add("plan", text_of(plans.value()));
  if (source.is_directory())
    facts.add_files(*source.directory(), "");
  else
    facts.add_file(*source.storage(), source.name());
  for (const auto& [what, models] :
       {std::pair("average", &options.source.average), std::pair("join", &options.source.join)}) {
    for (const Location& model : *models) {
      facts.add(what, quote(model.absolute()));
      if (model.is_directory())
        facts.add_files(*model.directory(), "");
      else
        facts.add_file(*model.storage(), model.name());
    }
  }
  facts.add("main parameters", yes_or_no(options.source.main_parameters));
  for (const double weight : options.source.weights) facts.add("weight", std::to_string(weight));
  if (options.source.merge_adapter) {
    facts.add("adapter", quote(options.source.merge_adapter->absolute()));
    facts.add_files(*options.source.merge_adapter->directory(), "");
  }
  if (options.target.model_files) {
    facts.add("model files", quote(options.target.model_files->absolute()));
    for (const std::string& name : folder.files) facts.add_file(*folder.storage, name);
  }
  return facts.take();
}

std::string differences(const ConversionFacts& before, const ConversionFacts& now) {
  const std::map<std::string, std::string> then(before.begin(), before.end());
  std::map<std::string, std::string> added(now.begin(), now.end());
  std::vector<std::string> lines;
  for (const auto& [name, value] : then) {
    const auto found = added.find(name);
    if (found == added.end())
      lines.push_back(str_format("{} is gone", name));
    else if (found->second != value)
      lines.push_back(change(name, value, found->second));
    if (found != added.end()) added.erase(found);
  }
  for (const auto& [name, value] : added) lines.push_back(str_format("{} is new", name));
  constexpr std::size_t kShown = 10;
  std::string text;
  for (std::size_t i = 0; i < std::min(lines.size(), kShown); ++i) text += "\n  " + lines[i];
  if (lines.size() > kShown) text += str_format("\n  and {} more", lines.size() - kShown);
  return text;
}

}  // namespace dckpt
