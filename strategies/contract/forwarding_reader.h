#pragma once

#include <memory>
#include <utility>

#include "mapping/base/api.h"
#include "strategies/contract/reader.h"

namespace DCKPT_API dckpt {

/// The base class of readers that change a part of another reader. Forwards every call to it.
class ForwardingReader : public CheckpointReader {
 public:
  explicit ForwardingReader(std::shared_ptr<const CheckpointReader> source)
      : source_(std::move(source)) {}
  /// `source` must outlive this reader.
  explicit ForwardingReader(const CheckpointReader& source)
      : source_(std::shared_ptr<const CheckpointReader>(), &source) {}

  const CheckpointInfo& info() const noexcept override { return source_->info(); }
  const Metadata& metadata() const noexcept override { return source_->metadata(); }
  const Storage& storage() const noexcept override { return source_->storage(); }
  Value common_state() const override { return source_->common_state(); }
  ChunkPayload locate(std::size_t tensor, std::size_t chunk,
                      const ReadableFile& file) const override {
    return source_->locate(tensor, chunk, file);
  }
  [[nodiscard]] Bytes object_bytes(std::size_t object) const override {
    return source_->object_bytes(object);
  }
  [[nodiscard]] Value decode_object(std::size_t object, ByteView stored) const override {
    return source_->decode_object(object, stored);
  }
  bool check_chunk(std::size_t tensor, std::size_t chunk, const ReadableFile& file) const override {
    return source_->check_chunk(tensor, chunk, file);
  }
  bool check_object(std::size_t object) const override { return source_->check_object(object); }

 protected:
  const std::shared_ptr<const CheckpointReader> source_;
};

}  // namespace dckpt
