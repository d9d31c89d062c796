#include "operations/inspect/extract/known_enums.h"

#include <algorithm>
#include <array>
#include <span>

namespace dckpt {
namespace {

struct Member {
  std::int64_t value;
  std::string_view name;
};

constexpr std::array kModelType = {Member{1, "encoder_or_decoder"}};
constexpr std::array kLayerType = {Member{1, "embedding"}, Member{2, "loss"}, Member{3, "encoder"},
                                   Member{4, "decoder"}, Member{5, "mtp"}};
constexpr std::array kAttnType = {Member{1, "self_attn"}, Member{2, "cross_attn"}};
constexpr std::array kAttnMaskType = {Member{1, "padding"},   Member{2, "causal"},
                                      Member{3, "no_mask"},   Member{4, "padding_causal"},
                                      Member{5, "arbitrary"}, Member{6, "causal_bottom_right"}};
constexpr std::array kAttnBackend = {Member{1, "flash"}, Member{2, "fused"}, Member{3, "unfused"},
                                     Member{4, "local"}, Member{5, "auto"}};
constexpr std::array kCudaGraphScope = {
    Member{1, "full_iteration"}, Member{2, "attn"},           Member{3, "mlp"},  Member{4, "moe"},
    Member{5, "moe_router"},     Member{6, "moe_preprocess"}, Member{7, "mamba"}};
constexpr std::array kSignals = {
    Member{1, "SIGHUP"},   Member{2, "SIGINT"},   Member{3, "SIGQUIT"},  Member{6, "SIGABRT"},
    Member{9, "SIGKILL"},  Member{10, "SIGUSR1"}, Member{12, "SIGUSR2"}, Member{13, "SIGPIPE"},
    Member{14, "SIGALRM"}, Member{15, "SIGTERM"}, Member{17, "SIGCHLD"}, Member{18, "SIGCONT"},
    Member{19, "SIGSTOP"}, Member{20, "SIGTSTP"}};

struct Enum {
  std::string_view class_path;
  std::span<const Member> members;
};

constexpr std::array kEnums = {
    Enum{"megatron.core.enums.ModelType", kModelType},
    Enum{"megatron.core.transformer.enums.ModelType", kModelType},
    Enum{"megatron.core.transformer.enums.LayerType", kLayerType},
    Enum{"megatron.core.transformer.enums.AttnType", kAttnType},
    Enum{"megatron.core.transformer.enums.AttnMaskType", kAttnMaskType},
    Enum{"megatron.core.transformer.enums.AttnBackend", kAttnBackend},
    Enum{"megatron.core.transformer.enums.CudaGraphScope", kCudaGraphScope},
    Enum{"megatron.model.enums.ModelType", kModelType},
    Enum{"megatron.model.enums.LayerType", kLayerType},
    Enum{"megatron.model.enums.AttnType", kAttnType},
    Enum{"megatron.model.enums.AttnMaskType", kAttnMaskType},
    Enum{"signal.Signals", kSignals},
};

std::span<const Member> members_of(std::string_view class_path) noexcept {
  const auto found = std::ranges::find(kEnums, class_path, &Enum::class_path);
  return found == kEnums.end() ? std::span<const Member>() : found->members;
}

}  // namespace

bool is_known_enum(std::string_view class_path) noexcept {
  return !members_of(class_path).empty();
}

std::optional<std::string_view> enum_name(std::string_view class_path,
                                          std::int64_t value) noexcept {
  for (const Member& member : members_of(class_path)) {
    if (member.value == value) return member.name;
  }
  return std::nullopt;
}

std::optional<std::int64_t> enum_value(std::string_view class_path,
                                       std::string_view name) noexcept {
  for (const Member& member : members_of(class_path)) {
    if (member.name == name) return member.value;
  }
  return std::nullopt;
}

}  // namespace dckpt
