#pragma once

/// Reports as the JSON that the tool prints with --json; docs/schemas has a JSON schema for each.

#include "dist_checkpointing/json/reports.h"
#include "dist_checkpointing/json/verify_json.h"
#include "dist_checkpointing/save/report_file.h"
