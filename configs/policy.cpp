#include "configs/policy.h"

#include <cerrno>
#include <cstdio>
#include <memory>
#include <system_error>
#include <vector>

#include "configs/policy_schema.h"
#include "mapping/base/text.h"

namespace dckpt {

CheckedPolicy check_policy(std::string_view yaml) {
  CheckedPolicy checked;
  const std::optional<YamlNode> root = parse_yaml(yaml, checked.problems);
  if (root) {
    policy_type().read(*root, "", checked.policy, checked.problems);
    check_supported(checked.policy, *root, checked.problems);
  }
  sort_by_place(checked.problems);
  return checked;
}

std::string to_yaml(const Policy& policy) { return to_yaml_text(policy_type().show(policy)); }

Policy Policy::from_text(std::string_view yaml, const std::string& name) {
  CheckedPolicy checked = check_policy(yaml);
  raise_if_any(std::move(checked.problems), name);
  return std::move(checked.policy);
}

Policy Policy::from_file(const std::filesystem::path& file) { return from_text(read_policy_file(file), file.string()); }

Policy Policy::shipped(std::string_view name) { return from_text(shipped_policy(name), std::string(name) + ".yaml"); }

std::string_view shipped_policy(std::string_view name) {
  std::vector<std::string> names;
  for (const ShippedPolicy& policy : shipped_policies()) {
    if (policy.name == name) return policy.yaml;
    names.emplace_back(policy.name);
  }
  const auto close = nearest(name, names);
  throw CheckpointError(ErrorCode::kInvalidArgument, "no policy " + dckpt::quoted(name) + " is shipped" +
                                                         (close ? " (did you mean " + dckpt::quoted(*close) + "?)" : "") + "; there are " +
                                                         quoted_list(names, names.size()));
}

std::string read_policy_file(const std::filesystem::path& file) {
  const auto fail = [&] {
    const std::string reason = std::generic_category().message(errno);
    return CheckpointError(ErrorCode::kIo, "cannot read the policy: " + reason, {.file = file.string()});
  };
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> stream(std::fopen(file.c_str(), "rb"), [](std::FILE* opened) { return std::fclose(opened); });
  if (stream == nullptr) throw fail();
  std::string text(kMaxYamlBytes + 1, '\0');  // one more than is accepted, so that more is noticed
  text.resize(std::fread(text.data(), 1, text.size(), stream.get()));
  if (std::ferror(stream.get()) != 0) throw fail();
  return text;
}

}  // namespace dckpt
