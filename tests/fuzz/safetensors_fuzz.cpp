#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include "mapping/base/error.h"
#include "strategies/formats/safetensors/dcp_sharding.h"
#include "strategies/formats/safetensors/header.h"
#include "strategies/formats/safetensors/index.h"
#include "tests/fuzz/input_file.h"

/// Reads bytes as a safetensors file and as an index; accepted ones must survive writing and
/// reading.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace dckpt;
  const ByteView bytes{reinterpret_cast<const std::byte*>(data), size};
  try {
    const InputFile file(data, size);
    const SafetensorsHeader header = read_safetensors_header(file).header;
    std::uint64_t total = 0;
    for (const SafetensorsTensor& tensor : header.tensors) total += tensor.nbytes();
    const Bytes again = write_safetensors_header(header);
    const ByteView json = ByteView(again).subspan(kSafetensorsLengthBytes);
    if (!(parse_safetensors_header(json, total, "again") == header)) std::abort();
    if (const std::string* const sharding = header.find_metadata(kDcpShardingInfo))
      parse_dcp_sharding(*sharding, "fuzz");
  } catch (const CheckpointError&) {
  }
  try {
    const SafetensorsIndex index = parse_safetensors_index(bytes, "fuzz");
    const std::string again = write_safetensors_index(index, 1);
    if (parse_safetensors_index(as_bytes(again), "again").weight_map.size() !=
        index.weight_map.size())
      std::abort();
  } catch (const CheckpointError&) {
  }
  return 0;
}
