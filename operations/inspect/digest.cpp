#include "operations/inspect/digest.h"

#include <algorithm>
#include <optional>

#include "dist_checkpointing/ranks/shared_work.h"
#include "dist_checkpointing/verify/still_files.h"
#include "mapping/base/error.h"
#include "mapping/base/error_boundary.h"
#include "mapping/base/hash.h"
#include "operations/inspect/extract/render.h"
#include "operations/inspect/stream.h"
#include "strategies/formats/json/json.h"

namespace dckpt {

namespace {

/// The tensors to digest, then the objects, in the order of the metadata.
struct Selection {
  std::vector<std::size_t> tensors{};
  std::vector<std::size_t> objects{};
  std::vector<std::uint64_t> sizes{};  ///< of both

  Selection(const Metadata& metadata, const KeyFilter& keys) {
    keys.check({&metadata});
    for (std::size_t i = 0; i < metadata.tensors.size(); ++i) {
      if (!keys(metadata.tensors[i].key)) continue;
      tensors.push_back(i);
      sizes.push_back(metadata.tensors[i].nbytes());
    }
    for (std::size_t i = 0; i < metadata.objects.size(); ++i) {
      if (!keys.object(metadata.objects[i].key)) continue;
      objects.push_back(i);
      sizes.push_back(metadata.objects[i].place.length);
    }
  }
};

}  // namespace

Digests digest(const CheckpointReader& reader, const DigestOptions& options) {
  return digest(reader, options, *single_rank());
}

Digests digest(const CheckpointReader& reader, const DigestOptions& options,
               Communicator& comm) try {
  const Metadata& metadata = reader.metadata();
  SharedWork work(comm, "computing the digests", options.threads, options.progress);
  const StillFiles still(reader);
  std::optional<Selection> selection;
  work.on_all_ranks([&] { selection.emplace(metadata, options.keys); });
  const std::vector<std::size_t>& tensors = selection->tensors;
  const std::vector<std::size_t>& objects = selection->objects;
  const StreamOptions options_of_stream{
      .piece = options.memory / static_cast<std::uint64_t>(std::max(options.threads, 1))};
  const auto of_tensor = [&](std::size_t tensor) {
    return with_context({.key = metadata.tensors[tensor].key}, [&] {
      Sha256 hash;
      TensorStream stream(reader, tensor, options_of_stream);
      while (const std::optional<Tensor> piece = stream.next()) {
        hash.update(piece->bytes());
        work.add(piece->nbytes());
      }
      return hash.finish_hex();
    });
  };
  const auto of_object = [&](std::size_t object) {
    const BytesStorageMetadata& stored = metadata.objects[object];
    const std::string text =
        with_context({.key = stored.key}, [&] { return to_json(render(reader.object(object))); });
    work.add(stored.place.length);
    return sha256_hex(as_bytes(text));
  };
  const auto found = work.share<std::string>(selection->sizes, [&](std::size_t i) {
    return i < tensors.size() ? of_tensor(tensors[i]) : of_object(objects[i - tensors.size()]);
  });

  work.on_all_ranks([&] { still.require_unchanged(); });
  Digests digests;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const TensorStorageMetadata& tensor = metadata.tensors[tensors[i]];
    digests.tensors.push_back(
        {tensor.key, tensor.properties.dtype, tensor.global_shape(), found[i]});
  }
  for (std::size_t i = 0; i < objects.size(); ++i)
    digests.objects.push_back({metadata.objects[objects[i]].key, found[tensors.size() + i]});
  return digests;
} catch (...) {
  throw_checkpoint_error();
}

}  // namespace dckpt
