#pragma once

#include <optional>
#include <string>

#include "dist_checkpointing/save/save_report.h"
#include "mapping/base/api.h"
#include "mapping/base/bytes.h"
#include "mapping/state/value.h"
#include "strategies/storage/storage.h"

namespace DCKPT_API dckpt {

/// The report of a save, kept in its checkpoint (SaveOptions::report). It is written just before
/// the checkpoint becomes visible: `seconds` and `publish` end there, and `bytes` and `files`
/// exclude this file and those written after it, such as integrity.json. No other reader opens it.
inline constexpr const char* kReportFile = "dckpt_report.json";

[[nodiscard]] Value to_value(const SaveReport& report);
std::string to_json(const SaveReport& report);

/// Parses a report; unknown fields are skipped. Throws CheckpointError: (unsupported) for another
/// version, (corrupt) for broken JSON and for fields that are missing or of another kind.
[[nodiscard]] SaveReport read_report(ByteView json, const std::string& file_name = kReportFile);

/// Returns the report in a checkpoint's folder; empty if there is none. Throws as read_report()
/// does.
[[nodiscard]] std::optional<SaveReport> find_report(const Storage& storage);

}  // namespace dckpt
