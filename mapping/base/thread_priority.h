#pragma once

namespace dckpt {

/// Lowers the priority (nice 10) of the calling thread and of the threads that it starts from now
/// on: where other threads want the processors, they get about a tenth of the time of one of those.
/// This cannot be undone without privileges.
void lower_priority_of_thread() noexcept;

}  // namespace dckpt
