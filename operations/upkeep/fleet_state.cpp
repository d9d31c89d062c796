#include "operations/upkeep/fleet_state.h"

#include <algorithm>
#include <utility>

#include "mapping/base/error.h"
#include "mapping/base/hash.h"
#include "mapping/state/value.h"
#include "strategies/formats/json/json.h"

namespace dckpt {
namespace {

constexpr std::uint64_t kMaxStateBytes = JsonLimits().max_bytes;
constexpr std::int64_t kVersion = 1;
/// The beginning of every state file, as save() writes it.
constexpr std::string_view kHead = "{\n \"version\": 1,\n \"print\": \"";
static_assert(kVersion == 1);

std::string print_of(const Value& checkpoints) {
  const std::string text = to_json(checkpoints);
  return sha256_hex(as_bytes(text));
}

std::optional<ErrorCode> code_named(const Value& name) {
  if (!name.is_str()) return std::nullopt;
  for (int code = 0; code <= static_cast<int>(ErrorCode::kInternal); ++code)
    if (name.as_str() == to_string(static_cast<ErrorCode>(code))) return ErrorCode(code);
  throw_error(ErrorCode::kCorrupt, "unknown code " + quote(name.as_str()));
}

std::uint64_t count(const Value& number) {
  const std::int64_t count = number.as_int();
  if (count < 0) throw_error(ErrorCode::kCorrupt, "a count is negative");
  return static_cast<std::uint64_t>(count);
}

FleetResult result_from(const Value& json) {
  return {.path = {},
          .deep = json.at("deep").as_bool(),
          .format = json.at("format").as_str(),
          .bytes = count(json.at("bytes")),
          .problems = count(json.at("problems")),
          .problem = json.at("problem").as_str(),
          .refused = code_named(json.at("refused"))};
}

Value entry_of(const std::string& print, const FleetResult& result) {
  return Value::dict({{"print", print},
                      {"deep", result.deep},
                      {"format", result.format},
                      {"bytes", result.bytes},
                      {"problems", result.problems},
                      {"problem", result.problem},
                      {"refused", result.refused ? Value(to_string(*result.refused)) : Value()}});
}

}  // namespace

FleetState::FleetState(std::optional<Location> file) : file_(std::move(file)) {
  if (!file_) return;
  if (!file_->storage()->stat_target("")) {
    throw_error(ErrorCode::kIo, {.file = file_->display()},
                "the directory of the state file does not exist");
  }
  if (const std::optional<FileInfo> found = file_->stat()) {
    require_state_file(*found);
    read();
  }
  save();
}

void FleetState::require_state_file(const FileInfo& found) const {
  if (found.kind == FileInfo::Kind::kRegular) {
    const auto file = file_->storage()->open(file_->name());
    Bytes begin(std::min<std::uint64_t>(file->size(), kHead.size()));
    file->read(0, begin);
    if (!begin.empty() && std::ranges::equal(begin, as_bytes(kHead.substr(0, begin.size()))))
      return;  // a state file, perhaps cut off
  }
  throw_error(
      ErrorCode::kInvalidArgument, {.file = file_->display()},
      "this is not a state file of 'dckpt verify --fleet', or one of another version; it stays as "
      "it is: choose another name for the state file");
}

void FleetState::read() try {
  const auto file = file_->storage()->open(file_->name());
  const Value json = parse_json(read_file(*file, kMaxStateBytes), file->name());
  const Value& checkpoints = json.at("checkpoints");
  if (json.at("print").as_str() != print_of(checkpoints))
    throw_error(ErrorCode::kCorrupt, "its content does not have the hash that it names");
  for (const auto& [name, entry] : checkpoints.as_dict())
    entries_[name.as_str()] = {entry.at("print").as_str(), result_from(entry)};
} catch (const CheckpointError& error) {
  if (error.code() == ErrorCode::kIo) throw;
  throw_error(ErrorCode::kCorrupt, {.file = file_->display()},
              "this state file of 'dckpt verify --fleet' is damaged ({}); "
              "remove it to verify all checkpoints again, or name another "
              "file",
              error.message());
}

const FleetResult* FleetState::find(const std::string& checkpoint, const std::string& print) const {
  const auto found = entries_.find(checkpoint);
  return found == entries_.end() || found->second.print != print ? nullptr : &found->second.result;
}

void FleetState::add(const std::string& checkpoint, const std::string& print,
                     const FleetResult& result) {
  if (is_utf8(checkpoint) && is_utf8(result.problem))  // JSON holds nothing else
    entries_[checkpoint] = {print, result};
}

void FleetState::forget_missing(const std::set<std::string>& present) {
  std::erase_if(entries_, [&](const auto& entry) {
    try {
      return !present.contains(entry.first) && !Location(entry.first).stat();
    } catch (const CheckpointError&) {
      return false;  // it cannot be seen now
    }
  });
}

void FleetState::save_sometimes() {
  if (Clock::now() >= next_save_) save();
}

void FleetState::save() {
  if (!file_) return;
  const Clock::time_point begin = Clock::now();
  Value checkpoints = Value::dict({});
  for (const auto& [name, entry] : entries_)
    checkpoints[name] = entry_of(entry.print, entry.result);
  const std::string text = to_json(
      Value::dict(
          {{"version", kVersion}, {"print", print_of(checkpoints)}, {"checkpoints", checkpoints}}),
      1);
  file_->storage()->put(file_->name(), as_bytes(text + "\n"));
  const Clock::duration took = Clock::now() - begin;
  next_save_ = Clock::now() + std::max<Clock::duration>(std::chrono::seconds(2), 20 * took);
}

}  // namespace dckpt
