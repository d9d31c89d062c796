#include "operations/inspect/differences.h"

#include <bit>

namespace dckpt {
namespace {

void write_to(WireWriter& writer, const ElementDifferences& elements) {
  writer.number(elements.count);
  writer.number(elements.elements);
  writer.number(elements.first.size());
  for (const std::int64_t index : elements.first) writer.number(static_cast<std::uint64_t>(index));
  writer.text(elements.first_a);
  writer.text(elements.first_b);
  writer.number(elements.max_abs ? 1 : 0);
  if (elements.max_abs) writer.number(std::bit_cast<std::uint64_t>(*elements.max_abs));
  writer.number(elements.by_layer.size());
  for (const std::uint64_t count : elements.by_layer) writer.number(count);
}

ElementDifferences read_elements(WireReader& reader) {
  ElementDifferences elements;
  elements.count = reader.number();
  elements.elements = reader.number();
  elements.first.resize(reader.count());
  for (std::int64_t& index : elements.first) index = reader.signed_number();
  elements.first_a = reader.text();
  elements.first_b = reader.text();
  if (reader.number(1) == 1) elements.max_abs = std::bit_cast<double>(reader.number());
  elements.by_layer.resize(reader.count());
  for (std::uint64_t& count : elements.by_layer) count = reader.number();
  return elements;
}

}  // namespace

void Differences::write(WireWriter& writer) const {
  writer.number(compared ? 1 : 0);
  writer.number(found.size());
  for (const Difference& one : found) {
    writer.number(static_cast<std::uint64_t>(one.kind));
    for (const std::string* const text : {&one.key, &one.path, &one.a, &one.b}) writer.text(*text);
    writer.number(one.elements ? 1 : 0);
    if (one.elements) write_to(writer, *one.elements);
  }
}

void Differences::read(WireReader& reader) {
  compared = reader.number(1) == 1;
  found.clear();
  for (std::size_t left = reader.count(); left > 0; --left) {
    Difference& one = found.emplace_back();
    one.kind = static_cast<Difference::Kind>(
        reader.number(static_cast<std::uint64_t>(Difference::Kind::kCommon)));
    for (std::string* const text : {&one.key, &one.path, &one.a, &one.b}) *text = reader.text();
    if (reader.number(1) == 1) one.elements = read_elements(reader);
  }
}

}  // namespace dckpt
