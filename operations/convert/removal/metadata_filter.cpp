#include "operations/convert/removal/metadata_filter.h"

#include <algorithm>

#include "mapping/base/error.h"
#include "operations/convert/removal/write_graph.h"
#include "strategies/formats/dcp/metadata_graph.h"
#include "strategies/formats/dcp/metadata_seal.h"

namespace dckpt {
namespace {

using dcp::MetadataGraph;
using Id = MetadataGraph::Id;
using NodeKind = MetadataGraph::Kind;

class MetadataFilter {
 public:
  MetadataFilter(const pickle::Graph& nodes, const std::function<bool(std::string_view)>& removed)
      : graph_(nodes), removed_(removed) {}

  pickle::Omissions omissions() {
    const Id state = graph_.state(graph_.nodes().root());
    const auto fields = graph_.attributes(graph_.nodes().root());
    for (std::size_t i = 0; i + 1 < fields.size(); i += 2) {
      if (!graph_.is_text(fields[i])) continue;
      const std::string_view name = graph_.nodes().text(fields[i]);
      const Id value = fields[i + 1];
      if (name == "state_dict_metadata" || name == "planner_data" || name == "mcore_data") {
        leave_out_keys(value);
      } else if (name == "storage_data") {
        leave_out_records(value);
      } else if (name == "all_local_plans" && !leave_out_items(value)) {
        omit(state, i / 2, fields.size() / 2);
      } else if (name == dcp::kMetadataCrc) {
        omit(state, i / 2, fields.size() / 2);
      }
    }
    return std::move(omissions_);
  }

 private:
  void omit(Id container, std::size_t member, std::size_t count) {
    std::vector<bool>& marks = omissions_[container];
    marks.resize(std::max(marks.size(), count));
    marks[member] = true;
  }

  bool is_removed(Id key) const {
    return graph_.is_text(key) && removed_(graph_.nodes().text(key));
  }

  /// Leaves keys out of a dict {key: …}.
  void leave_out_keys(Id dict) {
    if (graph_.is_none(dict)) return;
    const auto items = graph_.dict(dict, "a dict of the metadata");
    for (std::size_t i = 0; i + 1 < items.size(); i += 2) {
      if (is_removed(items[i])) omit(dict, i / 2, items.size() / 2);
    }
  }

  /// Leaves records out of a dict {MetadataIndex(key, …): …}.
  void leave_out_records(Id dict) {
    const auto items = graph_.dict(dict, "storage_data");
    for (std::size_t i = 0; i + 1 < items.size(); i += 2) {
      if (is_removed(graph_.find(graph_.attributes(items[i]), "fqn")))
        omit(dict, i / 2, items.size() / 2);
    }
  }

  /// Leaves items out of [SavePlan(items=[WriteItem(index=MetadataIndex(key, …), …), …], …), …].
  /// Returns false if the object has another form.
  bool leave_out_items(Id plans) {
    if (graph_.is_none(plans)) return true;
    try {
      for (const Id plan : graph_.list_or_tuple(plans, "all_local_plans")) {
        const auto fields = graph_.attributes(plan);
        const Id items = graph_.find(fields, "items");
        const auto members = graph_.list_or_tuple(items, "the items of a plan");
        for (std::size_t i = 0; i < members.size(); ++i) {
          const Id index = graph_.find(graph_.attributes(members[i]), "index");
          if (!graph_.class_of(index)) return false;
          const Id key = graph_.find(graph_.attributes(index), "fqn");
          if (!graph_.is_text(key)) return false;
          if (is_removed(key)) omit(items, i, members.size());
        }
        leave_out_keys(graph_.find(fields, "planner_data"));
        leave_out_keys(graph_.find(fields, "mcore_data"));
      }
      return true;
    } catch (const CheckpointError&) {
      return false;
    }
  }

  MetadataGraph graph_;
  const std::function<bool(std::string_view)>& removed_;
  pickle::Omissions omissions_;
};

}  // namespace

Bytes without_keys(ByteView pickle, const std::function<bool(std::string_view key)>& removed,
                   const std::string& file_name) {
  return with_context({.file = file_name}, [&] {
    const pickle::Graph graph = pickle::read_graph(pickle, file_name);
    Bytes kept = pickle::write_graph(graph, MetadataFilter(graph, removed).omissions());
    return is_sealed(pickle) ? sealed(std::move(kept)) : kept;
  });
}

}  // namespace dckpt
