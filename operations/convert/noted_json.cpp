#include "operations/convert/noted_json.h"

#include "mapping/base/error.h"
#include "mapping/base/format.h"
#include "mapping/base/storage_name.h"

namespace dckpt {

Value to_value(const NamePairs& pairs) {
  ValueList list;
  for (const auto& [first, second] : pairs) list.push_back(Value::list({first, second}));
  return Value::list(std::move(list));
}

NamePairs pairs_from(const Value& list) {
  NamePairs pairs;
  for (const Value& pair : list.items())
    pairs.emplace_back(part(pair, 0).as_str(), part(pair, 1).as_str());
  return pairs;
}

const Value& part(const Value& list, std::size_t index, std::size_t size) {
  if (list.items().size() != size)
    throw CheckpointError(ErrorCode::kCorrupt, str_format("a list has {} elements, expected {}",
                                                          list.items().size(), size));
  return list.items()[index];
}

std::uint64_t count_from(const Value& number) {
  if (number.as_int() < 0)
    throw CheckpointError(ErrorCode::kCorrupt, "a number is negative that counts something");
  return static_cast<std::uint64_t>(number.as_int());
}

const std::string& name_from(const Value& text) {
  name_components(text.as_str());
  return text.as_str();
}

}  // namespace dckpt
