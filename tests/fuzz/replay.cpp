// Runs the files of one folder through a fuzz target, without libFuzzer: each file whole, and cut
// short at up to kPrefixes places, since truncation is the damage that parsers meet most. A crash,
// a sanitizer report or a folder without files fails the test.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace {

constexpr std::size_t kPrefixes = 256;

// Copies the data at exact size, so that AddressSanitizer sees a read of even one byte past the
// end.
void run(const std::uint8_t* data, std::size_t size) {
  const std::vector<std::uint8_t> exact(data, data + size);
  LLVMFuzzerTestOneInput(exact.data(), exact.size());
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: %s FOLDER\n", argv[0]);
    return 2;
  }
  std::vector<std::filesystem::path> files;
  std::error_code error;
  for (std::filesystem::directory_iterator it(argv[1], error), end; !error && it != end;
       it.increment(error)) {
    if (it->is_regular_file()) files.push_back(it->path());
  }
  if (files.empty()) {
    std::fprintf(stderr, "%s holds no files to replay\n", argv[1]);
    return 1;
  }
  std::sort(files.begin(), files.end());
  for (const auto& path : files) {
    std::ifstream in(path, std::ios::binary);
    const std::vector<char> text((std::istreambuf_iterator<char>(in)), {});
    std::printf("%s, %zu bytes\n", path.c_str(), text.size());
    std::fflush(stdout);  // names the culprit when the next line crashes
    const auto* const data = reinterpret_cast<const std::uint8_t*>(text.data());
    const std::size_t step = std::max<std::size_t>(1, text.size() / kPrefixes);
    for (std::size_t size = 0; size < text.size(); size += step) run(data, size);
    run(data, text.size());
  }
}
