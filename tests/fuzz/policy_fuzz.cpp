#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "configs/policy/policy.h"
#include "configs/yaml/yaml.h"

/// Reads bytes as a policy. Problems are located inside the text. A policy without problems reads
/// back from its effective form as the same policy.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace dckpt;
  const CheckedPolicy checked = check_policy({reinterpret_cast<const char*>(data), size});
  for (const ConfigProblem& problem : checked.problems) {
    if (problem.message.empty() || problem.place.line < 0 || problem.place.column < 0 ||
        problem.place.line > static_cast<int>(size) + 1)
      std::abort();
  }
  if (!checked.problems.empty()) return 0;
  const CheckedPolicy again = check_policy(to_yaml(checked.policy));
  if (!again.problems.empty() || !(again.policy == checked.policy)) std::abort();
  return 0;
}
