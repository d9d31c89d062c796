#pragma once

namespace dckpt {

/// The calling thread, and the threads that it starts from now on, leave the processors to others
/// that want them (nice 10): they get about a tenth of what another thread gets there. Cannot be
/// undone without privileges.
void lower_priority_of_thread() noexcept;

}  // namespace dckpt
