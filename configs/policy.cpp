#include "configs/policy.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <system_error>
#include <vector>

#include "configs/option_rules.h"
#include "configs/policy_schema.h"
#include "mapping/base/format.h"
#include "mapping/base/local_path.h"
#include "mapping/base/text.h"

namespace dckpt {

namespace {

/// Reads a policy after the one that it extends, which it overrides field by field.
class PolicyChain {
 public:
  explicit PolicyChain(CheckedPolicy& into) : into_(into) {}

  /// `file` is empty for the outermost.
  std::optional<YamlNode> read(std::string_view yaml,
                               const std::optional<std::filesystem::path>& folder,
                               const std::string& file) {
    ConfigProblems problems;
    std::optional<YamlNode> root = parse_yaml(yaml, problems);
    if (root) {
      const YamlNode* const base = root->find("extends");
      if (base != nullptr && base->kind == YamlNode::Kind::kText) extend(*base, folder, problems);
      policy_type().read(*root, "", into_.policy, problems);
    }
    for (ConfigProblem& problem : problems) {
      problem.file = file;
      into_.problems.push_back(std::move(problem));
    }
    return root;
  }

 private:
  void extend(const YamlNode& base, const std::optional<std::filesystem::path>& folder,
              ConfigProblems& problems) {
    try {
      const PolicyText found =
          folder ? find_policy(base.text, *folder)
                 : PolicyText{base.text, std::string(shipped_policy(base.text)), {}};
      const std::string identity = std::filesystem::weakly_canonical(found.name).string();
      if (std::ranges::find(open_, identity) != open_.end()) {
        throw CheckpointError(ErrorCode::kInvalidArgument, "the policy extends itself, through " +
                                                               quoted_list(open_, open_.size()));
      }
      if (open_.size() == kMaxPolicyDepth) {
        throw CheckpointError(
            ErrorCode::kInvalidArgument,
            str_format("more than {} policies extend each other", kMaxPolicyDepth));
      }
      open_.push_back(identity);
      read(found.yaml, found.folder, found.name);
      open_.pop_back();
    } catch (const CheckpointError& error) {
      problems.push_back(
          {base.place, str_format("extends: {}: {}", quote(base.text), error.message())});
    }
  }

  CheckedPolicy& into_;
  std::vector<std::string> open_;
};

/// What can be said without knowing the strategies.
void check_rules(const Policy& policy, const YamlNode& root, ConfigProblems& problems) {
  for (const Call call : {Call::kSave, Call::kLoad}) {
    for (const BrokenRule& broken : broken_rules(call, policy, nullptr))
      problems.push_back({place_of(root, broken.rule->field), broken.message, broken.rule->code});
  }
}

}  // namespace

CheckedPolicy check_policy(std::string_view yaml,
                           const std::optional<std::filesystem::path>& folder) {
  CheckedPolicy checked;
  const std::optional<YamlNode> root = PolicyChain(checked).read(yaml, folder, "");
  if (root) check_rules(checked.policy, *root, checked.problems);
  sort_by_place(checked.problems);
  return checked;
}

PolicyText find_policy(const std::string& name_or_file, const std::filesystem::path& folder) {
  std::error_code ignored;
  const std::filesystem::path file = folder / name_or_file;
  const bool bare = name_or_file.find_first_of("./") == std::string::npos;
  if (bare && !std::filesystem::exists(file, ignored))
    return {name_or_file, std::string(shipped_policy(name_or_file)), {}};
  return {file.string(), read_policy_file(file), file.parent_path()};
}

std::string to_yaml(const Policy& policy) {
  return to_yaml_text(policy_type().show(policy));
}

Policy Policy::from_text(std::string_view yaml, const std::string& name) {
  CheckedPolicy checked = check_policy(yaml);
  raise_if_any(std::move(checked.problems), name);
  return std::move(checked.policy);
}

Policy Policy::from_file(const std::filesystem::path& file) {
  CheckedPolicy checked = check_policy(read_policy_file(file), file.parent_path());
  raise_if_any(std::move(checked.problems), file.string());
  return std::move(checked.policy);
}

Policy Policy::find(const std::string& name_or_file) {
  const PolicyText found = find_policy(name_or_file);
  CheckedPolicy checked = check_policy(found.yaml, found.folder);
  raise_if_any(std::move(checked.problems), found.name);
  return std::move(checked.policy);
}

Policy Policy::shipped(std::string_view name) {
  return from_text(shipped_policy(name), std::string(name) + ".yaml");
}

std::string_view shipped_policy(std::string_view name) {
  std::vector<std::string> names;
  for (const ShippedPolicy& policy : shipped_policies()) {
    if (policy.name == name) return policy.yaml;
    names.emplace_back(policy.name);
  }
  const auto close = nearest(name, names);
  throw CheckpointError(ErrorCode::kInvalidArgument,
                        str_format("no policy {} is shipped{}; there are {}", quote(name),
                                   close ? str_format(" (did you mean {}?)", quote(*close)) : "",
                                   quoted_list(names, names.size())));
}

std::string read_policy_file(const std::filesystem::path& file) {
  const auto fail = [&] {
    const std::string reason = std::generic_category().message(errno);
    return CheckpointError(ErrorCode::kIo, "cannot read the policy: " + reason,
                           {.file = file.string()});
  };
  // Not blocking, so that a FIFO without a writer is at its end instead of waiting for one.
  const int fd = ::open(local_path(file).c_str(), O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
  if (fd < 0) throw fail();
  const std::unique_ptr<const int, void (*)(const int*)> closing(
      &fd, [](const int* opened) { ::close(*opened); });
  std::string text(kMaxYamlBytes + 1, '\0');  // one more than is accepted, so that more is noticed
  std::size_t size = 0;
  while (size < text.size()) {
    const ssize_t count = ::read(fd, text.data() + size, text.size() - size);
    if (count == 0) break;
    if (count > 0) size += static_cast<std::size_t>(count);
    if (count < 0 && errno == EAGAIN) {  // a pipe whose writer is slower
      pollfd waiting{fd, POLLIN, 0};
      ::poll(&waiting, 1, -1);
    } else if (count < 0 && errno != EINTR) {
      throw fail();
    }
  }
  struct stat status {};
  if (size == 0 && ::fstat(fd, &status) == 0 && S_ISFIFO(status.st_mode)) {
    throw CheckpointError(ErrorCode::kIo,
                          "cannot read the policy: nothing is written into this pipe",
                          {.file = file.string()});
  }
  text.resize(size);
  return text;
}

}  // namespace dckpt
