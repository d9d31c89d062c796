#include "transfer/run_transfer.h"

#include <algorithm>
#include <optional>
#include <vector>

#include "mapping/geometry/strided_copy.h"
#include "strategies/comm/agree.h"
#include "strategies/comm/device_exchange.h"
#include "strategies/parallel/exchange.h"
#include "strategies/tensor_io/device_destinations.h"

namespace dckpt {
namespace {

using Step = TransferProgram::Step;
using Transfer = ExchangeSchedule::Transfer;

/// A box of a tensor.
struct Place {
  const Tensor& tensor;
  StridedView view;
};

Place place_of(const TransferEnd& end, std::uint32_t position, const Box& box) {
  const WriteItem& item = end.items[position];
  const Tensor& tensor = end.tensors[item.source];
  StridedView view;
  if (item.flattened) {
    view = {item.source_begin, row_major_strides(item.chunk.sizes)};
    view.offset *= tensor.strides().front();
    for (std::int64_t& stride : view.strides) stride *= tensor.strides().front();
  } else {
    view.strides.assign(box.dims() - tensor.dim(), 0);  // prepended axes
    view.strides.insert(view.strides.end(), tensor.strides().begin(), tensor.strides().end());
  }
  for (std::size_t axis = 0; axis < box.dims(); ++axis)
    view.offset += (box.offsets[axis] - item.chunk.offsets[axis]) * view.strides[axis];
  return {tensor, std::move(view)};
}

class TransferRunner {
 public:
  TransferRunner(const TransferProgram& program, const TransferEnd& held, const TransferEnd& wanted,
                 Communicator& comm)
      : program_(program), held_(held), wanted_(wanted), comm_(comm) {}

  void run() {
    agree(comm_, "preparing the transfer", [&] { prepare_devices(); });
    ExchangeSteps steps{
        .what = "transferring tensors",
        .prepare = [&](std::uint32_t round) { prepare(round); },
        .pack =
            [&](std::span<const ExchangeSteps::Outgoing> messages) {
              BoxCopies copies(devices());
              for (const auto& [transfer, into] : messages) {
                const Step& step = program_.steps[transfer.message];
                const Place from = place_of(held_, step.item, step.box);
                copies.get(step.box.sizes, from.tensor, from.view, into.data(), packed(step));
              }
              copies.finish();
            },
        .unpack =
            [&](std::span<const ExchangeSteps::Incoming> messages) {
              BoxCopies copies(devices());
              for (const auto& [transfer, from] : messages) {
                const Step& step = program_.steps[transfer.message];
                const Place to = place_of(wanted_, step.item, step.box);
                copies.put(step.box.sizes, from.data(), packed(step), to.tensor, to.view);
              }
              copies.finish();
            }};
    if (exchange_device_) {
      steps.sent_from = [&](const Transfer& transfer) { return boxes_of(held_, transfer); };
      steps.received_into = [&](const Transfer& transfer) { return boxes_of(wanted_, transfer); };
    }
    run_exchange(program_.schedule, steps, comm_);
  }

 private:
  static StridedView packed(const Step& step) { return {0, row_major_strides(step.box.sizes)}; }
  const DeviceDestinations* devices() const { return devices_ ? &*devices_ : nullptr; }

  void prepare_devices() {
    std::vector<Tensor> tensors(held_.tensors.begin(), held_.tensors.end());
    tensors.insert(tensors.end(), wanted_.tensors.begin(), wanted_.tensors.end());
    if (std::ranges::none_of(tensors, is_in_device_memory)) return;
    devices_.emplace(tensors);
    if (const auto* const exchange = dynamic_cast<const DeviceExchange*>(&comm_))
      exchange_device_ = exchange->device();
  }

  /// Copies inside this rank come last, while the others finish.
  void prepare(std::uint32_t round) {
    if (round == 0 && devices_) devices_->wait_for_producers();
    if (round < program_.schedule.rounds) return;
    BoxCopies copies(devices());
    for (const Step& step : program_.steps) {
      if (step.kind != Step::Kind::kCopy) continue;
      const Place from = place_of(held_, step.item, step.box);
      const Place to = place_of(wanted_, step.other, step.box);
      if (from.tensor.data() == to.tensor.data() && from.view == to.view) continue;
      copies.copy(step.box.sizes, from.tensor, from.view, to.tensor, to.view);
    }
    copies.finish();
  }

  /// Returns where the bytes of a transfer are if that is on the communicator's device.
  std::vector<DeviceBox> boxes_of(const TransferEnd& end, const Transfer& transfer) const {
    const Step& step = program_.steps[transfer.message];
    Place place = place_of(end, step.item, step.box);
    if (place.tensor.device() != *exchange_device_) return {};
    return {{place.tensor.mutable_data(), item_size(place.tensor.dtype()), step.box.sizes,
             std::move(place.view)}};
  }

  const TransferProgram& program_;
  const TransferEnd& held_;
  const TransferEnd& wanted_;
  Communicator& comm_;
  std::optional<DeviceDestinations> devices_;  ///< empty if no tensor is on a device
  /// The device whose data ranks exchange without the host; empty if there is none here.
  std::optional<Device> exchange_device_;
};

}  // namespace

void run_transfer(const TransferProgram& program, const TransferEnd& held,
                  const TransferEnd& wanted, Communicator& comm) {
  TransferRunner(program, held, wanted, comm).run();
}

}  // namespace dckpt
