#include "migration/maps/sides/mapped_keys.h"

#include "mapping/base/format.h"
#include "mapping/base/text.h"

namespace dckpt {

std::string kind_and_count(const AlikeKeys& group) {
  if (group.keys.size() == 1) return quote(group.kind);
  return str_format("{} ({} keys)", quote(group.kind), grouped(group.keys.size()));
}

}  // namespace dckpt
