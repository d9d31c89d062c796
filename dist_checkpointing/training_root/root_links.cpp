#include "dist_checkpointing/training_root/root_links.h"

#include <algorithm>
#include <utility>

#include "dist_checkpointing/tracker.h"
#include "mapping/base/text.h"

namespace dckpt {
namespace {

bool same_entry(const FileInfo& a, const FileInfo& b) {
  return a.name == b.name && a.kind == b.kind && a.size == b.size && a.modified == b.modified;
}

/// Returns whether a link, whose target is the directory `target`, leads to `directory`.
bool leads_to(Storage& root, const std::string& link, const FileInfo& target,
              const std::string& directory) {
  const auto now = root.stat(directory);  // it may have changed since it was listed
  return now && now->modified == target.modified &&
         std::ranges::equal(root.subtree(link)->list(""), root.list(directory), same_entry);
}

}  // namespace

RootLinks::RootLinks(Storage& root) {
  const std::vector<FileInfo> entries = root.list("");
  for (const FileInfo& entry : entries)
    if (entry.kind == FileInfo::Kind::kDirectory) directories_.insert(entry.name);
  for (const FileInfo& link : entries) {
    if (link.kind != FileInfo::Kind::kOther) continue;
    const auto target = root.stat_target(link.name);
    if (!target || target->kind != FileInfo::Kind::kDirectory) continue;
    for (const std::string& directory : directories_)
      if (leads_to(root, link.name, *target, directory)) links_.push_back({link.name, directory});
  }
}

std::vector<std::string> RootLinks::links_to(const std::string& directory) const {
  std::vector<std::string> names;
  for (const Link& link : links_)
    if (link.target == directory) names.push_back(link.name);
  return names;
}

std::optional<std::string> RootLinks::why_kept(const std::string& name) const {
  if (!directories_.contains(name)) return "it is a link";
  const std::vector<std::string> links = links_to(name);
  if (links.empty()) return std::nullopt;
  return quoted_list(links) + (links.size() == 1 ? " leads to it" : " lead to it");
}

std::string RootLinks::target_of(const std::string& name) const {
  const auto link = std::ranges::find(links_, name, &Link::name);
  return link == links_.end() ? name : link->target;
}

std::function<bool(std::uint64_t)> RootLinks::once_each(
    std::uint64_t saved, std::function<bool(std::uint64_t)> is_complete) const {
  std::set<std::string> counted{target_of(iteration_directory(saved))};
  return [this, counted = std::move(counted),
          is_complete = std::move(is_complete)](std::uint64_t iteration) mutable {
    const std::string target = target_of(iteration_directory(iteration));
    return !counted.contains(target) && is_complete(iteration) && counted.insert(target).second;
  };
}

}  // namespace dckpt
