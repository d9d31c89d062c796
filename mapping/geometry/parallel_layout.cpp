#include "mapping/geometry/parallel_layout.h"

#include <algorithm>
#include <array>
#include <climits>
#include <optional>

#include "mapping/base/checked.h"
#include "mapping/base/counted.h"
#include "mapping/base/error.h"

namespace dckpt {
namespace {

struct Dim {
  std::string name;
  int size = 1;
};
using Dims = std::vector<Dim>;

/// Returns text such as "tp 2 · pp 3".
std::string dims_text(const Dims& dims) {
  std::string out;
  for (const Dim& dim : dims)
    out += str_format("{}{} {}", out.empty() ? "" : " · ", dim.name, dim.size);
  return out;
}

std::string lower(std::string_view text) {
  std::string out(text);
  std::transform(out.begin(), out.end(), out.begin(), [](char c) {
    return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  });
  return out;
}

/// Returns the product, which fits in an int. Checks that every size is positive.
int product(const Dims& dims) {
  int ranks = 1;
  for (const Dim& dim : dims) {
    if (dim.size < 1)
      throw_error(ErrorCode::kInvalidArgument,
                  "the parallel layout has {} = {}; sizes are at least 1", dim.name, dim.size);
    const std::optional<int> more = checked_mul(ranks, dim.size);
    if (!more)
      throw_error(ErrorCode::kInvalidArgument, "{} ranks are more than an int can count",
                  dims_text(dims));
    ranks = *more;
  }
  return ranks;
}

/// Returns the names in "tp-cp", each of them one of `dims` and present once.
std::vector<std::string> names_in(std::string_view text, const Dims& dims, std::string_view what) {
  std::vector<std::string> names = split(lower(text), '-');
  for (std::size_t i = 0; i < names.size(); ++i) {
    const bool known =
        std::any_of(dims.begin(), dims.end(), [&](const Dim& dim) { return dim.name == names[i]; });
    if (!known) {
      std::string all;
      for (const Dim& dim : dims) all += (all.empty() ? "" : ", ") + dim.name;
      throw_error(ErrorCode::kInvalidArgument,
                  "{} in the {} {} is not a parallel dimension; these are joined by '-': {}",
                  quote(names[i]), what, quote(text), all);
    }
    if (std::find(names.begin(), names.begin() + static_cast<std::ptrdiff_t>(i), names[i]) !=
        names.begin() + static_cast<std::ptrdiff_t>(i)) {
      throw_error(ErrorCode::kInvalidArgument, "the {} {} has {} twice", what, quote(text),
                  names[i]);
    }
  }
  return names;
}

/// The ranks as a grid whose first dimension varies fastest.
class Grid {
 public:
  Grid(const Dims& dims, std::string_view order, std::string_view whose) {
    const std::vector<std::string> names = names_in(order, dims, "order");
    for (const std::string& name : names) {
      dims_.push_back(*std::find_if(dims.begin(), dims.end(),
                                    [&](const Dim& dim) { return dim.name == name; }));
    }
    for (const Dim& dim : dims) {
      if (std::find(names.begin(), names.end(), dim.name) != names.end()) continue;
      if (dim.size != 1)
        throw_error(ErrorCode::kInvalidArgument, "the order {} lacks {}, whose size{} is {}",
                    quote(order), dim.name, whose, dim.size);
      dims_.push_back(dim);
    }
  }

  int size() const { return product(dims_); }

  int stride(std::string_view name) const {
    int stride = 1;
    for (const Dim& dim : dims_) {
      if (dim.name == name) return stride;
      stride *= dim.size;
    }
    return stride;
  }
  int coordinate(int rank, std::string_view name) const {
    return rank / stride(name) % find(name).size;
  }
  /// Returns the position of a rank in its group along `names`.
  int position(int rank, std::string_view names) const {
    int position = 0, stride = 1;
    const std::vector<std::string> along = names_in(names, dims_, "dimensions");
    for (const Dim& dim : dims_) {
      if (std::find(along.begin(), along.end(), dim.name) == along.end()) continue;
      position += coordinate(rank, dim.name) * stride;
      stride *= dim.size;
    }
    return position;
  }
  /// Returns for each rank the first rank of its group.
  std::vector<int> leaders(std::string_view names) const {
    std::vector<std::pair<int, int>> along;  // stride and size
    for (const std::string& name : names_in(names, dims_, "dimensions"))
      along.emplace_back(stride(name), find(name).size);
    std::vector<int> leaders(static_cast<std::size_t>(size()));
    for (int rank = 0; rank < static_cast<int>(leaders.size()); ++rank) {
      int& leader = leaders[static_cast<std::size_t>(rank)] = rank;
      for (const auto& [step, count] : along) leader -= rank / step % count * step;
    }
    return leaders;
  }

 private:
  const Dim& find(std::string_view name) const {
    return *std::find_if(dims_.begin(), dims_.end(),
                         [&](const Dim& dim) { return dim.name == name; });
  }

  Dims dims_;
};

struct Grids {
  ParallelLayout layout;
  Grid dense, experts;
};

/// Returns the arrangement of `world_size` ranks, or of as many as the layout has.
Grids arrange(ParallelLayout layout, std::optional<int> world_size) {
  const Dims model{{"tp", layout.tp}, {"cp", layout.cp}, {"pp", layout.pp}};
  const int together = product(model);
  if (layout.dp == 0) {
    if (!world_size)
      throw_error(ErrorCode::kInvalidArgument,
                  "the parallel layout has dp = 0; take the layout of parallel_rank(), where dp is "
                  "what the number of ranks leaves");
    if (*world_size < 1 || *world_size % together != 0)
      throw_error(ErrorCode::kInvalidArgument, "{} not divide by {} = {}",
                  counted(*world_size, "rank does", "ranks do"), dims_text(model), together);
    layout.dp = *world_size / together;
  }
  const Dims dense{{"tp", layout.tp}, {"cp", layout.cp}, {"dp", layout.dp}, {"pp", layout.pp}};
  const int ranks = product(dense);
  if (world_size && *world_size != ranks) {
    throw_error(ErrorCode::kInvalidArgument,
                "the parallel layout {} has {}, but the job has {}; dp = 0 takes what "
                "the other sizes leave",
                dims_text(dense), counted(ranks, "rank"), *world_size);
  }
  if (layout.etp == 0) layout.etp = layout.tp;
  const Dims cut{{"etp", layout.etp}, {"ep", layout.ep}, {"pp", layout.pp}};
  if (const int experts = product(cut); ranks % experts != 0)
    throw_error(ErrorCode::kInvalidArgument,
                "{} not divide by {} = {}, the ranks that share the experts",
                counted(ranks, "rank does", "ranks do"), dims_text(cut), experts);
  const int edp = ranks / product(cut);
  Grids grids{
      layout,
      Grid({{"tp", layout.tp}, {"cp", layout.cp}, {"ep", 1}, {"dp", layout.dp}, {"pp", layout.pp}},
           layout.order, ""),
      Grid({{"tp", layout.etp}, {"cp", 1}, {"ep", layout.ep}, {"dp", edp}, {"pp", layout.pp}},
           layout.order, " for experts")};
  if (layout.pp > 1 && grids.dense.stride("pp") != grids.experts.stride("pp")) {
    throw_error(ErrorCode::kInvalidArgument,
                "with the order {}, ranks of one pipeline stage would share experts with "
                "those of another ({}; experts: {} · dp {}); put pp last",
                quote(layout.order), dims_text(dense), dims_text(cut), edp);
  }
  return grids;
}

}  // namespace

int ParallelRank::copies() const {
  return layout.dp * layout.cp;
}

int ParallelRank::expert_copies() const {
  return layout.tp * layout.cp * layout.dp / (layout.etp * layout.ep);
}

ParallelRank parallel_rank(const ParallelLayout& layout, int rank, int world_size) {
  const Grids grids = arrange(layout, world_size);
  if (rank < 0 || rank >= world_size)
    throw_error(ErrorCode::kInvalidArgument, "rank {} is out of range (the job has {})", rank,
                counted(world_size, "rank"));
  const auto dense = [&](std::string_view dims) { return grids.dense.position(rank, dims); };
  const auto experts = [&](std::string_view dims) { return grids.experts.position(rank, dims); };
  return {.layout = grids.layout,
          .rank = rank,
          .tp = dense("tp"),
          .cp = dense("cp"),
          .dp = dense("dp"),
          .pp = dense("pp"),
          .dp_cp = dense("dp-cp"),
          .etp = experts("tp"),
          .ep = experts("ep"),
          .edp = experts("dp")};
}

std::vector<std::vector<int>> parallel_groups(const ParallelLayout& layout, std::string_view dims,
                                              RankGrid grid) {
  const Grids grids = arrange(layout, std::nullopt);
  const std::vector<int> leaders =
      (grid == RankGrid::kDense ? grids.dense : grids.experts).leaders(dims);
  std::vector<std::vector<int>> groups;
  std::vector<std::size_t> group_of(leaders.size());
  for (std::size_t rank = 0; rank < leaders.size(); ++rank) {
    const auto leader = static_cast<std::size_t>(leaders[rank]);
    if (leader == rank) {
      group_of[rank] = groups.size();
      groups.emplace_back();
    }
    groups[group_of[leader]].push_back(static_cast<int>(rank));
  }
  return groups;
}

std::vector<int> parallel_group(const ParallelRank& rank, std::string_view dims, RankGrid grid) {
  for (std::vector<int>& group : parallel_groups(rank.layout, dims, grid))
    if (std::find(group.begin(), group.end(), rank.rank) != group.end()) return std::move(group);
  throw_error(ErrorCode::kInvalidArgument, "rank {} is not in the layout of its position",
              rank.rank);
}

LayerRange pipeline_layers(const ParallelRank& rank, std::int64_t layers, std::int64_t chunk,
                           std::int64_t chunks) {
  const std::int64_t stages = rank.layout.pp;
  if (chunks < 1 || chunk < 0 || chunk >= chunks)
    throw_error(ErrorCode::kInvalidArgument, "model chunk {} of {} does not exist", chunk, chunks);
  if (layers < 0 || layers % stages != 0 || layers / stages % chunks != 0) {
    throw_error(ErrorCode::kInvalidArgument, "{} not divide by {} of {}",
                counted(layers, "layer does", "layers do"), counted(stages, "pipeline stage"),
                counted(chunks, "model chunk"));
  }
  const std::int64_t count = layers / stages / chunks;
  return {(chunk * stages + rank.pp) * count, count};
}

}  // namespace dckpt
