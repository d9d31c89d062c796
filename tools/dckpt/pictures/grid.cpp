#include "tools/dckpt/pictures/grid.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <unordered_map>

#include "mapping/base/format.h"
#include "mapping/base/text.h"
#include "tools/dckpt/render/text_layout.h"

namespace dckpt::tool {
namespace {

constexpr std::size_t kMostGridRows = 9;
constexpr std::size_t kRowsWithLines = 4;  // with more rows, fewer lines between them
constexpr std::size_t kLongestLabel = 8;
constexpr std::size_t kGapColumns = 3;
constexpr std::string_view kHole = "hole";

/// The offsets at which an axis is cut, its ends included.
using Cuts = std::vector<std::int64_t>;

/// Returns the range of a box along an axis, clamped to the tensor.
std::pair<std::int64_t, std::int64_t> extent(const Box& box, std::size_t axis, std::int64_t size) {
  const std::int64_t begin = std::clamp<std::int64_t>(box.offsets[axis], 0, size);
  return {begin, begin + std::clamp<std::int64_t>(box.sizes[axis], 0, size - begin)};
}

Cuts cuts_of(std::span<const GridPiece> pieces, std::size_t axis, std::int64_t size) {
  Cuts cuts = {0, size};
  for (const GridPiece& piece : pieces) {
    const auto [begin, end] = extent(piece.box, axis, size);
    cuts.push_back(begin);
    cuts.push_back(end);
  }
  std::ranges::sort(cuts);
  cuts.erase(std::unique(cuts.begin(), cuts.end()), cuts.end());
  return cuts;
}

/// Positions of the intervals that are drawn; an empty one stands for the intervals left out.
using Shown = std::vector<std::optional<std::size_t>>;

Shown first_and_last(std::size_t count, std::size_t most) {
  Shown shown;
  const bool all = count <= most;
  const std::size_t first = all ? count : most / 2;
  const std::size_t last = all ? 0 : most - 1 - first;
  for (std::size_t i = 0; i < first; ++i) shown.emplace_back(i);
  if (all) return shown;
  shown.emplace_back();
  for (std::size_t i = count - last; i < count; ++i) shown.emplace_back(i);
  return shown;
}

/// Returns the first and last intervals, or those around `focus` if it is not among them.
Shown around(std::size_t count, std::size_t most, std::size_t focus) {
  Shown shown = first_and_last(count, most);
  if (std::ranges::find(shown, std::optional(focus)) != shown.end()) return shown;
  const std::size_t fit = most - 2;  // without the gaps on both sides
  const std::size_t first = focus - std::min(focus, fit / 2);
  shown = {std::nullopt};
  for (std::size_t i = first; i < first + fit; ++i) shown.emplace_back(i);
  shown.emplace_back();
  return shown;
}

/// The axes that are drawn; a strip has no rows.
struct Axes {
  std::optional<std::size_t> row{};
  std::size_t column = 0;
};

Axes chosen_axes(const std::vector<Cuts>& cuts) {
  if (cuts.size() == 1) return {{}, 0};
  if (cuts.size() == 2) return {0, 1};
  std::vector<std::size_t> cut;
  for (std::size_t axis = 0; axis < cuts.size(); ++axis) {
    if (cuts[axis].size() > 2) cut.push_back(axis);
  }
  if (cut.size() > 1) return {cut[0], cut[1]};
  return {{}, cut.empty() ? cuts.size() - 1 : cut[0]};
}

/// The content of a drawn cell.
struct Cell {
  std::string label{};
  std::size_t pieces = 0;
};

class Drawing {
 public:
  Drawing(ShapeView shape, std::span<const GridPiece> pieces, const PictureStyle& style,
          ShapeView at)
      : shape_(shape), pieces_(pieces), style_(style) {
    for (std::size_t axis = 0; axis < shape.size(); ++axis)
      cuts_.push_back(cuts_of(pieces, axis, shape[axis]));
    axes_ = chosen_axes(cuts_);
    at_.assign(shape.size(), 0);
    has_focus_ = at.size() == shape.size();
    if (has_focus_) at_.assign(at.begin(), at.end());
  }

  Picture lines() {
    if (!lay_out()) return {};
    fill();
    if (inner_ < kHole.size() && has_holes()) {
      inner_at_least_ = kHole.size();
      if (!lay_out()) return {};
      fill();
    }
    Picture lines;
    lines.push_back(header());
    lines.push_back(
        border(style_.unicode ? "┌" : "+", style_.unicode ? "┬" : "+", style_.unicode ? "┐" : "+"));
    for (std::size_t row = 0; row < rows_.size(); ++row) {
      if (row > 0 && rows_.size() <= kRowsWithLines)
        lines.push_back(border(style_.unicode ? "├" : "+", style_.unicode ? "┼" : "+",
                               style_.unicode ? "┤" : "+"));
      lines.push_back(row_line(row));
    }
    lines.push_back(
        border(style_.unicode ? "└" : "+", style_.unicode ? "┴" : "+", style_.unicode ? "┘" : "+"));
    say(cells_text(), lines);
    return lines;
  }

 private:
  const Cuts& row_cuts() const { return cuts_[*axes_.row]; }
  const Cuts& column_cuts() const { return cuts_[axes_.column]; }

  /// Chooses the rows and columns that are drawn, and their widths. Returns false if not even one
  /// fits.
  bool lay_out() {
    rows_ = axes_.row ? chosen(*axes_.row, kMostGridRows) : Shown{0};
    for (const std::optional<std::size_t> row : rows_) {
      if (axes_.row && row)
        row_name_ = std::max(row_name_, std::to_string(row_cuts()[*row]).size());
    }
    std::size_t label = 1;
    for (const GridPiece& piece : pieces_) label = std::max(label, columns_of(piece.label));
    inner_ = std::min(label, kLongestLabel) + 2;
    inner_ = std::max({inner_, inner_at_least_, std::to_string(column_cuts().back()).size()});
    const std::size_t margin = kIndent + row_name_ + 1;
    if (margin + 1 + inner_ + 1 > style_.columns) return false;
    const std::size_t room = style_.columns - margin - 1;
    const std::size_t count = column_cuts().size() - 1;
    std::size_t most = room / (inner_ + 1);
    if (count > most) {
      const std::size_t beside_gap = room < kGapColumns + 1 ? 0 : room - kGapColumns - 1;
      most = beside_gap / (inner_ + 1) + 1;
    }
    if (count > most && most < 3) return false;
    columns_ = chosen(axes_.column, most);
    return true;
  }

  /// Returns the intervals of an axis that are drawn.
  Shown chosen(std::size_t axis, std::size_t most) const {
    const Cuts& cuts = cuts_[axis];
    const std::size_t count = cuts.size() - 1;
    if (!has_focus_) return first_and_last(count, most);
    const auto after = std::ranges::upper_bound(cuts, at_[axis]) - cuts.begin();
    const auto focus = static_cast<std::size_t>(std::max<std::ptrdiff_t>(after - 1, 0));
    return around(count, most, std::min(focus, count - 1));
  }

  /// Puts the pieces into the cells.
  void fill() {
    cells_.assign(rows_.size() * columns_.size(), {});
    const auto covers = [&](const GridPiece& piece, std::size_t axis, std::int64_t element) {
      const auto [begin, end] = extent(piece.box, axis, shape_[axis]);
      return begin <= element && element < end;
    };
    for (const GridPiece& piece : pieces_) {
      bool is_seen = true;
      for (std::size_t axis = 0; axis < shape_.size() && is_seen; ++axis)
        is_seen = axis == axes_.row || axis == axes_.column || covers(piece, axis, at_[axis]);
      if (!is_seen) continue;
      for (std::size_t row = 0; row < rows_.size(); ++row) {
        if (!rows_[row] || (axes_.row && !covers(piece, *axes_.row, row_cuts()[*rows_[row]])))
          continue;
        for (std::size_t column = 0; column < columns_.size(); ++column) {
          if (!columns_[column] || !covers(piece, axes_.column, column_cuts()[*columns_[column]]))
            continue;
          Cell& cell = cells_[row * columns_.size() + column];
          if (++cell.pieces <= 2) cell.label += (cell.pieces == 1 ? "" : "+") + piece.label;
        }
      }
      tints_.emplace(piece.label, tints_.size());
    }
  }

  bool has_holes() const {
    for (std::size_t row = 0; row < rows_.size(); ++row) {
      for (std::size_t column = 0; column < columns_.size(); ++column) {
        if (rows_[row] && columns_[column] && cells_[row * columns_.size() + column].pieces == 0)
          return true;
      }
    }
    return false;
  }

  std::size_t width(std::size_t column) const { return columns_[column] ? inner_ : kGapColumns; }

  std::string margin(const std::string& name) const {
    return std::string(kIndent, ' ') + padded_left(name, row_name_) + (row_name_ > 0 ? " " : "");
  }

  /// Returns the offsets at which columns begin, and the end of the last one.
  std::string header() const {
    std::string line = margin("");
    for (std::size_t column = 0; column < columns_.size(); ++column)
      line += padded(columns_[column] ? std::to_string(column_cuts()[*columns_[column]]) : "",
                     width(column) + 1);
    const std::string end = std::to_string(column_cuts().back());
    if (columns_of(line) + end.size() <= style_.columns) line += end;
    line.erase(line.find_last_not_of(' ') + 1);
    return line;
  }

  std::string border(const char* first, const char* between, const char* last) const {
    std::string line = margin("") + first;
    for (std::size_t column = 0; column < columns_.size(); ++column) {
      for (std::size_t i = 0; i < width(column); ++i) line += style_.unicode ? "─" : "-";
      line += column + 1 < columns_.size() ? between : last;
    }
    return line;
  }

  std::string row_line(std::size_t row) const {
    const char* const side = style_.unicode ? "│" : "|";
    const bool named = axes_.row && rows_[row];
    std::string line = margin(named ? std::to_string(row_cuts()[*rows_[row]]) : "") + side;
    for (std::size_t column = 0; column < columns_.size(); ++column) {
      const std::size_t columns = width(column);
      if (!rows_[row])
        line += centered(style_.unicode ? "⋮" : ":", columns, {});
      else if (!columns_[column])
        line += centered(style_.unicode ? "…" : "..", columns, {});
      else
        line += cell_text(cells_[row * columns_.size() + column], columns);
      line += side;
    }
    return line;
  }

  static std::string centered(const std::string& text, std::size_t columns,
                              const std::string& drawn) {
    const std::size_t blanks = columns - std::min(columns, columns_of(text));
    return std::string(blanks / 2, ' ') + (drawn.empty() ? text : drawn) +
           std::string(blanks - blanks / 2, ' ');
  }

  std::string cell_text(const Cell& cell, std::size_t columns) const {
    if (cell.pieces == 0) {
      const std::string text(columns >= kHole.size() ? kHole : "!");
      return centered(text, columns, alarming(text, style_));
    }
    if (cell.pieces > 1) {
      std::string text = cell.label;
      if (cell.pieces > 2 || columns_of(text) > columns)
        text = (style_.unicode ? "×" : "x") + std::to_string(cell.pieces);
      if (columns_of(text) > columns) text = "!";
      return centered(text, columns, alarming(text, style_));
    }
    const std::string text =
        shortened(cell.label, std::min(columns, kLongestLabel), style_.unicode);
    return centered(text, columns, tinted(text, tints_.at(cell.label), style_));
  }

  /// Returns "32 x 4 cells, the first and last are shown: rows along axis 0, columns along axis 1."
  std::string cells_text() const {
    const auto gap = [](const Shown& shown) {
      return !std::ranges::all_of(shown, [](const auto& position) { return position.has_value(); });
    };
    const std::string some = !gap(rows_) && !gap(columns_) ? ""
                             : has_focus_                  ? ", some shown"
                                                           : ", first and last shown";
    const std::size_t columns = column_cuts().size() - 1;
    std::string text =
        axes_.row ? str_format("{} x {} cells{}: rows along axis {}, columns along axis {}.",
                               grouped(row_cuts().size() - 1), grouped(columns), some, *axes_.row,
                               axes_.column)
                  : str_format("{} {} along axis {}{}.", grouped(columns),
                               columns == 1 ? "cell" : "cells", axes_.column, some);
    for (std::size_t axis = 0; axis < cuts_.size(); ++axis) {
      if (axis == axes_.row || axis == axes_.column || cuts_[axis].size() <= 2) continue;
      text += str_format(" Axis {} is cut in {} pieces, too; these are the cells at {}.", axis,
                         grouped(cuts_[axis].size() - 1), at_[axis]);
    }
    return text;
  }

  void say(const std::string& text, Picture& lines) const {
    const std::string indent(kIndent, ' ');
    for (const std::string& line : split(wrapped(text, style_.columns - kIndent), '\n'))
      lines.push_back(indent + line);
  }

  ShapeView shape_;
  std::span<const GridPiece> pieces_;
  PictureStyle style_;
  std::vector<Cuts> cuts_{};  // by axis
  Axes axes_{};
  Shape at_{};
  bool has_focus_ = false;
  Shown rows_{};
  Shown columns_{};
  std::size_t row_name_ = 0;  // columns
  std::size_t inner_ = 0;     // inner columns of a cell
  std::size_t inner_at_least_ = 0;
  std::vector<Cell> cells_{};
  std::unordered_map<std::string, std::size_t> tints_{};
};

}  // namespace

Picture grid(ShapeView shape, std::span<const GridPiece> pieces, const PictureStyle& style,
             ShapeView at) {
  const bool is_empty = std::ranges::any_of(shape, [](std::int64_t size) { return size <= 0; });
  const bool fits = std::ranges::all_of(pieces, [&](const GridPiece& piece) {
    return piece.box.offsets.size() == shape.size() && piece.box.sizes.size() == shape.size();
  });
  if (shape.empty() || is_empty || pieces.empty() || !fits) return {};
  return Drawing(shape, pieces, style, at).lines();
}

}  // namespace dckpt::tool
