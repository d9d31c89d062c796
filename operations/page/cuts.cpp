#include "operations/page/cuts.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <set>
#include <utility>

namespace dckpt {
namespace {

/// The limit of all entries together, in bytes. 262 144 chunks that form no grids fit.
constexpr std::size_t kMostBytes = std::size_t{9} << 18;

using Order = std::vector<std::uint32_t>;

std::uint64_t unsigned_of(std::int64_t number) {
  return static_cast<std::uint64_t>(number);
}

/// Sorts the chunks by their offsets, as in C order.
Order sorted_chunks(const BoxList& chunks) {
  Order order(chunks.size());
  std::iota(order.begin(), order.end(), 0U);
  std::ranges::stable_sort(order, [&](std::uint32_t a, std::uint32_t b) {
    return std::ranges::lexicographical_compare(chunks.offsets(a), chunks.offsets(b));
  });
  return order;
}

/// Returns the sizes of the pieces along each axis; empty if the chunks, in this order, are not the
/// cells of a grid that covers the tensor.
std::optional<std::vector<Shape>> grid_of(const TensorStorageMetadata& tensor, const Order& order) {
  std::vector<Shape> grid;
  std::vector<Shape> starts;
  for (std::size_t axis = 0; axis < tensor.size.size(); ++axis) {
    std::set<std::pair<std::int64_t, std::int64_t>> pieces;
    for (std::size_t chunk = 0; chunk < order.size(); ++chunk)
      pieces.emplace(tensor.chunks.offsets(chunk)[axis], tensor.chunks.sizes(chunk)[axis]);
    std::int64_t end = 0;
    grid.emplace_back();
    starts.emplace_back();
    for (const auto& [offset, size] : pieces) {
      if (offset != end) return std::nullopt;
      starts.back().push_back(offset);
      grid.back().push_back(size);
      end += size;
    }
    if (end != tensor.size[axis]) return std::nullopt;
  }
  std::size_t cells = 1;
  for (const Shape& pieces : grid) {
    if (pieces.empty() || pieces.size() > order.size() / cells) return std::nullopt;
    cells *= pieces.size();
  }
  if (cells != order.size()) return std::nullopt;
  for (std::size_t cell = 0; cell < cells; ++cell) {
    std::size_t rest = cell;
    for (std::size_t axis = grid.size(); axis-- > 0; rest /= starts[axis].size())
      if (tensor.chunks.offsets(order[cell])[axis] != starts[axis][rest % starts[axis].size()])
        return std::nullopt;
  }
  return grid;
}

void add_grid(const std::vector<Shape>& grid, NumberColumn& out) {
  for (const Shape& pieces : grid) {
    out.add(pieces.size());
    for (const std::int64_t size : pieces) out.add(unsigned_of(size));
  }
}

void add_boxes(const TensorStorageMetadata& tensor, const Order& order, NumberColumn& out) {
  out.add(order.size());
  for (const std::uint32_t chunk : order) {
    for (std::size_t axis = 0; axis < tensor.size.size(); ++axis) {
      const std::int64_t offset = tensor.chunks.offsets(chunk)[axis];
      out.add(unsigned_of(offset));
      out.add(unsigned_of(tensor.size[axis] - offset - tensor.chunks.sizes(chunk)[axis]));
    }
  }
}

}  // namespace

CutTable::Cut CutTable::add(const TensorStorageMetadata& tensor) {
  Cut cut{.order = sorted_chunks(tensor.chunks)};
  NumberColumn head;
  head.add(tensor.size.size());
  for (const std::int64_t extent : tensor.size) head.add(unsigned_of(extent));
  NumberColumn entry = head;
  const auto grid = grid_of(tensor, cut.order);
  entry.add(grid ? 1 : 2);
  grid ? add_grid(*grid, entry) : add_boxes(tensor, cut.order, entry);
  if (entries_.bytes().size() + entry.bytes().size() > kMostBytes &&
      !numbers_.contains(entry.bytes())) {
    ++left_out_;
    entry = head;
    entry.add(0);
    entry.add(cut.order.size());
  }
  const auto [known, added] = numbers_.emplace(entry.bytes(), numbers_.size());
  if (added) entries_.append(entry.bytes());
  cut.number = known->second;
  return cut;
}

}  // namespace dckpt
