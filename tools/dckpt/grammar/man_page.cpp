#include "tools/dckpt/grammar/man_page.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdio>
#include <string_view>
#include <vector>

#include "mapping/base/format.h"
#include "mapping/base/text.h"
#include "mapping/base/utf8.h"
#include "tools/dckpt/grammar/build_info.h"

namespace dckpt::tool {
namespace {

/// Escapes everything that roff interprets. Dashes remain ones that can be pasted into a shell.
std::string escaped(std::string_view text) {
  std::string out;
  for (std::size_t i = 0; i < text.size();) {
    const auto [length, code_point] = decode_utf8(text.substr(i), Surrogates::kRefuse);
    const char c = text[i];
    if (length > 1) {
      std::array<char, 16> name{};
      std::snprintf(name.data(), name.size(), "\\[u%04X]", code_point);
      out += name.data();
      i += length;
      continue;
    }
    ++i;
    switch (c) {
      case '\\': out += "\\e"; break;
      case '-': out += "\\-"; break;
      case '^': out += "\\(ha"; break;
      case '~': out += "\\(ti"; break;
      case '`': out += "\\(ga"; break;
      case '\'': out += "\\(aq"; break;
      case '.': out += i == 1 ? "\\&." : "."; break;
      default: out += c;
    }
  }
  return out;
}

std::string upper(std::string text) {
  for (char& c : text) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return text;
}

std::size_t indent_of(std::string_view line) {
  return std::min(line.find_first_not_of(' '), line.size());
}

using Lines = std::vector<std::string>;

/// Breaks prose, which roff fills itself, into lines that are easy to read in the source.
std::string prose(const std::string& text) {
  constexpr std::size_t kColumns = 60;
  std::string out;
  for (std::size_t start = 0; start < text.size();) {
    std::size_t end = text.size();
    if (end - start > kColumns) {
      const std::size_t blank = text.rfind(' ', start + kColumns);
      end = blank == std::string::npos || blank <= start ? text.find(' ', start) : blank;
      end = std::min(end, text.size());
    }
    out += escaped(text.substr(start, end - start)) + "\n";
    start = std::min(text.find_first_not_of(' ', end), text.size());
  }
  return out;
}

/// Returns the lines unchanged, as an example.
std::string example(const Lines& lines) {
  std::string out = ".EX\n";
  for (const std::string& line : lines)
    out += escaped(line.substr(std::min<std::size_t>(indent_of(line), 2))) + "\n";
  return out + ".EE\n";
}

/// Formats lines such as "  name   description", each continued on deeper lines, or plain lines.
std::string items(const Lines& lines) {
  std::string out;
  bool tagged = false;
  for (const std::string& line : lines) {
    const std::size_t indent = indent_of(line);
    const std::string text = line.substr(indent);
    const std::size_t gap = text.find("  ");
    if (indent > 2) {
      out += prose(text);
    } else if (gap == std::string::npos) {
      out += (tagged ? ".PP\n" : ".br\n") + prose(text);
      tagged = false;
    } else {
      out += ".TP\n" + escaped(text.substr(0, gap)) + "\n" +
             prose(text.substr(text.find_first_not_of(' ', gap)));
      tagged = true;
    }
  }
  return out;
}

/// A footer: paragraphs between empty lines. "Examples:" and "Exit codes:" become sections; any
/// other line before indented lines becomes their heading.
struct Footer {
  std::string text{};
  std::string examples{};
  std::string exit_status{};

  explicit Footer(const std::string& footer) {
    Lines paragraph;
    for (const std::string& line : split(footer + "\n", '\n')) {
      if (!line.empty()) {
        paragraph.push_back(line);
        continue;
      }
      if (!paragraph.empty()) add(paragraph);
      paragraph.clear();
    }
  }

 private:
  void add(Lines lines) {
    constexpr std::string_view kExitCodes = "Exit codes: ";
    const Lines rest(lines.begin() + 1, lines.end());
    if (lines[0] == "Examples:" || lines[0] == "Example:") {
      examples += example(rest);
    } else if (lines[0].starts_with(kExitCodes)) {
      lines[0] = lines[0].substr(kExitCodes.size());
      for (const std::string& line : lines) exit_status += prose(line.substr(indent_of(line)));
    } else {
      if (!text.empty()) text += ".PP\n";
      std::size_t at = 0;
      for (; at < lines.size() && indent_of(lines[at]) == 0; ++at) text += prose(lines[at]);
      if (at < lines.size())
        text += items({lines.begin() + static_cast<std::ptrdiff_t>(at), lines.end()});
    }
  }
};

std::string section(const std::string& name, const std::string& text) {
  return text.empty() ? "" : ".SH " + name + "\n" + text;
}

/// Returns "\fB\-o\fR, \fB\-\-output\fR \fIFILE\fR".
std::string option_names(const OptionSpec& option) {
  if (option.is_argument()) return "\\fI" + escaped(option.main_name()) + "\\fR";
  std::string names;
  for (const std::string& name : option.names)
    names += (names.empty() ? "\\fB" : ", \\fB") + escaped(name) + "\\fR";
  if (option.takes_value) names += " \\fI" + escaped(option.type_name) + "\\fR";
  return names;
}

std::string options(const CommandSpec& command, bool arguments) {
  std::string out;
  for (const OptionSpec& option : command.options) {
    if (option.is_argument() != arguments) continue;
    out += ".TP\n" + option_names(option) + "\n" +
           prose(option.about + (option.is_required && !arguments ? " (required)" : ""));
  }
  return out;
}

/// Returns the other pages: the commands that --help lists, or the program.
std::string commands(const ProgramSpec& program) {
  std::string out;
  for (const CommandSpec& command : program.commands)
    out +=
        ".TP\n\\fB" + escaped(man_page_name(program, command)) + "\\fR(1)\n" + prose(command.about);
  return out;
}

}  // namespace

std::string man_page_name(const ProgramSpec& program, const CommandSpec& command) {
  return &command == &program ? program.name : program.name + "-" + command.name;
}

std::string man_page(const ProgramSpec& program, const CommandSpec& command) {
  const std::string name = man_page_name(program, command);
  const bool whole = &command == &program;
  const Footer footer(command.footer);
  std::string description = command.about;
  if (description.ends_with('.')) description.pop_back();
  const std::string usage = usage_line(program, command);
  const std::string see_also = whole ? "" : "\\fB" + escaped(program.name) + "\\fR(1)\n";
  // Words are not hyphenated, since most of them are to be typed.
  return str_format(".TH {} 1 \"{}\" \"{} {}\" \"{} Manual\"\n.nh\n.ad l\n", upper(name),
                    build_info().date, program.name, build_info().version, program.name) +
         section("NAME", escaped(name) + " \\-\n" + prose(description)) +
         section("SYNOPSIS", ".B " + escaped(usage) + "\n") + section("DESCRIPTION", footer.text) +
         section("ARGUMENTS", options(command, true)) +
         section("OPTIONS", options(command, false)) +
         section("COMMANDS", whole ? commands(program) : "") +
         section("EXIT STATUS", footer.exit_status) + section("EXAMPLES", footer.examples) +
         section("SEE ALSO", see_also);
}

}  // namespace dckpt::tool
