#include "mapping/base/local_path.h"

#include <gtest/gtest.h>

#include "tests/support/code_of.h"

namespace dckpt::local_path_test {
namespace {

TEST(LocalPath, OrdinaryPathsStayAsTheyAre) {
  for (const char* path : {"", "/", "run/checkpoints", "/a/b/", "./s3:/bucket", "dir/s3://x",
                           "1s://x", "://x", "C:\\x"}) {
    EXPECT_EQ(local_path(path).string(), path);
  }
}

TEST(LocalPath, FileUrlsAreLocal) {
  EXPECT_EQ(local_path("file:///run/checkpoints"), "/run/checkpoints");
}

TEST(LocalPath, OtherSchemesAreUnsupported) {
  for (const char* path : {"s3://bucket/run", "msc://profile/run", "gs://b", "S3://b",
                           "a+b-c.d://x", "file://host/x", "file://relative"}) {
    EXPECT_EQ(code_of([&] { local_path(path); }), "unsupported") << path;
  }
}

}  // namespace
}  // namespace dckpt::local_path_test
