#include "dist_checkpointing/verify/iteration_conflict.h"

#include <cstdint>

#include "dist_checkpointing/open/tracker.h"
#include "mapping/base/format.h"
#include "mapping/megatron/run_args.h"

namespace dckpt {

std::string iteration_conflict(const CheckpointReader& reader) {
  const std::string path = reader.storage().display_path("");
  const auto named = parse_iteration_directory(path.substr(path.rfind('/') + 1));
  const Value common = reader.common_state();
  const auto said = run_arg(&common, "iteration");
  if (!named || !said || (*said >= 0 && *named == static_cast<std::uint64_t>(*said))) return "";
  return str_format(
      "the common state is that of iteration {}, in a folder with the name of iteration {}: it was "
      "renamed, or files of both are mixed",
      *said, *named);
}

}  // namespace dckpt
