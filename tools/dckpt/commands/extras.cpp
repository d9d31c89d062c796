#include <filesystem>
#include <system_error>

#include "mapping/base/error.h"
#include "tools/dckpt/commands/program.h"
#include "tools/dckpt/grammar/completion_scripts.h"
#include "tools/dckpt/grammar/exit_code.h"
#include "tools/dckpt/grammar/man_page.h"
#include "tools/dckpt/render/output_file.h"

namespace dckpt::tool {
namespace {

namespace fs = std::filesystem;

void write_text(const fs::path& path, std::string_view text) {
  std::error_code error;
  fs::create_directories(path.parent_path(), error);
  if (error)
    throw_error(ErrorCode::kIo, {.file = path.parent_path().string()},
                "cannot create the folder: " + error.message());
  OutputFile file(path.string());
  file.write(as_bytes(text));
  file.commit();
}

}  // namespace

int write_extras(Program& program, const std::string& folder) {
  const fs::path share = folder;
  const ProgramSpec& spec = *program.spec;
  const auto page = [&](const CommandSpec& command) {
    write_text(share / "man" / "man1" / (man_page_name(spec, command) + ".1"),
               man_page(spec, command));
  };
  page(spec);
  for (const CommandSpec& command : spec.commands) page(command);
  for (const CompletionScript& script : completion_scripts())
    write_text(share / script.file, script.text);
  return kOk;
}

}  // namespace dckpt::tool
