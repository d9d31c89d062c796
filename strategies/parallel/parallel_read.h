#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>

#include "configs/policy/options.h"
#include "mapping/planning/load/read_plan.h"
#include "mapping/state/tensor.h"
#include "mapping/state/value.h"
#include "strategies/comm/communicator.h"
#include "strategies/contract/reader.h"
#include "strategies/parallel/exchange_plan.h"
#include "strategies/tensor_io/read_tensors.h"

namespace dckpt {

/// The number of bytes, over all ranks, that an exchange has to save to be worthwhile. In a fully
/// parallel load, `auto` exchanges data that several ranks need with all_to_all, but lets every
/// rank read everything it needs if less would be saved and no runs of some ranks are interleaved
/// with those of others.
inline constexpr std::uint64_t kWorthExchanging = std::uint64_t{4} << 20;

/// Reads tensors like read_tensors, for all ranks of `comm` together: data that several of them
/// need is read by one of them and sent to the others, and so is data that can only be read
/// together with what others need. All ranks together read at most 5 % more than the requested
/// bytes, besides what it takes to find them in a file. Collective; every rank passes its own items
/// and destinations. Throws the same CheckpointError on all ranks. Besides options.read.staging for
/// reading, each rank uses at most half of the smallest staging of all ranks for the data it sends
/// in a round, the same for the data it receives, and the same for the data it has read for others;
/// more only for a larger chunk that can only be read as a whole. Data travels through the host,
/// unless `comm` is a DeviceExchange: then a rank sends and receives data on the exchange's device
/// there.
ReadStats read_tensors_parallel(const CheckpointReader& reader, std::span<const ReadItem> items,
                                std::span<const Tensor> destinations, Communicator& comm,
                                const ParallelReadOptions& options);

/// Returns the values of objects by their positions in the metadata. Objects that several ranks
/// need are read from storage by one of them. Collective, too.
std::unordered_map<std::uint32_t, Value> read_objects_together(
    const CheckpointReader& reader, std::span<const std::uint32_t> objects, Communicator& comm,
    std::uint64_t staging = ReadOptions{}.staging);

}  // namespace dckpt
