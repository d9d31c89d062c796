#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "mapping/base/api.h"
#include "mapping/base/enum_names.h"
#include "mapping/base/error.h"
#include "strategies/storage/location.h"

namespace DCKPT_API dckpt {

/// The state of one checkpoint of a fleet.
struct FleetResult {
  enum class Status : std::uint8_t {
    kVerified,
    kUnchanged,   ///< since the state file was written: its result is repeated
    kBeingSaved,  ///< unfinished, and a job that may be alive has claimed it
  };
  std::string path;  ///< as the user spells it
  Status status = Status::kVerified;
  bool deep = false;        ///< all bytes were read, now or then
  std::string format{};     ///< empty if it could not be opened
  std::uint64_t bytes = 0;  ///< stored bytes of chunks and objects
  std::uint64_t problems = 0;
  std::string problem{};               ///< the first problem, as text for messages
  std::optional<ErrorCode> refused{};  ///< code of the error with which it could not be opened

  bool ok() const noexcept { return problems == 0; }
};
inline constexpr EnumNames<FleetResult::Status, 3> kFleetStatusNames{
    {{FleetResult::Status::kVerified, "verified"},
     {FleetResult::Status::kUnchanged, "unchanged"},
     {FleetResult::Status::kBeingSaved, "being-saved"}}};

struct FleetOptions {
  bool deep = false;  ///< as VerifyOptions::deep
  int threads = 4;    ///< checkpoints at once; those that are left over work on each checkpoint
  /// Bytes that all threads together read in a second, except for directories; 0: no limit.
  std::uint64_t max_rate = 0;
  /// The file in which results are remembered; created if it is missing, and replaced atomically
  /// from time to time. A checkpoint is verified again if a name, a size or a time of its files has
  /// changed, or if only its structure was verified and `deep` is set. Failures of input or output
  /// are not remembered.
  std::optional<Location> state{};
  std::stop_token stop{};
};

/// Verifies many checkpoints. Each of `paths` is a checkpoint or a training root, which stands for
/// all its checkpoints; each checkpoint is verified once. Calls `each` with every result as soon as
/// it is known, one call at a time. Throws CheckpointError: (corrupt) if the state file is damaged;
/// (cancelled) after a stop, with what was done in the state file; (io) if that cannot be written.
void verify_fleet(const std::vector<std::string>& paths, const FleetOptions& options,
                  const std::function<void(const FleetResult&)>& each);

}  // namespace dckpt
