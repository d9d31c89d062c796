// dckpt_plans.bin: each input as a file, and as the part after the correct checksum and contents.
// Accepted plans survive writing and reading.

#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include "mapping/base/error.h"
#include "mapping/base/wire.h"
#include "mapping/planning/save/messages.h"
#include "mapping/planning/save/plan_file.h"

namespace {

using namespace dckpt;

/// Returns the plans of two ranks with a tensor each and one together, and an object.
SavePlanCache::Global sample() {
  std::vector<SavePlan> plans;
  SavePlanCache::Global global;
  for (std::int64_t rank = 0; rank < 2; ++rank) {
    const TensorShard rows{
        .key = "w", .properties = {}, .global_shape = {4, 3}, .box = {{2 * rank, 0}, {2, 3}}};
    const TensorShard own{.key = "own" + std::to_string(rank),
                          .properties = {},
                          .global_shape = {5},
                          .box = {{0}, {5}}};
    const ObjectShard object{.key = "rng" + std::to_string(rank), .nbytes = 9};
    const std::vector<LocalShard> shards{rows, own, object};
    plans.push_back(plan_local_save(shards, FlattenedForm::kBoxes));
    global.fingerprints.push_back(fingerprint_of(encode_plan(plans.back())));
  }
  global.plan = plan_global_save(plans);
  return global;
}

/// Returns a file of the same contents, whose ranks are `input`.
Bytes sealed(ByteView file, ByteView input) {
  WireReader head(file.subspan(std::string_view("dckpt plans\n").size()), "the head");
  for (int i = 0; i < 3; ++i) head.number();  // version, checksum
  const ByteView whole = head.rest();
  for (int i = 0; i < 3; ++i) head.number();  // rules, contents
  Bytes body(whole.begin(), whole.end() - static_cast<std::ptrdiff_t>(head.rest().size()));
  body.insert(body.end(), input.begin(), input.end());
  Bytes bytes = to_bytes("dckpt plans\n");
  WireWriter writer(bytes);
  writer.number(1);
  writer.number(fingerprint_of(body).low);
  writer.number(fingerprint_of(body).high);
  bytes.insert(bytes.end(), body.begin(), body.end());
  return bytes;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const SavePlanCache::Global written = sample();
  static const Bytes file = encode_plan_file(written);
  const ByteView input{reinterpret_cast<const std::byte*>(data), size};
  const Metadata& metadata = written.plan->metadata;
  const auto read = [&](ByteView bytes) {
    try {
      const auto global = decode_plan_file(bytes, metadata);
      const Bytes again = encode_plan_file(*global);
      if (decode_plan_file(again, metadata)->plan->items != global->plan->items) std::abort();
    } catch (const CheckpointError&) {
    }
  };
  read(input);
  read(sealed(file, input));
  return 0;
}
