#include "strategies/formats/safetensors/dcp_sharding.h"

#include "mapping/base/error.h"
#include "strategies/formats/json/json.h"

namespace dckpt {

std::map<std::string, DcpPart> parse_dcp_sharding(const std::string& json,
                                                  const std::string& file) {
  const std::string what = "'" + std::string(kDcpShardingInfo) + "' of " + file;
  const Value document = parse_json(as_bytes(json), what);
  const auto fail = [&](const std::string& message) {
    throw_error(ErrorCode::kCorrupt, {.file = file},
                "'" + std::string(kDcpShardingInfo) + "' " + message);
  };
  if (!document.is_dict()) fail("is no JSON object");
  std::map<std::string, DcpPart> parts;
  for (const auto& [key, entry] : document.as_dict()) {
    const auto read = [&, &key = key](const Value* list, const char* name) {
      if (list == nullptr || !list->is_list() || list->size() > kMaxDims)
        fail("has no " + quote(name) + " for " + quote(key.as_str()));
      Shape numbers;
      for (const Value& number : list->items()) {
        if (!number.is_int() || number.as_int() < 0)
          fail("has " + quote(name) + " that are not numbers of elements for " +
               quote(key.as_str()));
        numbers.push_back(number.as_int());
      }
      return numbers;
    };
    DcpPart& part = parts[key.as_str()];
    part.offsets = read(entry.find("saved_offsets"), "saved_offsets");
    if (const Value* const shape = entry.find("global_shape"))
      part.global_shape = read(shape, "global_shape");
  }
  return parts;
}

}  // namespace dckpt
