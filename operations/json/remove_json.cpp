#include "operations/convert/remove_sharded_tensors.h"
#include "operations/json/reports.h"
#include "operations/json/values.h"

namespace dckpt {

std::string to_json(const RemovedTensors& removed, const std::string& path,
                    const std::string& prefix, bool dry_run) {
  return json_text(Value::dict({{"path", path},
                                {"prefix", prefix},
                                {"dry_run", dry_run},
                                {"tensors", removed.tensors},
                                {"objects", removed.objects},
                                {"files", json_list(removed.files)},
                                {"bytes_freed", removed.bytes_freed},
                                {"bytes_kept", removed.bytes_kept}}));
}

}  // namespace dckpt
