#include "operations/convert/source/map_source.h"

#include <algorithm>
#include <utility>

#include "mapping/base/error.h"
#include "operations/convert/copy_contents.h"
#include "strategies/contract/forwarding_reader.h"

namespace dckpt {
namespace {

/// Shows a part of another reader's tensors and objects.
class ChosenReader final : public ForwardingReader {
 public:
  ChosenReader(std::unique_ptr<CheckpointReader> source, CopyContents contents)
      : ForwardingReader(std::move(source)), contents_(std::move(contents)) {}

  const Metadata& metadata() const noexcept override { return contents_.metadata; }
  ChunkPayload locate(std::size_t tensor, std::size_t chunk,
                      const ReadableFile& file) const override {
    return source_->locate(contents_.tensor_of[tensor], chunk, file);
  }
  Bytes object_bytes(std::size_t object) const override {
    return source_->object_bytes(contents_.object_of[object].position);
  }
  Value decode_object(std::size_t object, ByteView stored) const override {
    return source_->decode_object(contents_.object_of[object].position, stored);
  }
  bool check_chunk(std::size_t tensor, std::size_t chunk, const ReadableFile& file) const override {
    return source_->check_chunk(contents_.tensor_of[tensor], chunk, file);
  }
  bool check_object(std::size_t object) const override {
    return source_->check_object(contents_.object_of[object].position);
  }

 private:
  CopyContents contents_;
};

bool matches(const std::string& pattern, const Metadata& metadata) {
  const KeyFilter alone{.include = {pattern}};
  return std::ranges::any_of(metadata.tensors, alone, &TensorStorageMetadata::key) ||
         std::ranges::any_of(metadata.objects, [&](const BytesStorageMetadata& object) {
           return alone.object(object.key);
         });
}

bool all_match(const std::vector<std::string>& patterns, const Metadata& metadata) {
  return std::ranges::all_of(
      patterns, [&](const std::string& pattern) { return matches(pattern, metadata); });
}

bool selects_all(const KeyFilter& keys) {
  return keys.include.empty() && keys.exclude.empty();
}

Metadata keys_alone(const Metadata& metadata) {
  Metadata keys;
  for (const TensorStorageMetadata& tensor : metadata.tensors)
    keys.tensors.emplace_back().key = tensor.key;
  for (const BytesStorageMetadata& object : metadata.objects)
    keys.objects.emplace_back().key = object.key;
  return keys;
}

std::vector<std::string> all_keys(const Metadata& metadata) {
  std::vector<std::string> keys;
  for (const TensorStorageMetadata& tensor : metadata.tensors) keys.push_back(tensor.key);
  for (const BytesStorageMetadata& object : metadata.objects) keys.push_back(object.key);
  return keys;
}

class SourceMapping {
 public:
  explicit SourceMapping(const MapRequest& request) : request_(request) {}

  MappedSource run() {
    std::unique_ptr<CheckpointReader> source = request_.open();
    result_.behind = request_.keys;
    if (selects_all(request_.keys)) {
      apply(std::move(source));
      return std::move(result_);
    }
    result_.source_keys = keys_alone(source->metadata());
    std::ranges::copy_if(request_.keys.exclude, std::back_inserter(result_.before.exclude),
                         [&](const std::string& pattern) { return names_source(pattern); });
    const std::vector<std::string>& include = request_.keys.include;
    const bool may_select_before = !include.empty() && all_match(include, result_.source_keys);
    if (!apply_or_explain(std::move(source), may_select_before) ||
        (may_select_before && !all_match(include, result_.reader->metadata()))) {
      result_.before.include = std::exchange(result_.behind.include, {});
      apply_or_explain(request_.open(), false);
    }
    require_one_side();
    std::erase_if(result_.behind.exclude,
                  [&](const std::string& pattern) { return names_source_alone(pattern); });
    return std::move(result_);
  }

 private:
  bool names_source_alone(const std::string& pattern) const {
    return names_source(pattern) && !matches(pattern, result_.reader->metadata());
  }

  /// Requires `include` to name keys of one side: patterns for the result cannot bring back keys
  /// that others have left out before the map.
  void require_one_side() const {
    for (const std::string& pattern : result_.behind.include) {
      if (!names_source_alone(pattern)) continue;
      throw_error(ErrorCode::kInvalidArgument,
                  "to include {}, a pattern matches keys of the source only, while others match "
                  "keys that the map makes; name keys of one side",
                  quote(pattern));
    }
  }

  bool names_source(const std::string& pattern) const {
    return matches(pattern, result_.source_keys);
  }

  void note_gone(const Metadata& source) {
    result_.gone_tensors.clear();
    result_.gone_objects.clear();
    for (const TensorStorageMetadata& tensor : source.tensors) {
      if (!result_.before(tensor.key)) result_.gone_tensors.push_back(tensor.key);
    }
    for (const BytesStorageMetadata& object : source.objects) {
      if (!result_.before.object(object.key)) result_.gone_objects.push_back(object.key);
    }
  }

  void apply(std::unique_ptr<CheckpointReader> source) {
    note_gone(source->metadata());
    result_.report = {};
    result_.reader = mapped_reader(chosen_reader(std::move(source), result_.before), request_.map,
                                   &result_.report, request_.context(result_.gone_tensors));
  }

  /// Returns false if the map does not take the source and `may_fail`.
  bool apply_or_explain(std::unique_ptr<CheckpointReader> source, bool may_fail) {
    try {
      apply(std::move(source));
      return true;
    } catch (const CheckpointError& error) {
      if (error.code() != ErrorCode::kMismatch) throw;
      if (may_fail) return false;
      throw CheckpointError(error.code(), error.message() + unmatched(), error.context());
    }
  }

  /// Describes patterns that match no key of the source, a possible reason why the map does not
  /// take it.
  std::string unmatched() const {
    std::string sentences;
    for (const auto* patterns : {&request_.keys.include, &request_.keys.exclude}) {
      for (const std::string& pattern : *patterns) {
        if (names_source(pattern)) continue;
        sentences += str_format("\nno key of the source matches the pattern {}{}", quote(pattern),
                                suggest_keys(pattern, all_keys(result_.source_keys)));
      }
    }
    return sentences;
  }

  const MapRequest& request_;
  MappedSource result_;
};

}  // namespace

MappedSource map_source(const MapRequest& request) {
  return SourceMapping(request).run();
}

RoundTrip round_trip_of(const MapRequest& request, const MappedSource& source) {
  return round_trip([&] { return chosen_reader(request.open(), source.before); }, request.map,
                    request.context(source.gone_tensors));
}

std::unique_ptr<CheckpointReader> chosen_reader(std::unique_ptr<CheckpointReader> source,
                                                const KeyFilter& keys) {
  if (selects_all(keys)) return source;
  CopyContents contents = select_contents(*source, keys);
  return std::make_unique<ChosenReader>(std::move(source), std::move(contents));
}

}  // namespace dckpt
