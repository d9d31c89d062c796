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
struct FormatEntry;
struct Policy;
struct RemovedTensors;
struct RootSurvey;
struct RootVerification;
struct VerifyReport;

// Reports as JSON: what the tool's commands print with --json, byte for byte, with a newline at the
// end. docs/schemas has a JSON schema for each command.

/// Of `inspect`. `with_chunks` says that the summary has them (InspectOptions::chunks). With a
/// `root`, the checkpoint's training root, there are also "resume", "iterations" and "unfinished";
/// `with_retention` says that the survey knew a retention (SurveyOptions::retention).
std::string to_json(const CheckpointSummary& summary, bool with_chunks = false,
                    const RootSurvey* root = nullptr, bool with_retention = false);
/// Of `explain`.
std::string to_json(const Explanation& explanation);
/// Of `verify`, and of `verify --all`.
std::string to_json(const VerifyReport& report);
std::string to_json(const RootVerification& root);
/// Of `digest`.
std::string to_json(const Digests& digests);
/// Of `diff`.
std::string to_json(const DiffReport& report);
/// Of `convert`; `dry_run` as in its ConvertOptions.
std::string to_json(const ConvertReport& report, bool dry_run);
/// Of `remove`: what was called with these arguments.
std::string to_json(const RemovedTensors& removed, const std::string& path,
                    const std::string& prefix, bool dry_run);
/// Of `formats`: of list_formats().
std::string to_json(const std::vector<FormatEntry>& formats);
/// Of `config check`; `file` is the name of the text that was checked.
std::string to_json(const std::vector<ConfigProblem>& problems, const std::string& file);
/// Of `config show`: every field with its value.
std::string to_json(const Policy& policy);

/// Of `extract`: an object; the common state, {} for none, so that who reads the JSON need not tell
/// the two apart; all objects, by their unique keys. Kinds of values that JSON lacks are tagged.
/// Throw CheckpointError if something cannot be read, or is nested too deep.
[[nodiscard]] std::string object_json(const Value& object);
[[nodiscard]] std::string common_json(const Value& common);
[[nodiscard]] std::string objects_json(const CheckpointReader& reader);

}  // namespace dckpt
