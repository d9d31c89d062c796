#pragma once

#include <string>
#include <vector>

#include "operations/upkeep/fleet.h"
#include "tools/dckpt/grammar/parser.h"

namespace dckpt::tool {

/// The options of `verify` for many checkpoints.
struct FleetArguments {
  std::string list;   ///< file with a path in each line; "-" for stdin; empty: no fleet
  std::string state;  ///< empty: none
  FleetOptions verify;
};

/// Adds --fleet, --state and --max-rate. --fleet excludes `others`.
void add_fleet(Parser command, FleetArguments& arguments, const std::vector<Option>& others);

/// Verifies the fleet and prints a line for each checkpoint, as text or as JSON. Returns the
/// largest exit code.
int run_fleet(const FleetArguments& arguments, bool json);

}  // namespace dckpt::tool
