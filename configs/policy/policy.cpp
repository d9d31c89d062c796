#include "configs/policy/policy.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <memory>
#include <system_error>
#include <vector>

#include "configs/policy/config_chain.h"
#include "configs/policy/option_rules.h"
#include "configs/policy/policy_schema.h"
#include "mapping/base/error.h"
#include "mapping/base/local_path.h"

namespace dckpt {

namespace {

ConfigLibrary policy_library() {
  return {"policy", "policies", shipped_policies()};
}

bool says_format(const YamlNode& root) {
  const YamlNode* const save = root.find("save");
  return save != nullptr &&
         std::ranges::any_of(std::array{"strategy", "backend", "compat"},
                             [&](const char* field) { return save->find(field) != nullptr; });
}

/// Checks the rules that do not need the strategies.
void check_rules(const Policy& policy, const YamlNode& root, ConfigProblems& problems) {
  for (const Call call : {Call::kSave, Call::kLoad, Call::kKeep}) {
    for (const BrokenRule& broken : broken_rules(call, policy, nullptr))
      problems.push_back({place_of(root, broken.rule->field), broken.message, broken.rule->code});
  }
}

}  // namespace

CheckedPolicy check_policy(std::string_view yaml,
                           const std::optional<std::filesystem::path>& folder) {
  CheckedPolicy checked;
  const std::optional<YamlNode> root = read_config(
      policy_library(), yaml, folder,
      [&](const YamlNode& node, const std::string&, ConfigProblems& problems) {
        policy_type().read({node, "", problems}, checked.policy);
        checked.names_format |= says_format(node);
      },
      checked.problems);
  if (root) check_rules(checked.policy, *root, checked.problems);
  sort_by_place(checked.problems);
  return checked;
}

PolicyText find_policy(const std::string& name_or_file, const std::filesystem::path& folder) {
  return find_config(policy_library(), name_or_file, folder);
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
  return shipped_text(policy_library(), name);
}

std::string read_policy_file(const std::filesystem::path& file) {
  const auto fail = [&] {
    const std::string reason = std::generic_category().message(errno);
    return CheckpointError(ErrorCode::kIo, "cannot read the file: " + reason,
                           {.file = file.string()});
  };
  // The open does not block, so that a FIFO without a writer is at its end instead of waiting for
  // one.
  const int fd = ::open(local_path(file).c_str(), O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
  if (fd < 0) throw fail();
  const std::unique_ptr<const int, void (*)(const int*)> closing(
      &fd, [](const int* opened) { ::close(*opened); });
  std::string text(kMaxYamlBytes + 1, '\0');  // one byte too many, to notice larger files
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
    throw_error(ErrorCode::kIo, {.file = file.string()},
                "cannot read the file: nothing is written into this pipe");
  }
  text.resize(size);
  return text;
}

}  // namespace dckpt
