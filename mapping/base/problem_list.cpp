#include "mapping/base/problem_list.h"

#include "mapping/base/text.h"

namespace dckpt {

void ProblemList::add(std::string line) {
  if (lines_.size() < kShown) lines_.push_back(std::move(line));
  ++count_;
}

void ProblemList::raise_if_any(ErrorCode code, const std::string& what) const {
  if (empty()) return;
  std::string message = what;
  for (const std::string& line : lines_) message += "\n  " + line;
  if (count_ > lines_.size()) message += "\n  … and " + grouped(count_ - lines_.size()) + " more";
  throw_error(code, message);
}

}  // namespace dckpt
