#include "mapping/base/finding.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "mapping/base/error.h"
#include "mapping/base/log.h"
#include "mapping/base/problem_list.h"
#include "mapping/base/wire.h"

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

void warn(Findings& findings, Finding finding) {
  log_warning(finding.message);
  findings.push_back(std::move(finding));
}

void refuse(const Findings& findings, const std::vector<FindingCode>& errors,
            const std::string& what) {
  ProblemList problems;
  for (const Finding& finding : findings) {
    if (std::ranges::find(errors, finding.code) != errors.end())
      problems.add(str_format("{}: {}", name_of(kFindingCodeNames, finding.code), finding.message));
  }
  problems.raise_if_any(ErrorCode::kMismatch, what);
}

void write_to(WireWriter& writer, const Findings& findings) {
  writer.number(findings.size());
  for (const Finding& finding : findings) {
    writer.number(static_cast<std::uint64_t>(finding.code));
    writer.number(static_cast<std::uint64_t>(finding.severity));
    writer.text(finding.message);
    writer.number(finding.keys.size());
    for (const std::string& key : finding.keys) writer.text(key);
    writer.text(finding.file.value_or(""));
    writer.number(finding.offset ? 1 : 0);
    writer.number(finding.offset.value_or(0));
  }
}

void read_from(WireReader& reader, Findings& findings) {
  findings.clear();
  for (std::size_t count = reader.count(); count > 0; --count) {
    Finding& finding = findings.emplace_back();
    finding.code = static_cast<FindingCode>(reader.number(kFindingCodeNames.size() - 1));
    finding.severity = static_cast<Severity>(reader.number(kSeverityNames.size() - 1));
    finding.message = reader.text();
    for (std::size_t keys = reader.count(); keys > 0; --keys) finding.keys.push_back(reader.text());
    if (std::string file = reader.text(); !file.empty()) finding.file = std::move(file);
    const bool has_offset = reader.number(1) == 1;
    const std::uint64_t offset = reader.number();
    if (has_offset) finding.offset = offset;
  }
}

}  // namespace dckpt
