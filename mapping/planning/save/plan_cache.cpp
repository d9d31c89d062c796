#include "mapping/planning/save/plan_cache.h"

#include <utility>

#include "mapping/planning/save/plan_cache_content.h"

namespace dckpt {
namespace {

constexpr const char* kNew = "first save";

}  // namespace

struct SavePlanCache::State {
  Content content{};
  std::string why_empty = kNew;
};

SavePlanCache::SavePlanCache() noexcept = default;
SavePlanCache::~SavePlanCache() = default;
SavePlanCache::SavePlanCache(SavePlanCache&& other) noexcept = default;
SavePlanCache& SavePlanCache::operator=(SavePlanCache&& other) noexcept = default;

SavePlanCache::State& SavePlanCache::state() {
  if (!state_) state_ = std::make_unique<State>();
  return *state_;
}

void SavePlanCache::clear(std::string why) {
  state() = {.why_empty = std::move(why)};
}

bool SavePlanCache::empty() const noexcept {
  return !state_ || (!state_->content.local && !state_->content.global);
}

SavePlanCache::Content SavePlanCache::take() {
  return std::exchange(state(), {.why_empty = "the save before failed"}).content;
}

void SavePlanCache::commit(Content content) {
  state() = {.content = std::move(content)};
}

const std::string& SavePlanCache::why_empty() const noexcept {
  static const std::string as_new = kNew;
  return state_ ? state_->why_empty : as_new;
}

SavePlanCache SavePlanCache::fork() const {
  SavePlanCache copy;
  if (state_) copy.state_ = std::make_unique<State>(*state_);
  return copy;
}

}  // namespace dckpt
