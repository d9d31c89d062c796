// layout_parts: prints the part of a tensor on every rank of a mesh, for the comparison with torch
// in test_layouts.py. It reads one case per line of standard input, in words: "shape 9 10 mesh 2 2
// place R S 0 SS 0 2 order 1 0". It prints one line of JSON per case: per rank of the mesh
// {"shape", "replica", "pieces": [[offsets, sizes, local offsets], …]}.

#include <cstdio>
#include <exception>
#include <iostream>
#include <sstream>
#include <string>

#include "mapping/geometry/layout.h"

namespace {

using namespace dckpt;

struct Case {
  Shape shape;
  Shape mesh;
  std::vector<Placement> placements;
  std::vector<std::size_t> order;
};

Case parse(const std::string& line) {
  Case parsed;
  std::istringstream words(line);
  std::string section;
  std::int64_t dim = 0, split_factor = 0;
  for (std::string word; words >> word;) {
    if (word == "shape" || word == "mesh" || word == "place" || word == "order")
      section = word;
    else if (section == "shape")
      parsed.shape.push_back(std::stoll(word));
    else if (section == "mesh")
      parsed.mesh.push_back(std::stoll(word));
    else if (section == "order")
      parsed.order.push_back(std::stoull(word));
    else if (word == "R")
      parsed.placements.emplace_back(Replicate{});
    else if (word == "S" && words >> dim)
      parsed.placements.emplace_back(Shard{dim});
    else if (word == "SS" && words >> dim >> split_factor)
      parsed.placements.emplace_back(StridedShard{dim, split_factor});
    else
      throw std::invalid_argument("'" + word + "' in '" + line + "'");
  }
  return parsed;
}

std::string list(ShapeView numbers) {
  std::string out = "[";
  for (const std::int64_t number : numbers)
    out += (out.size() > 1 ? "," : "") + std::to_string(number);
  return out + "]";
}

std::string render(const LocalPart& part) {
  std::string pieces;
  for (const LocalPiece& piece : part.pieces) {
    pieces += (pieces.empty() ? "[" : ",[") + list(piece.box.offsets) + "," +
              list(piece.box.sizes) + "," + list(piece.local_offsets) + "]";
  }
  return "{\"shape\":" + list(part.shape) + ",\"replica\":" + std::to_string(part.replica) +
         ",\"pieces\":[" + pieces + "]}";
}

}  // namespace

int main() {
  try {
    for (std::string line; std::getline(std::cin, line);) {
      Case parsed = parse(line);
      const MeshLayout layout{DeviceMesh(parsed.mesh), parsed.placements, parsed.order};
      std::string ranks;
      for (int rank = 0; rank < layout.mesh.size(); ++rank)
        ranks +=
            (ranks.empty() ? "" : ",") + render(local_part(layout, parsed.shape, rank).value());
      std::cout << '[' << ranks << "]\n";
    }
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "layout_parts: %s\n", error.what());
    return 1;
  }
}
