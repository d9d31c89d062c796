#pragma once

/// The release that these headers are of.
#define DCKPT_VERSION_MAJOR 0
#define DCKPT_VERSION_MINOR 1
#define DCKPT_VERSION_PATCH 0
