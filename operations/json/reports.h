#pragma once

#include <string>
#include <vector>

#include "mapping/base/api.h"

namespace DCKPT_API dckpt {

class CheckpointReader;
class Value;
struct CheckpointSummary;
struct ConfigProblem;
struct ConvertReport;
struct Digests;
struct DiffReport;
struct Explanation;
struct FleetResult;
struct FormatEntry;
struct Policy;
struct RemovedTensors;
struct RootSurvey;
struct RootVerification;
struct StatsReport;
struct TransferPlan;
struct TreatmentReport;
struct VerifyReport;
struct WorkerSurvey;

// Reports as JSON: the output of the tool's commands with --json, byte for byte, with a newline at
// the end. docs/schemas has a JSON schema for each command.

/// Returns the JSON of `inspect`. `with_chunks` says that the summary has chunks
/// (InspectOptions::chunks). With a `root`, the checkpoint's training root, there are also
/// "resume", "iterations" and "unfinished". `with_retention` says that the survey knew a retention
/// (SurveyOptions::retention).
std::string to_json(const CheckpointSummary& summary, bool with_chunks = false,
                    const RootSurvey* root = nullptr, bool with_retention = false);
/// Returns the JSON of `explain`.
std::string to_json(const Explanation& explanation);
/// Return the JSON of `verify` and of `verify --all`.
std::string to_json(const VerifyReport& report);
std::string to_json(const RootVerification& root);
/// Returns a line of the JSON of `verify --fleet`.
std::string to_json(const FleetResult& result);
/// Returns the JSON of `digest`.
std::string to_json(const Digests& digests);
/// Returns the JSON of `stats`.
std::string to_json(const StatsReport& report);
/// Returns the JSON of `diff`.
std::string to_json(const DiffReport& report);
/// Returns the JSON of `convert`; `dry_run` as in its ConvertOptions.
std::string to_json(const ConvertReport& report, bool dry_run);
/// Returns the JSON of `doctor` and of `prune`; `root` is the argument of the call.
std::string to_json(const TreatmentReport& report, const std::string& root);
/// Returns the JSON of `workers`.
std::string to_json(const WorkerSurvey& survey);
/// Returns the JSON of `remove`, given the arguments of the call.
std::string to_json(const RemovedTensors& removed, const std::string& path,
                    const std::string& prefix, bool dry_run);
/// Returns the JSON of `formats`, made from list_formats().
std::string to_json(const std::vector<FormatEntry>& formats);
/// Returns the JSON of `config check`; `file` is the name of the text that was checked.
std::string to_json(const std::vector<ConfigProblem>& problems, const std::string& file);
/// Returns the JSON of `config show`: every field with its value.
std::string to_json(const Policy& policy);
/// Returns the JSON of a transfer plan, which other programs can carry out; no command prints it.
/// Tensors of which nothing moves are left out.
std::string to_json(const TransferPlan& plan);

/// Return the JSON of `extract`: of one object; of the common state ({} if there is none, so
/// readers need no special case); of all objects, by their unique keys. Values that JSON lacks are
/// tagged. All throw CheckpointError if something cannot be read or is nested too deep.
[[nodiscard]] std::string object_json(const Value& object);
[[nodiscard]] std::string common_json(const Value& common);
[[nodiscard]] std::string objects_json(const CheckpointReader& reader);

}  // namespace dckpt
