#include "dist_checkpointing/load/dropped_tensors.h"

#include <algorithm>
#include <map>
#include <memory>
#include <span>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "dist_checkpointing/open/key_groups.h"
#include "mapping/base/counted.h"
#include "mapping/base/error.h"
#include "mapping/state/flatten.h"
#include "mapping/state/tree.h"

namespace dckpt {
namespace {

bool counts(const FoundTensor& tensor) {
  return !tensor.key.ends_with("_extra_state");
}

bool is_unloaded(const FoundTensor& tensor, const FoundTensors& found) {
  return !tensor.loaded && counts(tensor) &&
         std::ranges::none_of(found.allow_unloaded, [&](const std::string& pattern) {
           return glob_match(pattern, tensor.key);
         });
}

/// Returns a table for messages: one line per group of keys with its bytes, each beginning with "\n
/// ".
std::string table_of_bytes(std::span<const FoundTensor> tensors) {
  KeySet keys;
  std::map<std::string, std::uint64_t> bytes;  // by pattern
  for (const FoundTensor& tensor : tensors) {
    keys.insert(tensor.key);
    bytes[without_numbers(tensor.key)] += tensor.bytes;
  }
  const std::vector<KeyGroup> groups = group_keys(keys);
  std::string table;
  for (const KeyGroup& group : std::span(groups).first(std::min(groups.size(), kShownGroups)))
    table += str_format("\n  {}, {}", to_string(group),
                        human_bytes(bytes.at(without_numbers(group.first))));
  if (groups.size() > kShownGroups)
    table += str_format("\n  … and {}", counted(groups.size() - kShownGroups, "more group"));
  return table;
}

/// The names under which a planned save has tensors.
class PlannedNames {
 public:
  PlannedNames(const Metadata& planned, const Value* common) {
    for (const TensorStorageMetadata& tensor : planned.tensors) names_.insert(tensor.key);
    for (const BytesStorageMetadata& object : planned.objects) names_.insert(object.key);
    if (common == nullptr) return;
    visit_leaves(*common, [&](const KeyPath& path, const Value& leaf) {
      if (leaf.is_tensor()) paths_.push_back(dotted_name(path));
    });
    names_.insert(paths_.begin(), paths_.end());
  }
  bool has(const std::string& key) const { return names_.contains(key); }

 private:
  std::vector<std::string> paths_;
  std::unordered_set<std::string_view> names_;
};

/// Returns whether a save has all tensors in their order, and all were loaded; then nothing needs
/// to be hashed.
bool is_as_loaded(const FoundTensors& found, const Metadata& planned) {
  auto next = planned.tensors.begin();
  return std::ranges::all_of(found.tensors, [&](const FoundTensor& tensor) {
    const bool is_next = next != planned.tensors.end() && next->key == tensor.key;
    if (is_next) ++next;
    return !counts(tensor) || (is_next && tensor.loaded);
  });
}

}  // namespace

void tell_unloaded(const FoundTensors& found, Findings& findings) {
  std::vector<FoundTensor> left;
  std::vector<std::string> keys;
  for (const FoundTensor& tensor : found.tensors) {
    if (!is_unloaded(tensor, found)) continue;
    left.push_back(tensor);
    keys.push_back(tensor.key);
  }
  if (left.empty()) return;
  warn(findings,
       {FindingCode::kKeysNotLoaded,
        str_format("no rank's state has {} of the {} of {}, so they are not loaded, and a run that "
                   "goes on from here loses them. Put them into the state before loading (an "
                   "optimizer may have to make its state first), or name them in "
                   "load.allow_unloaded:{}",
                   grouped(left.size()), counted(found.tensors.size(), "tensor"),
                   quote(found.checkpoint), table_of_bytes(left)),
        std::move(keys)});
}

void require_continued(const FoundTensors& found, const Metadata& planned, const Value* common,
                       const AllowedOnce& allow) {
  if (is_as_loaded(found, planned)) return;
  const PlannedNames names(planned, common);
  std::vector<FoundTensor> dropped;
  std::vector<FoundTensor> remade;
  for (const FoundTensor& tensor : found.tensors) {
    if (names.has(tensor.key)) {
      if (is_unloaded(tensor, found) && !allow.unloaded_keys) remade.push_back(tensor);
    } else if (counts(tensor) && !allow.dropped_keys) {
      dropped.push_back(tensor);
    }
  }
  const std::string all = counted(found.tensors.size(), "tensor");
  if (!remade.empty())
    throw_error(ErrorCode::kMismatch,
                "refusing to save {} of the {} of {} that this run has not loaded from there: "
                "they were made anew, and what they were would be lost. Put them into the state "
                "before the load (an optimizer may have to make its state first); or, if they "
                "are to begin anew, name them in the policy, 'load: {{allow_unloaded: "
                "[PATTERN]}}', or pass {{.unloaded_keys = true}} to this call of save:{}",
                grouped(remade.size()), all, quote(found.checkpoint), table_of_bytes(remade));
  if (dropped.empty()) return;
  throw_error(ErrorCode::kMismatch,
              "refusing to save a state that lacks {} of the {} of {}, from which this "
              "run has resumed: the next resume would not find them. Put them into the state; "
              "or, if they are to be left out, say 'resume: {{allow_dropped_keys: true}}' in "
              "the policy, or pass {{.dropped_keys = true}} to this call of save:{}",
              grouped(dropped.size()), all, quote(found.checkpoint), table_of_bytes(dropped));
}

std::function<void(const Metadata&, const Value*)> continuation_check(const LoadReport& report,
                                                                      const AllowedOnce& allow) {
  return [found = report.found, allow](const Metadata& planned, const Value* common) {
    if (found) require_continued(*found, planned, common, allow);
  };
}

}  // namespace dckpt
