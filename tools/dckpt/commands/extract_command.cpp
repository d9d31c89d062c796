#include <algorithm>

#include "mapping/base/error.h"
#include "operations/inspect/extract/render.h"
#include "operations/inspect/extract/tensor_file.h"
#include "operations/json/reports.h"
#include "tools/dckpt/commands/command.h"
#include "tools/dckpt/grammar/exit_code.h"
#include "tools/dckpt/render/output_file.h"
#include "tools/dckpt/render/progress_line.h"
#include "tools/dckpt/render/terminal.h"

namespace dckpt::tool {
namespace {

struct ExtractArguments {
  CheckpointArgument checkpoint;
  std::string key;
  bool common = false;
  bool objects = false;
  std::string output;
  bool json = false;
};

template <typename Entry>
std::optional<std::size_t> position_of(const std::vector<Entry>& entries, const std::string& key) {
  const auto found = std::ranges::find(entries, key, &Entry::key);
  if (found == entries.end()) return std::nullopt;
  return static_cast<std::size_t>(found - entries.begin());
}

[[noreturn]] void throw_no_key(const Metadata& metadata, const std::string& key) {
  std::vector<std::string> keys;
  for (const TensorStorageMetadata& tensor : metadata.tensors) keys.push_back(tensor.key);
  for (const BytesStorageMetadata& object : metadata.objects) keys.push_back(object.key);
  throw_error(ErrorCode::kMismatch, "the checkpoint has no tensor and no object {}{}", quote(key),
              suggest_keys(key, keys));
}

bool names_tensor_file(const std::string& output) {
  return output.ends_with(".npy") || output.ends_with(".safetensors");
}

/// Throws if the output is a tensor file, which holds tensors only.
void require_no_tensor_file(const ExtractArguments& options) {
  if (!names_tensor_file(options.output)) return;
  throw_error(ErrorCode::kInvalidArgument,
              "{} would be a file of a tensor, which this is not; name a file "
              "with another ending, for example .json",
              quote(options.output));
}

void write_json(const ExtractArguments& options, const std::string& text) {
  require_no_tensor_file(options);
  OutputFile file(options.output.empty() ? "-" : options.output);
  file.write(as_bytes(text));
  file.commit();
}

TensorFileFormat file_format(const ExtractArguments& options, const CheckpointReader& reader,
                             std::size_t tensor) {
  if (options.output.ends_with(".safetensors")) return TensorFileFormat::kSafetensors;
  if (options.output.ends_with(".npy")) return TensorFileFormat::kNpy;
  if (options.output == "-") {
    if (is_terminal(stdout))
      throw_error(
          ErrorCode::kInvalidArgument,
          "a tensor is not written to a terminal; redirect the output or name a file with -o");
    return TensorFileFormat::kNpy;
  }
  const TensorStorageMetadata& metadata = reader.metadata().tensors[tensor];
  const std::string what =
      str_format("{} is a tensor, {} {}", quote(metadata.key), to_string(metadata.properties.dtype),
                 to_string(metadata.global_shape()));
  throw_error(ErrorCode::kInvalidArgument,
              "{}; name a file that ends in .npy or .safetensors with -o{}", what,
              options.output.empty() ? "" : ", not " + quote(options.output));
}

void extract_tensor(const ExtractArguments& options, const CheckpointReader& reader,
                    std::size_t tensor) {
  if (options.json)
    throw_error(ErrorCode::kInvalidArgument,
                "{} is a tensor, and --json is for objects; leave it out and name a file that ends "
                "in .npy or .safetensors with -o",
                quote(reader.metadata().tensors[tensor].key));
  const TensorFileFormat format = file_format(options, reader, tensor);
  ProgressLine progress("extract ");
  const TensorFileOptions file_options{
      .progress = [&](std::uint64_t done, std::uint64_t total) { progress.update(done, total); }};
  std::optional<OutputFile> file;  // opened once the element type is known to fit
  write_tensor_file(
      reader, tensor, format,
      [&](ByteView bytes) {
        if (!file) file.emplace(options.output);
        file->write(bytes);
      },
      file_options);
  file->commit();
}

/// Extracts an object. One that stands for bytes (Transformer Engine's _extra_state) is written as
/// those bytes.
void extract_object(const ExtractArguments& options, const Value& object) {
  require_no_tensor_file(options);
  const bool as_json = options.json || options.output.empty() || options.output == "-" ||
                       options.output.ends_with(".json");
  const std::optional<Bytes> bytes = as_json ? std::nullopt : content_bytes(object);
  if (!bytes) return write_json(options, object_json(object));
  OutputFile file(options.output);
  file.write(*bytes);
  file.commit();
}

int run_extract(const ExtractArguments& options) {
  if ((options.key.empty() ? 0 : 1) + (options.common ? 1 : 0) + (options.objects ? 1 : 0) != 1) {
    throw_error(ErrorCode::kInvalidArgument,
                "name exactly one thing to extract: a KEY, --common or --objects");
  }
  if (!options.output.empty()) require_outside(options.output, options.checkpoint);
  const auto reader = options.checkpoint.open();
  with_context({.file = options.checkpoint.path}, [&] {
    if (const auto tensor = position_of(reader->metadata().tensors, options.key);
        tensor && !options.key.empty())
      return extract_tensor(options, *reader, *tensor);
    if (options.common) {
      const Value common = reader->common_state();
      if (common.is_none()) print_note("the checkpoint has no common state");
      return write_json(options, common_json(common));
    }
    if (options.objects) {
      if (reader->metadata().objects.empty()) print_note("the checkpoint has no objects");
      return write_json(options, objects_json(*reader));
    }
    if (const auto object = position_of(reader->metadata().objects, options.key))
      return extract_object(options, reader->object(*object));
    throw_no_key(reader->metadata(), options.key);
  });
  return kOk;
}

}  // namespace

Command add_extract(ProgramSpec& program) {
  const auto options = std::make_shared<ExtractArguments>();
  Parser command(program, "extract", "Take out one tensor, an object, or the common state");
  command.footer(
      "A tensor becomes a .npy or .safetensors file, by the ending of FILE; numpy has no bfloat16 "
      "and no float8, safetensors has. An object that stands for bytes (an _extra_state) goes "
      "into FILE as they are, unless it is called .json. Everything else becomes JSON; what JSON "
      "lacks is tagged:\n"
      "{\"__tuple__\": [...]}, {\"__tensor__\": {dtype, shape, sha256, first}}, ...\n\n"
      "Examples:\n"
      "  dckpt extract iter_0001000 decoder.final_layernorm.weight -o norm.safetensors\n"
      "  dckpt extract iter_0001000 --common | jq .args\n"
      "  dckpt extract iter_0001000 rng_state/shard_0.0_1.1\n"
      "  dckpt extract iter_0001000 decoder.layers.self_attention._extra_state/shard_0_4 -o "
      "state.bin\n"
      "  dckpt extract iter_0001000 --objects -o objects.json");
  add_checkpoint(command, options->checkpoint);
  add_backend(command, options->checkpoint);
  command.add_option("KEY", options->key, "Key of a tensor or object")
      .type_name("")
      .takes(Takes::kKey);
  command.add_flag("--common", options->common, "The common state");
  command.add_flag("--objects", options->objects, "All objects: {key: value}");
  command
      .add_option("-o,--output", options->output,
                  "File to write; - for standard output, the default of JSON")
      .type_name("FILE")
      .takes(Takes::kFile);
  add_json(command, options->json);
  return {&command.spec(), [options] { return run_extract(*options); }};
}

}  // namespace dckpt::tool
