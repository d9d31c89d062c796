#include "dist_checkpointing/verify/data_files.h"

#include <algorithm>
#include <optional>

#include "mapping/base/counted.h"
#include "mapping/base/format.h"
#include "mapping/base/text.h"
#include "mapping/planning/rearrange.h"

namespace dckpt {
namespace {

std::string describe(const DataFiles::Truncated& file) {
  return str_format("{} has {} bytes of {}", quote(file.name), grouped(file.bytes),
                    grouped(file.needed));
}

std::string share(std::size_t some, std::size_t all, const char* one, const char* many) {
  return str_format("{} of {} {}", grouped(some), counted(all, "data file"),
                    some == 1 ? one : many);
}

}  // namespace

DataFiles check_data_files(const CheckpointReader& reader) {
  const Metadata& metadata = reader.metadata();
  std::vector<std::uint64_t> needed(metadata.files.size(), 0);
  const auto need = [&](const StorageInfo& place) {
    needed[place.file] = std::max(needed[place.file], place.offset + place.length);
  };
  for (const TensorStorageMetadata& tensor : metadata.tensors)
    std::ranges::for_each(tensor.places, need);
  for (const BytesStorageMetadata& object : metadata.objects) need(object.place);
  DataFiles files;
  for (std::size_t i = 0; i < needed.size(); ++i) {
    const std::string& name = metadata.files[i];
    if (!is_stored_file(name)) continue;
    ++files.needed;
    const std::optional<FileInfo> found = reader.storage().stat(name);
    if (!found)
      files.missing.push_back(name);
    else if (found->kind != FileInfo::Kind::kRegular)
      files.irregular.push_back(name);
    else if (found->size < needed[i])
      files.truncated.push_back({name, found->size, needed[i]});
  }
  return files;
}

std::string describe(const DataFiles& files) {
  std::string text;
  const auto add = [&](const std::string& sentence) {
    text += (text.empty() ? "" : "; ") + sentence;
  };
  if (files.missing.size() == 1) add(quote(files.missing.front()) + " is missing");
  if (files.missing.size() > 1) {
    add(str_format("{}: {}", share(files.missing.size(), files.needed, "is missing", "are missing"),
                   quoted_list(files.missing)));
  }
  if (files.irregular.size() == 1) add(quote(files.irregular.front()) + " is not a regular file");
  if (files.irregular.size() > 1) {
    add(str_format("{}: {}",
                   share(files.irregular.size(), files.needed, "is not a regular file",
                         "are not regular files"),
                   quoted_list(files.irregular)));
  }
  if (files.truncated.size() == 1) add(describe(files.truncated.front()) + ": it is truncated");
  if (files.truncated.size() > 1) {
    add(str_format("{}; the first, {}",
                   share(files.truncated.size(), files.needed, "is truncated", "are truncated"),
                   describe(files.truncated.front())));
  }
  return text;
}

}  // namespace dckpt
