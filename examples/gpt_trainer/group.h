#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/intrusive_ptr.h>

#include <memory>
#include <string>

namespace c10d {
class Store;
}
namespace dckpt {
class Communicator;
}

namespace gpt {

/// A group of processes connected over Gloo; copies share the connection. All members call the same
/// collectives in the same order. Tensors are contiguous and of the same shape on every rank; those
/// of a GPU travel through CPU memory.
class Group {
 public:
  Group() = default;  ///< an empty group
  /// Collective over the members. `name` is unique to the group in the store that all processes
  /// share.
  Group(const c10::intrusive_ptr<c10d::Store>& store, const std::string& name, int rank, int size);

  int rank() const { return rank_; }
  int size() const { return size_; }
  /// Returns a communicator for dckpt, which uses the same connections with tags of its own.
  std::unique_ptr<dckpt::Communicator> communicator() const;

  /// Reduce element by element, in place. The result is the same on every rank, bit for bit.
  void sum(const at::Tensor& tensor) const;
  void max(const at::Tensor& tensor) const;
  /// Stores this rank's part of the sum of all ranks' `whole` in `part`; both are 1-D, the parts
  /// equally long.
  void reduce_scatter(const at::Tensor& part, const at::Tensor& whole) const;
  void all_gather(const at::Tensor& whole, const at::Tensor& part) const;

  /// Returns at once. The tensor is kept, and must not change, until finish_sends().
  void send(const at::Tensor& tensor, int to) const;
  void finish_sends() const;
  void receive(const at::Tensor& tensor, int from) const;

 private:
  struct Connection;

  std::shared_ptr<Connection> connection_;
  int rank_ = 0;
  int size_ = 1;
};

}  // namespace gpt
