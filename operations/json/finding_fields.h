#pragma once

#include "mapping/base/error.h"
#include "mapping/base/finding.h"
#include "operations/json/json_record.h"

namespace dckpt {

constexpr auto json_record(const Finding*) {
  return JsonRecord(
      "finding", "What may not be meant, and its place, as far as it is known.",
      Field("code", in_words(kFindingCodeNames, &Finding::code),
            "Kind of the finding; docs/tool.md explains each."),
      Field("severity", in_words(kSeverityNames, &Finding::severity),
            "Whether it was asked for, may not be meant, or makes the result wrong."),
      Field("message", &Finding::message, "The finding as a sentence for people."),
      Field("keys", &Finding::keys, "Keys, files or fields that it is about, if it is about some."),
      Field("file", &Finding::file, "File that it is in, relative to the checkpoint."),
      Field("offset", &Finding::offset, "Byte offset in the file."));
}

constexpr auto json_record(const CheckpointError*) {
  return JsonRecord("problem", "A problem and its place, as far as it is known.",
                    Field("code", &CheckpointError::code, "Kind of problem."),
                    Field("message", &CheckpointError::message, "What is wrong, for people."),
                    Field("key", nested(&CheckpointError::context, &ErrorContext::key),
                          "Key of the tensor or object."),
                    Field("file", nested(&CheckpointError::context, &ErrorContext::file),
                          "File, relative to the checkpoint or with its path."),
                    Field("offset", nested(&CheckpointError::context, &ErrorContext::offset),
                          "Byte offset in the file."));
}

}  // namespace dckpt
