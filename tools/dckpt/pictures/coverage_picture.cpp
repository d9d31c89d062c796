#include "tools/dckpt/pictures/coverage_picture.h"

#include <algorithm>
#include <string>
#include <vector>

#include "mapping/planning/validate.h"
#include "operations/inspect/rank_of_file.h"
#include "tools/dckpt/pictures/grid.h"

namespace dckpt::tool {

Picture coverage_picture(const Metadata& metadata, std::string_view key,
                         const PictureStyle& style) {
  const TensorStorageMetadata* const tensor = metadata.find_tensor(key);
  if (tensor == nullptr) return {};
  const std::vector<CoverageProblem> problems = validate_coverage(*tensor);
  const auto shown = std::ranges::find_if(
      problems, [](const CoverageProblem& problem) { return problem.region.has_value(); });
  if (shown == problems.end()) return {};
  std::vector<GridPiece> pieces;
  for (std::size_t i = 0; i < tensor->chunks.size(); ++i) {
    const std::uint32_t file = tensor->places[i].file;
    const std::optional<int> rank = rank_of_file(metadata.files[file]);
    pieces.push_back(
        {tensor->chunks[i], std::to_string(rank ? static_cast<std::uint32_t>(*rank) : file)});
  }
  return grid(tensor->size, pieces, style, shown->region->offsets);
}

}  // namespace dckpt::tool
