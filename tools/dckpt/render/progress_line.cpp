#include "tools/dckpt/render/progress_line.h"

#include <algorithm>
#include <cstdio>
#include <utility>

#include "mapping/base/format.h"
#include "mapping/base/text.h"
#include "tools/dckpt/render/terminal.h"

namespace dckpt::tool {
namespace {

constexpr std::chrono::milliseconds kQuiet{300};  // shorter work shows nothing
constexpr std::chrono::milliseconds kInterval{100};

std::string duration(double seconds) {
  const auto whole = static_cast<std::uint64_t>(std::min(seconds, 359999.0));
  char text[32];
  if (whole >= 3600)
    std::snprintf(text, sizeof text, "%u:%02u:%02u", static_cast<unsigned>(whole / 3600),
                  static_cast<unsigned>(whole / 60 % 60), static_cast<unsigned>(whole % 60));
  else
    std::snprintf(text, sizeof text, "%u:%02u", static_cast<unsigned>(whole / 60),
                  static_cast<unsigned>(whole % 60));
  return text;
}

}  // namespace

std::string progress_text(std::uint64_t done, std::uint64_t total, double seconds) {
  const double share =
      total > 0 ? std::min(static_cast<double>(done) / static_cast<double>(total), 1.0) : 1.0;
  char percent[8];
  std::snprintf(percent, sizeof percent, "%3d%%", static_cast<int>(share * 100));
  std::string text = str_format("{}  {} of {}", percent, human_bytes(done), human_bytes(total));
  if (seconds > 0 && done > 0) {
    const double rate = static_cast<double>(done) / seconds;
    text += str_format("  {}/s", human_bytes(static_cast<std::uint64_t>(rate)));
    if (done < total)
      text += str_format("  {} left", duration(static_cast<double>(total - done) / rate));
  }
  return text;
}

ProgressLine::ProgressLine(std::string verb)
    : verb_(std::move(verb)), enabled_(is_terminal(stderr)), start_(Clock::now()), last_(start_) {}

ProgressLine::~ProgressLine() {
  if (drawn_) std::fputs("\r\x1b[K", stderr);
}

void ProgressLine::update(std::uint64_t done, std::uint64_t total) {
  if (!enabled_) return;
  const Clock::time_point now = Clock::now();
  if (now - start_ < kQuiet || now - last_ < kInterval) return;
  last_ = now;
  drawn_ = true;
  // A wrapped line cannot be overwritten.
  const std::string text =
      verb_ + progress_text(done, total, std::chrono::duration<double>(now - start_).count());
  const std::string line = str_format("\r{}\x1b[K", text.substr(0, columns_of_stream(stderr) - 1));
  std::fputs(line.c_str(), stderr);
}

}  // namespace dckpt::tool
