#pragma once

/// Marks the namespaces whose names are visible outside the shared library. Everything else is
/// hidden (cmake/DckptOptions.cmake).
#define DCKPT_API [[gnu::visibility("default")]]
