#include "migration/maps/assignment/relation.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "configs/maps/key_map_rows.h"
#include "mapping/base/counted.h"
#include "mapping/base/error.h"

namespace dckpt {
namespace {

/// A tensor between two steps: a shape, and pieces of the original tensors.
struct Canvas {
  Shape shape;
  std::vector<RelationPiece> pieces;
};

constexpr std::int64_t kMaxRopeHeads = std::int64_t{1} << 20;
constexpr std::size_t kMaxRopePieces = 64;  // each head looks for its own
constexpr std::int64_t kMaxGroups = 1 << 16;

std::int64_t rows_of(const Shape& shape) {
  if (shape.empty()) throw_error(ErrorCode::kMismatch, "a single number (shape ()) has no rows");
  return shape.front();
}

void require_same_columns(const std::vector<Shape>& shapes) {
  for (const Shape& shape : shapes) {
    rows_of(shape);
    if (!equal(ShapeView(shape).subspan(1), ShapeView(shapes.front()).subspan(1)))
      throw_error(ErrorCode::kMismatch, "shapes {} and {} differ in more than rows",
                  to_string(shapes.front()), to_string(shape));
  }
}

/// Changes the axes of a canvas, and all that its pieces have by axis.
template <typename Change>
void change_axes(Canvas& canvas, const Change& change) {
  change(canvas.shape);
  for (RelationPiece& piece : canvas.pieces) {
    change(piece.box.offsets);
    change(piece.box.sizes);
    change(piece.box.steps);
    change(piece.axes);
  }
}

void transpose(Canvas& canvas) {
  if (canvas.shape.size() < 2) return;
  change_axes(canvas, [](auto& of_axes) { std::swap(of_axes[0], of_axes[1]); });
}

void squeeze(Canvas& canvas) {
  if (rows_of(canvas.shape) != 1)
    throw_error(ErrorCode::kMismatch,
                "squeeze removes a first axis of extent 1, but the shape is {}",
                to_string(canvas.shape));
  change_axes(canvas, [](auto& of_axes) { of_axes.erase(of_axes.begin()); });
}

Shape with_rows(Shape shape, std::int64_t rows) {
  shape.front() = rows;
  return shape;
}

/// Puts these rows of a tensor into another: the first one at `to_row`, the next ones `step` apart.
/// The caller adjusts the shape of `to`.
void put_rows(Canvas& to, std::int64_t to_row, std::int64_t step, const Canvas& from,
              const Progression& rows) {
  StridedBox wanted{whole(from.shape)};
  wanted.set(0, rows);
  for (const RelationPiece& piece : from.pieces) {
    std::optional<StridedBox> common = intersect(piece.box, wanted);
    if (!common) continue;
    RelationPiece part{.box = *common, .tensor = piece.tensor, .axes = piece.axes};
    part.in_tensor = place_in_tensor(piece, *common);
    const Progression taken = common->on(0);
    part.box.set(0, {to_row + (taken.first - rows.first) / rows.step * step, taken.count,
                     std::max<std::int64_t>(taken.step / rows.step, 1) * step});
    to.pieces.push_back(std::move(part));
  }
}

/// Adds rows [begin, begin + count) of a tensor as the next rows of another.
void append_rows(Canvas& to, const Canvas& from, std::int64_t begin, std::int64_t count) {
  put_rows(to, to.shape.front(), 1, from, {begin, count, 1});
  to.shape.front() += count;
}

Canvas without_rows(const Shape& like) {
  return {with_rows(like, 0), {}};
}

/// Returns the number of rows of each part.
std::vector<std::int64_t> row_counts(const MapTransform& step, std::size_t count, std::int64_t rows,
                                     const MapNumbers& numbers) {
  std::vector<std::int64_t> shares(count, 1);
  if (step.parts.size() > 1) {
    for (std::size_t i = 0; i < count; ++i) shares[i] = numbers.require(step.parts[i]);
  }
  std::int64_t sum = 0;
  for (const std::int64_t share : shares) {
    if (share < 0 || __builtin_add_overflow(sum, share, &sum))
      throw_error(ErrorCode::kMismatch, "the parts are too large");
  }
  if (sum == 0 || rows % sum != 0)
    throw_error(ErrorCode::kMismatch, "{} cannot be divided into {}", counted(rows, "row"),
                counted(sum, "part"));
  for (std::int64_t& share : shares) share *= rows / sum;
  return shares;
}

/// The heads of a step, which are those of the language model unless it names others.
struct Heads {
  std::int64_t heads;
  std::int64_t groups;
  std::optional<std::int64_t> rows{};        ///< of a head, if they are known
  std::optional<std::int64_t> value_rows{};  ///< of a head of the value, if it has others
  std::string said{};                        ///< the origin of the numbers
  std::int64_t per_group() const { return heads / groups; }

  /// Returns the rows of a head, and checks that they agree with the configuration.
  std::int64_t rows_of_one(std::int64_t all, std::int64_t count, const std::string& what) const {
    if (all % count != 0 || (rows && all / count != *rows))
      throw_error(ErrorCode::kMismatch, "{} has {} rows for {} heads of query, key and value; {}",
                  what, all, count, said);
    return all / count;
  }
};

Heads heads_of(const MapTransform& step, const MapNumbers& numbers) {
  const bool of_text = step.parts.empty();
  const std::string heads = of_text ? "num_attention_heads" : step.parts[0];
  const std::string groups = of_text ? "num_query_groups" : step.parts[1];
  Heads result{numbers.require(heads), numbers.require(groups)};
  result.said = str_format("{}, {}", numbers.describe(heads), numbers.describe(groups));
  if (result.heads <= 0 || result.groups <= 0 || result.heads % result.groups != 0 ||
      result.heads > (std::int64_t{1} << 20))
    throw_error(ErrorCode::kMismatch, result.said + ": groups must divide the heads");
  if (step.parts.size() > 2) {
    result.value_rows = numbers.require(step.parts[2]);
    result.said += ", " + numbers.describe(step.parts[2]);
    if (*result.value_rows <= 0)
      throw_error(ErrorCode::kMismatch, result.said + ": a head of the value has rows");
  }
  if (!of_text) return result;
  result.rows = numbers.find("kv_channels");
  result.said += ", " + numbers.describe("kv_channels");
  return result;
}

/// Returns the shapes of query, key and value that make up linear_qkv.
std::vector<Shape> shapes_of_heads(const MapTransform& step, const Shape& linear_qkv,
                                   const MapNumbers& numbers) {
  const Heads heads = heads_of(step, numbers);
  const std::int64_t parts = step.step == MapStep::kGatedQkvInterleave ? 2 : 1;
  // Values with rows of their own do not count among the heads of equal size.
  std::int64_t values = 0;
  if (heads.value_rows && (__builtin_mul_overflow(heads.groups, *heads.value_rows, &values) ||
                           values >= rows_of(linear_qkv)))
    throw_error(ErrorCode::kMismatch, "linear_qkv has {} rows; {}", rows_of(linear_qkv),
                heads.said);
  const std::int64_t others = heads.value_rows ? heads.groups : 2 * heads.groups;
  const std::int64_t rows =
      heads.rows_of_one(rows_of(linear_qkv) - values, heads.heads * parts + others, "linear_qkv");
  const Shape key = with_rows(linear_qkv, heads.groups * rows);
  return {with_rows(linear_qkv, heads.heads * parts * rows), key,
          heads.value_rows ? with_rows(linear_qkv, values) : key};
}

/// Interleaves query, key and value by group. With a gate, each head of the query is followed by
/// its gate; a group of the result has the heads of its queries, then their gates.
Canvas interleave(const std::vector<Canvas>& qkv, const MapTransform& step,
                  const MapNumbers& numbers) {
  const Heads heads = heads_of(step, numbers);
  const bool gated = step.step == MapStep::kGatedQkvInterleave;
  require_same_columns({qkv[0].shape, qkv[1].shape, qkv[2].shape});
  const std::int64_t parts = gated ? 2 : 1;  // per query head
  const std::int64_t rows = heads.rows_of_one(rows_of(qkv[0].shape), heads.heads * parts,
                                              gated ? "query with gates" : "query");
  heads.rows_of_one(rows_of(qkv[1].shape), heads.groups, "key");
  if (!heads.value_rows) heads.rows_of_one(rows_of(qkv[2].shape), heads.groups, "value");
  const std::int64_t value_rows = heads.value_rows.value_or(rows);
  if (qkv[2].shape != with_rows(qkv[1].shape, heads.groups * value_rows) ||
      rows_of(qkv[1].shape) != heads.groups * rows)
    throw_error(ErrorCode::kMismatch, "query, key and value have the shapes {}, {} and {}; {}",
                to_string(qkv[0].shape), to_string(qkv[1].shape), to_string(qkv[2].shape),
                heads.said);
  Canvas result = without_rows(qkv[0].shape);
  for (std::int64_t group = 0; group < heads.groups; ++group) {
    const std::int64_t first = group * heads.per_group();
    if (!gated) append_rows(result, qkv[0], first * rows, heads.per_group() * rows);
    for (std::int64_t part = 0; gated && part < parts; ++part) {
      for (std::int64_t head = first; head < first + heads.per_group(); ++head)
        append_rows(result, qkv[0], (head * parts + part) * rows, rows);
    }
    append_rows(result, qkv[1], group * rows, rows);
    append_rows(result, qkv[2], group * value_rows, value_rows);
  }
  return result;
}

/// Makes row i of the first half of the rotated rows, and row i of the second, rows 2i and 2i + 1.
Canvas rope(const Canvas& canvas, std::int64_t heads, bool interleave, const MapNumbers& numbers) {
  if (heads == 0) return canvas;
  const std::int64_t rows = rows_of(canvas.shape);
  if (heads < 0 || rows % heads != 0)
    throw_error(ErrorCode::kMismatch, "{} cannot be divided into {}", counted(rows, "row"),
                counted(heads, "head"));
  if (heads > kMaxRopeHeads || canvas.pieces.size() > kMaxRopePieces)
    throw_error(ErrorCode::kMismatch,
                "the rows of more than {} heads, or of a tensor in more than {} pieces, cannot "
                "be put into another order; put this step before those that divide the tensor",
                grouped(kMaxRopeHeads), kMaxRopePieces);
  const std::int64_t of_head = rows / heads;
  const std::int64_t turning = numbers.find("rotary_dim").value_or(of_head);
  if (turning > of_head || turning % 2 != 0)
    throw_error(ErrorCode::kMismatch, "rotary embedding covers {} of the {} rows of a head; {}",
                turning, of_head, numbers.describe("rotary_dim"));
  Canvas result = without_rows(canvas.shape);
  for (std::int64_t head = 0; head < rows; head += of_head) {
    const std::int64_t half = turning / 2;
    for (const std::int64_t i : {0, 1}) {
      if (interleave)
        put_rows(result, head + i, 2, canvas, {head + i * half, half, 1});
      else
        put_rows(result, head + i * half, 1, canvas, {head + i, half, 2});
    }
    result.shape.front() += turning;
    append_rows(result, canvas, head + turning, of_head - turning);
  }
  return result;
}

std::vector<Canvas> split_canvas(const MapTransform& step, const Canvas& canvas,
                                 const MapNumbers& numbers) {
  std::vector<Canvas> parts;
  std::int64_t begin = 0;
  for (const std::int64_t rows :
       row_counts(step, *tensors_after(step, 1), rows_of(canvas.shape), numbers)) {
    append_rows(parts.emplace_back(without_rows(canvas.shape)), canvas, begin, rows);
    begin += rows;
  }
  return parts;
}

/// Splits rows into parts: each part has its rows of the first group, then those of the second, and
/// so on.
std::vector<Canvas> split_groups(const MapTransform& step, const Canvas& canvas,
                                 const MapNumbers& numbers) {
  const std::int64_t groups = numbers.require(step.parts.front());
  if (groups <= 0 || groups > kMaxGroups)
    throw_error(ErrorCode::kMismatch, "there are from 1 to {} groups; {}", kMaxGroups,
                numbers.describe(step.parts.front()));
  const MapTransform shares{.step = MapStep::kSplitRows, .parts = shares_of(step)};
  std::vector<std::int64_t> counts =
      row_counts(shares, shares.parts.size(), rows_of(canvas.shape), numbers);
  for (std::int64_t& count : counts) {
    if (count % groups != 0)
      throw_error(ErrorCode::kMismatch, "a part of {} cannot be divided into {}",
                  counted(count, "row"), counted(groups, "group"));
    count /= groups;
  }
  std::vector<Canvas> parts(counts.size(), without_rows(canvas.shape));
  std::int64_t begin = 0;
  for (std::int64_t group = 0; group < groups; ++group) {
    for (std::size_t i = 0; i < parts.size(); ++i) {
      append_rows(parts[i], canvas, begin, counts[i]);
      begin += counts[i];
    }
  }
  return parts;
}

Canvas concat(const MapTransform& step, const std::vector<Canvas>& parts,
              const MapNumbers& numbers) {
  std::vector<Shape> shapes;
  for (const Canvas& part : parts) shapes.push_back(part.shape);
  require_same_columns(shapes);
  Canvas result = without_rows(shapes.front());
  for (const Canvas& part : parts) append_rows(result, part, 0, part.shape.front());
  const std::vector<std::int64_t> wanted =
      row_counts(step, parts.size(), result.shape.front(), numbers);
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (shapes[i].front() != wanted[i])
      throw_error(ErrorCode::kMismatch, "tensor {} of {} has the shape {}, expected {} rows", i + 1,
                  parts.size(), to_string(shapes[i]), wanted[i]);
  }
  return result;
}

Canvas pad(Canvas canvas, std::int64_t padded_rows, const MapNumbers& numbers) {
  const std::int64_t rows = rows_of(canvas.shape);
  const auto vocab = numbers.find("vocab_size");
  if ((vocab && rows != *vocab && rows != padded_rows) || rows > padded_rows)
    throw_error(ErrorCode::kMismatch, "the vocabulary has {} rows here, padded to {}; {}, {}", rows,
                padded_rows, numbers.describe("vocab_size"), numbers.describe("padded_vocab_size"));
  if (rows < padded_rows) {
    RelationPiece padding{.box = StridedBox{whole(canvas.shape)},
                          .tensor = RelationPiece::kPadding};
    padding.box.offsets.front() = rows;
    padding.box.sizes.front() = padded_rows - rows;
    canvas.pieces.push_back(std::move(padding));
    canvas.shape.front() = padded_rows;
  }
  return canvas;
}

}  // namespace

void StridedBox::set(std::size_t axis, const Progression& entries) {
  offsets[axis] = entries.first;
  sizes[axis] = entries.count;
  steps[axis] = entries.count == 1 ? 1 : entries.step;
}

std::optional<StridedBox> intersect(const StridedBox& a, const StridedBox& b) {
  StridedBox result = a;
  for (std::size_t axis = 0; axis < a.sizes.size(); ++axis) {
    const auto common = intersect(a.on(axis), b.on(axis));
    if (!common) return std::nullopt;
    result.set(axis, *common);
  }
  return result;
}

void require_heads(const MapRow& row, const Shape& whole, const MapNumbers& numbers) {
  if (!row.is_qkv() || std::ranges::any_of(row.hf.transform, [](const MapTransform& step) {
        return is_of_heads(step.step);
      }))
    return;
  for (const char* const name : {"num_attention_heads", "num_query_groups", "kv_channels"}) {
    if (!numbers.find(name)) return;
  }
  const bool gated = numbers.is_true("attention_output_gate");
  shapes_of_heads({.step = gated ? MapStep::kGatedQkvInterleave : MapStep::kQkvGrouped}, whole,
                  numbers);
}

StridedBox place_in_tensor(const RelationPiece& piece, const StridedBox& box) {
  if (piece.tensor == RelationPiece::kPadding) return {};
  StridedBox place = piece.in_tensor;
  for (std::size_t axis = 0; axis < box.sizes.size(); ++axis) {
    const std::size_t there = piece.axes[axis];
    const Progression own = piece.box.on(axis);
    const std::int64_t step = piece.in_tensor.steps[there];
    place.set(there,
              {piece.in_tensor.offsets[there] + (box.offsets[axis] - own.first) / own.step * step,
               box.sizes[axis], std::max<std::int64_t>(box.steps[axis] / own.step, 1) * step});
  }
  return place;
}

Relation relate(std::span<const MapTransform> steps, std::vector<Shape> tensors,
                std::int64_t padded_rows, const MapNumbers& numbers) {
  std::vector<Canvas> canvases;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const StridedBox all{whole(tensors[i])};
    std::vector<std::size_t> axes(tensors[i].size());
    std::iota(axes.begin(), axes.end(), 0);
    canvases.push_back(
        {tensors[i], {{.box = all, .tensor = i, .in_tensor = all, .axes = std::move(axes)}}});
  }
  for (const MapTransform& step : steps) {
    switch (step.step) {
      case MapStep::kExpertsInRows: break;  // the tensors are those of one expert
      case MapStep::kTranspose:
        for (Canvas& canvas : canvases) transpose(canvas);
        break;
      case MapStep::kSqueeze:
        for (Canvas& canvas : canvases) squeeze(canvas);
        break;
      case MapStep::kSplitRows: canvases = split_canvas(step, canvases.front(), numbers); break;
      case MapStep::kConcatRows: canvases = {concat(step, canvases, numbers)}; break;
      case MapStep::kSplitGroups: canvases = split_groups(step, canvases.front(), numbers); break;
      case MapStep::kQkvInterleave:
      case MapStep::kGatedQkvInterleave: canvases = {interleave(canvases, step, numbers)}; break;
      case MapStep::kQkvGrouped: shapes_of_heads(step, canvases.front().shape, numbers); break;
      case MapStep::kRopeInterleave:
      case MapStep::kRopeDeinterleave:
        for (std::size_t i = 0; i < canvases.size(); ++i)
          canvases[i] = rope(canvases[i], numbers.require(step.parts[i]),
                             step.step == MapStep::kRopeInterleave, numbers);
        break;
      case MapStep::kPadRows:
        canvases = {pad(std::move(canvases.front()), padded_rows, numbers)};
        break;
    }
  }
  return {canvases.front().shape, std::move(tensors), std::move(canvases.front().pieces)};
}

std::vector<Shape> tensors_of(std::span<const MapTransform> steps, std::size_t count,
                              const Shape& whole, const MapNumbers& numbers) {
  std::vector<std::size_t> counts{count};  // before each step
  for (const MapTransform& step : steps) counts.push_back(*tensors_after(step, counts.back()));
  std::vector<Shape> shapes{whole};
  for (std::size_t i = steps.size(); i-- > 0;) {
    const MapTransform& step = steps[i];
    switch (step.step) {
      case MapStep::kExpertsInRows: break;
      case MapStep::kTranspose:
        for (Shape& shape : shapes) {
          if (shape.size() > 1) std::swap(shape[0], shape[1]);
        }
        break;
      case MapStep::kSqueeze:
        for (Shape& shape : shapes) shape.insert(shape.begin(), 1);
        break;
      case MapStep::kRopeInterleave:
      case MapStep::kRopeDeinterleave: break;
      case MapStep::kSplitRows:
      case MapStep::kSplitGroups: {
        std::int64_t rows = 0;
        for (const Shape& shape : shapes) {
          if (__builtin_add_overflow(rows, rows_of(shape), &rows))
            throw_error(ErrorCode::kMismatch, "too many rows");
        }
        shapes = {with_rows(shapes.front(), rows)};
        break;
      }
      case MapStep::kConcatRows: {
        const auto rows = row_counts(step, counts[i], rows_of(shapes.front()), numbers);
        const Shape like = shapes.front();
        shapes.clear();
        for (const std::int64_t part : rows) shapes.push_back(with_rows(like, part));
        break;
      }
      case MapStep::kQkvInterleave:
      case MapStep::kGatedQkvInterleave:
        shapes = shapes_of_heads(step, Shape(shapes.front()), numbers);
        break;
      case MapStep::kQkvGrouped: shapes_of_heads(step, shapes.front(), numbers); break;
      case MapStep::kPadRows: {
        const std::int64_t rows = rows_of(shapes.front());
        const std::int64_t vocab = numbers.find("vocab_size").value_or(rows);
        if (vocab > rows)
          throw_error(ErrorCode::kMismatch, "the vocabulary has {} rows here, but {}", rows,
                      numbers.describe("vocab_size"));
        shapes.front().front() = vocab;
        break;
      }
    }
  }
  return shapes;
}

}  // namespace dckpt
