#pragma once

#include <functional>
#include <memory>

#include "configs/policy/options.h"
#include "operations/convert/convert_options.h"
#include "strategies/storage/file_watch.h"
#include "strategies/storage/location.h"

namespace dckpt {

/// The places that a conversion reads from and writes to.
struct Route {
  Location from;  ///< the checkpoint itself, not its training root; under the watch
  Location to;
  std::shared_ptr<FileWatch> watch;  ///< sees all files that are read
};

/// A conversion that is to be done: its options with what they imply. Made once, before anything is
/// opened, and not changed afterwards.
struct ConversionRequest : ConvertOptions {
  bool mapped = false;            ///< whether has_map(source.map)
  int readers = 1;                ///< number of threads that read what is only compared
  std::function<void()> go_on{};  ///< throws CheckpointError (cancelled) after a request to stop
};

/// Returns the route from `from`, whose files are watched.
Route watched_route(const Location& from, const Location& to);

/// Returns the request that `options` make for the checkpoint to which the source and
/// ConvertSource::iteration have led: what moves on meanwhile must not lead to another one.
ConversionRequest request_of(ConvertOptions options, const Route& route);

/// Returns whether a map is named: "none" only insists on the keys of the source.
bool has_map(const KeyMapOptions& map);

/// Returns whether the format has Megatron's flattened form; if none is named, it is the source's.
bool may_be_flattened(const ConvertTarget& target);

}  // namespace dckpt
