#include "dist_checkpointing/open/tracker.h"

#include <algorithm>
#include <array>
#include <cstdio>

#include "mapping/base/error.h"
#include "strategies/formats/torch_archive/torch_file.h"

namespace dckpt {
namespace {

constexpr std::string_view kPrefix = "iter_";
constexpr std::uint64_t kMaxTrackerBytes = 4096;
constexpr std::uint64_t kMaxTrainStateBytes = std::uint64_t{1} << 20;

constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";

std::string_view stripped(std::string_view text) {
  constexpr std::string_view kBlank = " \t\r\n\f\v";
  if (text.starts_with(kByteOrderMark)) text.remove_prefix(kByteOrderMark.size());
  const std::size_t first = text.find_first_not_of(kBlank);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kBlank) - first + 1);
}

/// Returns "200" for "200.0" and "iter_0000200" for "iter_0000200/", as scripts and shell
/// completion write them.
std::string_view without_decoration(std::string_view text) {
  if (text.ends_with('/')) text.remove_suffix(1);
  const std::size_t point = text.find('.');
  const bool is_whole = point != std::string_view::npos && point + 1 < text.size() &&
                        text.find_first_not_of('0', point + 1) == std::string_view::npos &&
                        parse_u64(text.substr(0, point));
  return is_whole ? text.substr(0, point) : text;
}

}  // namespace

std::string iteration_directory(std::uint64_t iteration) {
  if (iteration > kMaxIteration) {
    throw_error(ErrorCode::kInvalidArgument,
                "iteration {} is beyond the largest that a training root can hold, {}",
                grouped(iteration), grouped(kMaxIteration));
  }
  std::array<char, 32> name{};
  std::snprintf(name.data(), name.size(), "iter_%07llu",
                static_cast<unsigned long long>(iteration));
  return name.data();
}

std::optional<std::uint64_t> parse_iteration_directory(std::string_view name) {
  if (!name.starts_with(kPrefix)) return std::nullopt;
  const auto iteration = parse_u64(name.substr(kPrefix.size()));
  if (!iteration || *iteration > kMaxIteration || iteration_directory(*iteration) != name)
    return std::nullopt;
  return iteration;
}

std::string IterationName::directory() const {
  return iteration_ ? iteration_directory(*iteration_) : kReleaseDirectory;
}

std::optional<IterationName> parse_iteration_name(std::string_view text) {
  if (text == kReleaseDirectory) return IterationName::release();
  if (text.starts_with(kPrefix)) text.remove_prefix(kPrefix.size());
  const auto iteration = parse_u64(text);
  if (!iteration || *iteration > kMaxIteration) return std::nullopt;
  return *iteration;
}

const char* tracker_file(const Storage& root) {
  return !root.stat(kTrackerFile) && root.stat(kBridgeTrackerFile) ? kBridgeTrackerFile
                                                                   : kTrackerFile;
}

std::optional<std::string> read_bridge_tracker(const Storage& root) {
  if (!root.stat(kBridgeTrackerFile)) return std::nullopt;
  const auto file = root.open(kBridgeTrackerFile);
  // The train state is a dict of 0-dimensional tensors.
  const Value state = load_torch_file(*file, {.max_tensor_bytes = kMaxTrainStateBytes});
  const Value* const step = state.find("step");
  std::optional<std::int64_t> number;
  if (step != nullptr && step->is_int()) number = step->as_int();
  if (step != nullptr && step->is_tensor() && step->as_tensor().dim() == 0) {
    const Tensor& tensor = step->as_tensor();
    if (tensor.dtype() == DType::kInt32) number = *tensor.data<const std::int32_t>();
    if (tensor.dtype() == DType::kInt64) number = *tensor.data<const std::int64_t>();
  }
  if (!number || *number < 0 || static_cast<std::uint64_t>(*number) > kMaxIteration) {
    throw_error(ErrorCode::kCorrupt, {.file = file->name()},
                "Megatron-Bridge's train state has no step that can be an iteration; "
                "name the checkpoint's own directory");
  }
  return iteration_directory(static_cast<std::uint64_t>(*number));
}

std::optional<std::string> read_tracker(const Storage& root) {
  if (!root.stat(kTrackerFile)) return read_bridge_tracker(root);
  const auto file = root.open(kTrackerFile);
  const Bytes content = read_file(*file, kMaxTrackerBytes);
  const std::string_view text = stripped(as_text(content));
  const auto named = parse_iteration_name(without_decoration(text));
  if (!named) {
    throw_error(ErrorCode::kCorrupt, {.file = file->name()},
                "Invalid metadata file: the tracker holds {} instead of an iteration or "
                "'release'; write the iteration to resume from into it, or remove the file if "
                "it is to be the newest complete one",
                quote(text, 60));
  }
  return named->directory();
}

void write_tracker(Storage& root, std::uint64_t iteration) {
  root.put(kTrackerFile, as_bytes(std::to_string(iteration)));
}

std::vector<std::uint64_t> list_iterations(const Location& root) {
  if (!root.stat()) return {};
  const std::shared_ptr<Storage> storage = root.directory();
  std::vector<std::uint64_t> iterations;
  for (const FileInfo& entry : storage->list("")) {
    const auto iteration = parse_iteration_directory(entry.name);
    if (iteration && Location(storage, entry.name).is_directory()) iterations.push_back(*iteration);
  }
  std::ranges::sort(iterations);
  return iterations;
}

std::string describe_iterations(const std::vector<std::uint64_t>& iterations, std::size_t limit) {
  if (iterations.empty()) return "no iterations";
  const std::size_t shown = std::min(limit, iterations.size());
  std::string text = iterations.size() == 1      ? "iteration "
                     : shown < iterations.size() ? "iterations … "
                                                 : "iterations ";
  for (std::size_t i = iterations.size() - shown; i < iterations.size(); ++i) {
    text += std::to_string(iterations[i]);
    if (i + 2 < iterations.size()) text += ", ";
    if (i + 2 == iterations.size()) text += " and ";
  }
  return text;
}

}  // namespace dckpt
