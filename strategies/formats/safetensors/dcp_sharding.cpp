#include "strategies/formats/safetensors/dcp_sharding.h"

#include "mapping/base/error.h"
#include "mapping/base/text.h"
#include "strategies/formats/json/json.h"

namespace dckpt {

std::map<std::string, Shape> parse_dcp_sharding(const std::string& json, const std::string& file) {
  const std::string what = "'" + std::string(kDcpShardingInfo) + "' of " + file;
  const Value document = parse_json(as_bytes(json), what);
  const auto fail = [&](const std::string& message) {
    throw CheckpointError(ErrorCode::kCorrupt, "'" + std::string(kDcpShardingInfo) + "' " + message,
                          {.file = file});
  };
  if (!document.is_dict()) fail("is no JSON object");
  std::map<std::string, Shape> offsets;
  for (const auto& [key, entry] : document.as_dict()) {
    const Value* const saved = entry.find("saved_offsets");
    if (saved == nullptr || !saved->is_list() || saved->size() > kMaxDims)
      fail("has no 'saved_offsets' for " + quote(key.as_str()));
    Shape& begin = offsets[key.as_str()];
    for (const Value& offset : saved->items()) {
      if (!offset.is_int() || offset.as_int() < 0)
        fail("has an entry that is not an offset for " + quote(key.as_str()));
      begin.push_back(offset.as_int());
    }
  }
  return offsets;
}

}  // namespace dckpt
