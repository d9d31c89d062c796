// Passes every value type of the library by value, moves and copies it, and keeps it in
// containers: no compiler may suspect the headers when all of this is inlined.
#include <dckpt/dist_checkpointing.h>
#include <dckpt/dlpack.h>
#include <dckpt/operations.h>
#include <dckpt/strategy.h>

#include <any>
#include <cstdio>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

namespace {

template <typename T>
T pass(T value) {
  return value;
}

template <typename T>
std::size_t containers(T value) {
  std::vector<T> list(3, value);
  list.push_back(std::move(value));
  list.insert(list.begin(), list.back());
  list.erase(list.begin() + 1);
  std::vector<T> reversed(list.rbegin(), list.rend());
  std::swap(list, reversed);
  std::deque<T> queue(list.begin(), list.end());
  queue.pop_front();
  std::map<std::string, T> sorted;
  sorted.emplace("a", queue.front());
  sorted.insert_or_assign("b", pass(queue.back()));
  std::unordered_map<std::string, T> hashed(sorted.begin(), sorted.end());
  return list.size() + queue.size() + sorted.size() + hashed.size();
}

template <typename T>
std::size_t by_value(T value) {
  T copy = value;
  T moved = std::move(copy);
  copy = moved;
  moved = std::move(copy);
  copy = pass(pass(moved));
  std::swap(copy, moved);
  std::optional<T> maybe = moved;
  maybe.reset();
  maybe = std::move(moved);
  std::variant<int, T> either = *maybe;
  either = 1;
  either = pass(*maybe);
  const std::pair<T, T> both(copy, *maybe);
  const std::function<T()> later = [copy] { return copy; };
  const std::any any = later();
  std::size_t count = containers(both.first) + (any.has_value() ? 1 : 0);
  if constexpr (std::is_default_constructible_v<T>) {
    std::vector<T> grown;
    grown.resize(4);
    grown[0] = both.second;
    grown.resize(2);
    count += grown.size();
  }
  return count;
}

std::size_t shapes(dckpt::Shape shape) {
  for (auto& size : shape) size *= 2;
  dckpt::Shape other = {1, 2};
  other.push_back(3);
  other.insert(other.begin(), 5);
  std::swap(shape, other);
  std::vector<dckpt::Shape> many;
  many.push_back({7});
  many.resize(5, shape);
  many.erase(many.begin());
  return by_value(shape) + by_value(other) + many.size() +
         (shape == other || shape < other ? 1 : 0);
}

}  // namespace

int main() {
  const auto tensor = dckpt::Tensor::zeros(dckpt::DType::kFloat32, {2, 3});
  const auto sharded = dckpt::ShardedTensor::whole("weight", tensor);
  dckpt::StateDict state;
  state["weight"] = sharded;
  state["numbers"]["one"] = 1;
  state["numbers"]["text"] = "two";
  std::size_t count = shapes({1, 2, 3});
  count += by_value(tensor) + by_value(sharded) + by_value(state);
  count += by_value(dckpt::Value(1)) + by_value(dckpt::Value("text")) + by_value(dckpt::Value(1.5));
  dckpt::ShardedObject object;
  object.key = "rng";
  count += by_value(object);
  count += by_value(dckpt::SaveOptions{}) + by_value(dckpt::LoadOptions{});
  count += by_value(dckpt::ConvertOptions{}) + by_value(dckpt::Policy{});
  count += by_value(dckpt::SaveReport{}) + by_value(dckpt::LoadReport{});
  count += by_value(dckpt::Location("folder"));
  count += by_value(dckpt::CheckpointError(dckpt::ErrorCode::kIo, "an error"));
  std::printf("%zu\n", count);
  return count > 0 ? 0 : 1;
}
