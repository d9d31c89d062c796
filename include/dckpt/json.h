#pragma once

/// Reports as the JSON that the tool prints with --json; docs/schemas has a JSON schema for each.

#include "dist_checkpointing/save/report_file.h"
#include "operations/json/reports.h"
#include "operations/json/verify_json.h"
