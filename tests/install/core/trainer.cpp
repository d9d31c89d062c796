// The smallest trainer: a policy in YAML, a Checkpointer that resumes and saves. It also tries what
// dckpt::core does not have, and expects to be told which library has it.
#include <dckpt/dist_checkpointing.h>

#include <cstdio>
#include <exception>
#include <fstream>
#include <string>

namespace {

constexpr const char* kPolicy = R"(version: 1
save: {strategy: torch_dist}
load: {verify: crc}
)";

/// Returns the message of what is thrown; empty if nothing is.
template <typename Body>
std::string error_of(const Body& body) {
  try {
    body();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

int problems = 0;
void expect_error(const std::string& error, const char* part) {
  if (error.find(part) != std::string::npos) return;
  ++problems;
  std::fprintf(stderr, "expected an error with '%s', found '%s'\n", part, error.c_str());
}

}  // namespace

int main(int, char** argv) {
  const std::string root = argv[1];
  const auto ranks = dckpt::single_rank();
  auto weight = dckpt::Tensor::zeros(dckpt::DType::kFloat32, {1024});
  dckpt::StateDict state;
  state["weight"] = dckpt::ShardedTensor::whole("weight", weight);
  state["step"] = 0;
  {
    dckpt::Checkpointer checkpointer(root, dckpt::Policy::from_text(kPolicy), *ranks);
    for (int step = 1; step <= 2; ++step) {
      weight.data<float>()[0] = static_cast<float>(step);
      state["step"] = step;
      checkpointer.save(state, static_cast<std::uint64_t>(step));
    }
  }
  weight.data<float>()[0] = 0;
  dckpt::Checkpointer resumed(root, dckpt::Policy::from_text(kPolicy), *ranks);
  const auto from = resumed.load_latest(state);
  if (!from || from->iteration != 2 || weight.data<float>()[0] != 2) {
    std::fprintf(stderr, "the run was not resumed\n");
    return 1;
  }

  expect_error(error_of([&] {
                 dckpt::SaveOptions options;
                 options.strategy.name = "zarr";
                 dckpt::save(state, root + "/zarr", options);
               }),
               "dckpt::formats");
  expect_error(error_of([&] {
                 dckpt::LoadOptions options;
                 options.map.name = "llama";
                 dckpt::load(state, root + "/iter_0000002", options);
               }),
               "dckpt::maps");
  expect_error(error_of([&] { (void)dckpt::open_checkpoint(std::string(argv[2])); }),
               "dckpt::formats");
  expect_error(error_of([&] {
                 dckpt::save(
                     state, root + "/hashed",
                     dckpt::Policy::from_text("version: 1\nsave: {integrity: sha256}").save);
               }),
               "DCKPT_OPENSSL");
  expect_error(error_of([&] {
                 (void)dckpt::Policy::from_text("version: 1\nload: {rename: [{from: a, to: b}]}");
               }),
               "DCKPT_RE2");
  expect_error(error_of([&] { (void)dckpt::open_checkpoint(std::string(argv[3])); }), "DCKPT_ZSTD");
  expect_error(error_of([&] {
                 dckpt::save(state, root + "/compressed",
                             dckpt::Policy::from_text("version: 1\nsave: {backend: {name: dcp, "
                                                      "options: {compression: zstd}}}")
                                 .save);
               }),
               "DCKPT_ZSTD");
  const std::string last = root + "/iter_0000002";  // what cannot be compared is no damage
  std::ofstream(last + "/integrity.json")
      << R"({"algorithm": "sha256", "files": {".metadata": ")" << std::string(64, '0') << "\"}}";
  const auto reader = dckpt::open_checkpoint(last);
  expect_error(error_of([&] { (void)dckpt::check_stored(*reader, {.deep = true}); }),
               "DCKPT_OPENSSL");
  return problems;
}
