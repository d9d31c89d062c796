#pragma once

#include <string>
#include <vector>

#include "mapping/base/api.h"

namespace DCKPT_API dckpt {

/// The treatment of one key by a map.
struct MapRule {
  std::string map;                  ///< the map's family
  std::string row{};                ///< Megatron's key of the row that touches it
  std::string file{};               ///< file of the row: a shipped map's name, or a path
  int line = 0;                     ///< line of the row, from 1
  std::vector<std::string> from{};  ///< keys of the checkpoint
  std::vector<std::string> to{};    ///< keys that are made of them
  std::string dropped{};            ///< why the key is dropped; then there is no row
};

}  // namespace dckpt
