#include "strategies/torch_checkpointing/item_files.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "mapping/base/storage_name.h"
#include "mapping/base/text.h"

namespace dckpt {
namespace {

struct ItemName {
  std::string item;
  int rank = 0;
};

std::optional<int> parse_rank(std::string_view text) {
  const auto number = parse_u64(text);
  if (!number || *number >= kMaxItemRanks || std::to_string(*number) != text) return std::nullopt;
  return static_cast<int>(*number);
}

bool is_item_name(std::string_view name) {
  return !name.empty() && std::ranges::all_of(name, [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '-';
  });
}

std::string_view stem_of(std::string_view name) {
  return name.substr(0, name.find('.'));
}

std::string_view suffix_of(std::string_view name) {
  const std::size_t dot = name.find('.');
  return dot == std::string_view::npos ? std::string_view{} : name.substr(dot);
}

/// Parses a file's stem: "model_3" → model, 3.
std::optional<ItemName> parse_item_name(std::string_view stem) {
  const std::size_t line = stem.rfind('_');
  if (line == std::string_view::npos || !is_item_name(stem.substr(0, line))) return std::nullopt;
  const auto rank = parse_rank(stem.substr(line + 1));
  if (!rank) return std::nullopt;
  return ItemName{std::string(stem.substr(0, line)), *rank};
}

/// Parses the same for a file in a folder.
std::optional<ItemName> parse_item_name(std::string_view folder, std::string_view stem) {
  constexpr std::string_view kRank = "rank_";
  if (folder.starts_with(kRank) && is_item_name(stem)) {
    if (const auto rank = parse_rank(folder.substr(kRank.size())))
      return ItemName{std::string(stem), *rank};
  }
  const auto rank = parse_rank(stem);
  if (!rank || !is_item_name(folder)) return std::nullopt;
  return ItemName{std::string(folder), *rank};
}

ItemForm form_of(std::string_view suffix) {
  if (suffix == ".pt") return ItemForm::kTorch;
  if (suffix == ".safetensors") return ItemForm::kSafetensors;
  if (suffix == ".json") return ItemForm::kJson;
  return ItemForm::kRaw;
}

void add(ItemFiles& files, const std::optional<ItemName>& name, std::string file) {
  if (!name) return;
  const ItemForm form = form_of(suffix_of(base_name(file)));
  files[name->item].emplace(name->rank, ItemFile{std::move(file), form});
}

}  // namespace

ItemFiles find_item_files(const Storage& storage) {
  ItemFiles files;
  for (const FileInfo& entry : storage.list("")) {
    if (entry.kind == FileInfo::Kind::kRegular)
      add(files, parse_item_name(stem_of(entry.name)), entry.name);
    if (entry.kind != FileInfo::Kind::kDirectory) continue;
    for (const FileInfo& inner : storage.list(entry.name)) {
      if (inner.kind == FileInfo::Kind::kRegular)
        add(files, parse_item_name(entry.name, stem_of(inner.name)),
            join_name(entry.name, inner.name));
    }
  }
  return files;
}

bool has_item_files(std::span<const FileInfo> entries) {
  return std::ranges::any_of(entries, [](const FileInfo& entry) {
    const auto name = parse_item_name(stem_of(entry.name));
    return name && name->rank == 0 && suffix_of(entry.name) == ".pt";
  });
}

}  // namespace dckpt
