#include "operations/inspect/digest.h"
#include "operations/json/reports.h"
#include "operations/json/values.h"

namespace dckpt {

std::string to_json(const Digests& digests) {
  Value tensors = Value::dict();
  for (const TensorDigest& tensor : digests.tensors)
    tensors[tensor.key] = Value::dict({{"dtype", to_string(tensor.dtype)},
                                       {"shape", json_list(tensor.shape)},
                                       {"sha256", tensor.sha256}});
  Value objects = Value::dict();
  for (const ObjectDigest& object : digests.objects)
    objects[object.key] = Value::dict({{"sha256", object.sha256}});
  return json_text(Value::dict({{"tensors", std::move(tensors)}, {"objects", std::move(objects)}}));
}

}  // namespace dckpt
