// The locations of chunk elements that another rank reports, in a load that ranks share.

#include <cstdint>
#include <cstdlib>
#include <vector>

#include "mapping/base/error.h"
#include "strategies/parallel/located_reader.h"
#include "tests/dist_checkpointing/fake_reader.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const dckpt::testing::FakeReader base = [] {
    dckpt::testing::FakeReader reader;
    reader.tensor("a", dckpt::DType::kFloat32, {4, 8}, dckpt::testing::counting<float>(32),
                  {{{0, 0}, {2, 8}}, {{2, 0}, {2, 8}}});
    reader.write();
    return reader;
  }();
  const auto* const bytes = reinterpret_cast<const std::byte*>(data);
  const std::vector<dckpt::LoadDistribution::SplitChunk> chunks = {{{0, 0}, 0}, {{0, 1}, 0}};
  try {
    dckpt::LocatedReader reader(base);
    const auto strided = reader.learn(chunks, std::vector<dckpt::Bytes>{{bytes, bytes + size}, {}});
    const auto file = base.storage().open("data");
    dckpt::Bytes content(64);
    for (std::size_t chunk = 0; chunk < 2; ++chunk)
      file->read(reader.locate(0, chunk, *file).offset, content);
    if (strided.size() > 2) std::abort();
  } catch (const dckpt::CheckpointError&) {
  }
  return 0;
}
