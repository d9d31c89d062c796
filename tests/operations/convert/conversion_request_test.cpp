#include "operations/convert/conversion_request.h"

#include <gtest/gtest.h>

#include <stop_token>
#include <string>

#include "mapping/base/bytes.h"
#include "strategies/storage/file_watch.h"
#include "strategies/storage/memory.h"
#include "tests/support/expect_error.h"

namespace dckpt::conversion_request_test {
namespace {

using testing::error_of;

const auto kStorage = memory_storage();
const Location kRoot(kStorage);

Route route() {
  return watched_route(kRoot / "iter_0000010", kRoot / "copy");
}

ConversionRequest requested(const ConvertOptions& options) {
  return request_of(options, route());
}

void write(const Location& directory, const std::string& text) {
  kStorage->remove_all(directory.name());
  kStorage->make_directory(directory.name());
  const auto file = kStorage->create(directory.name() + "/file");
  file->append(as_bytes(text));
  file->close();
}

TEST(ConversionRequest, SeesAllThatIsRead) {
  for (const char* const name : {"iter_0000010", "a", "b", "adapter", "model"})
    write(kRoot / name, "1");
  const Route watched = route();
  const ConversionRequest request = request_of({.source = {.merge_adapter = kRoot / "adapter",
                                                           .average = {kRoot / "a"},
                                                           .join = {kRoot / "b"}},
                                                .target = {.model_files = kRoot / "model"}},
                                               watched);
  for (const Location& place : {watched.from, request.source.average[0], request.source.join[0],
                                *request.source.merge_adapter, *request.target.model_files}) {
    (void)place.directory()->open("file");
    write(place, "22");
    EXPECT_EQ(error_of([&] { watched.watch->require_unchanged(""); }).code(), ErrorCode::kAborted)
        << place.display();
    write(place, "1");
  }
}

TEST(ConversionRequest, NamesTheIterationOnce) {
  EXPECT_FALSE(requested({.source = {.iteration = IterationName(10)}}).source.iteration);
  EXPECT_TRUE(requested({.source = {.iteration = IterationName(20)}}).source.iteration);
}

TEST(ConversionRequest, HasTheFormThatTheOptimizerImplies) {
  ConvertOptions options{.optimizer = {.sharding = OptimizerSharding::kFullyShardedModelSpace}};
  EXPECT_EQ(requested(options).optimizer.flattened, FlattenedForm::kMegatron);
  options.target.strategy = "hf";  // has the shapes of the model
  EXPECT_FALSE(requested(options).optimizer.flattened);
  options = {.optimizer = {.sharding = OptimizerSharding::kFullyReshardable}};
  EXPECT_FALSE(requested(options).optimizer.flattened);
}

TEST(ConversionRequest, FillsInWhatOptionsLeaveOpen) {
  EXPECT_EQ(requested({.limits = {.io = {.threads = 3}}}).readers, 3);
  EXPECT_EQ(requested({.limits = {.read_threads = 2, .io = {.threads = 3}}}).readers, 2);
  EXPECT_TRUE(requested({.source = {.map = {.name = "llama"}}}).mapped);
  EXPECT_FALSE(requested({.source = {.map = {.name = kNoMap}}}).mapped);
  EXPECT_FALSE(requested({}).mapped);
}

TEST(ConversionRequest, GoesOnUntilAStopIsRequested) {
  std::stop_source stop;
  const ConversionRequest request = requested({.stop = stop.get_token()});
  request.go_on();
  stop.request_stop();
  EXPECT_EQ(error_of([&] { request.go_on(); }).code(), ErrorCode::kCancelled);
}

}  // namespace
}  // namespace dckpt::conversion_request_test
