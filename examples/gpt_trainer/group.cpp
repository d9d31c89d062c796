#include "group.h"

#include <cstdlib>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <vector>

#include <dckpt/torch.h>

namespace gpt {
namespace {

constexpr std::chrono::minutes kTimeout{5};
constexpr int kTag = 0;

// Below, cpu() and copy_() do nothing if the tensor is in CPU memory: it is its own copy there.

void all_reduce(const c10::intrusive_ptr<c10d::Backend>& backend, const at::Tensor& tensor,
                c10d::ReduceOp::RedOpType operation) {
  std::vector<at::Tensor> tensors = {tensor.cpu()};
  c10d::AllreduceOptions options;
  options.reduceOp = operation;
  backend->allreduce(tensors, options)->wait();
  tensor.copy_(tensors[0]);
}

}  // namespace

struct Group::Connection {
  struct Sending {
    at::Tensor tensor;
    c10::intrusive_ptr<c10d::Work> work;
  };
  c10::intrusive_ptr<c10d::Backend> backend;
  std::vector<Sending> sendings{};
};

Group::Group(const c10::intrusive_ptr<c10d::Store>& store, const std::string& name, int rank,
             int size)
    : rank_(rank), size_(size) {
  const auto options = c10d::ProcessGroupGloo::Options::create(kTimeout);
  const char* interface = std::getenv("GLOO_SOCKET_IFNAME");
  using Gloo = c10d::ProcessGroupGloo;
  options->devices.push_back(interface == nullptr ? Gloo::createDefaultDevice()
                                                  : Gloo::createDeviceForInterface(interface));
  options->threads = 1;
  connection_ = std::make_shared<Connection>();
  connection_->backend = c10::make_intrusive<c10d::ProcessGroupGloo>(
      c10::make_intrusive<c10d::PrefixStore>(name, store), rank, size, options);
}

std::unique_ptr<dckpt::Communicator> Group::communicator() const {
  return dckpt::c10d_communicator(connection_->backend, kTimeout);
}

void Group::sum(const at::Tensor& tensor) const {
  if (size_ > 1) all_reduce(connection_->backend, tensor, c10d::ReduceOp::SUM);
}

void Group::max(const at::Tensor& tensor) const {
  if (size_ > 1) all_reduce(connection_->backend, tensor, c10d::ReduceOp::MAX);
}

void Group::reduce_scatter(const at::Tensor& part, const at::Tensor& whole) const {
  if (size_ == 1) {
    part.copy_(whole);
    return;
  }
  at::Tensor result = part.cpu(), summands = whole.cpu();
  connection_->backend->_reduce_scatter_base(result, summands)->wait();
  part.copy_(result);
}

void Group::all_gather(const at::Tensor& whole, const at::Tensor& part) const {
  if (size_ == 1) {
    whole.copy_(part);
    return;
  }
  at::Tensor result = whole.cpu(), mine = part.cpu();
  connection_->backend->_allgather_base(result, mine)->wait();
  whole.copy_(result);
}

void Group::send(const at::Tensor& tensor, int to) const {
  std::vector<at::Tensor> tensors = {tensor.cpu()};
  connection_->sendings.push_back({tensors[0], connection_->backend->send(tensors, to, kTag)});
}

void Group::finish_sends() const {
  for (const Connection::Sending& sending : connection_->sendings) sending.work->wait();
  connection_->sendings.clear();
}

void Group::receive(const at::Tensor& tensor, int from) const {
  std::vector<at::Tensor> tensors = {tensor.cpu()};
  connection_->backend->recv(tensors, from, kTag)->wait();
  tensor.copy_(tensors[0]);
}

}  // namespace gpt
