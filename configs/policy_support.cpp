// Values that the schema has and this version does not support. A policy that asks for one is
// refused here, with its line and column, before anything runs; options that are set in code are
// refused where they are used (the engine in storage/posix.cpp). Once a value works, delete its
// line.

#include <array>

#include "configs/policy_schema.h"
#include "mapping/base/text.h"

namespace dckpt {
namespace {

struct Limitation {
  std::string_view field;  ///< dotted path
  bool (*asked_for)(const Policy&);
  std::string_view instead;  ///< why not, and what there is
};

constexpr std::array kLimitations{
    Limitation{"save.io.engine",
               [](const Policy& policy) { return policy.save.io.engine == IoEngine::kUring; },
               "available: auto, buffered, direct"},
};

}  // namespace

TextPlace place_of(const YamlNode& root, std::string_view field) {
  const YamlNode* node = &root;
  for (const std::string& name : split(field, '.')) {
    const YamlNode* next = node->find(name);
    if (next == nullptr && name == "strategy") next = node->find("backend");  // its long form
    if (next == nullptr) break;
    node = next;
  }
  return node->place;
}

void check_supported(const Policy& policy, const YamlNode& root, ConfigProblems& problems) {
  for (const Limitation& limitation : kLimitations) {
    if (!limitation.asked_for(policy)) continue;
    problems.push_back(
        {place_of(root, limitation.field),
         std::string(limitation.field) + ": not supported; " + std::string(limitation.instead),
         ErrorCode::kUnsupported});
  }
}

}  // namespace dckpt
