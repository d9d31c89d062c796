#pragma once

#include "mapping/base/api.h"
#include "mapping/base/error.h"

namespace DCKPT_API dckpt {

/// Returns the exception being handled as the library reports it: out of memory, and the standard
/// library's errors about files and threads, are (io); anything else that is not a CheckpointError
/// is (internal), with the exception as its cause(). If the description takes more memory than
/// there is, the error is the one about that. Call it only inside a catch block.
CheckpointError current_error() noexcept;

/// The last handler of every public function, so that it throws only CheckpointErrors:
///
///     Report f() try { … } catch (...) { throw_checkpoint_error(); }
[[noreturn]] void throw_checkpoint_error();

}  // namespace dckpt
