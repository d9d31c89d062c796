#include <gmock/gmock.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <vector>

#include "configs/policy/policy.h"
#include "dist_checkpointing/checkpointer/checkpointer.h"
#include "dist_checkpointing/open/open.h"
#include "dist_checkpointing/save/report_file.h"
#include "mapping/base/bytes.h"
#include "mapping/state/value.h"
#include "operations/inspect/digest.h"
#include "operations/inspect/verify.h"
#include "operations/upkeep/fleet_state.h"
#include "strategies/comm/communicator.h"
#include "strategies/formats/json/json.h"
#include "tests/support/golden.h"
#include "tests/support/temp_dir.h"

// What releases of dckpt have written (tests/data/written) is read by each later commit.
namespace dckpt::written_test {
namespace {

namespace fs = std::filesystem;
using ::testing::IsEmpty;

class Written : public ::testing::TestWithParam<std::string> {
 protected:
  fs::path file(const std::string& name) const {
    return fs::path(DCKPT_TEST_DATA) / "written" / GetParam() / name;
  }
  std::string text(const std::string& name) const {
    std::ifstream in(file(name), std::ios::binary);
    EXPECT_TRUE(in) << name;
    return {std::istreambuf_iterator<char>(in), {}};
  }
};

std::map<std::string, std::string> digests_of(const CheckpointReader& reader) {
  std::map<std::string, std::string> found;
  for (const TensorDigest& tensor : digest(reader).tensors) found[tensor.key] = tensor.sha256;
  return found;
}

// The model is Megatron-Core's, and so are its values.
TEST_P(Written, FormatsHoldTheModel) {
  std::map<std::string, std::string> model;
  const Value expected = testing::golden_expected("legacy-torch-vpp-tp1pp2");
  for (const auto& [key, tensor] : expected.at("tensors").as_dict())
    model[key.as_str()] = tensor.at("sha256").as_str();
  for (const std::string format : {"torch_dist", "dcp", "torch", "zarr", "safetensors"}) {
    SCOPED_TRACE(format);
    const auto reader = open_checkpoint(file(format));
    EXPECT_THAT(verify(*reader, {.deep = true}).problems, IsEmpty());
    std::map<std::string, std::string> wanted = model;
    if (format == "zarr")
      std::erase_if(wanted, [](const auto& entry) {
        return !entry.first.starts_with("decoder.final") && !entry.first.starts_with("embedding");
      });
    EXPECT_EQ(digests_of(*reader), wanted);
  }
}

// hashlib.sha256(numpy.arange(i, i + 24, dtype="<f4").tobytes()).hexdigest(), i = 10, 20
TEST_P(Written, RootsAreResumed) {
  const std::map<std::string, std::string> weights = {
      {"iter_0000010", "5f33283b22dc8ee6061208762ac8c39d859b6cf88d403d4883acb02f4a63cf18"},
      {"iter_0000020", "2107c125a5bced02c2a738c89ad5a60d55d9208a51b7a844319fd9db424278b0"}};
  for (const auto& [iteration, weight] : weights) {
    const auto reader = open_checkpoint(file("root") / iteration);
    EXPECT_THAT(verify(*reader, {.deep = true}).problems, IsEmpty());
    EXPECT_EQ(digests_of(*reader).at("decoder.weight"), weight);
  }

  TempDir copy;
  fs::copy(file("root"), copy.path(), fs::copy_options::recursive);
  StateDict state;
  state["weight"] = ShardedTensor::from_rank_offsets("decoder.weight",
                                                     Tensor::zeros(DType::kFloat32, {6, 4}), {});
  const auto alone = single_rank();
  Checkpointer checkpointer(copy.path().string(), Policy::from_file(file("../policy.yaml")),
                            *alone);
  const auto resumed = checkpointer.load_latest(state);
  ASSERT_TRUE(resumed);
  EXPECT_EQ(resumed->iteration, 20u);
  EXPECT_EQ(state.at("iteration").as_int(), 20);
  EXPECT_EQ(state.at("args"), Value::dict({{"lr", 0.5}, {"name", "gpt"}}));
}

TEST_P(Written, ReportsOfSavesAreRead) {
  const std::string json = text("root/iter_0000020/dckpt_report.json");
  EXPECT_EQ(read_report(as_bytes(json)).files, 5u);
}

TEST_P(Written, StatesOfFleetsAreRead) {
  TempDir copy;
  fs::copy(file("fleet.json"), copy.path() / "fleet.json");
  const Value json = parse_json(as_bytes(text("fleet.json")), "fleet.json");
  const FleetState state(Location(copy.path() / "fleet.json"));
  ASSERT_EQ(json.at("checkpoints").as_dict().size(), 2u);
  for (const auto& [name, entry] : json.at("checkpoints").as_dict()) {
    const FleetResult* const known = state.find(name.as_str(), entry.at("print").as_str());
    ASSERT_NE(known, nullptr);
    EXPECT_EQ(known->format, "torch_dist");
  }
}

std::vector<std::string> releases() {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(fs::path(DCKPT_TEST_DATA) / "written"))
    if (entry.is_directory()) names.push_back(entry.path().filename().string());
  return names;
}
INSTANTIATE_TEST_SUITE_P(Releases, Written, ::testing::ValuesIn(releases()),
                         [](const auto& release) {
                           std::string name = release.param;
                           std::ranges::replace(name, '.', '_');
                           return name;
                         });

}  // namespace
}  // namespace dckpt::written_test
