#include "strategies/formats/dcp/megatron_json.h"

#include <algorithm>
#include <limits>

#include "mapping/base/error.h"
#include "mapping/base/storage_name.h"
#include "mapping/state/value.h"
#include "strategies/formats/json/json.h"

namespace dckpt {
namespace {

[[noreturn]] void corrupt(const std::string& message, const std::string& file_name) {
  throw_error(ErrorCode::kCorrupt, {.file = file_name}, message);
}

/// The fields of one of the two files.
class Fields {
 public:
  Fields(ByteView json, const std::string& file_name)
      : file_name_(file_name), value_(parse_json(json, file_name)) {
    if (!value_.is_dict())
      corrupt(str_format("the JSON is of kind {} (expected: an object)", to_string(value_.kind())),
              file_name);
  }

  const std::string* text(const char* name) const {
    const Value* value = value_.find(name);
    if (value == nullptr) return nullptr;
    if (!value->is_str()) wrong_kind(name, *value, "a string");
    return &value->as_str();
  }

  std::optional<int> version(const char* name) const {
    const Value* value = value_.find(name);
    if (value == nullptr) return std::nullopt;
    if (!value->is_int()) wrong_kind(name, *value, "an integer");
    if (value->as_int() < 0 || value->as_int() > std::numeric_limits<int>::max()) {
      corrupt(str_format("the field {} is {}, which is no version", quote(name), value->as_int()),
              file_name_);
    }
    return static_cast<int>(value->as_int());
  }

  bool has(const char* name) const { return value_.find(name) != nullptr; }

  const Dict& dict(const char* name) const {
    const Value* value = value_.find(name);
    if (value == nullptr) missing(name);
    if (!value->is_dict()) wrong_kind(name, *value, "an object");
    return value->as_dict();
  }

  [[noreturn]] void missing(const char* name) const {
    corrupt(str_format("the field {} is missing", quote(name)), file_name_);
  }

 private:
  [[noreturn]] void wrong_kind(const char* name, const Value& value,
                               const std::string& wanted) const {
    corrupt(str_format("the field {} is of kind {} (expected: {})", quote(name),
                       to_string(value.kind()), wanted),
            file_name_);
  }

  const std::string& file_name_;
  Value value_;
};

void refuse_any(const std::vector<std::string>& lines, const char* advice) {
  constexpr std::size_t kMostLines = 20;
  if (lines.empty()) return;
  std::string message =
      str_format("Checkpoint integrity verification failed for {} file(s)", grouped(lines.size()));
  for (std::size_t i = 0; i < std::min(lines.size(), kMostLines); ++i) message += "\n  " + lines[i];
  if (lines.size() > kMostLines)
    message += str_format("\n  and {} more", grouped(lines.size() - kMostLines));
  throw_error(ErrorCode::kCorrupt, {.file = kIntegrityFile}, message + advice);
}

/// Returns whether a name can be a file in the checkpoint.
bool is_file_name(const std::string& name) {
  try {
    return !name_components(name).empty();
  } catch (const CheckpointError&) {
    return false;
  }
}

bool is_sha256(std::string_view text) {
  return text.size() == 64 && std::all_of(text.begin(), text.end(), [](char c) {
           return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f');
         });
}

}  // namespace

CheckpointingConfig read_checkpointing_config(ByteView json, const std::string& file_name) {
  const Fields fields(json, file_name);
  const std::string* backend = fields.text("sharded_backend");
  if (backend == nullptr) fields.missing("sharded_backend");
  CheckpointingConfig config;
  config.sharded_backend = *backend;
  config.sharded_backend_version = fields.version("sharded_backend_version").value_or(1);
  if (const std::string* common = fields.text("common_backend")) config.common_backend = *common;
  config.common_backend_version = fields.version("common_backend_version");
  return config;
}

void check_common_backend(const CheckpointingConfig& config, const std::string& file_name) {
  const int version = config.common_backend_version.value_or(1);
  if (config.common_backend.value_or("torch") == "torch" && version == 1) return;
  throw_error(ErrorCode::kUnsupported, {.file = file_name},
              "the common state was written by backend {} version {}; expected 'torch' version 1",
              quote(config.common_backend.value_or("torch")), version);
}

std::string write_checkpointing_config(const CheckpointingConfig& config) {
  Dict fields{{"sharded_backend", config.sharded_backend},
              {"sharded_backend_version", config.sharded_backend_version}};
  if (config.common_backend) {
    fields.set("common_backend", *config.common_backend);
    fields.set("common_backend_version", config.common_backend_version.value_or(1));
  }
  return to_json(Value(std::move(fields)));
}

IntegrityManifest read_integrity_manifest(ByteView json, const std::string& file_name) {
  const Fields fields(json, file_name);
  const std::string* algorithm = fields.text("algorithm");
  if (algorithm == nullptr) fields.missing("algorithm");
  if (*algorithm != "sha256") {
    throw_error(ErrorCode::kUnsupported, {.file = file_name},
                "Unsupported hash algorithm {} (expected: 'sha256')", quote(*algorithm));
  }
  IntegrityManifest manifest;
  for (const auto& [name, digest] : fields.dict("files")) {
    if (!is_file_name(name.as_str()))
      corrupt(str_format("the manifest names {}, which is no file in the checkpoint",
                         quote(name.as_str())),
              file_name);
    if (!digest.is_str() || !is_sha256(digest.as_str())) {
      corrupt(str_format(
                  "the digest of {} is no SHA-256 (expected: 64 hexadecimal digits in lower case)",
                  quote(name.as_str())),
              file_name);
    }
    manifest.files.push_back({name.as_str(), digest.as_str()});
  }
  if (!fields.has("sizes")) return manifest;
  const Dict& sizes = fields.dict("sizes");
  for (IntegrityManifest::Entry& entry : manifest.files) {
    const Value* const size = sizes.find(entry.name);
    if (size == nullptr) continue;
    if (!size->is_int() || size->as_int() < 0)
      corrupt(str_format("the size of {} is no number of bytes", quote(entry.name)), file_name);
    entry.size = static_cast<std::uint64_t>(size->as_int());
  }
  return manifest;
}

std::string write_integrity_manifest(const IntegrityManifest& manifest) {
  std::vector<IntegrityManifest::Entry> sorted = manifest.files;
  std::sort(sorted.begin(), sorted.end(),
            [](const auto& a, const auto& b) { return a.name < b.name; });
  Dict files;
  Dict sizes;
  for (const auto& [name, digest, size] : sorted) {
    files.set(name, digest);
    if (size) sizes.set(name, *size);
  }
  Dict fields{{"algorithm", "sha256"}, {"files", Value(std::move(files))}};
  if (sizes.size() > 0) fields.set("sizes", Value(std::move(sizes)));
  return to_json(Value(std::move(fields)), 2);
}

void check_integrity(
    const IntegrityManifest& manifest,
    const std::function<std::optional<std::string>(const std::string& name)>& digest) {
  std::vector<std::string> lines;
  for (const auto& [name, expected, size] : manifest.files) {
    const std::optional<std::string> found = digest(name);
    if (!found) {
      lines.push_back(printable(name) + ": file missing or unreadable");
    } else if (*found != expected) {
      lines.push_back(str_format("{}: hash mismatch (expected {}..., got {}...)", printable(name),
                                 expected.substr(0, 16), found->substr(0, 16)));
    }
  }
  refuse_any(lines, "");
}

void check_sizes(const IntegrityManifest& manifest,
                 const std::function<std::optional<std::uint64_t>(const std::string& name)>& size) {
  std::vector<std::string> lines;
  for (const IntegrityManifest::Entry& entry : manifest.files) {
    const auto found = entry.size ? size(entry.name) : std::nullopt;
    if (found && *found != *entry.size)
      lines.push_back(str_format("{}: size mismatch (expected {}, got {})", printable(entry.name),
                                 *entry.size, *found));
  }
  refuse_any(lines,
             "\nThe files were damaged or replaced since integrity.json was written; if they are "
             "meant to be as they are, remove integrity.json");
}

}  // namespace dckpt
