#include <algorithm>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "mapping/base/error.h"
#include "operations/inspect/explain.h"
#include "operations/json/reports.h"
#include "tools/dckpt/commands/command.h"
#include "tools/dckpt/grammar/exit_code.h"
#include "tools/dckpt/pictures/grid.h"
#include "tools/dckpt/render/table.h"
#include "tools/dckpt/render/terminal.h"

namespace dckpt::tool {
namespace {

constexpr std::size_t kShownKeys = 10;

struct ExplainArguments {
  CheckpointArgument checkpoint;
  std::string key;
  bool json = false;
};

/// Returns "along axis 0 in 2 pieces, along axis 2 in 4", or "whole".
std::string cut_text(const Explanation& explanation) {
  if (explanation.chunks.size() == 1) return "whole";
  if (!explanation.grid) return str_format("in {} pieces of no grid", explanation.chunks.size());
  std::string text;
  for (std::size_t axis = 0; axis < explanation.grid->size(); ++axis) {
    const std::int64_t pieces = (*explanation.grid)[axis];
    if (pieces < 2) continue;
    text += str_format("{}along axis {} in {} pieces", text.empty() ? "" : ", ", axis, pieces);
  }
  return text;
}

void print_rule(const MapRule& rule) {
  print(str_format("\nMap {}\n", shown(rule.map)));
  if (!rule.dropped.empty()) return print(str_format("  dropped, as {}\n", shown(rule.dropped)));
  Table table({{""}, {""}});
  table.add({"row", str_format("{} ({}:{})", shown(rule.row), shown(rule.file), rule.line)});
  const auto add = [&](const char* name, const std::vector<std::string>& keys) {
    for (std::size_t i = 0; i < std::min(keys.size(), kShownKeys); ++i)
      table.add({i == 0 ? name : "", shown(keys[i])});
    if (keys.size() > kShownKeys)
      table.add({"", str_format("and {} more", grouped(keys.size() - kShownKeys))});
  };
  add("from", rule.from);
  add("to", rule.to);
  table.print();
}

/// Returns whether every file has a rank. If so, ranks identify files, else their numbers do.
bool all_have_ranks(const Explanation& explanation) {
  return std::ranges::all_of(explanation.files,
                             [](const FileShare& share) { return share.rank.has_value(); });
}

/// Draws which rank, or which file, holds which part of a tensor that is cut.
void print_grid(const Explanation& explanation) {
  if (explanation.is_object || explanation.chunks.size() < 2) return;
  const bool has_ranks = all_have_ranks(explanation);
  std::unordered_map<std::string_view, std::string> label_of;  // key: file
  for (std::size_t i = 0; i < explanation.files.size(); ++i) {
    const FileShare& share = explanation.files[i];
    label_of.emplace(share.file,
                     std::to_string(has_ranks ? static_cast<std::size_t>(*share.rank) : i));
  }
  std::vector<GridPiece> pieces;
  for (const ChunkSummary& chunk : explanation.chunks)
    pieces.push_back({chunk.box, label_of.at(chunk.file)});
  const Picture picture = grid(explanation.stored_shape, pieces, picture_style());
  if (picture.empty()) return;
  print(has_ranks ? "\nRanks that stored the parts\n" : "\nNumbers of the files of the parts\n");
  print(picture);
}

void print_explanation(const Explanation& explanation) {
  print(shown(explanation.key) + "\n");
  if (explanation.is_object) {
    print(str_format("  object  {}\n", human_bytes(explanation.bytes)));
  } else {
    print(str_format("  tensor  {} {}, {}\n", to_string(explanation.dtype),
                     to_string(explanation.shape), human_bytes(explanation.bytes)));
    if (explanation.flattened)
      print(
          str_format("  stored  flattened, as {}: fragments along each axis, and elements of one\n",
                     to_string(explanation.stored_shape)));
    print(str_format("  cut     {}\n", cut_text(explanation)));
  }
  print_grid(explanation);
  print("\nChunks\n");
  Table chunks(
      {{"OFFSET", Table::Align::kRight}, {"LENGTH", Table::Align::kRight}, {"FILE"}, {"BOX"}});
  for (const ChunkSummary& chunk : explanation.chunks)
    chunks.add({grouped(chunk.offset), grouped(chunk.length), shown(chunk.file),
                explanation.is_object ? "" : to_string(chunk.box)});
  chunks.print();
  if (explanation.files.size() > 1) {
    print("\nFiles\n");
    const bool has_ranks = all_have_ranks(explanation);
    Table files({{has_ranks ? "RANK" : "NO.", Table::Align::kRight},
                 {"CHUNKS", Table::Align::kRight},
                 {"SIZE", Table::Align::kRight},
                 Table::names("NAME")});
    for (std::size_t i = 0; i < explanation.files.size(); ++i) {
      const FileShare& share = explanation.files[i];
      files.add({has_ranks ? std::to_string(*share.rank) : std::to_string(i), grouped(share.chunks),
                 human_bytes(share.bytes), shown(share.file)});
    }
    files.print();
  }
  if (!explanation.related.empty()) {
    print("\nBelongs together\n");
    Table related({{""}, Table::names("")});
    for (const RelatedEntry& entry : explanation.related)
      related.add({entry.relation, shown(entry.key)});
    related.print();
  }
  if (explanation.rule) print_rule(*explanation.rule);
}

int run_explain(const ExplainArguments& options) {
  const CheckpointArgument& checkpoint = options.checkpoint;
  const Explanation explanation = with_context({.file = checkpoint.path}, [&] {
    return explain(checkpoint.path, checkpoint.open_options(), options.key);
  });
  if (options.json)
    print_json(to_json(explanation));
  else
    print_explanation(explanation);
  return kOk;
}

}  // namespace

Command add_explain(ProgramSpec& program) {
  const auto options = std::make_shared<ExplainArguments>();
  Parser command(program, "explain",
                 "Where one tensor's bytes are, how it is cut, and what belongs to it");
  command.footer(
      "Examples:\n"
      "  dckpt explain iter_0001000 decoder.final_layernorm.weight\n"
      "  dckpt explain iter_0001000 optimizer.state.exp_avg.output_layer.weight --json\n"
      "  dckpt explain llama model.layers.0.mlp.up_proj.weight --map auto");
  options->checkpoint.planner.clear();  // looks at what is stored
  add_checkpoint(command, options->checkpoint);
  add_map(command, options->checkpoint.map);
  add_backend(command, options->checkpoint);
  command.add_option("KEY", options->key, "Key of a tensor, or unique key of an object")
      .required()
      .type_name("")
      .takes(Takes::kKey);
  add_json(command, options->json);
  return {&command.spec(), [options] { return run_explain(*options); }};
}

}  // namespace dckpt::tool
