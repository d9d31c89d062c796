#include "pipeline.h"

#include <ATen/ATen.h>

namespace gpt {

double forward_backward(const Model& model, const ParallelState& parallel, const Batch& batch,
                        std::int64_t micro_batch) {
  const std::vector<at::Tensor> inputs = batch.inputs.to(model.device()).split(micro_batch),
                                targets = batch.targets.to(model.device()).split(micro_batch);
  const auto count = static_cast<double>(inputs.size());
  std::vector<at::Tensor> received, outputs;
  double loss = 0;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    at::Tensor input = inputs[i];
    if (!parallel.is_first_stage()) {
      input = at::empty({inputs[i].size(0), model.config().sequence, model.config().hidden},
                        model.device());
      parallel.world.receive(input, parallel.previous_stage());
      input.requires_grad_();
    }
    at::Tensor output = model.forward(input);
    if (parallel.is_last_stage()) {
      output = model.loss(output, targets[i]) / count;
      loss += output.item<double>();
    } else {
      parallel.world.send(output.detach().contiguous(), parallel.next_stage());
    }
    received.push_back(input);
    outputs.push_back(output);
  }
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    if (parallel.is_last_stage()) {
      outputs[i].backward();
    } else {
      const at::Tensor gradient = at::empty_like(outputs[i], at::MemoryFormat::Contiguous);
      parallel.world.receive(gradient, parallel.next_stage());
      outputs[i].backward(gradient);
    }
    if (!parallel.is_first_stage())
      parallel.world.send(received[i].grad().contiguous(), parallel.previous_stage());
  }
  parallel.world.finish_sends();
  return loss;
}

}  // namespace gpt
