#include "tools/dckpt/commands/fleet_run.h"

#include <algorithm>
#include <fstream>
#include <iostream>

#include "mapping/base/counted.h"
#include "mapping/base/error.h"
#include "operations/json/reports.h"
#include "tools/dckpt/commands/command.h"
#include "tools/dckpt/commands/interruption.h"
#include "tools/dckpt/grammar/exit_code.h"
#include "tools/dckpt/render/terminal.h"

namespace dckpt::tool {
namespace {

using Status = FleetResult::Status;

/// Returns the lines of the list, except for empty ones and those that begin with '#'.
std::vector<std::string> paths_in(const std::string& list) {
  std::ifstream file;
  if (list != "-") file.open(list);
  std::istream& input = list == "-" ? std::cin : file;
  std::vector<std::string> paths;
  for (std::string line; std::getline(input, line);) {
    if (line.ends_with('\r')) line.pop_back();
    if (!line.empty() && !line.starts_with('#')) paths.push_back(std::move(line));
  }
  if (list != "-" && (!file.is_open() || file.bad()))
    throw_error(ErrorCode::kIo, {.file = list}, "cannot read the list of a fleet");
  if (paths.empty())
    throw_error(ErrorCode::kInvalidArgument, {.file = list},
                "the list of the fleet names no path: it has one in each line");
  return paths;
}

int code_of(const FleetResult& result) {
  if (result.ok()) return kOk;
  return result.refused ? exit_code(*result.refused) : kDiffers;
}

/// Adds up results.
class Summary {
 public:
  void add(const FleetResult& result) {
    ++count_;
    unchanged_ += result.status == Status::kUnchanged ? 1 : 0;
    being_saved_ += result.status == Status::kBeingSaved ? 1 : 0;
    if (!result.ok()) ++bad_;
    code_ = std::max(code_, code_of(result));
  }
  int code() const { return code_; }
  /// Prints "1,000 checkpoints: 998 OK, 2 with problems; 990 unchanged".
  void print() const {
    std::string text = str_format("{}: {} OK", counted(count_, "checkpoint"),
                                  grouped(count_ - bad_ - being_saved_));
    if (bad_ > 0) text += str_format(", {} with problems", grouped(bad_));
    if (being_saved_ > 0) text += str_format(", {} being saved", grouped(being_saved_));
    if (unchanged_ > 0) text += str_format("; {} unchanged", grouped(unchanged_));
    tool::print("\n" + styled(bad_ == 0 ? Style::kGreen : Style::kRed, text) + "\n");
  }

 private:
  std::size_t count_ = 0, unchanged_ = 0, being_saved_ = 0, bad_ = 0;
  int code_ = kOk;
};

void print_line(const FleetResult& result) {
  const bool unchanged = result.status == Status::kUnchanged;
  if (result.status == Status::kBeingSaved) {
    print(str_format("{}  {}\n", styled(Style::kYellow, "being saved"), shown(result.path)));
  } else if (result.ok()) {
    print(str_format("{}  {}{}\n", styled(Style::kGreen, "OK"), shown(result.path),
                     unchanged ? "  unchanged" : ""));
  } else {
    print(str_format("{}  {}{}  {}{}\n", styled(Style::kRed, "BAD"), shown(result.path),
                     unchanged ? "  unchanged" : "", safe_message(result.problem),
                     result.problems > 1
                         ? str_format(", and {}", counted(result.problems - 1, "more problem"))
                         : ""));
  }
}

}  // namespace

void add_fleet(Parser command, FleetArguments& arguments, const std::vector<Option>& others) {
  Option fleet = command
                     .add_option("--fleet", arguments.list,
                                 "Every checkpoint of the roots in this file, one in each line; - "
                                 "for stdin")
                     .type_name("LIST")
                     .takes(Takes::kFile);
  for (const Option& other : others) fleet.excludes(other);
  command
      .add_option("--state", arguments.state,
                  "With --fleet: remember results here, and skip what has not changed since")
      .type_name("FILE")
      .takes(Takes::kFile);
  const auto take_rate = [&arguments](const std::string& text) {
    const std::size_t per_second = text.ends_with("/s") ? 2 : 0;
    const auto rate = parse_size(text.substr(0, text.size() - per_second));
    if (!rate || *rate == 0)
      return str_format("found {}, expected bytes per second such as 100MiB", quote(text));
    arguments.verify.max_rate = *rate;
    return std::string();
  };
  command.add_option("--max-rate", take_rate, "With --fleet: read at most this much per second")
      .type_name("SIZE");
}

int run_fleet(const FleetArguments& arguments, bool json) {
  Interruption interruption;
  return interruption.run([&] {
    FleetOptions options = arguments.verify;
    if (!arguments.state.empty()) options.state = Location(arguments.state);
    options.stop = interruption.token();
    Summary summary;
    verify_fleet(paths_in(arguments.list), options, [&](const FleetResult& result) {
      summary.add(result);
      if (json)
        print_json(to_json(result));
      else
        print_line(result);
      flush_output();
    });
    if (!json) summary.print();
    return summary.code();
  });
}

}  // namespace dckpt::tool
