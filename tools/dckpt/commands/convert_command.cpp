#include <algorithm>
#include <array>

#include "configs/maps/key_map.h"
#include "dist_checkpointing/open/open.h"
#include "mapping/base/counted.h"
#include "mapping/base/error.h"
#include "migration/maps/mapped_reader.h"
#include "operations/convert/conversion_findings.h"
#include "operations/convert/convert.h"
#include "operations/convert/convert_policy.h"
#include "operations/json/reports.h"
#include "tools/dckpt/commands/command.h"
#include "tools/dckpt/commands/convert_report.h"
#include "tools/dckpt/commands/held_bytes.h"
#include "tools/dckpt/commands/interruption.h"
#include "tools/dckpt/grammar/exit_code.h"
#include "tools/dckpt/grammar/policy_argument.h"
#include "tools/dckpt/render/progress_line.h"
#include "tools/dckpt/render/table.h"
#include "tools/dckpt/render/terminal.h"

namespace dckpt::tool {
namespace {

constexpr int kMaxJobs = 1024;
constexpr int kMaxParallel = 1 << 20;
constexpr std::string_view kRankFolders = "torch";

/// A part of the layout of a run that is to load the rank folders.
struct LayoutOption {
  std::string flag;
  std::string name;  ///< Megatron's name
  std::string value;
};

struct ConvertArguments {
  std::string source;
  std::string destination;
  ConvertOptions convert;
  std::string compat;
  std::string flattened;
  std::string optimizer;
  std::string max_memory;
  std::string merge_adapter;
  std::string workers;
  std::string dtype;
  std::vector<std::string> error_on;
  std::optional<int> jobs;
  std::vector<LayoutOption> of_layout;
  PolicyArgument policy;
  bool integrity = false;
  bool no_integrity = false;
  bool trust_source = false;
  bool explain = false;
  bool json = false;
};

/// Combines the command line with the policy, which it overrides. Policy fields without meaning for
/// a conversion are added to `unused`.
ConvertOptions merged(const ConvertArguments& options, std::vector<std::string>& unused) {
  if (options.policy.name.empty()) {
    ConvertOptions given = options.convert;
    given.limits.io.threads = all_cores();
    return given;
  }
  const CheckedPolicy checked = options.policy.checked();
  PolicyForConversion policy = policy_for_conversion(checked.policy, checked.names_format);
  unused = std::move(policy.unused);
  ConvertOptions merged = std::move(policy.options);
  const ConvertOptions& given = options.convert;
  // A policy that says nothing about its readers leaves the format to --to.
  if (!given.target.strategy.empty() && merged.target.compat == SaveOptions{}.compat)
    merged.target.compat.reset();
  if (!given.target.strategy.empty() && given.target.strategy != merged.target.strategy) {
    if (merged.target.version) unused.push_back("save.backend.version (--to names another)");
    if (!merged.target.options.empty())
      unused.push_back("save.backend.options (--to names another)");
    merged.target.strategy = given.target.strategy;
    merged.target.version = {};
    merged.target.options = {};
  }
  if (!given.source.map.name.empty()) merged.source.map.name = given.source.map.name;
  merged.source.map.set.insert(merged.source.map.set.end(), given.source.map.set.begin(),
                               given.source.map.set.end());
  merged.checks.round_trip = given.checks.round_trip;
  merged.checks.allow_other_config = given.checks.allow_other_config;
  merged.target.ranks = given.target.ranks;
  merged.target.model_files = given.target.model_files;
  merged.source.keys = given.source.keys;
  merged.source.iteration = given.source.iteration;
  merged.source.allow_partial = given.source.allow_partial;
  merged.source.main_parameters = given.source.main_parameters;
  merged.dry_run = given.dry_run;
  merged.target.overwrite = given.target.overwrite;
  merged.target.resume = given.target.resume;
  return merged;
}

bool writes_rank_folders(const ConvertOptions& options, const std::string& source) {
  const ConvertTarget& target = options.target;
  if (!target.strategy.empty() || target.compat) return target.strategy == kRankFolders;
  return with_context({.file = source}, [&] {
    return open_checkpoint(
               source, {.iteration = options.source.iteration, .strategy = options.source.strategy})
               ->info()
               .format == kRankFolders;
  });
}

/// Returns the merged options with the values that are still text parsed.
ConvertOptions parsed(const ConvertArguments& options, std::vector<std::string>& unused) {
  ConvertOptions parsed = merged(options, unused);
  const auto refuse = [](const std::string& option, const std::string& text,
                         const std::string& expected) {
    return CheckpointError(ErrorCode::kInvalidArgument,
                           str_format("{}: found {}, expected {}", option, quote(text), expected));
  };
  if (!options.compat.empty()) parsed.target.compat = parse_compat(options.compat);
  if (!options.flattened.empty())
    parsed.optimizer.flattened = value_of(kFlattenedFormNames, options.flattened).value();
  if (!options.optimizer.empty())
    parsed.optimizer.sharding = value_of(kOptimizerShardingNames, options.optimizer);
  if (!options.max_memory.empty()) {
    const std::optional<std::uint64_t> size = parse_size(options.max_memory);
    if (!size || *size == 0)
      throw refuse("--max-memory", options.max_memory, "a size, for example 512MiB or 4GiB");
    parsed.limits.memory = *size;
  }
  if (options.jobs) {
    parsed.limits.io.threads = *options.jobs;
    parsed.limits.read_threads.reset();
  }
  for (const LayoutOption& option : options.of_layout) {
    if (!writes_rank_folders(parsed, options.source))
      throw_error(ErrorCode::kInvalidArgument, "{} is for --to torch; leave it out", option.flag);
    parsed.target.options.set(option.name, option.value);
  }
  if (!options.dtype.empty()) parsed.source.map.set.push_back("dtype=" + options.dtype);
  for (const std::string& code : options.error_on)
    parsed.checks.error_on.push_back(value_of(kFindingCodeNames, code).value());
  if (!options.merge_adapter.empty()) parsed.source.merge_adapter = Location(options.merge_adapter);
  if (!options.workers.empty()) parsed.workers.directory = Location(options.workers);
  if (options.integrity || options.no_integrity) parsed.target.integrity = options.integrity;
  if (options.trust_source) parsed.checks.source = false;
  if (options.explain) parsed.dry_run = true;
  return parsed;
}

std::string joined(const std::vector<std::string>& texts) {
  std::string out;
  for (const std::string& text : texts) out += (out.empty() ? "" : ", ") + text;
  return out;
}

Finding unused_fields(const std::vector<std::string>& fields) {
  return {FindingCode::kNoEffect,
          "the conversion has no use for these fields of the policy: " + joined(fields), fields};
}

int run_convert(const ConvertArguments& options, Communicator& ranks) {
  std::vector<std::string> unused;
  ConvertOptions convert_options = parsed(options, unused);
  if (!unused.empty() &&
      std::ranges::find(convert_options.checks.error_on, FindingCode::kNoEffect) !=
          convert_options.checks.error_on.end())
    throw_error(ErrorCode::kMismatch, unused_fields(unused).message + " (--error-on no-effect)");
  ConvertReport report;
  {
    ProgressLine progress("convert ");
    convert_options.progress = [&](std::uint64_t done, std::uint64_t total) {
      progress.update(done, total);
    };
    report = with_context({.file = options.source}, [&] {
      return convert(options.source, options.destination, convert_options, ranks);
    });
  }
  if (!unused.empty()) {
    report.steps.insert(
        report.steps.begin(),
        {"policy", "says what options leave open", {unused_fields(unused).message}});
    report.findings.push_back(unused_fields(unused));
  }
  if (options.json)
    print_json(to_json(report, convert_options.dry_run));
  else
    print_report(report, convert_options.dry_run, options.explain,
                 convert_options.target.ranks.has_value());
  return kOk;
}

constexpr const char* kFooter =
    "The result appears under DST in one step when it is complete. Memory stays within "
    "--max-memory, whatever the size of the tensors.\n\n"
    "Who loads the result:\n"
    "  model      by default every Megatron-Core with torch_dist (0.6 and newer) and PyTorch "
    "DCP; --compat megatron-0.19: Megatron-Core 0.19 and newer; --to dcp: PyTorch DCP. A copy "
    "in SRC's format keeps SRC's form\n"
    "  optimizer  no form serves every release. --optimizer fully_reshardable: Megatron-Core "
    "0.15 and newer; --optimizer fully_sharded_model_space: 0.8 to 0.15. Without "
    "it the form stays; options that would leave a form from which no release resumes are "
    "refused.\n"
    "  The notes after a conversion, and dckpt inspect, say it of the checkpoint at hand.\n\n"
    "Models of Hugging Face (--to hf, safetensors) have other keys than Megatron's: --map NAME "
    "makes them, --map none insists on the keys as they are. Without --include the optimizer "
    "stays behind. With a map, --exclude and --include match keys of either side; what --exclude "
    "matches in SRC is left out before the map sees it.\n\n"
    "Examples:\n"
    "  dckpt convert iter_0001000 plain --to dcp\n"
    "  dckpt convert iter_0001000 for64 --ranks 64\n"
    "  dckpt convert iter_0001000 for64 --ranks 64 --resume\n"
    "  dckpt convert iter_0001000 for64 --ranks 64 --workers pool\n"
    "  dckpt convert iter_0001000 weights --exclude 'optimizer.*' --dry-run\n"
    "  dckpt convert llama iter_0000000 --to torch_dist --map auto --explain\n"
    "  dckpt convert from_014 for_016 --optimizer fully_reshardable\n"
    "  dckpt convert dp_reshardable any_layout --optimizer fully_reshardable\n"
    "  dckpt convert llama iter_0000000 --to torch_dist\n"
    "  dckpt convert iter_0001000 model --to hf --map auto --model-files llama\n"
    "  dckpt convert iter_0001000 for015 --policy megatron_0_15_readers\n"
    "  dckpt convert iter_0001000 ranks --to torch --tensor-parallel 2 --exclude 'optimizer*'\n"
    "  dckpt convert iter_0001000 model --to hf --map llama --set vocab_size=32000\n"
    "  dckpt convert iter_0001000 model --to hf --map auto --model-files llama --dtype bfloat16\n"
    "  dckpt convert llama merged --merge-adapter my_adapter\n"
    "  dckpt convert llama small --map auto --set num_layers=2 --exclude 'model.layers.[23].*'\n"
    "  dckpt convert iter_0001000 for_fsdp --to fsdp_dtensor --optimizer fully_reshardable\n"
    "  dckpt convert old new --to torch_dist --compat megatron-0.19 --max-memory 4GiB";

void add_places(Parser command, ConvertArguments& options) {
  command
      .add_option("SRC", options.source,
                  "Checkpoint directory, training root, or a file of a checkpoint")
      .required()
      .type_name("")
      .takes(Takes::kCheckpoint);
  command.add_option("DST", options.destination, "Directory to write")
      .required()
      .type_name("")
      .takes(Takes::kFolder);
  add_iteration(command, "--iteration", options.convert.source.iteration);
}

/// Adds the options of the output format.
void add_form(Parser command, ConvertArguments& options) {
  ConvertOptions& convert = options.convert;
  command
      .add_option("--to", convert.target.strategy,
                  "Format to write, one of those of dckpt formats; default: SRC's")
      .type_name("FORMAT")
      .takes(Takes::kFormat);
  command
      .add_option("--policy", options.policy.name,
                  "Take from this policy what no other option says (see dckpt config)")
      .type_name("FILE")
      .takes(Takes::kPolicy);
  command
      .add_option("--compat", options.compat,
                  "Readers of the model: megatron (0.6 and newer), megatron-0.19, dcp")
      .type_name("NAME")
      .one_of(names_of(kCompatNames));
  command
      .add_option("--optimizer", options.optimizer,
                  "From what it resumes: fully_reshardable or fully_sharded_model_space, see below")
      .type_name("FORM")
      .one_of(names_of(kOptimizerShardingNames));
  command
      .add_option("--flattened", options.flattened,
                  "Flattened optimizer state as boxes or for megatron 0.8 to 0.15 [as SRC has it]")
      .type_name("FORM")
      .one_of(names_of(kFlattenedFormNames));
  add_map(command, convert.source.map);
  command.add_flag("--main-parameters", convert.source.main_parameters,
                   "Take the weights from the optimizer's parameters in float32");
  command
      .add_option("--merge-adapter", options.merge_adapter,
                  "Merge the LoRA adapter in this folder, PEFT's, into the model")
      .type_name("FOLDER")
      .takes(Takes::kFolder);
  command
      .add_option("--dtype", options.dtype,
                  "Through a map: cast floats to bfloat16, float16 or float32")
      .type_name("DTYPE")
      .one_of(names_of(kMapCastNames));
  command.add_flag("--roundtrip-check", convert.checks.round_trip,
                   "Go through the map and back in memory first, and compare bit by bit");
}

/// Adds the options of the target layout of ranks.
void add_layout(Parser command, const std::shared_ptr<ConvertArguments>& options) {
  add_number(command, "--ranks", "Cut every tensor anew for this many ranks", kMaxRanks,
             [options](int ranks) { options->convert.target.ranks = ranks; });
  for (const auto& [flag, name, what] :
       {std::array{"--tensor-parallel", "tensor_model_parallel_size",
                   "For --to torch: tensor-parallel ranks [those of the run]"},
        {"--pipeline-parallel", "pipeline_model_parallel_size",
         "For the same: pipeline stages [those of the run]"},
        {"--virtual-pipeline", "virtual_pipeline_model_parallel_size",
         "For the same: chunks of each stage [those of the run, or 1]"},
        {"--expert-parallel", "expert_model_parallel_size",
         "For the same: expert-parallel ranks [those of the run]"}})
    add_number(command, flag, what, kMaxParallel,
               [options, flag = std::string(flag), name = std::string(name)](int value) {
                 options->of_layout.push_back({flag, name, std::to_string(value)});
               });
  command
      .add_option(
          "--transformer-impl",
          [options](const std::string& value) {
            options->of_layout.push_back({"--transformer-impl", "transformer_impl", value});
            return std::string();
          },
          "For the same: local or transformer_engine, if SRC's args do not say it")
      .type_name("NAME")
      .one_of({"local", "transformer_engine"});
}

/// Adds the options that select what is taken from the source.
void add_selection(Parser command, ConvertArguments& options) {
  ConvertOptions& convert = options.convert;
  add_model_files(command, convert.target.model_files,
                  "Folder of config.json, for the map, and tokenizer, to copy; by default SRC");
  command
      .add_option("--include", convert.source.keys.include,
                  "Only keys that match this pattern; repeatable")
      .type_name("GLOB")
      .takes(Takes::kKeyPattern);
  command
      .add_option("--exclude", convert.source.keys.exclude,
                  "No keys that match this pattern; repeatable")
      .type_name("GLOB")
      .takes(Takes::kKeyPattern);
}

std::vector<std::string> codes_of_conversions() {
  std::vector<std::string> names;
  for (const auto& [code, name] : kFindingCodeNames)
    if (is_of_conversions(code)) names.emplace_back(name);
  return names;
}

/// Adds the options of resources and safety.
void add_conduct(Parser command, const std::shared_ptr<ConvertArguments>& options) {
  ConvertOptions& convert = options->convert;
  command.add_option("--max-memory", options->max_memory, "For tensor bytes in flight [256MiB]")
      .type_name("SIZE");
  add_number(command, "--jobs",
             "Threads that read, compute and write [all cores]; fewer if memory is small", kMaxJobs,
             [options](int jobs) { options->jobs = jobs; });
  command.add_flag("--resume", convert.target.resume,
                   "Go on with a conversion that was interrupted, without its finished files");
  command
      .add_option("--workers", options->workers,
                  "Share the work with all processes that are started so, on any hosts")
      .type_name("DIR")
      .takes(Takes::kFolder);
  command
      .add_flag("--integrity", options->integrity,
                "Write integrity.json with a SHA-256 per file [as SRC has it; always for hf, "
                "safetensors and zarr]")
      .excludes(
          command.add_flag("--no-integrity", options->no_integrity, "Write no integrity.json"));
  command.add_flag("--trust-source", options->trust_source,
                   "Do not compare the source with its checksums");
  command.add_flag("--allow-partial", convert.source.allow_partial,
                   "If data files are missing, convert the keys that are whole");
  command.add_flag("--allow-other-config", convert.checks.allow_other_config,
                   "Let a config.json go along that differs from the tensors");
  command
      .add_option("--error-on", options->error_on,
                  "Write nothing if there are such notes: data-lost, values-rounded, …; repeatable")
      .type_name("CODE")
      .one_of(codes_of_conversions());
  command
      .add_flag("--dry-run", convert.dry_run,
                "Say what would be written and how large it is, write nothing")
      .excludes(command.add_flag("--explain", options->explain,
                                 "The same as a list of steps, and what each does"));
  command.add_flag("--overwrite", convert.target.overwrite, "Replace DST if it exists");
  add_json(command, options->json);
}

}  // namespace

Command add_convert(ProgramSpec& program) {
  const auto options = std::make_shared<ConvertArguments>();
  Parser command(program, "convert",
                 "Write a checkpoint anew: another format, other shards, fewer keys");
  command.footer(kFooter);
  add_places(command, *options);
  add_form(command, *options);
  add_layout(command, options);
  add_selection(command, *options);
  add_conduct(command, options);
  return {&command.spec(), [options](Communicator& ranks) {
            Interruption interruption;
            options->convert.stop = interruption.token();
            return interruption.run([&] { return run_convert(*options, ranks); });
          }};
}

}  // namespace dckpt::tool
