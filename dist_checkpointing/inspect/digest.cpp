#include "dist_checkpointing/inspect/digest.h"

#include <algorithm>

#include "dist_checkpointing/inspect/extract/render.h"
#include "dist_checkpointing/inspect/stream.h"
#include "mapping/base/error.h"
#include "mapping/base/error_boundary.h"
#include "mapping/base/hash.h"
#include "mapping/base/parallel_for.h"
#include "strategies/formats/json/json.h"

namespace dckpt {

Digests digest(const CheckpointReader& reader, const DigestOptions& options) try {
  const Metadata& metadata = reader.metadata();
  options.keys.check({&metadata});
  std::vector<std::size_t> tensors;
  std::vector<std::size_t> objects;
  std::uint64_t total = 0;
  for (std::size_t i = 0; i < metadata.tensors.size(); ++i) {
    if (!options.keys(metadata.tensors[i].key)) continue;
    tensors.push_back(i);
    total += metadata.tensors[i].nbytes();
  }
  for (std::size_t i = 0; i < metadata.objects.size(); ++i) {
    if (!options.keys.object(metadata.objects[i].key)) continue;
    objects.push_back(i);
    total += metadata.objects[i].place.length;
  }

  Digests digests;
  digests.tensors.resize(tensors.size());
  digests.objects.resize(objects.size());
  ProgressCounter progress(options.progress, total);
  const StreamOptions options_of_stream{
      .piece = options.memory / static_cast<std::uint64_t>(std::max(options.threads, 1))};
  parallel_for(tensors.size(), options.threads, [&](std::size_t i) {
    const TensorStorageMetadata& tensor = metadata.tensors[tensors[i]];
    with_context({.key = tensor.key}, [&] {
      Sha256 hash;
      TensorStream stream(reader, tensors[i], options_of_stream);
      while (const std::optional<Tensor> piece = stream.next()) {
        hash.update(piece->bytes());
        progress.add(piece->nbytes());
      }
      digests.tensors[i] = {tensor.key, tensor.properties.dtype, tensor.global_shape(),
                            hash.finish_hex()};
    });
  });
  parallel_for(objects.size(), options.threads, [&](std::size_t i) {
    const BytesStorageMetadata& object = metadata.objects[objects[i]];
    with_context({.key = object.key}, [&] {
      const std::string text = to_json(render(reader.object(objects[i])));
      digests.objects[i] = {object.key, sha256_hex(as_bytes(text))};
    });
    progress.add(object.place.length);
  });
  return digests;
} catch (...) {
  throw_checkpoint_error();
}

}  // namespace dckpt
