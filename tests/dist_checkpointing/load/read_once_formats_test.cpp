// Ranks that load together read the chunks of every format once.

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <numeric>
#include <vector>

#include "dist_checkpointing/open/open.h"
#include "strategies/comm/threads.h"
#include "strategies/formats/torch_archive/torch_file.h"
#include "strategies/legacy_torch/legacy_reader.h"
#include "strategies/parallel/parallel_read.h"
#include "strategies/storage/counting.h"
#include "strategies/storage/memory.h"
#include "strategies/zarr/zarr_reader.h"
#include "tests/support/arange.h"
#include "tests/support/golden.h"

namespace dckpt::read_once_formats_test {
namespace {

/// Files in memory whose reads are counted.
struct CountedFiles {
  std::shared_ptr<StorageCounters> counters = std::make_shared<StorageCounters>();
  std::shared_ptr<Storage> memory = memory_storage();
  std::shared_ptr<Storage> counted = counting_storage(memory, counters);

  void write(const std::string& name, ByteView content) const {
    const auto file = memory->create(name);
    file->append(content);
    file->close();
  }
};

/// Returns rank r's share of an axis.
Box share_of(const Shape& shape, std::size_t axis, int rank, int ranks) {
  Box box = whole(shape);
  box.offsets[axis] = shape[axis] * rank / ranks;
  box.sizes[axis] = shape[axis] * (rank + 1) / ranks - box.offsets[axis];
  return box;
}

/// Loads every rank's share of one axis of every tensor, and compares the result with a serial
/// read.
void load_shares(const CheckpointReader& reader, int ranks, bool last_axis) {
  const std::vector<TensorStorageMetadata>& tensors = reader.metadata().tensors;
  std::vector<Tensor> expected;
  for (std::size_t tensor = 0; tensor < tensors.size(); ++tensor)
    expected.push_back(read_box(reader, tensor, whole(tensors[tensor].global_shape())));
  run_ranks(ranks, [&](Communicator& comm) {
    std::vector<WantedShard> wanted;
    std::vector<Tensor> destinations;
    for (std::uint32_t i = 0; i < tensors.size(); ++i) {
      const Shape& shape = tensors[i].global_shape();
      const Box box = shape.empty()
                          ? Box{}
                          : share_of(shape, last_axis ? shape.size() - 1 : 0, comm.rank(), ranks);
      wanted.push_back({.tensor = i, .destination = i, .box = box});
      destinations.push_back(Tensor::zeros(tensors[i].properties.dtype, box.sizes));
    }
    read_tensors_parallel(reader, plan_reads(reader.metadata(), wanted), destinations, comm,
                          {.exchange = Exchange::kAllToAll});
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      Tensor part = expected[i];
      for (std::size_t axis = 0; axis < wanted[i].box.dims(); ++axis)
        part = part.narrow(axis, wanted[i].box.offsets[axis], wanted[i].box.sizes[axis]);
      EXPECT_TRUE(equal(destinations[i], part.contiguous()))
          << tensors[i].key << ", rank " << comm.rank();
    }
  });
}

/// Loads all objects on all ranks.
void load_objects(const CheckpointReader& reader, int ranks, std::uint64_t staging) {
  std::vector<std::uint32_t> objects(reader.metadata().objects.size());
  std::iota(objects.begin(), objects.end(), 0U);
  run_ranks(ranks, [&](Communicator& comm) {
    const auto values = read_objects_together(reader, objects, comm, staging);
    for (const std::uint32_t object : objects)
      EXPECT_EQ(values.at(object), reader.object(object))
          << reader.metadata().objects[object].key << ", rank " << comm.rank();
  });
}

/// Returns the bytes that all ranks together read of float tensors that count up.
std::uint64_t bytes_of_shares(const CheckpointReader& reader, const StorageCounters& counters,
                              int ranks, std::size_t axis) {
  const std::uint64_t before = counters.bytes_read;
  run_ranks(ranks, [&](Communicator& comm) {
    const Shape& shape = reader.metadata().tensors[0].size;
    const WantedShard wanted{.box = share_of(shape, axis, comm.rank(), ranks)};
    const Tensor part = Tensor::zeros(DType::kFloat32, wanted.box.sizes);
    read_tensors_parallel(reader, plan_reads(reader.metadata(), {&wanted, 1}), {&part, 1}, comm,
                          {.exchange = Exchange::kAuto});
    EXPECT_TRUE(equal(part, part_of_arange(shape, wanted.box)));
  });
  return counters.bytes_read - before;
}

TEST(ReadOnceFormats, ZarrChunksThatReachBeyondTheArray) {
  const CountedFiles files;
  files.write("common.pt", save_torch_file(Value::dict({})));
  files.memory->make_directory("w");
  files.write(
      "w/.zarray",
      as_bytes(
          R"({"chunks":[512,512],"compressor":null,"dtype":"<f4","fill_value":null,"filters":null,"order":"C","shape":[1024,1000],"zarr_format":2})"));
  const Shape shape{1024, 1000}, chunk{512, 512};
  for (const std::int64_t row : {0, 1}) {
    for (const std::int64_t column : {0, 1}) {
      const Box box = *intersect({{row * 512, column * 512}, chunk}, whole(shape));
      const Tensor stored = Tensor::zeros(DType::kFloat32, chunk);
      const Tensor inside = stored.narrow(1, 0, box.sizes[1]);
      strided_copy(box.sizes, 4, part_of_arange(shape, box).data(),
                   {0, row_major_strides(box.sizes)}, inside.mutable_data(), {0, inside.strides()});
      files.write("w/" + std::to_string(row) + "." + std::to_string(column), stored.bytes());
    }
  }
  const auto reader = open_zarr(files.counted);
  for (const std::size_t axis : {0U, 1U})
    EXPECT_LE(bytes_of_shares(*reader, *files.counters, 5, axis), 4U * 512 * 512 * 4);
}

TEST(ReadOnceFormats, ColumnsOfAFileOfTorchSave) {
  const CountedFiles files;
  const Shape shape{3000, 512};
  files.write("model.pt", save_torch_file(Value::dict({{"w", arange(shape)}})));
  const auto reader = open_legacy_torch(files.counted, "model.pt");
  EXPECT_EQ(bytes_of_shares(*reader, *files.counters, 4, 1), 3000U * 512 * 4);
}

TEST(ReadOnceFormats, SharesOfEveryGoldenCheckpointAreWhatTheyAreAlone) {
  int checkpoints = 0;
  for (const auto& entry : std::filesystem::directory_iterator(
           std::filesystem::path(DCKPT_TEST_DATA) / "checkpoints")) {
    SCOPED_TRACE(entry.path().filename().string());
    const auto reader = open_checkpoint(entry.path() / "ckpt");
    for (const bool last_axis : {false, true}) load_shares(*reader, 3, last_axis);
    load_objects(*reader, 3, std::uint64_t{64} << 20);
    load_objects(*reader, 2, 1000);  // too little to keep them all
    ++checkpoints;
  }
  EXPECT_GT(checkpoints, 30);
}

}  // namespace
}  // namespace dckpt::read_once_formats_test
