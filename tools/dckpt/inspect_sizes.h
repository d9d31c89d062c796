#pragma once

#include "dist_checkpointing/inspect/inspect.h"
#include "tools/dckpt/pictures/picture.h"
#include "tools/dckpt/table.h"

namespace dckpt::tool {

/// Adds each group's share of the bytes as a bar to the table of the groups, where there are
/// several and the terminal is wide enough.
void add_bars(const CheckpointSummary& summary, Table& groups);

/// The sizes of layers as bars, neighbors of one size together; none for fewer than two layers.
Picture layer_bars(const CheckpointSummary& summary, const PictureStyle& style);
void print_layers(const CheckpointSummary& summary);

}  // namespace dckpt::tool
