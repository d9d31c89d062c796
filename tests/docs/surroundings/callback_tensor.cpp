// A trainer whose elements lie in tiles of four.
#include <dckpt/dist_checkpointing.h>

#include <cstdlib>
#include <cstring>
#include <vector>

namespace {
struct Tiles {
  std::vector<float> memory = std::vector<float>(24);
  float& at(std::uint64_t i) { return memory[(i / 4 * 4) + 3 - i % 4]; }
  std::size_t get(std::uint64_t offset, dckpt::MutableByteView to) {
    for (std::size_t i = 0; i < to.size(); i += 4) std::memcpy(&to[i], &at((offset + i) / 4), 4);
    return to.size();
  }
  std::size_t put(std::uint64_t offset, dckpt::ByteView from) {
    for (std::size_t i = 0; i < from.size(); i += 4) std::memcpy(&at((offset + i) / 4), &from[i], 4);
    return from.size();
  }
};
}  // namespace

void SNIPPET() {
  Tiles tiles;
  for (std::uint64_t i = 0; i < 24; ++i) tiles.at(i) = static_cast<float>(i);
  const std::int64_t rows = 4, columns = 6;
  dckpt::StateDict state;
  {
BLOCK
  }
  dckpt::save(state, "SNIPPET");
  const auto stored = dckpt::load_plain_tensors("SNIPPET").at("weight").as_tensor();
  for (int i = 0; i < 24; ++i)
    if (stored.data<float>()[i] != static_cast<float>(i)) std::abort();
  tiles.memory.assign(24, 0);
  dckpt::load(state, "SNIPPET");
  if (tiles.at(23) != 23) std::abort();
}
