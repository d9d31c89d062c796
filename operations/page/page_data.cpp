#include "operations/page/page_data.h"

#include "dist_checkpointing/save/report_file.h"
#include "mapping/base/counted.h"
#include "mapping/base/error_boundary.h"
#include "mapping/base/format.h"
#include "mapping/base/text.h"
#include "migration/optimizer/optimizer_buckets.h"
#include "operations/page/arguments.h"
#include "strategies/tensor_io/read_tensors.h"

namespace dckpt {
namespace {

/// Runs `gather`. If it cannot read something, the page says so instead of showing the part.
template <typename Gather>
void try_part(PageData& page, const std::string& part, const Gather& gather) {
  try {
    gather();
  } catch (...) {
    const CheckpointError error = current_error();
    if (error.code() == ErrorCode::kCancelled || error.code() == ErrorCode::kInternal) throw;
    page.missing.emplace_back(part, error.what());
  }
}

std::string joined(const std::vector<std::string>& texts) {
  std::string all;
  for (const std::string& text : texts) all += (all.empty() ? "" : ", ") + text;
  return all;
}

std::string joined(const std::vector<RunFacts::Number>& numbers) {
  std::string all;
  for (const auto& [name, number] : numbers)
    all += str_format("{}{} {}", all.empty() ? "" : ", ", name, number);
  return all;
}

void add_facts(const CheckpointSummary& summary, PageData& page) {
  const auto add = [&](const char* name, const std::string& text) {
    if (!text.empty()) page.facts.emplace_back(name, text);
  };
  const OptimizerSummary& optimizer = summary.optimizer;
  const Value* const iteration = summary.common.find("iteration");
  add("iteration",
      iteration != nullptr && iteration->is_int() ? std::to_string(iteration->as_int()) : "");
  add("model", joined(summary.run.model));
  add("saved with", joined(summary.run.parallel));
  add("optimizer", optimizer.name);
  add("optimizer states", joined(optimizer.states));
  add("optimizer sharding", optimizer.sharding);
  add("reshardable", optimizer.reshardable);
  if (summary.modelopt) add("modelopt", joined(summary.modelopt->modes));
  add("readable by", summary.readers.model);
  add("resumed by", summary.readers.optimizer);
  std::uint64_t unused = 0;
  for (const FileSummary& file : summary.files) unused += file.unused.value_or(0);
  if (unused > 0) add("unused", human_bytes(unused) + " of the data files, which no record takes");
  if (!summary.unreferenced.empty())
    add("not used", quoted_list(summary.unreferenced) + ", which the metadata does not refer to");
}

void add_summary(const CheckpointReader& reader, PageData& page) {
  try_part(page, "run and readers", [&] {
    CheckpointSummary summary = inspect(reader);
    add_facts(summary, page);
    page.files = std::move(summary.files);
  });
  if (page.files.empty())
    try_part(page, "files", [&] { page.files = list_files(reader.storage()); });
  try_part(page, "state of the files", [&] { page.data_files = check_data_files(reader); });
  try_part(page, "arguments", [&] { page.arguments = argument_rows(reader.common_state()); });
  try_part(page, "phases of the save", [&] { page.save = find_report(reader.storage()); });
}

/// Finds the parameters in the buckets of the optimizer, by their values.
void add_bucket_ranges(const CheckpointReader& reader, PageData& page) {
  const std::vector<StoredBucket> buckets = optimizer_buckets(reader);
  if (buckets.empty()) return;
  const auto& tensors = reader.metadata().tensors;
  const FoundInBuckets found = find_in_buckets(reader, buckets, {}, {});
  for (const BucketPlace& place : found.places) {
    page.bucket_ranges.push_back({tensors[buckets[place.bucket].state.at("param")].key,
                                  tensors[place.tensor].key, place.begin,
                                  numel(place.chunk.sizes)});
  }
}

void compare(const CheckpointReader& reader, const PageOptions& options, PageData& page) {
  Comparison comparison{.with = options.compare_title,
                        .report = diff(reader, *options.compare,
                                       {.threads = options.threads, .progress = options.progress})};
  for (const CheckpointReader* const side : {&reader, options.compare})
    for (const TensorStorageMetadata& tensor : side->metadata().tensors)
      comparison.keys.push_back(tensor.key);
  page.comparison = std::move(comparison);
}

}  // namespace

PageData gather_page(const CheckpointReader& reader, const PageOptions& options) try {
  PageData page{.title = options.title, .info = reader.info(), .metadata = reader.metadata()};
  page.verified = verify(reader, {.threads = options.threads});
  add_summary(reader, page);
  if (options.stats) {
    try_part(page, "statistics", [&] {
      page.stats = stats(
          reader, {.threads = options.threads, .past_damage = true, .progress = options.progress});
      if (const auto& keys = page.stats->unreadable; !keys.empty())
        page.missing.emplace_back("statistics of " + counted(keys.size(), "tensor"),
                                  "Not all of their bytes can be read: " + quoted_list(keys));
    });
    try_part(page, "parameters in buckets", [&] { add_bucket_ranges(reader, page); });
  }
  if (options.compare != nullptr)
    try_part(page, "differences", [&] { compare(reader, options, page); });
  return page;
} catch (...) {
  throw_checkpoint_error();
}

PageData gather_unopened(const Location& location, const std::string& title,
                         const CheckpointError& error) try {
  PageData page{.title = title};
  page.verified.problems.push_back(error);
  page.missing.emplace_back("tensors, objects and common state", "the checkpoint cannot be opened");
  try_part(page, "files", [&] { page.files = list_files(*location.directory()); });
  return page;
} catch (...) {
  throw_checkpoint_error();
}

}  // namespace dckpt
