#pragma once

namespace dckpt {

/// Throws CheckpointError (invalid argument) for a planner that uses its setup out of time.
[[noreturn]] void throw_no_setup();

}  // namespace dckpt
