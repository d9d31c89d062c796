#pragma once

#include <optional>
#include <string>
#include <vector>

#include "operations/inspect/explain.h"
#include "operations/json/inspect_fields.h"

namespace dckpt {

/// The row of a map that touches a key.
struct TouchingRow {
  const MapRule* rule = nullptr;
};

constexpr auto json_record(const TouchingRow*) {
  using T = TouchingRow;
  return JsonRecord("", "",
                    Field("row", nested(&T::rule, &MapRule::row), "Megatron's key in the row."),
                    Field("file", nested(&T::rule, &MapRule::file),
                          "Where the row is: the name of a map that comes with dckpt, or a file."),
                    Field("line", nested(&T::rule, &MapRule::line), "Line of the row in the file."),
                    Field("from", nested(&T::rule, &MapRule::from), "Keys of the checkpoint."),
                    Field("to", nested(&T::rule, &MapRule::to), "Keys that are made of them."));
}

constexpr auto json_record(const MapRule*) {
  return JsonRecord(
      "rule", "What a map does with the key: the row that touches it, or why it is dropped.",
      Field("name", &MapRule::map, "Family of the map."),
      Field(
          "dropped",
          [](const MapRule& rule) {
            return IfAny{rule.dropped.empty() ? std::nullopt : std::optional(rule.dropped)};
          },
          "Why the map drops the key, for people."),
      JsonPart([](const MapRule& rule) {
        return rule.dropped.empty() ? std::optional(TouchingRow{&rule}) : std::nullopt;
      }));
}

/// The fields that only tensors have.
struct ExplainedTensor {
  const Explanation* of = nullptr;
};

constexpr auto json_record(const ExplainedTensor*) {
  using T = ExplainedTensor;
  using E = Explanation;
  return JsonRecord(
      "", "", Field("dtype", nested(&T::of, &E::dtype)),
      Field("shape", nested(&T::of, &E::shape), "Global shape."),
      Field("flattened", nested(&T::of, &E::flattened),
            "Whether it is stored as flattened ranges, in the form of Megatron-Core 0.8 to 0.15."),
      Field("stored_shape", nested(&T::of, &E::stored_shape),
            "Shape of the space that the chunks are in."),
      Field("grid", nested(&T::of, &E::grid),
            "Pieces along each axis of the stored shape; null if the chunks are not the cells of a "
            "grid."));
}

struct ChunkBox {
  const Box* box = nullptr;
};

constexpr auto json_record(const ChunkBox*) {
  return JsonRecord("", "",
                    Field("offsets", nested(&ChunkBox::box, &Box::offsets),
                          "Offset of the chunk in the stored tensor."),
                    Field("sizes", nested(&ChunkBox::box, &Box::sizes), "Extents of the chunk."));
}

/// The place of a chunk of a tensor, or of a whole object.
struct ExplainedChunk {
  const ChunkSummary* chunk = nullptr;
  bool has_box = false;
};

constexpr auto json_record(const ExplainedChunk*) {
  using C = ExplainedChunk;
  using S = ChunkSummary;
  return JsonRecord(
      "place", "Where a chunk of a tensor, or the whole of an object, is stored.",
      Field("file", nested(&C::chunk, &S::file), "Data file, relative to the checkpoint."),
      Field("offset", nested(&C::chunk, &S::offset), "Byte offset of its record in the file."),
      Field("length", nested(&C::chunk, &S::length), "Bytes of its record."),
      JsonPart([](const C& of) {
        return of.has_box ? std::optional(ChunkBox{&of.chunk->box}) : std::nullopt;
      }));
}

constexpr auto json_record(const FileShare*) {
  return JsonRecord("share", "What a data file holds of the key.",
                    Field("file", &FileShare::file, "Data file, relative to the checkpoint."),
                    Field("rank", &FileShare::rank,
                          "Rank that wrote the file; null if the file's name does not tell."),
                    Field("chunks", &FileShare::chunks, "Chunks in the file."),
                    Field("bytes", &FileShare::bytes, "Stored bytes in the file."));
}

constexpr auto json_record(const RelatedEntry*) {
  return JsonRecord("related", "A tensor or an object that belongs to the key.",
                    Field("relation", &RelatedEntry::relation,
                          "What the other one is, such as \"model tensor\", \"exp_avg\" or \"extra "
                          "state\"."),
                    Field("key", &RelatedEntry::key, "Its key."));
}

constexpr auto json_record(const Explanation*) {
  using E = Explanation;
  return JsonRecord(
      "", "", Field("key", &E::key, "Key of the tensor, or unique key of the object."),
      Field("bytes", &E::bytes, "Bytes of all elements; of an object, bytes as stored."),
      JsonPart([](const E& of) {
        return of.is_object ? std::nullopt : std::optional(ExplainedTensor{&of});
      }),
      Field(
          "chunks",
          [](const E& of) {
            std::vector<ExplainedChunk> chunks;
            for (const ChunkSummary& chunk : of.chunks) chunks.push_back({&chunk, !of.is_object});
            return chunks;
          },
          "Where each chunk is stored; for an object, one place."),
      Field("files", &E::files, "What each data file holds of it, by name."),
      Field("related", &E::related, "Tensors and objects that belong to it."),
      Field(
          "map", [](const E& of) { return IfAny{of.rule}; },
          "With --map, what the map does with the key."));
}

}  // namespace dckpt
