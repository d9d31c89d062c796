#include "strategies/comm/phase_label.h"

#include <utility>

namespace dckpt {
namespace {

thread_local const PhaseLabel* innermost = nullptr;

}  // namespace

PhaseLabel::PhaseLabel(std::string what) : what_(std::move(what)), outer_(innermost) {
  innermost = this;
}

PhaseLabel::~PhaseLabel() {
  innermost = outer_;
}

std::string PhaseLabel::before(const std::string& text) {
  return innermost == nullptr || text.starts_with(innermost->what_ + ": ")
             ? text
             : innermost->what_ + ": " + text;
}

std::string PhaseLabel::removed(const std::string& what, const std::string& text) {
  const std::string prefix = what + ": ";
  return text.starts_with(prefix) ? text.substr(prefix.size()) : text;
}

std::string PhaseLabel::removed(const std::string& text) {
  return innermost == nullptr ? text : removed(innermost->what_, text);
}

}  // namespace dckpt
