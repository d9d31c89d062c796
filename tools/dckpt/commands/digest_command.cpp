#include <algorithm>

#include "mapping/base/error.h"
#include "operations/inspect/digest.h"
#include "operations/json/reports.h"
#include "tools/dckpt/commands/command.h"
#include "tools/dckpt/grammar/exit_code.h"
#include "tools/dckpt/render/key_rows.h"
#include "tools/dckpt/render/progress_line.h"
#include "tools/dckpt/render/table.h"
#include "tools/dckpt/render/terminal.h"

namespace dckpt::tool {
namespace {

struct DigestArguments {
  CheckpointArgument checkpoint;
  DigestOptions digest;
  bool json = false;
};

/// Sorts by key, with digits compared as numbers.
template <typename Entry>
std::vector<Entry> in_order(std::vector<Entry> entries) {
  std::ranges::sort(entries, natural_less, &Entry::key);
  return entries;
}

void print_table(const Digests& digests) {
  Table table({Table::beneath("SHA-256"), {"DTYPE"}, {"SHAPE"}, Table::names("KEY")}, "");
  for (const TensorDigest& tensor : in_order(digests.tensors))
    table.add({tensor.sha256, std::string(to_string(tensor.dtype)), to_string(tensor.shape),
               shown(tensor.key)});
  for (const ObjectDigest& object : in_order(digests.objects))
    table.add({object.sha256, "object", "", shown(object.key)});
  table.print();
}

int run_digest(const DigestArguments& options, Communicator& ranks) {
  const auto reader = options.checkpoint.open(ranks);
  DigestOptions digest_options = options.digest;
  Digests digests;
  {
    ProgressLine progress("digest ");
    digest_options.progress = [&](std::uint64_t done, std::uint64_t total) {
      progress.update(done, total);
    };
    digests = with_context({.file = options.checkpoint.path},
                           [&] { return digest(*reader, digest_options, ranks); });
  }
  if (options.json)
    print_json(to_json(digests));
  else
    print_table(digests);
  return kOk;
}

}  // namespace

Command add_digest(ProgramSpec& program) {
  const auto options = std::make_shared<DigestArguments>();
  Parser command(program, "digest", "SHA-256 of each tensor as a whole and of each object");
  command.footer(
      "A tensor is assembled from its chunks in C order, little-endian, so that its digest does "
      "not depend on format or sharding.\n\n"
      "Examples:\n"
      "  dckpt digest iter_0001000\n"
      "  dckpt digest iter_0001000 --keys 'decoder.*' --json");
  add_checkpoint(command, options->checkpoint);
  add_backend(command, options->checkpoint);
  add_map(command, options->checkpoint.map);
  add_key_filter(command, options->digest.keys);
  add_threads(command, options->digest.threads);
  add_json(command, options->json);
  return {&command.spec(), [options](Communicator& ranks) { return run_digest(*options, ranks); }};
}

}  // namespace dckpt::tool
