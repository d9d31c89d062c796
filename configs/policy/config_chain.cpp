#include "configs/policy/config_chain.h"

#include <algorithm>
#include <system_error>
#include <utility>
#include <vector>

#include "mapping/base/error.h"

namespace dckpt {
namespace {

using ReadOne = std::function<void(const YamlNode&, const std::string&, ConfigProblems&)>;

class ConfigChain {
 public:
  ConfigChain(const ConfigLibrary& library, const ReadOne& read_one, ConfigProblems& into)
      : library_(library), read_one_(read_one), into_(into) {}

  /// `file` is empty for the outermost.
  std::optional<YamlNode> read(std::string_view yaml,
                               const std::optional<std::filesystem::path>& folder,
                               const std::string& file) {
    ConfigProblems problems;
    std::optional<YamlNode> root = parse_yaml(yaml, problems);
    if (root && !file.empty() && root->find("version") == nullptr) {
      // A file that is not a configuration may be any file: none of it is quoted.
      problems.push_back(
          {root->place, "the version of the schema is missing; begin with the line 'version: 1'"});
      root.reset();
    }
    if (root) {
      const YamlNode* const base = root->find("extends");
      if (base != nullptr && base->kind == YamlNode::Kind::kText) extend(*base, folder, problems);
      read_one_(*root, file, problems);
    }
    for (ConfigProblem& problem : problems) {
      if (problem.file.empty()) problem.file = file;
      into_.push_back(std::move(problem));
    }
    return root;
  }

 private:
  void extend(const YamlNode& base, const std::optional<std::filesystem::path>& folder,
              ConfigProblems& problems) {
    try {
      const PolicyText found =
          folder ? find_config(library_, base.text, *folder)
                 : PolicyText{base.text, std::string(shipped_text(library_, base.text)), {}};
      const std::string identity = std::filesystem::weakly_canonical(found.name).string();
      if (std::ranges::find(open_, identity) != open_.end()) {
        throw_error(ErrorCode::kInvalidArgument, "the {} extends itself, through {}", library_.what,
                    quoted_list(open_, open_.size()));
      }
      if (open_.size() == kMaxPolicyDepth) {
        throw_error(ErrorCode::kInvalidArgument, "more than {} {} extend each other",
                    kMaxPolicyDepth, library_.many);
      }
      open_.push_back(identity);
      read(found.yaml, found.folder, found.name);
      open_.pop_back();
    } catch (const CheckpointError& error) {
      problems.push_back(
          {base.place, str_format("extends: {}: {}", quote(base.text), error.message())});
    }
  }

  const ConfigLibrary& library_;
  const ReadOne& read_one_;
  ConfigProblems& into_;
  std::vector<std::string> open_;
};

}  // namespace

std::string_view shipped_text(const ConfigLibrary& library, std::string_view name) {
  std::vector<std::string> names;
  for (const ShippedPolicy& shipped : library.shipped) {
    if (shipped.name == name) return shipped.yaml;
    names.emplace_back(shipped.name);
  }
  const auto close = nearest(name, names);
  throw_error(ErrorCode::kInvalidArgument, "no {} {} is shipped{}; there are {}", library.what,
              quote(name), close ? str_format(" (did you mean {}?)", quote(*close)) : "",
              quoted_list(names, names.size()));
}

PolicyText find_config(const ConfigLibrary& library, const std::string& name_or_file,
                       const std::filesystem::path& folder) {
  std::error_code ignored;
  const std::filesystem::path file = folder / name_or_file;
  const bool bare = name_or_file.find_first_of("./") == std::string::npos;
  const bool shipped = !std::filesystem::exists(file, ignored) ||
                       std::filesystem::is_directory(file, ignored);  // a model's, say
  if (bare && shipped) return {name_or_file, std::string(shipped_text(library, name_or_file)), {}};
  return {file.string(), read_policy_file(file), file.parent_path()};
}

std::optional<YamlNode> read_config(const ConfigLibrary& library, std::string_view yaml,
                                    const std::optional<std::filesystem::path>& folder,
                                    const ReadOne& read, ConfigProblems& problems) {
  return ConfigChain(library, read, problems).read(yaml, folder, "");
}

}  // namespace dckpt
