#include "strategies/formats/dcp/megatron_json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "mapping/base/error.h"
#include "tests/strategies/formats/dcp/golden_metadata.h"

namespace dckpt::testing::megatron_json_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

std::string config_refusal(std::string_view json) {
  try {
    read_checkpointing_config(as_bytes(json), "ckpt/metadata.json");
  } catch (const CheckpointError& error) {
    EXPECT_EQ(error.code(), ErrorCode::kCorrupt);
    EXPECT_EQ(error.context().file, "ckpt/metadata.json");
    return error.message();
  }
  return "was read";
}

TEST(CheckpointingConfig, IsReadInBothFormsAndWrittenAsMegatronDoes) {
  for (const char* name : {"mcore-0.14-flattened-single", "mcore-head-fully-reshardable-tp2pp2dp2",
                           "mcore-0.14-zarr-tp2pp1dp2"}) {
    const Bytes golden_file = read_file(golden(name) / "ckpt" / kConfigFile);
    const CheckpointingConfig config = read_checkpointing_config(golden_file);
    EXPECT_EQ(config.sharded_backend_version, 1);
    EXPECT_EQ(write_checkpointing_config(config), as_text(golden_file)) << name;
  }
}

TEST(CheckpointingConfig, SkipsUnknownFields) {
  const std::string_view json =
      R"({"future": {"a": [1]}, "sharded_backend": "zarr", "common_backend": "torch", "sharded_backend_version": 2})";
  EXPECT_EQ(
      read_checkpointing_config(as_bytes(json)),
      (CheckpointingConfig{
          .sharded_backend = "zarr", .sharded_backend_version = 2, .common_backend = "torch"}));
}

TEST(CheckpointingConfig, RefusesOtherTypesAndDuplicates) {
  EXPECT_THAT(config_refusal(R"(["torch_dist", 1])"),
              HasSubstr("of kind list (expected: an object)"));
  EXPECT_THAT(config_refusal(R"({"sharded_backend_version": 1})"),
              HasSubstr("the field 'sharded_backend' is missing"));
  EXPECT_THAT(config_refusal(R"({"sharded_backend": 7})"),
              HasSubstr("'sharded_backend' is of kind int"));
  EXPECT_THAT(config_refusal(R"({"sharded_backend": null})"), HasSubstr("expected: a string"));
  EXPECT_THAT(
      config_refusal(R"({"sharded_backend": "torch_dist", "sharded_backend_version": "1"})"),
      HasSubstr("of kind str (expected: an integer)"));
  EXPECT_THAT(
      config_refusal(R"({"sharded_backend": "torch_dist", "sharded_backend_version": true})"),
      HasSubstr("of kind bool"));
  EXPECT_THAT(
      config_refusal(R"({"sharded_backend": "torch_dist", "sharded_backend_version": 1.0})"),
      HasSubstr("of kind float"));
  EXPECT_THAT(config_refusal(R"({"sharded_backend": "torch_dist", "sharded_backend_version": -1})"),
              HasSubstr("no version"));
  EXPECT_THAT(
      config_refusal(R"({"sharded_backend": "torch_dist", "sharded_backend_version": 4294967297})"),
      HasSubstr("no version"));
  EXPECT_THAT(config_refusal(R"({"sharded_backend": "torch_dist", "sharded_backend": "zarr"})"),
              HasSubstr("twice"));
  EXPECT_THAT(config_refusal(R"({"sharded_backend": "torch_di)"), HasSubstr("cannot read JSON"));
  EXPECT_THAT(config_refusal(""), HasSubstr("cannot read JSON"));
}

TEST(IntegrityManifest, OfMegatronIsReadAndWrittenByteForByte) {
  const Bytes golden_file =
      read_file(golden("mcore-head-fully-reshardable-tp2pp2dp2") / "ckpt" / kIntegrityFile);
  IntegrityManifest manifest = read_integrity_manifest(golden_file);
  EXPECT_EQ(manifest.files.size(), 10u);
  EXPECT_EQ(manifest.files.back().name, "metadata.json");
  std::reverse(manifest.files.begin(), manifest.files.end());
  EXPECT_EQ(write_integrity_manifest(manifest), as_text(golden_file));
}

TEST(IntegrityManifest, HasSizesBehindWhatMegatronReads) {
  const IntegrityManifest manifest{{{"a", std::string(64, 'a'), 5'000'000'000},
                                    {"b/c", std::string(64, 'b'), 0},
                                    {"d", std::string(64, 'c')}}};
  const std::string json = write_integrity_manifest(manifest);
  EXPECT_EQ(read_integrity_manifest(as_bytes(json)), manifest);
  EXPECT_THAT(json, ::testing::EndsWith(R"("sizes": {
    "a": 5000000000,
    "b/c": 0
  }
})"));
}

TEST(IntegrityManifest, RefusesOtherAlgorithmsNamesAndDigests) {
  const std::string digest(64, 'a');
  const auto refusal = [](const std::string& json) {
    try {
      read_integrity_manifest(as_bytes(json));
    } catch (const CheckpointError& error) {
      EXPECT_EQ(error.context().file, "integrity.json");
      return std::string(to_string(error.code())) + ": " + error.message();
    }
    return std::string("was read");
  };
  const auto of = [&](const std::string& name, const std::string& hex) {
    return R"({"algorithm": "sha256", "files": {")" + name + R"(": ")" + hex + R"("}})";
  };
  EXPECT_EQ(refusal(of("a", digest)), "was read");
  EXPECT_THAT(refusal(R"({"algorithm": "md4", "files": {}})"),
              HasSubstr("unsupported: Unsupported hash algorithm 'md4'"));
  EXPECT_THAT(refusal(R"({"files": {}})"), HasSubstr("'algorithm' is missing"));
  EXPECT_THAT(refusal(R"({"algorithm": "sha256"})"), HasSubstr("'files' is missing"));
  EXPECT_THAT(refusal(R"({"algorithm": "sha256", "files": []})"), HasSubstr("expected: an object"));
  EXPECT_EQ(refusal(of("a/b", digest)), "was read");
  for (const char* name : {"../../x", "/etc/passwd", "a/../b", "", ".", ".."})
    EXPECT_THAT(refusal(of(name, digest)), HasSubstr("no file in the checkpoint"));
  for (const char* size : {"-1", "true", "1.5", "\"1\""}) {
    const std::string files = of("a", digest);
    EXPECT_THAT(refusal(files.substr(0, files.size() - 1) + R"(, "sizes": {"a": )" + size + "}}"),
                HasSubstr("no number of bytes"));
  }
  for (const std::string& hex :
       {std::string("zz"), digest.substr(1), std::string(64, 'A'), digest + "a"}) {
    EXPECT_THAT(refusal(of("a", hex)), HasSubstr("no SHA-256"));
  }
}

TEST(IntegrityManifest, ReportsDifferencesInMegatronsWords) {
  const IntegrityManifest manifest{{{"__0_0.distcp", std::string(64, 'a')},
                                    {"common.pt", std::string(64, 'b')},
                                    {"metadata.json", std::string(64, 'c')}}};
  std::map<std::string, std::string> files{{"__0_0.distcp", std::string(64, 'a')},
                                           {"common.pt", std::string(64, 'b')},
                                           {"metadata.json", std::string(64, 'c')}};
  const auto digest = [&](const std::string& name) {
    return files.contains(name) ? std::optional(files[name]) : std::nullopt;
  };
  EXPECT_NO_THROW(check_integrity(manifest, digest));

  files["__0_0.distcp"] = std::string(64, 'd');
  files.erase("common.pt");
  try {
    check_integrity(manifest, digest);
    FAIL();
  } catch (const CheckpointError& error) {
    EXPECT_EQ(error.code(), ErrorCode::kCorrupt);
    EXPECT_THAT(error.message(),
                HasSubstr("Checkpoint integrity verification failed for 2 file(s)"));
    EXPECT_THAT(error.message(),
                HasSubstr("__0_0.distcp: hash mismatch (expected aaaaaaaaaaaaaaaa..., got "
                          "dddddddddddddddd...)\n  common.pt: file missing or unreadable"));
  }
}

TEST(IntegrityManifest, ReportsSizesThatDiffer) {
  const IntegrityManifest manifest{{{"a", std::string(64, 'a'), 1},
                                    {"b", std::string(64, 'b'), 2},
                                    {"gone", std::string(64, 'c'), 3},
                                    {"of unknown size", std::string(64, 'd')}}};
  std::map<std::string, std::uint64_t> files{{"a", 1}, {"b", 2}, {"of unknown size", 9}};
  const auto size = [&](const std::string& name) {
    return files.contains(name) ? std::optional(files[name]) : std::nullopt;
  };
  EXPECT_NO_THROW(check_sizes(manifest, size));
  files["b"] = 20;
  try {
    check_sizes(manifest, size);
    FAIL();
  } catch (const CheckpointError& error) {
    EXPECT_EQ(error.code(), ErrorCode::kCorrupt);
    EXPECT_THAT(error.message(), HasSubstr("verification failed for 1 file(s)\n  b: size mismatch "
                                           "(expected 2, got 20)\n"));
  }
}

}  // namespace
}  // namespace dckpt::testing::megatron_json_test
