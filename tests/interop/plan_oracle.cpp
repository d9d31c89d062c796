// plan_oracle: prints the library's plans, for the comparison with the planners of torch and
// Megatron in test_plans_torch.py and test_plans_megatron.py. One case of JSON per line of standard
// input, one line of answer per case, {"refused": message} where the library throws.
//
//   {"save": {"kind", "dedup", "flattened", "parallel"}, "ranks": [TREE, …]}
//     → {"ranks": [{"items": [ITEM, …], "kept": [[position in items, chunk], …],
//                   "paths": {key: path}}, …], "tensors": […], "objects": [key, …],
//        "keys": [key of a tensor or object in torch's order, …], "path_keys": [key, …]}
//   {"saves": [{"ranks": [TREE, …]}, …]}: one after the other, with plan caches, under DCP's rules
//     → {"saves": [{"unchanged": [rank's plan is not sent, …], "as_last": [its final plan is not
//                   sent, …], "final": [[ITEM, …], …], "tensors": [key, …]}, …]}
//   {"write": DIRECTORY, "dedup", "ranks": [TREE, …]}: saved under DCP's rules, on that many ranks
//     → {}
//   {"stored": [{"key", "dtype", "size", "chunks": [[offsets, sizes], …]}, …],
//    "wanted": [[tensor, offsets, sizes], …]}
//     → {"reads": [[wanted, chunk, offsets in the chunk, offsets in the wanted box,
//                   lengths], …]}
//
// A TREE is what a rank holds: {"dict": [[key, TREE], …]}, {"list": […]}, {"tuple": […]}, {"bytes":
// text}, {"tensor": [dtype, shape, requires_grad]}, {"shard": …}, {"object": …} or a scalar. The
// chunk of an object is null.

#include <cstdio>
#include <exception>
#include <iostream>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "configs/policy/options.h"
#include "dist_checkpointing/planner/planner_registry.h"
#include "dist_checkpointing/save/describe_state.h"
#include "dist_checkpointing/save/save.h"
#include "mapping/base/error.h"
#include "mapping/planning/load/read_plan.h"
#include "mapping/planning/save/global_plan.h"
#include "mapping/planning/save/messages.h"
#include "mapping/planning/save/plan_agreement.h"
#include "mapping/state/sharded_object.h"
#include "mapping/state/sharded_tensor.h"
#include "strategies/comm/threads.h"
#include "tests/interop/json_shape.h"

namespace {

using namespace dckpt;
using Json = nlohmann::json;

Json json_of(ShapeView shape) {
  Json json = Json::array();
  for (const std::int64_t extent : shape) json.push_back(extent);
  return json;
}

Json json_of(const KeyPath& path) {
  Json json = Json::array();
  for (const PathElement& element : path)
    std::visit([&](const auto& step) { json.push_back(step); }, element);
  return json;
}

ReplicaId replica_of(const Json& json) {
  return json.is_array() ? ReplicaId(shape_of(json)) : ReplicaId(json.get<std::int64_t>());
}

/// Reads {"key", "dtype", "local", "replica"} and either {"global", "offset"} or {"pieces": [[axis,
/// rank, count], …], "prepend"}, with {"range": [begin, end]} or {"grad"}.
ShardedTensor shard_of(const Json& json) {
  const auto key = json.at("key").get<std::string>();
  const DType dtype = parse_dtype(json.at("dtype").get<std::string>()).value();
  const Shape local = shape_of(json.at("local"));
  const ShardedTensorOptions options{.replica_id = replica_of(json.at("replica")),
                                     .prepend_axis_num = json.value("prepend", 0)};
  Tensor data = Tensor::zeros(dtype, local);
  data.requires_grad = json.value("grad", false);
  if (!json.contains("pieces"))
    return ShardedTensor::from_box(key, data, shape_of(json.at("global")),
                                   shape_of(json.at("offset")), options);
  std::vector<RankOffset> pieces;
  for (const Json& piece : json.at("pieces")) pieces.push_back({piece[0], piece[1], piece[2]});
  if (!json.contains("range")) return ShardedTensor::from_rank_offsets(key, data, pieces, options);
  const FlattenedRange range{json.at("range")[0], json.at("range")[1]};
  return ShardedTensor::from_rank_offsets_flat(key, Tensor::zeros(dtype, {range.end - range.begin}),
                                               local, pieces, range, options);
}

Value value_of(const Json& json);

ValueList values_of(const Json& json) {
  ValueList values;
  for (const Json& item : json) values.push_back(value_of(item));
  return values;
}

Value scalar_of(const Json& json) {
  if (json.is_null()) return {};
  if (json.is_boolean()) return json.get<bool>();
  if (json.is_number_integer()) return json.get<std::int64_t>();
  if (json.is_number()) return json.get<double>();
  return json.get<std::string>();
}

Value value_of(const Json& json) {
  if (!json.is_object()) return scalar_of(json);
  const auto first = json.begin();
  const std::string& kind = first.key();
  const Json& content = first.value();
  if (kind == "list") return Value::list(values_of(content));
  if (kind == "tuple") return Value::tuple(values_of(content));
  if (kind == "bytes") return Value::bytes(to_bytes(content.get<std::string>()));
  if (kind == "tensor") {
    Tensor tensor =
        Tensor::zeros(parse_dtype(content[0].get<std::string>()).value(), shape_of(content[1]));
    tensor.requires_grad = content[2].get<bool>();
    return tensor;
  }
  if (kind == "shard") return shard_of(content);
  if (kind == "object") {
    return ShardedObject{.key = content.at("key"),
                         .data = "object",
                         .global_shape = shape_of(content.at("global")),
                         .global_offset = shape_of(content.at("offset")),
                         .replica_id = replica_of(content.at("replica"))};
  }
  if (kind != "dict") throw std::invalid_argument("unknown kind of value: " + kind);
  Value dict = Value::dict();
  for (const Json& item : content) dict.mutable_dict().set(scalar_of(item[0]), value_of(item[1]));
  return dict;
}

Json json_of(const WriteItem& item) {
  if (item.kind == WriteItem::Kind::kObject) return {{"key", item.key}};
  return {{"key", item.key},
          {"dtype", to_string(item.properties.dtype)},
          {"grad", item.properties.requires_grad},
          {"size", json_of(item.size)},
          {"offsets", json_of(item.chunk.offsets)},
          {"sizes", json_of(item.chunk.sizes)}};
}

Json json_of(const TensorStorageMetadata& tensor) {
  Json chunks = Json::array();
  for (std::size_t i = 0; i < tensor.chunks.size(); ++i)
    chunks.push_back({json_of(tensor.chunks.offsets(i)), json_of(tensor.chunks.sizes(i))});
  return {{"key", tensor.key},
          {"dtype", to_string(tensor.properties.dtype)},
          {"grad", tensor.properties.requires_grad},
          {"size", json_of(tensor.size)},
          {"chunks", std::move(chunks)},
          {"shape", json_of(tensor.global_shape())}};
}

Json plan_save(const Json& job) {
  const Json& how = job.at("save");
  SaveOptions options;
  options.planner.kind = parse_planner_kind(how.at("kind").get<std::string>()).value();
  options.planner.dedup = parse_dedup(how.at("dedup").get<std::string>()).value();
  options.compat =
      options.planner.kind == PlannerKind::kMegatron ? Compat::kMegatron : Compat::kDcp;
  options.flattened =
      how.at("flattened") == "megatron" ? FlattenedForm::kMegatron : FlattenedForm::kBoxes;
  options.parallel.enabled = how.value("parallel", false);

  Json ranks = Json::array();
  std::vector<std::unique_ptr<SavePlanner>> planners;
  std::vector<SavePlan> plans;
  for (const Json& tree : job.at("ranks")) {
    const int rank = static_cast<int>(ranks.size());
    const StateDict state = value_of(tree);
    const DescribedState described = describe_state(state, options, rank);
    planners.push_back(make_save_planner(options));
    planners.back()->set_up_planner({.state = state,
                                     .shards = described.shards,
                                     .tensors = described.tensors,
                                     .objects = described.object_bytes,
                                     .location = Location("unwritten"),
                                     .options = options,
                                     .rank = rank,
                                     .ranks = static_cast<int>(job.at("ranks").size())});
    plans.push_back(planners.back()->create_local_plan());
    const SavePlan& plan = plans.back();
    Json items = Json::array(), paths = Json::object();
    for (const WriteItem& item : plan) items.push_back(json_of(item));
    for (const auto& [key, path] : described.paths) paths[key] = json_of(path);
    ranks.push_back(
        {{"items", std::move(items)}, {"kept", Json::array()}, {"paths", std::move(paths)}});
  }
  const GlobalPlan plan = planners.front()->create_global_plan(LocalPlans(plans));
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    for (std::size_t i = 0; i < plan.items[rank].size(); ++i) {
      const GlobalPlan::Slot& slot = plan.slots[rank][i];
      ranks[rank]["kept"].push_back(
          {plan.items[rank][i].item, slot.is_object ? Json() : Json(slot.chunk)});
    }
  }
  Json tensors = Json::array(), objects = Json::array();
  for (const TensorStorageMetadata& tensor : plan.metadata.tensors)
    tensors.push_back(json_of(tensor));
  std::map<std::uint32_t, std::string> keys;
  for (const TensorStorageMetadata& tensor : plan.metadata.tensors) keys[tensor.order] = tensor.key;
  for (const BytesStorageMetadata& object : plan.metadata.objects) {
    objects.push_back(object.key);
    keys[object.order] = object.key;
  }
  Json path_keys = Json::array(), in_order = Json::array();
  for (const auto& [order, key] : keys) in_order.push_back(key);
  for (const GlobalPlan::Slot& slot : plan.path_order)
    path_keys.push_back(slot.is_object ? plan.metadata.objects[slot.entry].key
                                       : plan.metadata.tensors[slot.entry].key);
  return {{"ranks", std::move(ranks)},
          {"tensors", std::move(tensors)},
          {"objects", std::move(objects)},
          {"keys", std::move(in_order)},
          {"path_keys", std::move(path_keys)}};
}

Json plan_saves(const Json& job) {
  const SaveOptions options{.compat = Compat::kDcp, .planner = {.kind = PlannerKind::kDcp}};
  std::vector<SavePlanCache> caches(job.at("saves").front().at("ranks").size());
  Json saves = Json::array();
  for (const Json& save : job.at("saves")) {
    std::vector<PlanAgreement> ranks;
    std::vector<LocalPlan> locals;
    std::vector<Bytes> proposals;
    Json unchanged = Json::array(), as_last = Json::array(), finals = Json::array(),
         tensors = Json::array();
    for (const Json& tree : save.at("ranks")) {
      const auto rank = ranks.size();
      const DescribedState described =
          describe_state(value_of(tree), options, static_cast<int>(rank));
      locals.push_back(ranks.emplace_back(caches[rank], options.planner)
                           .create_local_plan(plan_local_save(described.shards, {})));
      unchanged.push_back(decode_proposal(locals.back().proposal).unchanged);
      proposals.push_back(locals.back().proposal);
    }
    const DecidedPlan decided = ranks.front().create_global_plan(proposals);
    for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
      as_last.push_back(!decode_answer(decided.answers[rank], locals[rank].items));
      FinalPlan final = ranks[rank].finish_plan(locals[rank], decided.answers[rank]);
      Json items = Json::array();
      for (const WriteItem& item : final.items) items.push_back(json_of(item));
      finals.push_back(std::move(items));
      caches[rank].commit(
          ranks[rank].to_remember(std::move(final.local), rank == 0 ? decided.global : nullptr));
    }
    for (const TensorStorageMetadata& tensor : decided.plan().metadata.tensors)
      tensors.push_back(tensor.key);
    saves.push_back({{"unchanged", std::move(unchanged)},
                     {"as_last", std::move(as_last)},
                     {"final", std::move(finals)},
                     {"tensors", std::move(tensors)}});
  }
  return {{"saves", std::move(saves)}};
}

Json write_save(const Json& job) {
  SaveOptions options{.compat = Compat::kDcp};
  options.planner.dedup = parse_dedup(job.at("dedup").get<std::string>()).value();
  options.io.fsync = false;
  const Json& ranks = job.at("ranks");
  run_ranks(static_cast<int>(ranks.size()), [&](Communicator& comm) {
    save(value_of(ranks[static_cast<std::size_t>(comm.rank())]), job.at("write").get<std::string>(),
         options, comm);
  });
  return Json::object();
}

/// Returns the coordinates in a row-major box of these sizes at which a view begins. The view must
/// have the box's strides.
Json corner_of(const StridedView& view, ShapeView sizes) {
  const Shape strides = row_major_strides(sizes);
  if (view.strides != strides)
    throw std::logic_error("the strides of a read item are " + to_string(view.strides) +
                           " in a box of " + to_string(sizes));
  Json corner = Json::array();
  std::int64_t rest = view.offset;
  for (const std::int64_t stride : strides) {
    corner.push_back(rest / stride);
    rest %= stride;
  }
  return corner;
}

Json plan_load(const Json& job) {
  Metadata metadata;
  for (const Json& stored : job.at("stored")) {
    TensorStorageMetadata tensor{
        stored.at("key"),
        {.dtype = parse_dtype(stored.at("dtype").get<std::string>()).value()},
        shape_of(stored.at("size")),
        BoxList(stored.at("size").size()),
        {}};
    for (const Json& chunk : stored.at("chunks"))
      tensor.chunks.push_back(shape_of(chunk[0]), shape_of(chunk[1]));
    metadata.tensors.push_back(std::move(tensor));
  }
  std::vector<WantedShard> wanted;
  for (const Json& part : job.at("wanted")) {
    wanted.push_back({.tensor = part[0],
                      .destination = static_cast<std::uint32_t>(wanted.size()),
                      .box = {shape_of(part[1]), shape_of(part[2])}});
  }
  Json reads = Json::array();
  for (const ReadItem& item : plan_reads(metadata, wanted)) {
    reads.push_back({item.destination, item.chunk,
                     corner_of(item.source, metadata.tensors[item.tensor].chunks.sizes(item.chunk)),
                     corner_of(item.target, wanted[item.destination].box.sizes),
                     json_of(item.sizes)});
  }
  return {{"reads", std::move(reads)}};
}

}  // namespace

int main() {
  try {
    for (std::string line; std::getline(std::cin, line);) {
      const Json job = Json::parse(line);
      Json answer;
      try {
        answer = job.contains("saves")   ? plan_saves(job)
                 : job.contains("save")  ? plan_save(job)
                 : job.contains("write") ? write_save(job)
                                         : plan_load(job);
      } catch (const CheckpointError& error) {
        answer = {{"refused", error.what()}};
      }
      std::cout << answer.dump(-1, ' ', true, Json::error_handler_t::replace) << '\n';
    }
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "plan_oracle: %s\n", error.what());
    return 1;
  }
}
