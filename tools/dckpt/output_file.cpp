#include "tools/dckpt/output_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>

#include "mapping/base/error.h"
#include "mapping/base/format.h"
#include "mapping/base/local_path.h"
#include "mapping/base/text.h"
#include "tools/dckpt/terminal.h"

namespace dckpt::tool {
namespace {

namespace fs = std::filesystem;

/// Returns whether something other than a regular file exists there: a device, a pipe.
bool is_special(const fs::path& path) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  return fs::exists(status) && !fs::is_regular_file(status);
}

}  // namespace

OutputFile::OutputFile(const std::string& name) : target_(local_path(name)) {
  if (name == "-") return;
  const bool special = is_special(target_);
  written_ = special ? target_ : fs::path(str_format("{}.partial-{}", target_.string(), getpid()));
  const int descriptor =
      open(written_.c_str(),
           special ? O_WRONLY | O_CLOEXEC : O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  file_ = descriptor < 0 ? nullptr : fdopen(descriptor, "wb");
  if (file_ == nullptr) fail("cannot create the output file");
}

OutputFile::~OutputFile() {
  if (file_ == nullptr) return;
  std::fclose(file_);
  if (written_ != target_) unlink(written_.c_str());
}

void OutputFile::fail(const std::string& attempted) const {
  throw CheckpointError(ErrorCode::kIo, str_format("{}: {}", attempted, std::strerror(errno)),
                        {.file = target_.string()});
}

void OutputFile::write(ByteView bytes) {
  if (file_ == nullptr) return print_bytes(bytes.data(), bytes.size());
  if (std::fwrite(bytes.data(), 1, bytes.size(), file_) != bytes.size())
    fail("cannot write the output file");
}

void OutputFile::commit() {
  if (file_ == nullptr) return flush_output();
  if (std::fflush(file_) != 0 || (written_ != target_ && fsync(fileno(file_)) != 0))
    fail("cannot write the output file");
  if (written_ != target_ && std::rename(written_.c_str(), target_.c_str()) != 0)
    fail("cannot put the output file in its place");
  std::fclose(file_);
  file_ = nullptr;
}

void require_outside(const std::string& output, const std::string& read) {
  std::error_code error;  // names that lead nowhere are outside
  const fs::path target = fs::weakly_canonical(local_path(output), error);
  const fs::path source = fs::weakly_canonical(local_path(read), error);
  if (output == "-" || error || std::ranges::mismatch(source, target).in1 != source.end()) return;
  throw CheckpointError(ErrorCode::kInvalidArgument,
                        str_format("the output would be among the files of {}, which is read; "
                                   "choose a name outside",
                                   quote(read)),
                        {.file = output});
}

}  // namespace dckpt::tool
