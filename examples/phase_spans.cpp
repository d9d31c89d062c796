// Prints every phase of every save and load as a span, one line of JSON each, in the terms of
// OpenTelemetry (OTLP). With its SDK, the body of the function is StartSpan(name, {start_time}),
// SetAttribute(…) and End({end_time}).
#include <dckpt/dist_checkpointing.h>

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <string>

namespace {

void print_span(const dckpt::PhaseEvent& event) {
  if (!event.end) return;  // a span is reported when it has ended
  const auto nanoseconds = [](auto time) {
    return std::to_string(std::chrono::nanoseconds(time.time_since_epoch()).count());
  };
  const std::string name =
      std::string(event.call) + "." + std::string(name_of(dckpt::kPhaseNames, event.phase));
  std::printf(
      "{\"name\": \"%s\", \"startTimeUnixNano\": \"%s\", \"endTimeUnixNano\": \"%s\", "
      "\"attributes\": {\"rank\": %d, \"bytes\": %llu, \"seconds\": %.6f}, \"status\": \"%s\"}\n",
      name.c_str(), nanoseconds(event.begin).c_str(), nanoseconds(*event.end).c_str(), event.rank,
      static_cast<unsigned long long>(event.bytes), event.seconds, event.failed ? "ERROR" : "OK");
}

}  // namespace

int main(int argc, char** argv) {
  const std::filesystem::path directory = argc > 1 ? argv[1] : "phase_spans_checkpoint";
  dckpt::set_phase_sink(print_span);
  dckpt::run_ranks(2, [&](dckpt::Communicator& comm) {
    dckpt::StateDict state;
    state["weight"] = dckpt::ShardedTensor::from_rank_offsets(
        "weight", dckpt::Tensor::zeros(dckpt::DType::kFloat32, {1 << 20}),
        {{.axis = 0, .rank = comm.rank(), .count = comm.size()}});
    dckpt::save(state, directory, {}, comm);
    dckpt::load(state, directory, {}, comm);
  });
}
