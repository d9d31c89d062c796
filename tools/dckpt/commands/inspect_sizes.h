#pragma once

#include "operations/inspect/inspect.h"
#include "tools/dckpt/render/picture.h"
#include "tools/dckpt/render/table.h"

namespace dckpt::tool {

/// Adds each group's share of the bytes as a bar to the table of groups, if there are several
/// groups and the terminal is wide enough.
void add_bars(const CheckpointSummary& summary, Table& groups);

/// Draws the sizes of layers as bars, with adjacent layers of equal size in one bar. Returns an
/// empty picture for fewer than two layers.
Picture layer_bars(const CheckpointSummary& summary, const PictureStyle& style);
void print_layers(const CheckpointSummary& summary);

}  // namespace dckpt::tool
