#pragma once

/// The release of these headers.
#define DCKPT_VERSION_MAJOR 0
#define DCKPT_VERSION_MINOR 1
#define DCKPT_VERSION_PATCH 0
