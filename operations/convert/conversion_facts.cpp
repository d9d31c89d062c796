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
#include "strategies/formats/json/json.h"
#include "strategies/storage/file_watch.h"
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
  void note(std::string name, std::string value) {
    facts_.emplace_back(std::move(name), std::move(value));
  }
  void note(std::string name, const std::vector<std::string>& values) {
    note(std::move(name), quoted_list(values, values.size()));
  }
  void note_file(const Storage& storage, const std::string& name) {
    const auto info = watch_.note(storage, name);  // a file in Hugging Face's cache is a link
    if (info)
      note(std::string(kFilePrefix) + quote(name),
           str_format("{} bytes{}{}", info->size, kBehindSize, info->modified));
  }
  /// Skips hidden siblings of a target inside the source, and the lock of a conversion that
  /// replaces it; they do not belong to it.
  void note_files(const Storage& storage, const std::string& directory) {
    for (const FileInfo& entry : storage.list(directory)) {
      const std::string name = join_name(directory, entry.name);
      if (parse_hidden_sibling(entry.name) || entry.name == kRemovalLock) continue;
      if (entry.kind == FileInfo::Kind::kDirectory)
        note_files(storage, name);
      else
        note_file(storage, name);
    }
  }
  void note_checkpoint(const Location& checkpoint) {
    if (checkpoint.is_directory())
      note_files(*checkpoint.directory(), "");
    else
      note_file(*checkpoint.storage(), checkpoint.name());
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

ConversionFacts conversion_facts(const Route& route, const ConversionRequest& request,
                                 const PlannedCopy& copy) {
  const ConvertSource& source = request.source;
  const SaveOptions& save = copy.target.save;
  FactList facts(*route.watch);
  facts.note("release of dckpt", DCKPT_VERSION);
  facts.note("source", quote(route.from.absolute()));
  facts.note("reader", text_of(source.strategy));
  facts.note("format", text_of(save.strategy));
  facts.note("readers", std::string(to_string(save.compat)));
  facts.note("flattened", std::string(name_of(kFlattenedFormNames, save.flattened)));
  facts.note("optimizer",
             request.optimizer.sharding
                 ? std::string(name_of(kOptimizerShardingNames, *request.optimizer.sharding))
                 : std::string("as it is"));
  facts.note("ranks", request.target.ranks ? std::to_string(*request.target.ranks)
                                           : std::string("as stored"));
  facts.note("map", quote(request.mapped ? source.map.name : ""));
  if (request.mapped && source.map.name != kAutoStrategy)
    facts.note("content of the map",
               text_of(fingerprint_of(as_bytes(find_key_map(source.map.name).yaml))));
  facts.note("settings of the map", source.map.set);
  facts.note("keys to include", source.keys.include);
  facts.note("keys to exclude", source.keys.exclude);
  for (const RenameRule& rule : request.target.rename)
    facts.note("rule to rename " + quote(rule.from), quote(rule.to));
  facts.note("separation hint", quote(request.target.separation_hint));
  facts.note("manifest", yes_or_no(save.integrity));
  facts.note("files per rank", std::to_string(request.limits.io.files_per_rank));
  facts.note("checksums", yes_or_no(request.limits.io.checksums));
  facts.note("page alignment", yes_or_no(request.limits.io.page_aligned));
  Fingerprinter plans;
  for (const SavePlan& plan : copy.items) plans.update(encode_plan(plan));
  facts.note("plan", text_of(plans.value()));
  facts.note_checkpoint(route.from);
  for (const auto& [what, models] :
       {std::pair("average", &source.average), std::pair("join", &source.join)}) {
    for (const Location& model : *models) {
      facts.note(what, quote(model.absolute()));
      facts.note_checkpoint(model);
    }
  }
  facts.note("main parameters", yes_or_no(source.main_parameters));
  facts.note("load planner",
             quote(source.planner.name + " " + to_yaml_text(source.planner.options.tree())));
  for (const double weight : source.weights) facts.note("weight", std::to_string(weight));
  if (source.merge_adapter) {
    facts.note("adapter", quote(source.merge_adapter->absolute()));
    facts.note_files(*source.merge_adapter->directory(), "");
  }
  if (request.target.model_files) {
    facts.note("model files", quote(request.target.model_files->absolute()));
    for (const std::string& name : copy.folder.files) facts.note_file(*copy.folder.storage, name);
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
