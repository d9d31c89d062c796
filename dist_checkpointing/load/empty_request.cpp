#include "dist_checkpointing/load/empty_request.h"

#include <array>
#include <cstdint>

#include "mapping/base/counted.h"
#include "mapping/base/format.h"
#include "mapping/base/log.h"
#include "mapping/base/text.h"

namespace dckpt {

void warn_if_nothing_is_asked(const LoadContext& load, bool asks, const std::string& consequence) {
  const std::array<std::int64_t, 1> asked{asks ? 1 : 0};
  if (load.comm.all_reduce(asked, ReduceOp::kMax).front() != 0 || load.comm.rank() != 0) return;
  const Metadata& metadata = load.reader.metadata();
  if (metadata.tensors.empty()) return;
  log_warning(str_format(
      "{}, none of the checkpoint's {}; load_state_dict() and load_plain_tensors() return "
      "tensors, load_sharded_metadata() a state dict that asks for all",
      consequence, counted(metadata.tensors.size(), "tensor")));
}

}  // namespace dckpt
