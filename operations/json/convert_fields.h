#pragma once

#include <optional>
#include <string>
#include <vector>

#include "operations/convert/convert_options.h"
#include "operations/convert/remove_sharded_tensors.h"
#include "operations/convert/workers/worker_survey.h"
#include "operations/inspect/rank_of_file.h"
#include "operations/json/finding_fields.h"

// The reports of `convert`, `workers` and `remove`.
namespace dckpt {

constexpr auto json_record(const HeldBytes*) {
  return JsonRecord(
      "held_bytes", "What a data file of the source holds.",
      Field("file", &HeldBytes::file, "Data file, relative to the source."),
      Field(
          "rank", [](const HeldBytes& held) { return rank_of_file(held.file); },
          "Rank that wrote the file; null if the file's name does not tell."),
      Field("bytes", &HeldBytes::bytes, "Bytes of elements, and of objects as stored."));
}

struct HeldData {
  const ConvertReport* report = nullptr;
};

constexpr auto json_record(const HeldData*) {
  using H = HeldData;
  return JsonRecord("", "",
                    Field("before", nested(&H::report, &ConvertReport::held_before),
                          "By data file of the source."),
                    Field("after", nested(&H::report, &ConvertReport::held_after),
                          "Bytes that each rank of the result holds."));
}

constexpr auto json_record(const ConversionStep*) {
  using C = ConversionStep;
  return JsonRecord("step", "A step of the conversion.",
                    Field("name", &C::name, "Name of the step."),
                    Field("does", &C::does, "What it does, for people."),
                    Field("notes", &C::notes, "Remarks that belong to it."));
}

constexpr auto json_record(const PoolReport*) {
  using P = PoolReport;
  return JsonRecord(
      "pool", "The part of a process in a shared conversion.",
      Field("units", &P::units, "Data files to write, and files of the source to compare."),
      Field("units_here", &P::units_here, "Those that this process did."),
      Field("published_here", &P::published_here, "Whether this process published the result."));
}

struct ConvertedCheckpoint {
  const ConvertReport* report = nullptr;
  bool dry_run = false;
};

constexpr auto json_record(const ConvertedCheckpoint*) {
  using C = ConvertedCheckpoint;
  using R = ConvertReport;
  return JsonRecord(
      "", "", Field("source", nested(&C::report, &R::source), "Checkpoint that was read."),
      Field("destination", nested(&C::report, &R::destination), "Directory that was written."),
      Field("from", nested(&C::report, &R::from), "Format of the source."),
      Field("to", nested(&C::report, &R::to), "Format of the result."),
      Field("dry_run", &C::dry_run, "Whether nothing was written."),
      Field("tensors", nested(&C::report, &R::tensors), "Tensors of the result."),
      Field("objects", nested(&C::report, &R::objects), "Objects of the result."),
      Field("left_out", nested(&C::report, &R::left_out),
            "Tensors and objects that --include, --exclude or the format left out."),
      Field("lost", nested(&C::report, &R::lost),
            "Keys that --allow-partial left out because their data files are missing."),
      Field("chunks_before", nested(&C::report, &R::chunks_before), "Chunks of the source."),
      Field("chunks_after", nested(&C::report, &R::chunks_after), "Chunks of the result."),
      Field("bytes", nested(&C::report, &R::bytes), "Bytes of tensor elements."),
      Field("files", nested(&C::report, &R::files), "Data files of the result."),
      Field("kept_files", nested(&C::report, &R::kept_files),
            "Data files that an interrupted conversion had finished (--resume)."),
      Field("disk_bytes", nested(&C::report, &R::disk_bytes),
            "Bytes of all files of the result; estimated if nothing was written."),
      Field("ranks", nested(&C::report, &R::ranks), "Ranks that the result is cut for."),
      Field(
          "held", [](const C& of) { return HeldData{of.report}; },
          "How much data there is before and after."),
      Field("workers", nested(&C::report, &R::workers),
            "The part of this process in a shared conversion (--workers); null without."),
      Field("steps", nested(&C::report, &R::steps), "Steps of the conversion, in order."),
      Field(
          "findings", nested(&C::report, &R::findings),
          "What changed its form and why, what was left out, and which releases load the result."),
      Field(
          "remarks", [](const C& of) { return messages_of(of.report->findings); },
          "The messages of the findings alone."));
}

constexpr auto json_record(const SurveyedWorker*) {
  using W = SurveyedWorker;
  return JsonRecord(
      "worker", "A process of a shared conversion.",
      Field("host", &W::host, "Host of the process."),
      Field("process", &W::process, "Number of the process on its host."),
      Field(
          "state", in_words(kWorkerStateNames, &W::state),
          "working, silent (ended on this host, or no sign of life within its lease), or idle (no "
          "unit)."),
      Field("units", &W::units, "Units that it has now; publication is one."),
      Field("seconds", &W::seconds, "Time since it began the first of these."),
      Field("done", &W::done, "Files that it has written."),
      Field("bytes", &W::bytes, "Bytes in these files."));
}

constexpr auto json_record(const WorkerSurvey*) {
  using W = WorkerSurvey;
  return JsonRecord(
      "", "", Field("destination", &W::destination, "Directory that is written."),
      Field("published", &W::published, "Whether the destination is complete."),
      Field("units", &W::units, "Data files to write, and files of the source to compare."),
      Field("units_done", &W::units_done, "Those that are done."),
      Field("bytes", &W::bytes, "Bytes of all units."),
      Field("bytes_done", &W::bytes_done, "Bytes of the units that are done."),
      Field("seconds", &W::seconds,
            "Time since the first worker came, until now or until publication."),
      Field("bytes_per_second", &W::bytes_per_second, "Bytes done per second in the last minute."),
      Field("seconds_left", &W::seconds_left,
            "Time left at this rate; null if nothing moves or all is done."),
      Field("workers", &W::workers, "The processes that work, or have written files."));
}

/// A report of `remove`, with the arguments of the call.
struct Removal {
  const RemovedTensors* removed = nullptr;
  std::string path{};
  std::string prefix{};
  bool dry_run = false;
};

constexpr auto json_record(const Removal*) {
  using R = Removal;
  using T = RemovedTensors;
  return JsonRecord(
      "", "", Field("path", &R::path, "The checkpoint."),
      Field("prefix", &R::prefix, "What the removed keys begin with."),
      Field("dry_run", &R::dry_run, "Whether nothing was removed."),
      Field("tensors", nested(&R::removed, &T::tensors), "Tensors that were removed."),
      Field("objects", nested(&R::removed, &T::objects), "Objects that were removed."),
      Field("files", nested(&R::removed, &T::files),
            "Data files that were deleted, as they held nothing else."),
      Field("bytes_freed", nested(&R::removed, &T::bytes_freed), "Bytes of these files."),
      Field("bytes_kept", nested(&R::removed, &T::bytes_kept),
            "Bytes of removed tensors and objects that stay in files which also hold others."));
}

}  // namespace dckpt
