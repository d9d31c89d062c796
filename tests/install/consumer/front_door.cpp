// Every part of the library that programs use, through its public headers.
#include <dckpt/dist_checkpointing.h>
#include <dckpt/operations.h>
#include <dckpt/strategy.h>

#include <cstdio>
#include <filesystem>
#include <string>

namespace {

dckpt::StateDict state_of(const dckpt::Tensor& weight) {
  dckpt::StateDict state;
  state["weight"] = dckpt::ShardedTensor::whole("weight", weight);
  return state;
}

template <typename Body>
std::string code_of(const Body& body) {
  try {
    body();
  } catch (const dckpt::CheckpointError& error) {
    return to_string(error.code());
  }
  return "none";
}

int problems = 0;
void expect(bool held, const char* what) {
  if (held) return;
  ++problems;
  std::fprintf(stderr, "not so: %s\n", what);
}

}  // namespace

int main(int, char** argv) {
  const std::filesystem::path folder = argv[1];
  auto saved = dckpt::Tensor::zeros(dckpt::DType::kFloat32, {4});
  saved.data<float>()[3] = 1.5F;
  dckpt::save(state_of(saved), folder / "saved");
  dckpt::convert(folder / "saved", folder / "converted", {.target = {.strategy = "dcp"}});

  const auto loaded = dckpt::Tensor::zeros(dckpt::DType::kFloat32, {4});
  dckpt::StateDict state = state_of(loaded);
  dckpt::load(state, folder / "saved");
  expect(loaded.data<const float>()[3] == 1.5F, "what was saved is loaded");
  const auto converted = dckpt::open_checkpoint(folder / "converted");
  expect(dckpt::inspect(*converted).info.format == "dcp", "the converted checkpoint is plain DCP");
  expect(dckpt::verify(*converted, {.deep = true}).problems.empty(), "it is sound");
  expect(dckpt::to_json(dckpt::verify(*converted)).starts_with("{\n  \"ok\": true"),
         "as JSON, too");
  expect(dckpt::diff(*dckpt::open_checkpoint(folder / "saved"), *converted).differences.empty(),
         "it is equal");

  expect(code_of([&] { loaded.data<double>(); }) == "mismatch", "an error of the library");
  expect(code_of([&] { dckpt::load(state, folder / "nowhere"); }) != "none", "another one");
  dckpt::register_strategy(dckpt::SaveStrategyEntry{
      .name = "own",
      .about = "refuses",
      .make = [](const dckpt::SaveOptions&) -> std::unique_ptr<dckpt::SaveStrategy> {
        throw dckpt::CheckpointError(dckpt::ErrorCode::kCancelled, "an error of the consumer");
      }});
  dckpt::SaveOptions own;
  own.strategy.name = "own";
  expect(code_of([&] { dckpt::save(state, folder / "own", own); }) == "cancelled",
         "an error of the consumer that has passed through the library");
  return problems;
}
