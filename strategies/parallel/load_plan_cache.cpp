#include "strategies/parallel/load_plan_cache.h"

#include <optional>
#include <utility>

#include "strategies/parallel/load_plan_cache_content.h"

namespace dckpt {

struct LoadPlanCache::State {
  std::optional<Access> checked{};
  Key key{};
  std::uint64_t number = 0;
  std::shared_ptr<const ExchangePlan> plan{};
  bool hit = false;
  std::string why{};
};

LoadPlanCache::LoadPlanCache() noexcept = default;
LoadPlanCache::~LoadPlanCache() = default;
LoadPlanCache::LoadPlanCache(LoadPlanCache&& other) noexcept = default;
LoadPlanCache& LoadPlanCache::operator=(LoadPlanCache&& other) noexcept = default;

LoadPlanCache::State& LoadPlanCache::state() {
  if (!state_) state_ = std::make_unique<State>();
  return *state_;
}

bool LoadPlanCache::cache_hit() const noexcept {
  return state_ && state_->hit;
}

const std::string& LoadPlanCache::why_planned() const noexcept {
  static const std::string none;
  return state_ ? state_->why : none;
}

void LoadPlanCache::begin(std::string why) {
  state().hit = false;
  state().why = std::move(why);
}

bool LoadPlanCache::is_checked(const Access& access) const {
  return state_ && state_->checked && access == *state_->checked;
}

void LoadPlanCache::remember_checked(Access access) {
  state().checked = std::move(access);
}

std::string LoadPlanCache::why_unknown(const Key& key) const {
  if (!state_ || !state_->plan) return "first load";
  const Key& known = state_->key;
  if (key.ranks != known.ranks || key.rank != known.rank) return "there are other ranks";
  if (key.wanted != known.wanted) return "other parts are requested";
  if (key.layout != known.layout) return "the checkpoint is cut into other chunks";
  return "load.parallel.exchange or load.staging is another";
}

std::uint64_t LoadPlanCache::known(const Key& key) const {
  return state_ && state_->plan && key == state_->key ? state_->number : 0;
}

std::shared_ptr<const ExchangePlan> LoadPlanCache::plan() const noexcept {
  return state_ ? state_->plan : nullptr;
}

void LoadPlanCache::hit() {
  state().hit = true;
}

void LoadPlanCache::miss(std::string why) {
  state().why = std::move(why);
}

void LoadPlanCache::remember(Key key, std::uint64_t number,
                             std::shared_ptr<const ExchangePlan> plan) {
  State& now = state();
  now.hit = false;
  now.key = std::move(key);
  now.number = number;
  now.plan = std::move(plan);
}

}  // namespace dckpt
