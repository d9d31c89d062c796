#pragma once

#include "mapping/base/error.h"

namespace dckpt {

/// The exception that is being handled, as the library reports it: memory that is not there and
/// what the standard library throws about files and threads are (io), all else that is no
/// CheckpointError is (internal); its cause() is the exception itself. Only inside a catch block.
CheckpointError current_error();

/// The last handler of every public function, so that nothing but CheckpointErrors leave it:
///
///     Report f() try { … } catch (...) { throw_checkpoint_error(); }
[[noreturn]] void throw_checkpoint_error();

}  // namespace dckpt
