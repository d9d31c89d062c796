#pragma once

#include <gmock/gmock.h>

#include <filesystem>
#include <functional>
#include <string>

#include "dist_checkpointing/load/load.h"
#include "dist_checkpointing/save/save.h"
#include "mapping/base/error.h"
#include "strategies/comm/threads.h"
#include "tests/support/arange.h"
#include "tests/support/temp_dir.h"

namespace dckpt {

/// A folder for checkpoints that ranks, as threads, save and load.
class SaveLoad : public ::testing::Test {
 protected:
  std::filesystem::path checkpoint(const std::string& name = "checkpoint") const {
    return directory_.path() / name;
  }

  void save_on(int ranks, const std::function<StateDict(int rank)>& state,
               const SaveOptions& options = {}) {
    run_ranks(ranks,
              [&](Communicator& comm) { save(state(comm.rank()), checkpoint(), options, comm); });
  }

  std::string error_of(const std::function<void()>& action) {
    try {
      action();
    } catch (const CheckpointError& error) {
      return error.what();
    }
    return "no error";
  }

  TempDir directory_;
};

}  // namespace dckpt
