#include "operations/convert/conversion_request.h"

#include <optional>
#include <stop_token>
#include <utility>

#include "mapping/base/error.h"
#include "strategies/registry/registry.h"

namespace dckpt {
namespace {

Location watched(const Location& location, const std::shared_ptr<FileWatch>& watch) {
  return Location(watched_storage(location.storage(), watch), location.name());
}

void require_not_stopped(const std::stop_token& stop, bool resume) {
  if (!stop.stop_requested()) return;
  throw_error(ErrorCode::kCancelled,
              resume ? "the conversion was stopped before it was complete; what it had finished "
                       "is kept, and --resume goes on with it"
                     : "the conversion was stopped before it was complete; what it had begun is "
                       "removed");
}

}  // namespace

bool has_map(const KeyMapOptions& map) {
  return !map.name.empty() && map.name != kNoMap;
}

bool may_be_flattened(const ConvertTarget& target) {
  return target.strategy.empty() ||
         find_save_strategy(target.strategy, target.version).capabilities.flattened_form;
}

Route watched_route(const Location& from, const Location& to) {
  const auto watch = std::make_shared<FileWatch>();
  return {watched(from, watch), to, watch};
}

ConversionRequest request_of(ConvertOptions options, const Route& route) {
  const std::shared_ptr<FileWatch>& watch = route.watch;
  ConversionRequest request{std::move(options)};
  ConvertSource& source = request.source;
  for (std::vector<Location>* const models : {&source.average, &source.join})
    for (Location& model : *models) model = watched(model, watch);
  for (std::optional<Location>* const folder : {&source.merge_adapter, &request.target.model_files})
    if (*folder) *folder = watched(**folder, watch);
  if (source.iteration && route.from.name() == source.iteration->directory())
    source.iteration.reset();
  // Other formats have the model's shapes, and Megatron flattens what it reads from them.
  if (request.optimizer.sharding == OptimizerSharding::kFullyShardedModelSpace &&
      may_be_flattened(request.target))
    request.optimizer.flattened = FlattenedForm::kMegatron;
  request.mapped = has_map(source.map);
  request.readers = request.limits.read_threads.value_or(request.limits.io.threads);
  request.go_on = [stop = request.stop, resume = request.target.resume] {
    require_not_stopped(stop, resume);
  };
  return request;
}

}  // namespace dckpt
