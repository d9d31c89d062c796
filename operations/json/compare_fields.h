#pragma once

#include <cmath>
#include <optional>
#include <string>
#include <utility>

#include "operations/inspect/diff.h"
#include "operations/inspect/digest.h"
#include "operations/inspect/stats.h"
#include "operations/json/finding_fields.h"

// The reports of `diff`, `digest` and `stats`.
namespace dckpt {

constexpr auto json_record(const ElementDifferences*) {
  using D = ElementDifferences;
  return JsonRecord("", "", Field("count", &D::count, "Of another value: elements that differ."),
                    Field("elements", &D::elements, "Of another value: elements of the tensor."),
                    Field("first_index", &D::first,
                          "Of another value: index of the first element that differs."));
}

constexpr auto json_record(const Difference*) {
  using D = Difference;
  const auto side = [](std::string D::*whole, std::string ElementDifferences::*first) {
    return [=](const D& of) -> std::optional<std::string> {
      if (of.elements) return (*of.elements).*first;
      return (of.*whole).empty() ? std::nullopt : std::optional(of.*whole);
    };
  };
  const auto text_if = [](bool there, const std::string& text) {
    return IfAny{there ? std::optional(text) : std::nullopt};
  };
  return JsonRecord(
      "difference", "A tensor, an object or a part of the common state that differs.",
      Field("kind", &D::kind,
            "\"only-in-a\" and \"only-in-b\": the other lacks it. \"dtype\", \"shape\", "
            "\"values\": of a tensor. \"object\", \"common\": a value in one of them."),
      Field(
          "key", [=](const D& of) { return text_if(of.kind != D::Kind::kCommon, of.key); },
          "Key of the tensor, or unique key of the object; missing for the common state."),
      Field(
          "path", [=](const D& of) { return text_if(!of.path.empty(), of.path); },
          "Place inside of an object or the common state, such as optimizer.param_groups[0].lr; "
          "missing for the whole value."),
      JsonPart(&D::elements),
      Field("a", side(&D::a, &ElementDifferences::first_a),
            "What it is in A, of a tensor the first value that differs, as a short text; null if A "
            "lacks it."),
      Field("b", side(&D::b, &ElementDifferences::first_b), "The same of B."),
      Field(
          "max_abs",
          [](const D& of) {
            using Largest = std::optional<double>;
            return IfAny<Largest>{of.elements ? std::optional<Largest>(of.elements->max_abs)
                                              : std::nullopt};
          },
          "Largest |a - b| of a tensor's elements; null if no pair is finite."));
}

constexpr auto json_record(const DiffReport*) {
  using D = DiffReport;
  return JsonRecord(
      "", "", Field("equal", &D::equal, "Whether nothing differs."),
      Field("tensors_compared", &D::tensors_compared, "Tensors that both checkpoints have."),
      Field("objects_compared", &D::objects_compared, "Objects that both checkpoints have."),
      Field("common_compared", &D::common_compared, "Whether the common states were compared."),
      Field("differences", &D::differences,
            "All differences: of tensors, of objects, then of the common state."));
}

constexpr auto json_record(const TensorDigest*) {
  return JsonRecord("tensor", "Digest of a tensor.", Field("dtype", &TensorDigest::dtype),
                    Field("shape", &TensorDigest::shape, "Global shape."),
                    Field(
                        "sha256", [](const TensorDigest& of) { return Sha256Text{of.sha256}; },
                        "Of the elements in C order, little-endian."));
}

constexpr auto json_record(const ObjectDigest*) {
  return JsonRecord("object", "Digest of an object.",
                    Field(
                        "sha256", [](const ObjectDigest& of) { return Sha256Text{of.sha256}; },
                        "Of the value, as the JSON text of `dckpt extract --objects`."));
}

/// Returns a getter of entries, named by their keys.
template <typename Report, typename Entry>
constexpr auto by_key(std::vector<Entry> Report::*entries) {
  return [entries](const Report& report) {
    ByKey<Entry> named;
    for (const Entry& entry : report.*entries) named.emplace_back(entry.key, entry);
    return named;
  };
}

constexpr auto json_record(const Digests*) {
  return JsonRecord("", "", Field("tensors", by_key(&Digests::tensors), "Digests by key."),
                    Field("objects", by_key(&Digests::objects), "Digests by unique key."));
}

constexpr auto json_record(const ElementStats*) {
  using S = ElementStats;
  const auto number = [](const auto member) {
    return [member](const S& stats) -> std::optional<double> {
      const double value = std::invoke(member, stats);
      if (stats.finite() == 0 || !std::isfinite(value)) return std::nullopt;
      return value;
    };
  };
  constexpr auto kNumber =
      "Of the finite elements; null if there are none, or beyond double precision.";
  return JsonRecord(
      "elements", "Statistics of elements.", Field("count", &S::count, "All elements."),
      Field("nan", &S::nan, "Elements that are NaN."),
      Field("infinite", &S::infinite, "Infinite elements."),
      Field("zero", &S::zero, "Elements that are 0 or -0."),
      Field("denormal", &S::denormal, "Elements that are denormal in their own dtype."),
      Field("mean", number(&S::mean), kNumber), Field("deviation", number(&S::deviation), kNumber),
      Field("min", number(&S::min), kNumber), Field("max", number(&S::max), kNumber),
      Field("abs_max", number(&S::abs_max), kNumber), Field("l2", number(&S::l2), kNumber));
}

constexpr auto json_record(const TensorStats*) {
  return JsonRecord("tensor", "Statistics of a tensor.", Field("dtype", &TensorStats::dtype),
                    Field("shape", &TensorStats::shape, "Global shape."),
                    Field("elements", &TensorStats::elements,
                          "Statistics; null for elements that are not real numbers."));
}

constexpr auto json_record(const LayerStats*) {
  return JsonRecord("layer", "Statistics of a layer.",
                    Field("stack", &LayerStats::stack, "For example \"decoder\"."),
                    Field("layer", &LayerStats::layer, "Its number."),
                    Field("elements", &LayerStats::elements, "The weights of the layer."));
}

constexpr auto json_record(const StatsReport*) {
  using S = StatsReport;
  return JsonRecord(
      "", "", Field("weights", &S::weights, "All floating-point tensors but the optimizer's."),
      Field("layers", &S::layers, "The weights of each layer, by stack and number."),
      Field("tensors", by_key(&S::tensors), "Tensors by key."),
      Field("findings", &S::findings,
            "Elements that are not finite, and state that no optimizer makes."));
}

}  // namespace dckpt
