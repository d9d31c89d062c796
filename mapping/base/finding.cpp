#include "mapping/base/finding.h"

#include <iterator>
#include <utility>

namespace dckpt {

std::vector<std::string> messages_of(const Findings& findings) {
  std::vector<std::string> messages;
  messages.reserve(findings.size());
  for (const Finding& finding : findings) messages.push_back(finding.message);
  return messages;
}

void append(Findings& findings, Findings more) {
  findings.insert(findings.end(), std::make_move_iterator(more.begin()),
                  std::make_move_iterator(more.end()));
}

}  // namespace dckpt
