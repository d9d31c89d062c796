#include "migration/rank_folders/join_ranks.h"

#include <iterator>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "mapping/base/format.h"
#include "mapping/base/log.h"
#include "migration/rank_folders/joined_model.h"
#include "migration/rank_folders/joined_optimizer.h"
#include "migration/rank_folders/joined_state.h"
#include "migration/rank_folders/rank_files.h"
#include "strategies/views/rearranged_reader.h"

namespace dckpt {
namespace {

void warn_of_other_files(const RankFiles& files) {
  std::set<std::string> stems;
  for (const RankFiles::File& file : files.files()) {
    if (!file.is_main && file.stem != "distrib_optim") stems.insert(file.stem);
  }
  for (const std::string& stem : stems)
    log_warning(
        str_format("what the ranks' files {}.pt hold is left out when the ranks are joined; "
                   "each can be opened by its own path",
                   stem));
}

}  // namespace

std::unique_ptr<CheckpointReader> join_ranks(std::unique_ptr<CheckpointReader> ranks) {
  RearrangedContents contents{.tensors = {}, .conventions = Conventions{}};
  {
    const RankFiles files(*ranks);
    const JoinedModel model(files);
    if (model.parameters().empty()) return ranks;
    warn_of_other_files(files);
    contents.tensors = model.tensors();
    std::vector<RearrangedTensor> optimizer = joined_optimizer(files, model);
    const bool has_optimizer = !optimizer.empty();
    std::ranges::move(optimizer, std::back_inserter(contents.tensors));
    contents.objects = joined_objects(files, model);
    contents.common = joined_common_state(files, has_optimizer);
  }
  return rearranged_reader(std::move(ranks), std::move(contents));
}

}  // namespace dckpt
