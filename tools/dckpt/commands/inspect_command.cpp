#include <algorithm>
#include <functional>
#include <limits>
#include <map>
#include <numeric>
#include <span>
#include <unordered_map>
#include <utility>

#include "configs/policy/policy.h"
#include "mapping/base/counted.h"
#include "mapping/base/error.h"
#include "mapping/megatron/optimizer_keys.h"
#include "operations/inspect/extract/render.h"
#include "operations/inspect/inspect.h"
#include "operations/json/reports.h"
#include "strategies/formats/json/json.h"
#include "tools/dckpt/commands/command.h"
#include "tools/dckpt/commands/inspect_sizes.h"
#include "tools/dckpt/commands/inspect_timing.h"
#include "tools/dckpt/grammar/exit_code.h"
#include "tools/dckpt/render/head_rows.h"
#include "tools/dckpt/render/key_rows.h"
#include "tools/dckpt/render/resume_report.h"
#include "tools/dckpt/render/root_table.h"
#include "tools/dckpt/render/table.h"
#include "tools/dckpt/render/terminal.h"

namespace dckpt::tool {
namespace {

struct InspectArguments {
  CheckpointArgument checkpoint;
  InspectOptions inspect;
  std::string sort = "key";
  bool unfold = false;
  bool timing = false;
  bool all = false;
  bool json = false;
};

using Resume = std::optional<LatestChoice>;

/// Returns a short form of the value: "Namespace, 42 entries" rather than all of them.
std::string short_value(const Value& value) {
  constexpr std::size_t kLongest = 68;
  const auto with_size = [](const std::string& what, std::size_t count) {
    return str_format("{}, {}", what, counted(count, "entry", "entries"));
  };
  if (value.is(Value::Kind::kOpaque)) {
    const Opaque& object = value.as_opaque();
    const std::string path = object.class_path();
    if (object.states.size() == 1 && object.states.front().is_dict())
      return shown(with_size(path, object.states.front().size()));
  }
  std::string text = to_json(render(value));
  if (text.size() <= kLongest) return text;
  if (value.is_dict() || value.is_list()) return with_size(to_string(value.kind()), value.size());
  return text.substr(0, kLongest) + "…";
}

/// Returns "adam (exp_avg, exp_avg_sq, fp32_param), fully_sharded_model_space".
std::string optimizer_text(const CheckpointSummary& summary) {
  const OptimizerSummary& optimizer = summary.optimizer;
  if (!summary.has_optimizer)
    return optimizer.sharding.empty()
               ? ""
               : str_format("not stored (the common state names {})", shown(optimizer.sharding));
  std::string text = shown(optimizer.name);
  std::string states;
  for (const std::string& state : optimizer.states)
    states += (states.empty() ? "" : ", ") + shown(state);
  if (!states.empty()) text += text.empty() ? states : str_format(" ({})", states);
  if (!optimizer.sharding.empty()) text += (text.empty() ? "" : "; ") + shown(optimizer.sharding);
  return text;
}

/// Returns "4 layers, hidden 32, 4 heads", few enough facts for a line.
std::string model_text(const RunFacts& run) {
  std::string text;
  for (const auto& [name, number] : run.model) {
    const bool counted = name != "hidden" && name != "ffn" && name != "vocabulary";
    if (!text.empty()) text += ", ";
    text += counted ? str_format("{} {}", number, name) : str_format("{} {}", name, number);
  }
  return text;
}

/// Returns "TP 2, PP 2, DP 2 (8 ranks)"; context, expert and virtual parallelism appear only if
/// used.
std::string parallel_text(const RunFacts& run) {
  std::string text;
  for (const auto& [name, size] : run.parallel) {
    if (name == "ranks")
      text += str_format(" ({} {})", size, size == 1 ? "rank" : "ranks");
    else if (size > 1 || (name != "CP" && name != "EP" && name != "VPP"))
      text += str_format("{}{} {}", text.empty() ? "" : ", ", name, size);
  }
  return text;
}

/// Returns "quantize, by ModelOpt 0.47.0 (modelopt_state)".
std::string modelopt_text(const ModelOptState& state) {
  std::string modes;
  for (const std::string& mode : state.modes) modes += (modes.empty() ? "" : ", ") + mode;
  if (modes.empty()) modes = state.version.empty() ? "cannot be read" : "no mode";
  return str_format("{}{} ({})", modes,
                    state.version.empty() ? "" : ", by ModelOpt " + state.version, state.place);
}

void print_groups(const CheckpointSummary& summary) {
  using Align = Table::Align;
  Table table({{"GROUP"},
               {"TENSORS", Align::kRight},
               {"OBJECTS", Align::kRight},
               {"ELEMENTS", Align::kRight},
               {"SIZE", Align::kRight}});
  const auto number = [](std::uint64_t count) { return count == 0 ? "" : grouped(count); };
  for (const auto& [group, name] : kContentGroupNames) {
    const GroupTotal& total = summary.group(group);
    if (!total.empty())
      table.add({std::string(name), number(total.tensors), number(total.objects),
                 number(total.elements), human_bytes(total.bytes)});
  }
  if (table.empty()) return;
  add_bars(summary, table);
  print("\n");
  table.print();
  print_layers(summary);
}

void print_head(const InspectArguments& options, const CheckpointSummary& summary,
                const Resume& resume) {
  print(styled(Style::kBold, shown(options.checkpoint.resolved())) + "\n");
  std::uint64_t bytes = 0;
  for (const FileSummary& file : summary.files) bytes += file.bytes;
  HeadRows head;
  std::string format = summary.info.format;
  if (summary.info.version) format += " version " + std::to_string(*summary.info.version);
  if (!summary.info.producer.empty()) format += str_format(" ({})", summary.info.producer);
  head.add("format", shown(format));
  head.add("on disk",
           str_format("{} in {}", human_bytes(bytes), counted(summary.files.size(), "file")));
  std::uint64_t unused = 0;
  for (const FileSummary& file : summary.files) unused += file.unused.value_or(0);
  if (unused > 0)
    head.add("unused", human_bytes(unused) + " of the data files, which no record takes");
  if (!summary.data_files.complete()) {
    head.add("incomplete",
             str_format("{} (dckpt verify lists all problems)", describe(summary.data_files)));
  }
  if (!summary.unreferenced.empty()) {
    head.add("not used",
             str_format("{}: the metadata does not refer to {}", quoted_list(summary.unreferenced),
                        summary.unreferenced.size() == 1 ? "it" : "them"));
  }
  for (const Finding& finding : summary.info.findings)
    head.add("doubtful", safe_message(finding.message));
  if (const Value* iteration = summary.common.find("iteration");
      iteration != nullptr && iteration->is_int())
    head.add("iteration", std::to_string(iteration->as_int()));
  head.add("model", model_text(summary.run));
  head.add("saved with", parallel_text(summary.run));
  head.add("optimizer", optimizer_text(summary));
  head.add("reshardable", shown(summary.optimizer.reshardable));
  if (summary.modelopt) head.add("modelopt", shown(modelopt_text(*summary.modelopt)));
  head.add("readable by", shown(summary.readers.model));
  head.add("resumed by", shown(summary.readers.optimizer));
  if (resume) {
    head.add("resume", resume_text(*resume));
    for (const std::string& why : resume->passed_over) head.add("skipped", safe_message(why));
  }
  head.print();
  print_groups(summary);
}

/// The maximum number of rows without --unfold.
constexpr std::size_t kMostRows = 200;

void print_rows_left_out(std::size_t rows) {
  if (rows > 0) print(str_format("  … and {} more rows (--unfold lists all)\n", grouped(rows)));
}

/// The tensors whose keys begin in the same way.
struct KeyGroup {
  std::uint64_t bytes = 0;
  std::vector<const TensorSummary*> tensors;
};
using KeyGroups = std::map<std::string_view, KeyGroup, decltype(&natural_less)>;

/// Groups tensors by the first `components` of their keys, which are separated by dots.
KeyGroups key_groups(const std::vector<TensorSummary>& tensors, std::size_t components) {
  KeyGroups groups(&natural_less);
  for (const TensorSummary& tensor : tensors) {
    const std::string_view key = tensor.key;
    std::size_t dot = key.find('.');
    for (std::size_t i = 1; i < components && dot != key.npos; ++i) dot = key.find('.', dot + 1);
    KeyGroup& group = groups[key.substr(0, dot)];
    group.bytes += tensor.bytes;
    group.tensors.push_back(&tensor);
  }
  return groups;
}

/// Prints a row for each group of keys. The groups are as small as few rows allow.
void print_key_groups(const CheckpointSummary& summary) {
  constexpr std::size_t kFewRows = 60;
  constexpr std::size_t kMostComponents = 16;
  KeyGroups groups = key_groups(summary.tensors, 1);
  for (std::size_t components = 2; components <= kMostComponents; ++components) {
    KeyGroups smaller = key_groups(summary.tensors, components);
    if (smaller.size() > kFewRows) break;
    groups = std::move(smaller);
  }
  using Align = Table::Align;
  print(str_format("\n{}\n", styled(Style::kBold, "Tensors")));
  Table table({{"SIZE", Align::kRight}, {"HOLDS"}, Table::names("KEY")});
  std::size_t shown_rows = 0;
  for (const auto& [begin, group] : groups) {
    if (shown_rows == kMostRows) break;
    ++shown_rows;
    const TensorSummary& tensor = *group.tensors.front();
    if (group.tensors.size() == 1)
      table.add({human_bytes(group.bytes),
                 str_format("{} {}", to_string(tensor.dtype), to_string(tensor.shape)),
                 shown(tensor.key)});
    else
      table.add(
          {human_bytes(group.bytes), counted(group.tensors.size(), "tensor"), shown(begin) + ".*"});
  }
  table.print();
  print_rows_left_out(groups.size() - shown_rows);
}

std::vector<std::size_t> sorted(const CheckpointSummary& summary, const std::string& by) {
  const std::vector<TensorSummary>& tensors = summary.tensors;
  std::vector<std::size_t> order(tensors.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  if (by == "stored") return order;
  std::ranges::sort(order, [&](std::size_t a, std::size_t b) {
    if (by == "size" && tensors[a].bytes != tensors[b].bytes)
      return tensors[a].bytes > tensors[b].bytes;
    if (by == "chunks" && tensors[a].chunk_count != tensors[b].chunk_count)
      return tensors[a].chunk_count > tensors[b].chunk_count;
    return natural_less(tensors[a].key, tensors[b].key);
  });
  return order;
}

/// The tensors of one row of the table, in order.
struct TensorRow {
  std::string key;
  std::vector<std::size_t> tensors;
  std::uint64_t bytes = 0;
  std::uint64_t chunks = 0;
  bool as_weights = false;  ///< optimizer state of many weights, each of its weight's shape
};

/// Returns "optimizer.state.exp_avg.*" for a state tensor with the shape of its weight in
/// `weights`, else "".
std::string state_of_weights(const TensorSummary& tensor,
                             const std::unordered_map<std::string_view, const Shape*>& weights) {
  const std::string_view weight = parse_optimizer_state_key(tensor.key).model_key;
  const auto found = weights.find(weight);
  if (weight.empty() || found == weights.end() || *found->second != tensor.shape) return "";
  return tensor.key.substr(0, tensor.key.size() - weight.size()) + "*";
}

std::vector<TensorRow> tensor_rows(const InspectArguments& options,
                                   const CheckpointSummary& summary) {
  const std::vector<std::size_t> order = sorted(summary, options.sort);
  const bool alone = options.unfold || options.inspect.chunks;
  std::unordered_map<std::string_view, const Shape*> weights;
  for (const TensorSummary& tensor : summary.tensors)
    if (!alone && !is_optimizer_key(tensor.key)) weights.emplace(tensor.key, &tensor.shape);
  std::vector<std::string> keys;
  std::vector<std::string> kinds;  // the fields that a row shows for all its tensors
  for (const std::size_t i : order) {
    const TensorSummary& tensor = summary.tensors[i];
    const std::string state = state_of_weights(tensor, weights);
    keys.push_back(state.empty() ? tensor.key : state);
    kinds.push_back(std::string(to_string(tensor.dtype)) +
                    (state.empty() ? to_string(tensor.shape) : state) +
                    (tensor.flattened ? "flattened" : "") + (alone ? tensor.key : ""));
  }
  std::vector<TensorRow> rows;
  for (KeyRow& folded : fold_keys(keys, kinds)) {
    TensorRow row{.key = std::move(folded.key), .tensors = {}};
    for (const std::size_t member : folded.members) {
      const TensorSummary& tensor = summary.tensors[order[member]];
      row.tensors.push_back(order[member]);
      row.bytes += tensor.bytes;
      row.chunks += tensor.chunk_count;
    }
    row.as_weights = row.tensors.size() > 1 &&
                     !state_of_weights(summary.tensors[row.tensors.front()], weights).empty();
    rows.push_back(std::move(row));
  }
  if (options.sort == "size") std::ranges::stable_sort(rows, std::greater{}, &TensorRow::bytes);
  if (options.sort == "chunks") std::ranges::stable_sort(rows, std::greater{}, &TensorRow::chunks);
  return rows;
}

void print_tensors(const InspectArguments& options, const CheckpointSummary& summary) {
  if (summary.tensors.empty()) return;
  const std::vector<TensorRow> rows = tensor_rows(options, summary);
  if (rows.size() > kMostRows && options.sort == "key" && !options.unfold &&
      !options.inspect.chunks) {
    print_key_groups(summary);
    print(
        str_format("  A summary of {} tensors in {} rows: --unfold lists them, --keys GLOB "
                   "chooses, --sort size shows the largest.\n",
                   grouped(summary.tensors.size()), grouped(rows.size())));
    return;
  }
  using Align = Table::Align;
  print(str_format("\n{}\n", styled(Style::kBold, "Tensors")));
  Table table({{"SIZE", Align::kRight},
               {"DTYPE"},
               {"SHAPE"},
               {"CHUNKS", Align::kRight},
               Table::names("KEY")});
  const std::size_t shown_rows =
      options.unfold || options.inspect.chunks ? rows.size() : std::min(rows.size(), kMostRows);
  for (const TensorRow& row : std::span(rows).first(shown_rows)) {
    const TensorSummary& tensor = summary.tensors[row.tensors.front()];
    table.add({human_bytes(row.bytes), std::string(to_string(tensor.dtype)),
               row.as_weights ? "as weights" : to_string(tensor.shape), grouped(row.chunks),
               shown(row.key) + (tensor.flattened ? "  (flattened)" : "")});
    for (const ChunkSummary& chunk : tensor.chunks) {
      table.add({human_bytes(chunk.length), "", to_string(chunk.box), "",
                 str_format("  {} at {}", shown(chunk.file), grouped(chunk.offset))});
    }
  }
  table.print();
  print_rows_left_out(rows.size() - shown_rows);
  if (options.inspect.chunks)
    print(
        "  A chunk's size is that of its record in the file. Boxes of flattened tensors are in the "
        "space they are stored in.\n");
}

void print_objects(const InspectArguments& options, const CheckpointSummary& summary) {
  if (summary.objects.empty()) return;
  std::vector<ObjectSummary> objects = summary.objects;
  if (options.sort != "stored") std::ranges::sort(objects, natural_less, &ObjectSummary::key);
  if (options.sort == "size")
    std::ranges::stable_sort(objects, std::greater{}, &ObjectSummary::bytes);
  std::vector<std::string> keys;
  for (const ObjectSummary& object : objects) keys.push_back(object.key);
  const std::vector<KeyRow> rows =
      fold_keys(keys, options.unfold ? keys : std::vector<std::string>(keys.size()));
  using Align = Table::Align;
  print(str_format("\n{}\n", styled(Style::kBold, "Objects")));
  Table table({{"SIZE", Align::kRight}, Table::names("KEY")});
  const std::size_t shown_rows = options.unfold ? rows.size() : std::min(rows.size(), kMostRows);
  for (const KeyRow& row : std::span(rows).first(shown_rows)) {
    std::uint64_t bytes = 0;
    for (const std::size_t member : row.members) bytes += objects[member].bytes;
    table.add({human_bytes(bytes), shown(row.key)});
  }
  table.print();
  print_rows_left_out(rows.size() - shown_rows);
}

void print_rest(const CheckpointSummary& summary) {
  using Align = Table::Align;
  if (summary.common.is_dict() && summary.common.size() > 0) {
    print(str_format("\n{}\n", styled(Style::kBold, "Common state")));
    for (const auto& [key, value] : summary.common.as_dict())
      print(str_format("  {}{}{}\n", key.is_str() ? shown(key.as_str()) : short_value(key),
                       styled(Style::kDim, ": "), short_value(value)));
  }
  print(str_format("\n{}\n", styled(Style::kBold, "Files")));
  Table files({{"SIZE", Align::kRight}, Table::names("NAME")});
  for (const FileSummary& file : summary.files) {
    const std::uint64_t unused = file.unused.value_or(0);
    files.add(
        {human_bytes(file.bytes),
         shown(file.name) + (unused == 0 ? "" : str_format("  ({} unused)", human_bytes(unused)))});
  }
  files.print();
}

/// Opens the checkpoint. If that fails on a training root, prints what a run that starts there
/// would resume from, since the tracker may name the damaged checkpoint.
CheckpointArgument::Shown open_inspected(const InspectArguments& options, const Resume& resume) {
  try {
    return options.checkpoint.open_shown();
  } catch (const CheckpointError&) {
    if (resume) print_note("a run that starts here takes: " + resume_text(*resume));
    throw;
  }
}

/// Returns nothing for a path that is not a training root.
std::optional<RootSurvey> survey(const InspectArguments& options) {
  const std::string& path = options.checkpoint.path;
  const bool is_root = is_training_root(path);
  if (options.all && !is_root) {
    throw_error(ErrorCode::kInvalidArgument, {.file = path}, "--all is for a training root");
  }
  if (!is_root) return std::nullopt;
  SurveyOptions survey_options;
  if (options.all) survey_options.newest = std::numeric_limits<std::size_t>::max();
  if (!options.checkpoint.policy.empty()) {
    const Policy policy = Policy::find(options.checkpoint.policy);
    survey_options.strategy = policy.load.strategy;
    survey_options.retention = policy.retention;
  }
  return survey_root(path, survey_options);
}

int run_inspect(const InspectArguments& options) {
  if (options.timing) return show_timing(options.checkpoint, options.json);
  const std::optional<RootSurvey> root = survey(options);
  // --iteration may select a checkpoint other than the one that a run would resume from.
  const bool says_resume = root && (options.json || !options.checkpoint.iteration);
  const Resume resume = says_resume ? Resume(root->resume) : std::nullopt;
  if (root && !options.json) print_root(*root, options.checkpoint.path, options.all);
  const auto [reader, stored] = open_inspected(options, resume);
  const CheckpointReader& shown = *reader;
  CheckpointSummary summary = with_context({.file = options.checkpoint.path},
                                           [&] { return inspect(shown, options.inspect); });
  if (stored) summary.files = inspect(*stored).files;  // what a planner makes is nowhere in them
  if (options.json) {
    print_json(to_json(summary, options.inspect.chunks, root ? &*root : nullptr,
                       !options.checkpoint.policy.empty()));
    return kOk;
  }
  print_head(options, summary, resume);
  if (summary.tensors.empty() && summary.objects.empty())
    print("  The checkpoint holds no tensors and no objects.\n");
  print_tensors(options, summary);
  print_objects(options, summary);
  print_rest(summary);
  return kOk;
}

}  // namespace

Command add_inspect(ProgramSpec& program) {
  const auto options = std::make_shared<InspectArguments>();
  Parser command(program, "inspect", "Show what a checkpoint holds");
  command.footer(
      "A training root begins with a table of its iterations. With --policy it also says which of "
      "them the policy's retention removes when a run that resumes here saves next.\n\n"
      "Examples:\n"
      "  dckpt inspect run/checkpoints                       the iterations of a run, the latest\n"
      "  dckpt inspect run/checkpoints --all --policy run.yaml\n"
      "  dckpt inspect run/checkpoints --iteration 1000 --sort size\n"
      "  dckpt inspect iter_0001000 --keys 'decoder.*' --chunks\n"
      "  dckpt inspect iter_0001000 --timing                 how long its save took, and where\n"
      "  dckpt inspect iter_0001000 --json | jq '.tensors[].key'");
  add_checkpoint(command, options->checkpoint);
  add_backend(command, options->checkpoint);
  const std::vector<Option> opening = command.options();
  add_map(command, options->checkpoint.map);
  add_key_filter(command, options->inspect.keys);
  command.add_flag("--chunks", options->inspect.chunks, "Also list where each chunk is stored");
  Option sort = command
                    .add_option("--sort", options->sort,
                                "Order of the rows: key, size, chunks or stored [key]")
                    .type_name("BY")
                    .one_of({"key", "size", "chunks", "stored"});
  Option unfold =
      command.add_flag("--unfold", options->unfold,
                       "A row for each key, also of optimizer state and of numbered layers");
  Option timing =
      command.add_flag("--timing", options->timing,
                       "Show what the save took instead (if its policy had save.report)");
  command.add_flag("--all", options->all,
                   "Of a training root: a row for each iteration, not for the newest ones only");
  for (const Option& other : command.options()) {
    if (other != timing && std::ranges::find(opening, other) == opening.end())
      timing.excludes(other);
  }
  add_json(command, options->json);
  Option json = command.options().back();
  json.excludes(sort).excludes(unfold);  // options of text output
  return {&command.spec(), [options] { return run_inspect(*options); }};
}

}  // namespace dckpt::tool
