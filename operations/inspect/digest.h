#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "dist_checkpointing/open/key_filter.h"
#include "mapping/base/api.h"
#include "mapping/base/progress.h"
#include "strategies/comm/communicator.h"
#include "strategies/contract/reader.h"

namespace DCKPT_API dckpt {

/// SHA-256, in hex, of a whole tensor's elements: global shape, row-major, little-endian. The same
/// values give the same digest in every format and every sharding.
struct TensorDigest {
  std::string key;
  DType dtype = DType::kFloat32;
  Shape shape;
  std::string sha256;
};

/// SHA-256, in hex, of an object's value, as the JSON text that render() produces. The same value
/// gives the same digest in every format, however it was pickled.
struct ObjectDigest {
  std::string key;
  std::string sha256;
};

struct Digests {
  std::vector<TensorDigest> tensors;
  std::vector<ObjectDigest> objects;
};

struct DigestOptions {
  KeyFilter keys{};
  int threads = 2;
  std::uint64_t memory = std::uint64_t{128}
                         << 20;  ///< bytes of tensors in memory at a time, over all threads
  Progress progress{};
};

/// Returns digests in the order of the metadata. Throws CheckpointError if a tensor is not covered
/// exactly or anything cannot be read.
[[nodiscard]] Digests digest(const CheckpointReader& reader, const DigestOptions& options = {});

/// Does the same with the ranks of a job, which have opened the same checkpoint: they divide the
/// tensors and objects by bytes, and all get the same digests. Collective; an error on one rank is
/// thrown on all.
[[nodiscard]] Digests digest(const CheckpointReader& reader, const DigestOptions& options,
                             Communicator& comm);

}  // namespace dckpt
