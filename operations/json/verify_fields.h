#pragma once

#include <algorithm>
#include <optional>

#include "operations/json/finding_fields.h"
#include "operations/json/root_fields.h"
#include "operations/json/verify_json.h"

namespace dckpt {

constexpr auto json_record(const VerifyReport*) {
  using V = VerifyReport;
  const auto if_deep = [](const auto member) {
    return [member](const V& report) {
      return report.deep ? std::optional(report.*member) : std::nullopt;
    };
  };
  return JsonRecord(
      "report", "Report of one checkpoint.", Field("ok", &V::ok, "Whether no problem was found."),
      Field("deep", &V::deep, "Whether all bytes were read (--deep)."),
      Field("format", &V::format,
            "Name of the format; empty if the checkpoint could not be opened."),
      Field("files", &V::files, "Data files."), Field("tensors", &V::tensors, "Tensors."),
      Field("chunks", &V::chunks, "Chunks of tensors."), Field("objects", &V::objects, "Objects."),
      Field("bytes", &V::bytes, "Stored bytes of chunks and objects."),
      Field("chunks_without_checksum", if_deep(&V::chunks_without_checksum),
            "Chunks for which no checksum is stored; null without --deep."),
      Field("objects_without_checksum", if_deep(&V::objects_without_checksum),
            "Objects for which no checksum is stored; null without --deep."),
      Field("manifest_files", &V::manifest_files,
            "Files that integrity.json lists; 0 if there is none."),
      Field("problems", &V::problems, "All problems that were found."),
      Field("findings", &V::findings, "Oddities that may be intended."),
      Field(
          "remarks", [](const V& report) { return messages_of(report.findings); },
          "The messages of the findings alone."));
}

constexpr auto json_record(const RootVerification::Checkpoint*) {
  using C = RootVerification::Checkpoint;
  return JsonRecord("checkpoint", "Report of a checkpoint of a training root.",
                    JsonPart(&C::report), Field("path", &C::path, "Path of the checkpoint."));
}

constexpr auto json_record(const RootVerification*) {
  using R = RootVerification;
  return JsonRecord(
      "root", "Reports of a training root (--all).",
      Field(
          "ok",
          [](const R& root) {
            return std::ranges::all_of(root.checkpoints,
                                       [](const auto& of) { return of.report.ok(); });
          },
          "Whether all checkpoints are sound."),
      Field("deep", &R::deep, "Whether all bytes were read (--deep)."),
      Field("checkpoints", &R::checkpoints, "Report of each checkpoint, the oldest first."),
      Field("resume", &R::resume));
}

}  // namespace dckpt
