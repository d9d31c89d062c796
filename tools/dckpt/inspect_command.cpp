#include <CLI/CLI.hpp>

#include "dist_checkpointing/extract/render.h"
#include "dist_checkpointing/inspect.h"
#include "mapping/base/text.h"
#include "strategies/formats/json/json.h"
#include "tools/dckpt/command.h"
#include "tools/dckpt/exit_code.h"
#include "tools/dckpt/table.h"
#include "tools/dckpt/terminal.h"

namespace dckpt::tool {
namespace {

struct Options {
  CheckpointArgument checkpoint;
  InspectOptions inspect;
  bool tree = false;
  bool json = false;
};

Value chunk_to_json(const ChunkSummary& chunk) {
  return Value::dict({{"offsets", to_json_list(chunk.box.offsets)},
                      {"sizes", to_json_list(chunk.box.sizes)},
                      {"file", chunk.file},
                      {"offset", chunk.offset},
                      {"length", chunk.length}});
}

Value to_json_value(const CheckpointSummary& summary, bool with_chunks) {
  ValueList tensors;
  for (const TensorSummary& tensor : summary.tensors) {
    Value entry = Value::dict({{"key", tensor.key},
                               {"dtype", std::string(to_string(tensor.dtype))},
                               {"shape", to_json_list(tensor.shape)},
                               {"bytes", tensor.bytes},
                               {"chunks", tensor.chunk_count},
                               {"flattened", tensor.flattened}});
    if (with_chunks) {
      ValueList chunks;
      for (const ChunkSummary& chunk : tensor.chunks) chunks.push_back(chunk_to_json(chunk));
      entry["stored_shape"] = to_json_list(tensor.stored_shape);
      entry["chunk_list"] = Value::list(std::move(chunks));
    }
    tensors.push_back(std::move(entry));
  }
  ValueList objects;
  for (const ObjectSummary& object : summary.objects) objects.push_back(Value::dict({{"key", object.key}, {"bytes", object.bytes}}));
  ValueList files;
  for (const FileSummary& file : summary.files) files.push_back(Value::dict({{"name", file.name}, {"bytes", file.bytes}}));
  return Value::dict({{"format", summary.info.format},
                      {"version", or_none(summary.info.version)},
                      {"producer", summary.info.producer},
                      {"tensors", Value::list(std::move(tensors))},
                      {"objects", Value::list(std::move(objects))},
                      {"common", summary.common.is_none() ? Value::dict() : render(summary.common)},
                      {"files", Value::list(std::move(files))}});
}

/// "Namespace, 42 entries" rather than all of them.
std::string short_value(const Value& value) {
  constexpr std::size_t kLongest = 68;
  const auto counted = [](const std::string& what, std::size_t count) { return what + ", " + grouped(count) + (count == 1 ? " entry" : " entries"); };
  if (value.is(Value::Kind::kOpaque)) {
    const Opaque& object = value.as_opaque();
    const std::string path = object.class_path();
    if (object.states.size() == 1 && object.states.front().is_dict()) return shown(counted(path, object.states.front().size()));
  }
  std::string text = to_json(render(value));
  if (text.size() <= kLongest) return text;
  if (value.is_dict() || value.is_list()) return counted(to_string(value.kind()), value.size());
  return text.substr(0, kLongest) + "…";
}

const Value* at_path(const Value& common, const char* first, const char* second) {
  const Value* const outer = common.find(first);
  return outer == nullptr ? nullptr : outer->find(second);
}

void print_head(const Options& options, const CheckpointSummary& summary) {
  print(styled(Style::kBold, shown(options.checkpoint.resolved())) + "\n");
  std::uint64_t bytes = 0;
  for (const FileSummary& file : summary.files) bytes += file.bytes;
  Table head({{""}, {""}});
  std::string format = summary.info.format;
  if (summary.info.version) format += " version " + std::to_string(*summary.info.version);
  if (!summary.info.producer.empty()) format += " (" + summary.info.producer + ")";
  head.add({"format", shown(format)});
  head.add({"on disk", human_bytes(bytes) + " in " + grouped(summary.files.size()) + (summary.files.size() == 1 ? " file" : " files")});
  if (const Value* iteration = summary.common.find("iteration"); iteration != nullptr && iteration->is_int())
    head.add({"iteration", std::to_string(iteration->as_int())});
  const Value* sharding = at_path(summary.common, "content_metadata", "distrib_optim_sharding_type");
  if (sharding == nullptr || !sharding->is_str()) sharding = at_path(summary.common, "optimizer", "param_state_sharding_type");
  if (sharding != nullptr && sharding->is_str()) head.add({"optimizer", shown(sharding->as_str())});
  head.print();

  print("\n");
  using Align = Table::Align;
  Table totals({{"COUNT", Align::kRight}, {"ELEMENTS", Align::kRight}, {"SIZE", Align::kRight}, {"CONTENT"}});
  const auto add = [&](const GroupTotal& total, const char* name, bool tensors) {
    if (total.count > 0) totals.add({grouped(total.count), tensors ? grouped(total.elements) : "", human_bytes(total.bytes), name});
  };
  add(summary.weights, "model tensors", true);
  add(summary.optimizer, "optimizer tensors", true);
  add(summary.object_total, "objects", false);
  if (summary.common.is_dict()) totals.add({grouped(summary.common.size()), "", "", "entries of the common state"});
  totals.print();
}

void print_tensors(const CheckpointSummary& summary, bool with_chunks) {
  if (summary.tensors.empty()) return;
  using Align = Table::Align;
  print("\n" + styled(Style::kBold, "Tensors") + "\n");
  Table table({{"SIZE", Align::kRight}, {"DTYPE"}, {"SHAPE"}, {"CHUNKS", Align::kRight}, {"KEY"}});
  for (const TensorSummary& tensor : summary.tensors) {
    table.add({human_bytes(tensor.bytes), std::string(to_string(tensor.dtype)), to_string(tensor.shape), grouped(tensor.chunk_count),
               shown(tensor.key) + (tensor.flattened ? "  (flattened)" : "")});
    for (const ChunkSummary& chunk : tensor.chunks) {
      table.add({human_bytes(chunk.length), "", to_string(chunk.box), "", "  " + shown(chunk.file) + " at " + grouped(chunk.offset)});
    }
  }
  table.print();
  if (with_chunks) print("  A chunk's size is that of its record in the file. Boxes of flattened tensors are in the space they are stored in.\n");
}

void print_tree(const CheckpointSummary& summary) {
  if (summary.tensors.empty()) return;
  using Align = Table::Align;
  print("\n" + styled(Style::kBold, "Tensors") + "\n");
  Table table({{"SIZE", Align::kRight}, {"HOLDS"}, {"KEY"}});
  for (const KeyTreeRow& row : key_tree(summary.tensors)) {
    std::string holds = grouped(row.total.count) + (row.total.count == 1 ? " tensor" : " tensors");
    if (row.leaf != KeyTreeRow::kNoLeaf) holds = std::string(to_string(summary.tensors[row.leaf].dtype)) + " " + to_string(summary.tensors[row.leaf].shape);
    table.add({human_bytes(row.total.bytes), holds, std::string(row.depth * 2, ' ') + (row.name.empty() ? "(empty)" : shown(row.name))});
  }
  table.print();
}

void print_rest(const CheckpointSummary& summary) {
  using Align = Table::Align;
  if (!summary.objects.empty()) {
    print("\n" + styled(Style::kBold, "Objects") + "\n");
    Table table({{"SIZE", Align::kRight}, {"KEY"}});
    for (const ObjectSummary& object : summary.objects) table.add({human_bytes(object.bytes), shown(object.key)});
    table.print();
  }
  if (summary.common.is_dict() && summary.common.size() > 0) {
    print("\n" + styled(Style::kBold, "Common state") + "\n");
    for (const auto& [key, value] : summary.common.as_dict())
      print("  " + (key.is_str() ? shown(key.as_str()) : short_value(key)) + styled(Style::kDim, ": ") + short_value(value) + "\n");
  }
  print("\n" + styled(Style::kBold, "Files") + "\n");
  Table files({{"SIZE", Align::kRight}, {"NAME"}});
  for (const FileSummary& file : summary.files) files.add({human_bytes(file.bytes), shown(file.name)});
  files.print();
}

int run_inspect(const Options& options) {
  const auto reader = options.checkpoint.open();
  const CheckpointSummary summary = with_context({.file = options.checkpoint.path}, [&] { return inspect(*reader, options.inspect); });
  if (options.json) {
    print_json(to_json_value(summary, options.inspect.chunks));
    return kOk;
  }
  print_head(options, summary);
  if (options.tree) print_tree(summary);
  else print_tensors(summary, options.inspect.chunks);
  print_rest(summary);
  return kOk;
}

}  // namespace

Command add_inspect(CLI::App& program) {
  const auto options = std::make_shared<Options>();
  CLI::App& command = *program.add_subcommand("inspect", "Show what a checkpoint holds");
  command.footer(
      "Examples:\n"
      "  dckpt inspect run/checkpoints                       the latest iteration of a run\n"
      "  dckpt inspect run/checkpoints --iteration 1000 --tree\n"
      "  dckpt inspect iter_0001000 --keys 'decoder.*' --chunks\n"
      "  dckpt inspect iter_0001000 --json | jq '.tensors[].key'");
  add_checkpoint(command, options->checkpoint);
  add_key_filter(command, options->inspect.keys);
  command.add_flag("--chunks", options->inspect.chunks, "Also list where each chunk is stored");
  command.add_flag("--tree", options->tree, "Show keys as a tree, cut at dots, with sums");
  add_json(command, options->json);
  return {&command, [options] { return run_inspect(*options); }};
}

}  // namespace dckpt::tool
