#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <new>
#include <type_traits>
#include <utility>

namespace dckpt::pickle {

/// A growing array for millions of small plain values. Unlike std::vector it does not write
/// elements before they have a value, and large arrays grow without a copy, because realloc moves
/// their pages.
template <typename T>
requires std::is_trivially_copyable_v<T>
class PodArray {
 public:
  PodArray() = default;
  PodArray(PodArray&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)),
        size_(std::exchange(other.size_, 0)),
        capacity_(std::exchange(other.capacity_, 0)) {}
  PodArray& operator=(PodArray&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    std::swap(capacity_, other.capacity_);
    return *this;
  }
  ~PodArray() { std::free(data_); }

  std::size_t size() const noexcept { return size_; }
  bool empty() const noexcept { return size_ == 0; }
  T* data() noexcept { return data_; }
  const T* data() const noexcept { return data_; }
  T& operator[](std::size_t index) noexcept { return data_[index]; }
  const T& operator[](std::size_t index) const noexcept { return data_[index]; }
  T& back() noexcept { return data_[size_ - 1]; }
  const T& back() const noexcept { return data_[size_ - 1]; }

  /// Allocates in advance; unused room only takes address space.
  void reserve(std::size_t capacity) {
    if (capacity > capacity_) grow(capacity - size_);
  }
  void push_back(T value) {
    if (size_ == capacity_) grow(1);
    data_[size_++] = value;
  }
  /// Adds room for `count` more elements, which the caller fills.
  T* extend(std::size_t count) {
    if (capacity_ - size_ < count) grow(count);
    size_ += count;
    return data_ + size_ - count;
  }
  void pop_back() noexcept { --size_; }
  void shrink(std::size_t size) noexcept { size_ = size; }

 private:
  static constexpr std::size_t kFirstCapacity = 64;

  [[gnu::noinline]] void grow(std::size_t more) {
    const std::size_t wanted = std::max({kFirstCapacity, size_ + more, capacity_ * 2});
    void* const moved =
        wanted > SIZE_MAX / sizeof(T) ? nullptr : std::realloc(data_, wanted * sizeof(T));
    if (moved == nullptr) throw std::bad_alloc();
    data_ = static_cast<T*>(moved);
    capacity_ = wanted;
  }

  T* data_ = nullptr;
  std::size_t size_ = 0;
  std::size_t capacity_ = 0;
};

}  // namespace dckpt::pickle
