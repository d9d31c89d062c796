#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include "mapping/base/error.h"
#include "mapping/planning/validate.h"
#include "operations/convert/removal/metadata_filter.h"
#include "strategies/formats/dcp/metadata_reader.h"
#include "strategies/formats/dcp/metadata_writer.h"

/// Reads bytes as DCP metadata. Metadata read as rows must read the same as nodes. Accepted
/// metadata must be sound, and survive writing and reading. Without some of its keys it is refused,
/// or reads as metadata that may lack more than these keys (crafted pickles share containers), but
/// never has them.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace dckpt;
  const ByteView bytes{reinterpret_cast<const std::byte*>(data), size};
  if (const auto rows = read_metadata_rows(bytes)) {
    if (write_dcp_metadata(*rows) != write_dcp_metadata(read_metadata_nodes(bytes))) std::abort();
  }
  Metadata metadata;
  try {
    metadata = read_dcp_metadata(bytes);
  } catch (const CheckpointError&) {
    return 0;
  }
  for (const TensorStorageMetadata& tensor : metadata.tensors) {
    for (const CoverageProblem& problem : validate_coverage(tensor)) {
      const bool irregular = problem.message.find("cannot be checked") != std::string::npos;
      if (problem.code == FindingCode::kBoxesContradict && !irregular) std::abort();
    }
  }
  const Metadata again = read_dcp_metadata(write_dcp_metadata(metadata));
  if (again.tensors.size() != metadata.tensors.size() ||
      again.objects.size() != metadata.objects.size())
    std::abort();
  for (std::size_t i = 0; i < again.tensors.size(); ++i) {
    if (again.tensors[i].key != metadata.tensors[i].key ||
        again.tensors[i].chunks != metadata.tensors[i].chunks)
      std::abort();
  }
  const auto removed = [](std::string_view key) { return key.size() % 2 == 0; };
  try {
    const Metadata less = read_dcp_metadata(without_keys(bytes, removed));
    for (const TensorStorageMetadata& tensor : less.tensors) {
      if (removed(tensor.key)) std::abort();
    }
  } catch (const CheckpointError&) {
    return 0;
  }
  return 0;
}
