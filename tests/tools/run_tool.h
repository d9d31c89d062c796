#pragma once

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string>
#include <vector>

#include "mapping/state/value.h"
#include "strategies/formats/json/json.h"
#include "tests/support/temp_dir.h"

namespace dckpt::testing {

/// The result of a run of the tool.
struct ToolRun {
  int exit_code = -1;  ///< 128 + n if killed by signal n
  std::string out;
  std::string err;

  Value json() const { return parse_json(as_bytes(out), "standard output"); }
};

inline std::string slurp(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// Runs the built tool with these words, without a terminal. `stdout_to` sends standard output to
/// another place: a redirection or pipe of the shell.
inline ToolRun run_tool(std::vector<std::string> words, const std::string& stdout_to = "") {
  const TempDir scratch;
  const auto quote = [](const std::string& word) {
    std::string quoted = "'";
    for (const char c : word) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
    return quoted + "'";
  };
  const auto in_scratch = [&](const char* name) { return quote((scratch / name).string()); };
  std::string line = "{ " + quote(DCKPT_TOOL);
  for (const std::string& word : words) line += " " + quote(word);
  line += " </dev/null 2>" + in_scratch("err") + "; echo $? >" + in_scratch("code") + "; } " +
          (stdout_to.empty() ? ">" + in_scratch("out") : stdout_to);
  if (std::system(line.c_str()) == -1) throw std::runtime_error("no shell");
  return {std::stoi(slurp(scratch / "code")), slurp(scratch / "out"), slurp(scratch / "err")};
}

}  // namespace dckpt::testing
