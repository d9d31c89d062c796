#include <cmath>

#include "operations/inspect/stats.h"
#include "operations/json/reports.h"
#include "operations/json/values.h"

namespace dckpt {
namespace {

/// Returns none for what JSON has no number for, as without finite elements.
Value finite_or_none(const ElementStats& stats, double value) {
  return stats.finite() > 0 && std::isfinite(value) ? Value(value) : Value();
}

Value to_value(const ElementStats& stats) {
  return Value::dict({{"count", stats.count},
                      {"nan", stats.nan},
                      {"infinite", stats.infinite},
                      {"zero", stats.zero},
                      {"denormal", stats.denormal},
                      {"mean", finite_or_none(stats, stats.mean)},
                      {"deviation", finite_or_none(stats, stats.deviation())},
                      {"min", finite_or_none(stats, stats.min)},
                      {"max", finite_or_none(stats, stats.max)},
                      {"abs_max", finite_or_none(stats, stats.abs_max())},
                      {"l2", finite_or_none(stats, stats.l2())}});
}

}  // namespace

std::string to_json(const StatsReport& report) {
  Value tensors = Value::dict();
  for (const TensorStats& tensor : report.tensors)
    tensors[tensor.key] =
        Value::dict({{"dtype", to_string(tensor.dtype)},
                     {"shape", json_list(tensor.shape)},
                     {"elements", tensor.elements ? to_value(*tensor.elements) : Value()}});
  const auto layer = [](const LayerStats& of) {
    return Value::dict(
        {{"stack", of.stack}, {"layer", of.layer}, {"elements", to_value(of.elements)}});
  };
  return json_text(Value::dict({{"weights", to_value(report.weights)},
                                {"layers", json_list(report.layers, layer)},
                                {"tensors", std::move(tensors)},
                                {"findings", to_value(report.findings)}}));
}

}  // namespace dckpt
