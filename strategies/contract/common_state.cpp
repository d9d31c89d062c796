#include "strategies/contract/common_state.h"

#include "strategies/formats/torch_archive/torch_file.h"

namespace dckpt {

CommonState::CommonState(Value value)
    : value_(std::move(value)), archive_(save_torch_file(value_)) {}

}  // namespace dckpt
