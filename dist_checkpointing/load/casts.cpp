#include "dist_checkpointing/load/casts.h"

#include <map>
#include <string>
#include <utility>

#include "dist_checkpointing/load/key_check.h"
#include "mapping/base/format.h"
#include "mapping/base/log.h"
#include "mapping/base/text.h"

namespace dckpt {
namespace {

/// Returns a cast as one text, "float32 bfloat16 KEY"; ranks exchange sets of these.
std::string entry(const CastTensor& cast) {
  return str_format("{} {} {}", to_string(cast.stored), to_string(cast.loaded), cast.key);
}

}  // namespace

std::vector<CastTensor> report_casts(const std::vector<CastTensor>& mine, Communicator& comm) {
  KeySet entries;
  for (const CastTensor& cast : mine) entries.insert(entry(cast));
  std::vector<CastTensor> casts;
  std::map<std::string, std::vector<std::string>> keys;  // by "float32 to bfloat16"
  for (const std::string& text : united(entries, comm)) {
    const std::size_t first = text.find(' ');
    const std::size_t second = text.find(' ', first + 1);
    if (second == std::string::npos) continue;  // another rank may send anything
    const std::string stored = text.substr(0, first);
    const std::string loaded = text.substr(first + 1, second - first - 1);
    const auto from = parse_dtype(stored);
    const auto to = parse_dtype(loaded);
    if (!from || !to) continue;
    casts.push_back({text.substr(second + 1), *from, *to});
    keys[str_format("{} to {}", stored, loaded)].push_back(casts.back().key);
  }
  std::string list;
  for (const auto& [types, of_these] : keys)
    list += str_format("{}{} {}", list.empty() ? " " : "; ", types, quoted_list(of_these));
  if (comm.rank() == 0 && !list.empty())
    log_notice("tensors are converted to the requested dtype (load.cast):" + list);
  return casts;
}

}  // namespace dckpt
