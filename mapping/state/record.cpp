#include "mapping/state/record.h"

#include <algorithm>

namespace dckpt::record_detail {

void throw_unfit(const std::string& path, const std::string& reason) {
  if (path.empty()) throw_error(ErrorCode::kMismatch, "cannot read a record: " + reason);
  throw_error(ErrorCode::kMismatch, "cannot read the member {} of a record: {}", quote(path),
              reason);
}

std::optional<std::uint64_t> beyond_int64(const Value& value) {
  if (!value.is(Value::Kind::kBigInt)) return std::nullopt;
  const Bytes& bytes = value.as_big_int().bytes;  // the last one has the sign
  if (bytes.size() != sizeof(std::uint64_t) + 1 || bytes.back() != std::byte{0})
    return std::nullopt;
  return load_le<std::uint64_t>(bytes, 0);
}

void require_members(const Value& value, const std::vector<std::string>& names,
                     const std::string& path) {
  if (!value.is_dict()) {
    throw_unfit(path, str_format("expected a dict with the members {}, found {}",
                                 quoted_list(names, names.size()), to_string(value.kind())));
  }
  std::vector<std::string> missing;
  for (const std::string& name : names) {
    if (!value.contains(name)) missing.push_back(name);
  }
  std::vector<std::string> unknown;
  for (const auto& [key, member] : value.as_dict()) {
    const std::string name = key.is_str() ? key.as_str() : to_string(key.kind());
    if (!key.is_str() || std::ranges::find(names, name) == names.end()) unknown.push_back(name);
  }
  std::string reason;
  if (!missing.empty()) reason += "the dict lacks " + quoted_list(missing, missing.size());
  if (!unknown.empty()) {
    reason += (reason.empty() ? "the dict has " : ", and has ") + quoted_list(unknown) +
              ", of which the record has no field";
  }
  if (!reason.empty()) throw_unfit(path, reason);
}

}  // namespace dckpt::record_detail
