#include "mapping/base/error.h"
#include "operations/inspect/extract/render.h"
#include "operations/json/reports.h"
#include "operations/json/values.h"
#include "strategies/contract/reader.h"

namespace dckpt {

std::string object_json(const Value& object) {
  return json_text(render(object));
}

std::string common_json(const Value& common) {
  return object_json(common.is_none() ? Value::dict() : common);
}

std::string objects_json(const CheckpointReader& reader) {
  Value objects = Value::dict();
  for (std::size_t i = 0; i < reader.metadata().objects.size(); ++i) {
    const std::string& key = reader.metadata().objects[i].key;
    objects[key] = with_context({.key = key}, [&] { return render(reader.object(i)); });
  }
  return json_text(objects);
}

}  // namespace dckpt
