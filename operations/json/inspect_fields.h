#pragma once

#include <optional>
#include <string>
#include <vector>

#include "operations/inspect/extract/render.h"
#include "operations/inspect/inspect.h"
#include "operations/json/finding_fields.h"
#include "operations/json/root_fields.h"

namespace dckpt {

constexpr auto json_record(const ChunkSummary*) {
  using C = ChunkSummary;
  return JsonRecord("chunk", "A stored piece of a tensor.",
                    Field(
                        "offsets", [](const C& chunk) -> const auto& { return chunk.box.offsets; },
                        "Offset of the chunk in the stored tensor."),
                    Field(
                        "sizes", [](const C& chunk) -> const auto& { return chunk.box.sizes; },
                        "Extents of the chunk."),
                    Field("file", &C::file, "Data file, relative to the checkpoint."),
                    Field("offset", &C::offset, "Byte offset of its record in the file."),
                    Field("length", &C::length, "Bytes of its record."));
}

/// The fields that --chunks adds to a tensor.
struct ListedChunks {
  const TensorSummary* tensor = nullptr;
};

constexpr auto json_record(const ListedChunks*) {
  return JsonRecord(
      "", "",
      Field("stored_shape", nested(&ListedChunks::tensor, &TensorSummary::stored_shape),
            "Shape of the space that the chunks are in."),
      Field("chunk_list", nested(&ListedChunks::tensor, &TensorSummary::chunks),
            "Where each chunk is stored."));
}

struct ListedTensor {
  const TensorSummary* tensor = nullptr;
  bool with_chunks = false;
};

constexpr auto json_record(const ListedTensor*) {
  using L = ListedTensor;
  using T = TensorSummary;
  return JsonRecord(
      "tensor", "A tensor. With --chunks, it also has stored_shape and chunk_list.",
      Field("key", nested(&L::tensor, &T::key), "Key of the tensor."),
      Field("dtype", nested(&L::tensor, &T::dtype)),
      Field("shape", nested(&L::tensor, &T::shape), "Global shape."),
      Field("bytes", nested(&L::tensor, &T::bytes), "Bytes of all elements."),
      Field("chunks", nested(&L::tensor, &T::chunk_count), "Number of chunks."),
      Field("flattened", nested(&L::tensor, &T::flattened),
            "Whether it is stored as flattened ranges, in the form of Megatron-Core 0.8 to 0.15."),
      JsonPart([](const L& of) {
        return of.with_chunks ? std::optional(ListedChunks{of.tensor}) : std::nullopt;
      }));
}

constexpr auto json_record(const ObjectSummary*) {
  return JsonRecord("object", "An object.",
                    Field("key", &ObjectSummary::key, "Unique key of the object."),
                    Field("bytes", &ObjectSummary::bytes, "Bytes as stored."));
}

constexpr auto json_record(const FileSummary*) {
  return JsonRecord("file", "A file.",
                    Field("name", &FileSummary::name, "Path relative to the checkpoint."),
                    Field("bytes", &FileSummary::bytes, "Size of the file."),
                    Field(
                        "unused", [](const FileSummary& file) { return IfAny{file.unused}; },
                        "Bytes of a data file that belong to no record; missing for formats that "
                        "cannot tell."));
}

constexpr auto json_record(const RunFacts*) {
  return JsonRecord(
      "run", "What the checkpoint says of the run that saved it; what it does not say is missing.",
      Field("model", &RunFacts::model,
            "Size of the model: layers, hidden, ffn, heads, query groups, experts, vocabulary."),
      Field("parallel", &RunFacts::parallel,
            "Parallel layout that saved it: TP, PP, VPP, CP, EP, DP, and all ranks."));
}

constexpr auto json_record(const OptimizerSummary*) {
  using O = OptimizerSummary;
  return JsonRecord("optimizer", "State of the optimizer.",
                    Field("name", &O::name,
                          "Name of the optimizer in the arguments of the run; empty if unknown."),
                    Field("states", &O::states, "Names of its tensors, such as exp_avg."),
                    Field("sharding", &O::sharding,
                          "Megatron's name for the way it is sharded; empty if unknown."),
                    Field("reshardable", &O::reshardable,
                          "What a run that resumes it may change, for people; empty if unknown."));
}

constexpr auto json_record(const ModelOptState*) {
  using M = ModelOptState;
  return JsonRecord(
      "modelopt", "State of NVIDIA ModelOpt.",
      Field("place", &M::place, "Folder or entry that holds it."),
      Field("version", &M::version, "Version of ModelOpt; empty if it cannot be read."),
      Field("modes", &M::modes, "Changes to the model, in the order in which they were applied."));
}

constexpr auto json_record(const Readers*) {
  return JsonRecord("readers",
                    "Who loads the checkpoint, for people; empty if unknown or if nothing is "
                    "stored.",
                    Field("model", &Readers::model, "Releases that load the model."),
                    Field("optimizer", &Readers::optimizer, "Releases that resume the optimizer."));
}

constexpr auto json_record(const GroupTotal*) {
  using G = GroupTotal;
  return JsonRecord("group", "Tensors and objects of one kind of content.",
                    Field("tensors", &G::tensors, "Number of tensors."),
                    Field("objects", &G::objects, "Number of objects."),
                    Field("elements", &G::elements, "Elements of the tensors."),
                    Field("bytes", &G::bytes, "Bytes of the elements, and of objects as stored."));
}

struct GroupTotals {
  const CheckpointSummary* summary = nullptr;
};

constexpr auto json_record(const GroupTotals*) {
  const auto total = [](ContentGroup group) {
    const auto get = [group](const GroupTotals& of) -> const auto& {
      return of.summary->group(group);
    };
    return Field(name_of(kContentGroupNames, group).data(), get);
  };
  return JsonRecord("", "", total(ContentGroup::kWeights), total(ContentGroup::kOptimizer),
                    total(ContentGroup::kRng), total(ContentGroup::kExtraState),
                    total(ContentGroup::kOther));
}

constexpr auto json_record(const DataFiles::Truncated*) {
  using T = DataFiles::Truncated;
  return JsonRecord("truncated", "A file that is too short.",
                    Field("name", &T::name, "Path relative to the checkpoint."),
                    Field("bytes", &T::bytes, "Size of the file."),
                    Field("needed", &T::needed, "Size that it must have at least."));
}

struct ComparedFiles {
  const CheckpointSummary* summary = nullptr;

  const DataFiles& files() const { return summary->data_files; }
};

constexpr auto json_record(const ComparedFiles*) {
  using C = ComparedFiles;
  return JsonRecord(
      "", "",
      Field("needed", nested(&C::files, &DataFiles::needed),
            "Number of data files that hold chunks or objects."),
      Field("missing", nested(&C::files, &DataFiles::missing), "Data files that do not exist."),
      Field("irregular", nested(&C::files, &DataFiles::irregular),
            "Data files that are links, directories or devices."),
      Field("truncated", nested(&C::files, &DataFiles::truncated),
            "Data files that are too short."),
      Field("unreferenced", nested(&C::summary, &CheckpointSummary::unreferenced),
            "Data files that the metadata does not refer to."));
}

/// A report of `inspect`; the root may be null.
struct InspectedCheckpoint {
  const CheckpointSummary* summary = nullptr;
  bool with_chunks = false;
  ListedRoot root{};

  const CheckpointInfo& info() const { return summary->info; }
};

constexpr auto json_record(const InspectedCheckpoint*) {
  using I = InspectedCheckpoint;
  using S = CheckpointSummary;
  return JsonRecord(
      "checkpoint", "Contents of a checkpoint.",
      Field("format", nested(&I::info, &CheckpointInfo::format),
            "Name of the format, one of those of `dckpt formats`."),
      Field("version", nested(&I::info, &CheckpointInfo::version),
            "Version of the format; null if it has none."),
      Field("producer", nested(&I::info, &CheckpointInfo::producer),
            "Program that wrote it, for people; empty if unknown."),
      Field("run", nested(&I::summary, &S::run)),
      Field(
          "optimizer",
          [](const I& of) {
            return of.summary->has_optimizer ? std::optional(of.summary->optimizer) : std::nullopt;
          },
          "State of the optimizer; null if none is stored."),
      Field("modelopt", nested(&I::summary, &S::modelopt),
            "State of NVIDIA ModelOpt; null if it has not changed the model."),
      Field("readers", nested(&I::summary, &S::readers)),
      Field(
          "groups", [](const I& of) { return GroupTotals{of.summary}; },
          "Totals by kind of content."),
      Field(
          "tensors",
          [](const I& of) {
            std::vector<ListedTensor> listed;
            for (const TensorSummary& tensor : of.summary->tensors)
              listed.push_back({&tensor, of.with_chunks});
            return listed;
          },
          "The selected tensors, in stored order."),
      Field("objects", nested(&I::summary, &S::objects), "The selected objects, in stored order."),
      Field(
          "common",
          [](const I& of) {
            const Value& common = of.summary->common;
            return AnyObject{common.is_none() ? Value::dict() : render(common)};
          },
          "The common state, rendered as by `dckpt extract --common`; empty if there is none."),
      Field("files", nested(&I::summary, &S::files), "Every regular file of the checkpoint."),
      Field(
          "data_files", [](const I& of) { return ComparedFiles{of.summary}; },
          "Data files that the metadata refers to, compared with those that are there."),
      Field("findings", nested(&I::info, &CheckpointInfo::findings),
            "Doubts about the files that reading them cannot settle."),
      JsonPart([](const I& of) {
        return of.root.survey != nullptr ? std::optional(of.root) : std::nullopt;
      }));
}

}  // namespace dckpt
