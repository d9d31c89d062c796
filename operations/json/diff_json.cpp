#include "operations/inspect/diff.h"
#include "operations/json/reports.h"
#include "operations/json/values.h"

namespace dckpt {
namespace {

Value to_value(const Difference& difference) {
  Value json = Value::dict({{"kind", to_string(difference.kind)}});
  if (difference.kind != Difference::Kind::kCommon) json["key"] = difference.key;
  if (!difference.path.empty()) json["path"] = difference.path;
  if (difference.elements) {
    const ElementDifferences& elements = *difference.elements;
    json["count"] = elements.count;
    json["elements"] = elements.elements;
    json["first_index"] = json_list(elements.first);
    json["a"] = elements.first_a;
    json["b"] = elements.first_b;
    json["max_abs"] = or_none(elements.max_abs);
  } else {
    json["a"] = difference.a.empty() ? Value() : Value(difference.a);
    json["b"] = difference.b.empty() ? Value() : Value(difference.b);
  }
  return json;
}

}  // namespace

std::string to_json(const DiffReport& report) {
  return json_text(
      Value::dict({{"equal", report.equal()},
                   {"tensors_compared", report.tensors_compared},
                   {"objects_compared", report.objects_compared},
                   {"common_compared", report.common_compared},
                   {"differences", json_list(report.differences, [](const Difference& difference) {
                      return to_value(difference);
                    })}}));
}

}  // namespace dckpt
