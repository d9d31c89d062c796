// This file takes the place of rename.cpp in a build without RE2.

#include "configs/policy/rename.h"
#include "mapping/base/error.h"

namespace dckpt {
namespace {

constexpr const char* kLeftOut =
    "keys are renamed by regular expressions of RE2, without which this dckpt was built; build it "
    "with -DDCKPT_RE2=ON";

}  // namespace

struct KeyRenamer::Compiled {};

std::optional<std::string> problem_of(const RenameRule&) {
  return kLeftOut;
}

KeyRenamer::KeyRenamer(std::span<const RenameRule> rules) {
  if (!rules.empty()) throw_error(ErrorCode::kUnsupported, kLeftOut);
}

bool KeyRenamer::empty() const noexcept {
  return true;
}

std::string KeyRenamer::operator()(std::string_view key) const {
  return std::string(key);
}

}  // namespace dckpt
