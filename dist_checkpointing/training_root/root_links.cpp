#include "dist_checkpointing/training_root/root_links.h"

#include <algorithm>
#include <cctype>
#include <utility>

#include "dist_checkpointing/open/tracker.h"
#include "mapping/base/error.h"
#include "strategies/storage/open_target.h"

namespace dckpt {
namespace {

constexpr int kLevels = 2;
constexpr std::uint64_t kMaxNamingBytes = 1024;  // a log would keep everything
constexpr std::size_t kMaxNamingFiles = 256;     // that are read in a directory

bool is_checkpoint_name(const std::string& name) {
  return name == kReleaseDirectory || parse_iteration_directory(name);
}

bool may_name(const FileInfo& entry) {
  return entry.kind == FileInfo::Kind::kRegular && entry.size <= kMaxNamingBytes &&
         !entry.name.starts_with('.') && entry.name != kTrackerFile &&
         entry.name != kBridgeTrackerFile;
}

/// Returns the words of a text that may be names of iterations.
std::set<std::string> words_of(std::string_view text) {
  std::set<std::string> words;
  std::string word;
  for (const char c : text) {
    if (std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_') {
      word += c;
    } else {
      words.insert(std::exchange(word, ""));
    }
  }
  words.insert(word);
  return words;
}

}  // namespace

RootLinks::RootLinks(const Location& root) {
  const std::shared_ptr<Storage> directory = root.directory();
  home_ = resolved(*directory, "");
  for (const FileInfo& entry : directory->list(""))
    if (entry.kind == FileInfo::Kind::kDirectory) directories_.insert(entry.name);
  look_into(*directory, "", kLevels);
  if (root.name().empty()) return;
  try {
    look_into(*root.storage(), "../", 0);
  } catch (const CheckpointError&) {  // a directory that this user may not list
  }
}

/// Looks for links and files in a directory, which messages show with the prefix, and in its
/// folders.
void RootLinks::look_into(Storage& directory, const std::string& prefix, int levels) {
  std::size_t files = 0;
  for (const FileInfo& entry : directory.list("")) {
    const std::string shown = prefix + entry.name;
    if (entry.kind == FileInfo::Kind::kOther) {
      add_link(directory, entry.name, shown);
    } else if (may_name(entry) && files < kMaxNamingFiles) {
      ++files;
      add_names(directory, entry.name, shown);
    } else if (entry.kind == FileInfo::Kind::kDirectory && levels > 0 &&
               !entry.name.starts_with('.') && !is_checkpoint_name(entry.name)) {
      try {
        look_into(*directory.subtree(entry.name), shown + "/", levels - 1);
      } catch (const CheckpointError&) {  // it has gone, or this user may not list it
      }
    }
  }
}

void RootLinks::add_link(const Storage& directory, const std::string& link,
                         const std::string& shown) {
  const std::string place = resolved(directory, link);
  if (!place.starts_with(home_ + "/")) return;
  const std::string inside = place.substr(home_.size() + 1);
  const std::string target = inside.substr(0, inside.find('/'));
  if (directories_.contains(target)) links_.push_back({shown, target});
}

void RootLinks::add_names(const Storage& directory, const std::string& file,
                          const std::string& shown) try {
  const Bytes content = read_file(*directory.open(file), kMaxNamingBytes);
  for (const std::string& word : words_of(as_text(content)))
    if (parse_iteration_directory(word) && directories_.contains(word))
      links_.push_back({shown, word, true});
} catch (const CheckpointError&) {  // it has gone, or this user may not read it
}

std::vector<std::string> RootLinks::links_to(const std::string& directory) const {
  std::vector<std::string> names;
  for (const Link& link : links_)
    if (link.target == directory && !link.is_file) names.push_back(link.name);
  return names;
}

std::optional<std::string> RootLinks::why_kept(const std::string& name) const {
  if (!directories_.contains(name)) return "it is a link";
  const std::vector<std::string> links = links_to(name);
  if (!links.empty())
    return quoted_list(links) + (links.size() == 1 ? " leads to it" : " lead to it");
  const auto named = [&](const Link& link) { return link.target == name; };
  const auto file = std::ranges::find_if(links_, named);
  if (file == links_.end()) return std::nullopt;
  return quote(file->name) + " names it";
}

std::string RootLinks::target_of(const std::string& name) const {
  const auto is_link = [&](const Link& link) { return link.name == name && !link.is_file; };
  const auto link = std::ranges::find_if(links_, is_link);
  return link == links_.end() ? name : link->target;
}

std::function<bool(std::uint64_t)> RootLinks::once_each(
    std::function<bool(std::uint64_t)> is_sound) const {
  return [this, counted = std::set<std::string>(),
          is_sound = std::move(is_sound)](std::uint64_t iteration) mutable {
    const std::string target = target_of(iteration_directory(iteration));
    return !counted.contains(target) && is_sound(iteration) && counted.insert(target).second;
  };
}

}  // namespace dckpt
