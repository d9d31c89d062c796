#include "strategies/legacy_torch/rank_grid.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdint>
#include <cstdio>
#include <map>
#include <set>
#include <string_view>
#include <tuple>
#include <utility>

#include "mapping/base/counted.h"
#include "mapping/base/error.h"
#include "mapping/base/fingerprint.h"
#include "mapping/megatron/run_args.h"

namespace dckpt {
namespace {

constexpr std::string_view kFolderPrefix = "mp_rank_";
constexpr const char* kAdvice = "; a single file can be opened by its own path";
constexpr std::int64_t kMaxFolders = std::int64_t{1} << 20;

bool flag(const Value& args, const char* name) {
  const Value* const found = args.find(name);
  return found != nullptr && found->is(Value::Kind::kBool) && found->as_bool();
}

/// The parallel layout according to `args`.
struct Layout {
  std::optional<std::int64_t> tensor, pipeline, expert, world;
  friend bool operator==(const Layout&, const Layout&) = default;
};

Layout layout_of(const Value* args) {
  Layout layout;
  layout.tensor = run_arg(args, "tensor_model_parallel_size");
  if (!layout.tensor)
    layout.tensor = run_arg(args, "model_parallel_size");  // before checkpoint_version 3
  layout.pipeline = run_arg(args, "pipeline_model_parallel_size");
  layout.expert = run_arg(args, "expert_model_parallel_size");
  layout.world = run_arg(args, "world_size");
  return layout;
}

std::string describe(const Layout& layout) {
  const auto size = [](std::optional<std::int64_t> value) {
    return std::to_string(value.value_or(1));
  };
  return str_format("tensor {}, pipeline {}, expert {} (world size {})", size(layout.tensor),
                    size(layout.pipeline), size(layout.expert),
                    layout.world ? std::to_string(*layout.world) : "unknown");
}

[[noreturn]] void refuse_grid(const Storage& storage, ErrorCode code, const std::string& message,
                              const std::string& file) {
  throw_error(code, {.file = storage.display_path(file)}, message);
}

/// Refuses files of one size whose bytes are all the same. They are known to be equal up to `at`;
/// only those that still are equal are read further.
void compare(const Storage& storage, std::vector<const RankFile*> files, std::uint64_t size,
             std::uint64_t at) {
  constexpr std::uint64_t kStep = std::uint64_t{1} << 20;
  for (; files.size() > 1; at += kStep) {
    if (at >= size) {
      refuse_grid(
          storage, ErrorCode::kCorrupt,
          str_format("the file is a copy of {}, byte for byte, but ranks hold different parts{}",
                     quote(files[0]->name()), kAdvice),
          files[1]->name());
    }
    std::map<std::pair<std::uint64_t, std::uint64_t>, std::vector<const RankFile*>> by_content;
    Bytes bytes(std::min(kStep, size - at));
    for (const RankFile* file : files) {
      storage.open(file->name())->read(at, bytes);
      const Fingerprint content = fingerprint_of(bytes);
      by_content[{content.low, content.high}].push_back(file);
    }
    if (by_content.size() == 1) continue;
    for (auto& [content, same] : by_content) compare(storage, std::move(same), size, at + kStep);
    return;
  }
}

class Grid {
 public:
  Grid(const Storage& storage, std::span<const RankFile> files)
      : storage_(storage), files_(files) {}

  void check() {
    find_main_files();
    check_same_save();
    find_axes();
    check_complete();
    check_writers();
    check_optimizer();
    check_copies();
  }

 private:
  [[noreturn]] void refuse_grid(ErrorCode code, const std::string& message,
                                const std::string& file) const {
    throw_error(code, {.file = storage_.display_path(file)}, message);
  }

  void find_main_files() {
    std::set<std::string> without;  // folders
    for (const RankFile& file : files_) without.insert(file.folder);
    for (const RankFile& file : files_) {
      // The distributed optimizer before May 2023 has folders of its own, one per data-parallel
      // rank.
      if (file.is_main() || file.stem == "optim") without.erase(file.folder);
      if (!file.is_main()) continue;
      const auto [other, inserted] = folders_.emplace(*rank_folder_numbers(file.folder), &file);
      if (!inserted) {
        refuse_grid(
            ErrorCode::kCorrupt,
            "there are two main files for one rank: this and " + quote(other->second->name()),
            file.name());
      }
    }
    if (without.empty() && !folders_.empty()) return;
    refuse_grid(ErrorCode::kIncomplete,
                std::string("the rank's folder has no model_optim_rng.pt") + kAdvice,
                without.empty() ? files_.front().folder : *without.begin());
  }

  void check_same_save() {
    const RankFile& first = *folders_.begin()->second;
    layout_ = layout_of(run_args(*first.state));
    for (const auto& [coordinate, of_rank] : folders_) {
      const RankFile& file = *of_rank;
      const auto iteration = run_arg(file.state, "iteration");
      if (iteration != run_arg(first.state, "iteration")) {
        const auto text = [](const RankFile& of) {
          const auto value = run_arg(of.state, "iteration");
          return value ? std::to_string(*value) : std::string("none");
        };
        refuse_grid(
            ErrorCode::kCorrupt,
            str_format("the ranks' files come from different saves: this one has iteration {}, "
                       "the one in {} has {}{}",
                       text(file), quote(first.folder), text(first), kAdvice),
            file.name());
      }
      const Layout layout = layout_of(run_args(*file.state));
      if (layout == layout_) continue;
      refuse_grid(
          ErrorCode::kCorrupt,
          str_format("the ranks' files come from different runs: parallel sizes in this one are "
                     "{}, in {} {}{}",
                     describe(layout), quote(first.folder), describe(layout_), kAdvice),
          file.name());
    }
  }

  /// Finds which numbers a folder's name must have, and the size of each axis. Without `args`, the
  /// names themselves imply them.
  void find_axes() {
    const std::size_t numbers = folders_.begin()->first.size();
    for (const auto& [coordinate, file] : folders_) {
      if (coordinate.size() == numbers) continue;
      refuse_grid(ErrorCode::kCorrupt,
                  str_format("folders of different layouts are mixed: {} and {}",
                             quote(folders_.begin()->second->folder), quote(file->folder)),
                  file->folder);
    }
    const std::int64_t pipeline = layout_.pipeline.value_or(1);
    const std::int64_t expert = layout_.expert.value_or(1);
    sizes_ = {layout_.tensor.value_or(1)};
    if (pipeline > 1) {
      pipeline_axis_ = sizes_.size();
      sizes_.push_back(pipeline);
    }
    if (expert > 1) {
      expert_axis_ = sizes_.size();
      sizes_.push_back(expert);
    }
    const Value* const args = run_args(*folders_.begin()->second->state);
    const bool encoder = run_arg(args, "encoder_pipeline_model_parallel_size").value_or(0) > 0 ||
                         run_arg(args, "encoder_tensor_model_parallel_size").value_or(0) > 0;
    known_ = layout_.tensor.has_value() && !encoder &&
             std::ranges::all_of(sizes_, [](std::int64_t size) { return size > 0; });
    if (known_ && sizes_.size() == numbers) return;
    if (known_) {
      refuse_grid(ErrorCode::kCorrupt,
                  str_format("the folder's name has {}, but the run had parallel sizes {}, whose "
                             "folders have {}{}",
                             counted(numbers, "number"), describe(layout_), sizes_.size(), kAdvice),
                  folders_.begin()->second->folder);
    }
    sizes_.assign(numbers, 1);
    for (const auto& [coordinate, file] : folders_) {
      for (std::size_t axis = 0; axis < numbers; ++axis)
        sizes_[axis] = std::max<std::int64_t>(sizes_[axis], coordinate[axis] + 1);
    }
  }

  void check_complete() const {
    for (const auto& [coordinate, file] : folders_) {
      for (std::size_t axis = 0; axis < coordinate.size(); ++axis) {
        if (coordinate[axis] < sizes_[axis]) continue;
        refuse_grid(
            ErrorCode::kCorrupt,
            str_format("there is a folder {}, but the run had parallel sizes {}; it is left over "
                       "from another save{}",
                       quote(file->folder), describe(layout_), kAdvice),
            file->folder);
      }
    }
    std::int64_t expected = 1;
    for (const std::int64_t size : sizes_)
      expected =
          std::min(kMaxFolders, size) * expected > kMaxFolders ? kMaxFolders : size * expected;
    if (static_cast<std::int64_t>(folders_.size()) == expected) return;
    std::vector<std::string> missing;
    std::vector<int> coordinate(sizes_.size(), 0);
    for (std::int64_t i = 0; i < expected && missing.size() < 16; ++i) {
      if (!folders_.contains(coordinate)) missing.push_back(rank_folder_name(coordinate));
      for (std::size_t axis = coordinate.size(); axis-- > 0;) {
        if (++coordinate[axis] < sizes_[axis]) break;
        coordinate[axis] = 0;
      }
    }
    const std::string why = known_ ? "the run had parallel sizes " + describe(layout_)
                                   : "the other folders' names imply them";
    refuse_grid(ErrorCode::kIncomplete,
                str_format("found {} of {} rank folders ({}); missing: {}{}",
                           grouped(folders_.size()), grouped(static_cast<std::uint64_t>(expected)),
                           why, quoted_list(missing), kAdvice),
                "");
  }

  /// Checks that each file was written by its folder's rank. Ranks are numbered tensor-parallel
  /// first; pipeline stages are the slowest, unless the run asked for another order.
  void check_writers() const {
    std::map<std::int64_t, const RankFile*> writers;
    for (const auto& [coordinate, file] : folders_) {
      const auto rank = run_arg(run_args(*file->state), "rank");
      if (!rank) return;
      writers.emplace(*rank, file);
    }
    if (!known_ || writers.size() == 1) return;  // a converter writes all files as one rank
    for (const auto& [coordinate, file] : folders_) {
      const Value& args = *run_args(*file->state);
      const std::int64_t rank = *run_arg(&args, "rank");
      if (const RankFile* const other = writers.at(rank); other != file) {
        refuse_grid(ErrorCode::kCorrupt,
                    str_format("rank {} wrote the files of {} and of {}: one is a copy{}", rank,
                               quote(other->folder), quote(file->folder), kAdvice),
                    file->name());
      }
      const std::vector<int> home = home_of(coordinate, args, rank);
      if (home == coordinate) continue;
      refuse_grid(
          ErrorCode::kCorrupt,
          str_format("the file was written by rank {}, which belongs in {}: folders were swapped "
                     "or renamed (parallel sizes {}){}",
                     rank, quote(rank_folder_name(home)), describe(layout_), kAdvice),
          file->name());
    }
  }

  /// Returns the folder of a rank; axes that `args` do not determine stay as they are.
  std::vector<int> home_of(std::vector<int> coordinate, const Value& args,
                           std::int64_t rank) const {
    if (rank < 0 || (layout_.world && rank >= *layout_.world)) return coordinate;
    const std::int64_t tensor = sizes_[0];
    coordinate[0] = static_cast<int>(rank % tensor);
    if (pipeline_axis_ && layout_.world && *layout_.world % sizes_[*pipeline_axis_] == 0 &&
        !flag(args, "use_tp_pp_dp_mapping")) {
      coordinate[*pipeline_axis_] =
          static_cast<int>(rank / (*layout_.world / sizes_[*pipeline_axis_]));
    }
    const bool plain = run_arg(&args, "context_parallel_size").value_or(1) == 1 &&
                       run_arg(&args, "expert_tensor_parallel_size").value_or(tensor) == tensor &&
                       !flag(args, "use_tp_pp_dp_mapping");
    if (expert_axis_ && plain)
      coordinate[*expert_axis_] = static_cast<int>(rank / tensor % sizes_[*expert_axis_]);
    return coordinate;
  }

  void check_optimizer() const {
    constexpr std::string_view kStem = "distrib_optim";
    std::set<std::string> with;  // folders
    for (const RankFile& file : files_) {
      if (file.stem == kStem) with.insert(file.folder);
    }
    for (const auto& [coordinate, file] : folders_) {
      if (with.empty() || with.contains(file->folder)) continue;
      refuse_grid(ErrorCode::kIncomplete,
                  "the rank's folder has no distrib_optim.pt, others have" + std::string(kAdvice),
                  file->folder);
    }
  }

  /// Checks that files which `args.rank` does not tell apart are not the same byte for byte: ranks
  /// hold different parts.
  void check_copies() const {
    std::map<std::tuple<std::string, std::uint64_t, std::optional<std::int64_t>>,
             std::vector<const RankFile*>>
        alike;
    for (const RankFile& file : files_) {
      if (!file.has_elements) continue;
      const std::uint64_t size = storage_.open(file.name())->size();
      alike[{file.stem, size, run_arg(run_args(*file.state), "rank")}].push_back(&file);
    }
    for (auto& [key, candidates] : alike)
      compare(storage_, std::move(candidates), std::get<std::uint64_t>(key), 0);
  }

  const Storage& storage_;
  std::span<const RankFile> files_;
  std::map<std::vector<int>, const RankFile*> folders_;  // the main files
  Layout layout_;
  std::vector<std::int64_t> sizes_;  // one per number in a folder's name
  std::optional<std::size_t> pipeline_axis_, expert_axis_;
  bool known_ = false;  // sizes_ are those of `args`
};

}  // namespace

std::string rank_folder_name(const std::vector<int>& numbers) {
  std::string name(kFolderPrefix);
  for (std::size_t axis = 0; axis < numbers.size(); ++axis) {
    std::array<char, 16> text{};
    std::snprintf(text.data(), text.size(), axis == 0 ? "%02d" : "_%03d", numbers[axis]);
    name += text.data();
  }
  return name;
}

std::optional<std::vector<int>> rank_folder_numbers(const std::string& name) {
  if (!name.starts_with(kFolderPrefix)) return std::nullopt;
  std::vector<int> numbers;
  for (const std::string& part : split(std::string_view(name).substr(kFolderPrefix.size()), '_')) {
    const bool digits =
        std::ranges::all_of(part, [](unsigned char c) { return std::isdigit(c) != 0; });
    if (!digits || part.size() < 2 || part.size() > 6) return std::nullopt;
    numbers.push_back(static_cast<int>(*parse_u64(part)));
  }
  if (numbers.size() > 3) return std::nullopt;
  return numbers;
}

void check_rank_grid(const Storage& storage, std::span<const RankFile> files) {
  if (!files.empty()) Grid(storage, files).check();
}

}  // namespace dckpt
