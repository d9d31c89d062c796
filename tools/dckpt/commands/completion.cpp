#include "tools/dckpt/commands/completion.h"

#include <algorithm>
#include <map>

#include "configs/maps/key_map.h"
#include "configs/policy/policy.h"
#include "mapping/base/format.h"
#include "mapping/base/text.h"
#include "strategies/registry/registry.h"
#include "tools/dckpt/grammar/command_line.h"

namespace dckpt::tool {
namespace {

using Candidates = std::vector<Candidate>;

/// Returns whether every shell takes the word literally: a key may be anything, `$(…)` included.
bool needs_no_quotes(const std::string& word) {
  return std::ranges::all_of(word, [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           std::string_view("._/-+,@%=:").find(c) != std::string_view::npos;
  });
}

/// Returns the first sentence of the comment that begins a shipped file, or the part of it on the
/// first line.
std::string about_of(std::string_view yaml) {
  if (!yaml.starts_with("# ")) return "";
  std::string_view line = yaml.substr(2, yaml.find('\n') - 2);
  line = line.substr(0, line.find(". "));
  if (line.ends_with('.')) line.remove_suffix(1);
  return std::string(line);
}

void add_shipped(Candidates& candidates, std::span<const ShippedPolicy> shipped) {
  for (const ShippedPolicy& file : shipped)
    candidates.push_back({std::string(file.name), about_of(file.yaml)});
}

Candidates formats() {
  Candidates formats;
  for (const SaveStrategyEntry& strategy : save_strategies()) {
    if (std::ranges::find(formats, strategy.name, &Candidate::word) != formats.end()) continue;
    const auto readers = load_strategies();  // they are the words of dckpt formats
    const auto reader = std::ranges::find(readers, strategy.name, &LoadStrategyEntry::name);
    formats.push_back({strategy.name, reader == readers.end() ? strategy.about : reader->about});
  }
  return formats;
}

/// Returns the checkpoint named by the words before the cursor, as the command would open it.
CheckpointArgument checkpoint_on(const CommandLine& line) {
  CheckpointArgument checkpoint;
  for (const Given& given : line.given) {
    if (given.option == nullptr || !given.value) continue;
    const std::string& value = *given.value;
    switch (given.option->kind) {
      case Takes::kCheckpoint:
        if (checkpoint.path.empty()) checkpoint.path = value;
        break;
      case Takes::kIteration:
        if (!checkpoint.iteration) checkpoint.iteration = parse_iteration_name(value);
        break;
      case Takes::kMap: checkpoint.map.name = value; break;
      case Takes::kMapSetting: checkpoint.map.set.push_back(value); break;
      case Takes::kPolicy: checkpoint.policy = value; break;
      default: break;
    }
  }
  return checkpoint;
}

/// Returns the checkpoint whose iteration the option chooses. For diff, --iteration-b belongs to B
/// if the line names B.
std::string root_of(const CommandLine& line, const OptionSpec& iteration) {
  const bool of_second = iteration.main_name().ends_with("-b");
  std::string root;
  for (const OptionSpec& option : line.command->options) {
    if (option.kind != Takes::kCheckpoint) continue;
    const Given* const given = line.find(option);
    if (given != nullptr && (root.empty() || of_second)) root = given->value.value_or("");
  }
  return root;
}

Candidates settings_of(const std::string& map) {
  Candidates settings;
  try {
    for (const MapNumber& number : KeyMap::find(map).numbers)
      settings.push_back({number.name + "=", ""});
  } catch (const std::exception&) {
    return {};  // no such map yet
  }
  return settings;
}

/// Returns the words at the first branching of the keys that begin with `prefix`, with the number
/// of keys of each.
Candidates completed_branches(const Candidates& keys, std::string prefix) {
  for (;;) {
    std::map<std::string, std::size_t> counts;
    for (const Candidate& key : keys) {
      const std::size_t end = key.word.find_first_of("./", prefix.size());
      ++counts[end == std::string::npos ? key.word : key.word.substr(0, end + 1)];
    }
    const auto& [first, begin_so] = *counts.begin();
    if (counts.size() == 1 && begin_so > 1 && first.size() > prefix.size()) {
      prefix = first;
      continue;
    }
    Candidates found;
    for (const auto& [word, count] : counts)
      found.push_back({word, count == 1 ? "" : str_format("{} keys", grouped(count))});
    return found;
  }
}

Candidates stored_keys(const CheckpointArgument& checkpoint) try {
  const auto reader = checkpoint.open_shown().reader;
  Candidates keys;
  for (const TensorStorageMetadata& tensor : reader->metadata().tensors)
    keys.push_back({tensor.key, str_format("{} {}", to_string(tensor.properties.dtype),
                                           to_string(tensor.global_shape()))});
  for (const BytesStorageMetadata& object : reader->metadata().objects)
    keys.push_back({object.key, "object"});
  return keys;
} catch (const std::exception&) {
  return {};  // the command itself reports the error
}

Candidates stored_iterations(const std::string& path) try {
  Candidates iterations;
  std::vector<std::uint64_t> found = list_iterations(path);
  std::ranges::reverse(found);  // newest first, in case there are too many
  for (const std::uint64_t iteration : found) iterations.push_back({std::to_string(iteration), ""});
  return iterations;
} catch (const std::exception&) {
  return {};
}

class Completer {
 public:
  Completer(ProgramSpec& program, std::span<const std::string> words,
            const CheckpointLookup& lookup)
      : line_(read_command_line(program, words.first(words.size() - 1))),
        word_(words.back()),
        lookup_(lookup) {
    if (line_.expects != nullptr) {
      add_values(*line_.expects, word_, "");
    } else if (!line_.only_arguments && word_.starts_with('-')) {
      add_options();
    } else if (line_.command == &program) {
      if (!line_.given.empty()) return;  // an unknown command, or --version alone
      for (const CommandSpec& command : program.commands) add({command.name, command.about});
    } else if (!line_.free.empty()) {
      add_values(*line_.free.front(), word_, "");
    } else if (!line_.only_arguments) {
      add_option_names();
    }
  }

  Completion take() && { return std::move(completion_); }

 private:
  void add(Candidate candidate) {
    if (completion_.candidates.size() < kMaxCandidates && candidate.word.starts_with(word_) &&
        needs_no_quotes(candidate.word))
      completion_.candidates.push_back(std::move(candidate));
  }

  void add_options() {
    const std::size_t equals = word_.find('=');
    if (!word_.starts_with("--") || equals == std::string::npos) return add_option_names();
    const OptionSpec* const option = line_.command->find(word_.substr(0, equals));
    if (option != nullptr && option->takes_value)
      add_values(*option, word_.substr(equals + 1), word_.substr(0, equals + 1));
  }

  /// Adds the options that may still be given.
  void add_option_names() {
    for (const OptionSpec& option : line_.command->options) {
      if (option.is_argument() || (!option.is_repeatable && line_.find(option) != nullptr) ||
          is_excluded(option))
        continue;
      add({option.main_name(), option.about});
    }
  }

  bool is_excluded(const OptionSpec& option) const {
    return std::ranges::any_of(
        option.excludes, [&](const OptionSpec* other) { return line_.find(*other) != nullptr; });
  }

  /// Adds the values of the option that begin with `begun`; `before` precedes them in the same
  /// word.
  void add_values(const OptionSpec& option, const std::string& begun, const std::string& before) {
    Candidates candidates;
    Paths paths = Paths::kNone;
    switch (option.kind) {
      case Takes::kAnything: break;
      case Takes::kChoice:
        for (const std::string& choice : option.choices) candidates.push_back({choice, ""});
        break;
      case Takes::kFormat: candidates = formats(); break;
      case Takes::kMap:
        candidates.push_back({"auto", "The map that fits the model"});
        add_shipped(candidates, shipped_maps());
        paths = Paths::kFiles;
        break;
      case Takes::kMapSetting: candidates = settings_of(checkpoint_on(line_).map.name); break;
      case Takes::kPolicyOrMap: add_shipped(candidates, shipped_maps()); [[fallthrough]];
      case Takes::kPolicy:
        add_shipped(candidates, shipped_policies());
        paths = Paths::kFiles;
        break;
      case Takes::kCheckpoint:
      case Takes::kFile: paths = Paths::kFiles; break;
      case Takes::kFolder: paths = Paths::kFolders; break;
      case Takes::kIteration:
        candidates = lookup_.iterations(root_of(line_, option));
        candidates.push_back({"latest", "The iteration that the tracker names"});
        break;
      case Takes::kKey:
      case Takes::kKeyPattern: candidates = keys(begun); break;
    }
    completion_.paths = paths;
    for (Candidate& candidate : candidates)
      add({before + candidate.word, std::move(candidate.about)});
  }

  Candidates keys(const std::string& begun) const {
    const CheckpointArgument checkpoint = checkpoint_on(line_);
    if (checkpoint.path.empty()) return {};
    Candidates keys = lookup_.keys(checkpoint);
    std::erase_if(keys, [&](const Candidate& key) {
      return !key.word.starts_with(begun) || key.word.starts_with('-') ||
             !needs_no_quotes(key.word);
    });
    return keys.size() > kManyKeys ? completed_branches(keys, begun) : keys;
  }

  CommandLine line_;
  std::string word_;
  const CheckpointLookup& lookup_;
  Completion completion_{};
};

}  // namespace

Completion complete(ProgramSpec& program, std::span<const std::string> words,
                    const CheckpointLookup& lookup) {
  const std::vector<std::string> nothing(1);
  return Completer(program, words.empty() ? nothing : words, lookup).take();
}

CheckpointLookup stored_checkpoints() {
  return {stored_keys, stored_iterations};
}

}  // namespace dckpt::tool
