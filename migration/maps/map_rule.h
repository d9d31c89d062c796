#pragma once

#include <string>
#include <vector>

#include "mapping/base/api.h"

namespace DCKPT_API dckpt {

/// What a map does with one key.
struct MapRule {
  std::string map;                  ///< its family
  std::string row{};                ///< Megatron's key of the row that touches it
  std::string file{};               ///< where the row is: a shipped map's name, or a path
  int line = 0;                     ///< from 1
  std::vector<std::string> from{};  ///< keys of the checkpoint
  std::vector<std::string> to{};    ///< keys that are made of them
  std::string dropped{};            ///< why; then there is no row
};

}  // namespace dckpt
