#include "dist_checkpointing/load/key_check.h"

#include <algorithm>
#include <iterator>
#include <vector>

#include "mapping/base/error.h"
#include "mapping/base/log.h"
#include "mapping/base/text.h"
#include "mapping/base/wire.h"
#include "strategies/comm/agree.h"

namespace dckpt {
namespace {

std::set<std::string> find_missing(const std::set<std::string>& asked, const std::set<std::string>& stored, Communicator& comm) {
  Bytes mine;
  WireWriter writer(mine);
  writer.number(asked.size());
  for (const std::string& key : asked) writer.text(key);
  const std::vector<Bytes> all = comm.all_gather(mine);
  std::set<std::string> missing = stored;
  agree(comm, "collecting the keys of all ranks", [&] {
    for (const Bytes& bytes : all) {
      WireReader reader(bytes, "a rank's list of keys");
      for (std::size_t count = reader.count(); count > 0; --count) missing.erase(reader.text());
      reader.finish();
    }
  });
  return missing;
}

std::string braced(const std::set<std::string>& keys) {
  constexpr std::size_t kShown = 20;
  return "{" + quoted_list(std::vector<std::string>(keys.begin(), keys.end()), kShown) + "}. ";
}

std::string describe(const KeyDifference& difference) {
  std::string message;
  if (!difference.missing.empty()) message += "Some keys found in the checkpoint are missing in the provided sharded state dict. ";
  if (!difference.unexpected.empty()) message += "Unexpected keys (not found in the checkpoint) encountered in the provided sharded state dict. ";
  message += "\n";
  if (!difference.missing.empty()) message += "Missing keys (for all ranks): " + braced(difference.missing);
  if (!difference.unexpected.empty()) message += "Unexpected keys (for this rank): " + braced(difference.unexpected);
  return message;
}

}  // namespace

bool raises(Strict strict) noexcept { return strict == Strict::kRaiseUnexpected || strict == Strict::kRaiseAll; }
bool logs(Strict strict) noexcept { return strict == Strict::kLogUnexpected || strict == Strict::kLogAll; }
bool returns(Strict strict) noexcept { return strict == Strict::kReturnUnexpected || strict == Strict::kReturnAll; }
bool checks_unexpected(Strict strict) noexcept { return strict != Strict::kAssumeOkUnexpected; }
bool checks_missing(Strict strict) noexcept { return strict == Strict::kLogAll || strict == Strict::kRaiseAll || strict == Strict::kReturnAll; }

KeyDifference check_keys(const std::set<std::string>& asked, const std::set<std::string>& stored, Strict strict, Communicator& comm) {
  KeyDifference difference;
  if (checks_missing(strict)) difference.missing = find_missing(asked, stored, comm);
  if (!checks_unexpected(strict)) return difference;
  std::set_difference(asked.begin(), asked.end(), stored.begin(), stored.end(), std::inserter(difference.unexpected, difference.unexpected.end()));
  agree(comm, "comparing keys", [&] {
    if (raises(strict) && !difference.empty()) throw CheckpointError(ErrorCode::kMismatch, describe(difference));
  });
  if (logs(strict) && !difference.empty()) log_warning(describe(difference));
  return difference;
}

}  // namespace dckpt
