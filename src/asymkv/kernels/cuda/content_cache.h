#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>

namespace asymkv::cuda {

// Values found again by the bytes they are made of: what the layers of a step share is made once. The last `capacity`
// values that were asked for stay where they are; older ones go.
template <typename Value>
class ContentCache {
 public:
  explicit ContentCache(size_t capacity) : capacity_(capacity) {}

  // The value of `key`, made by make() if it is not there.
  template <typename Make>
  const Value& get(std::string key, const Make& make) {
    if (const auto it = current_.find(key); it != current_.end()) return it->second;
    auto old = previous_.extract(key);
    Value value = old.empty() ? make() : std::move(old.mapped());
    if (current_.size() >= capacity_) {
      previous_ = std::move(current_);
      current_.clear();
    }
    return current_.emplace(std::move(key), std::move(value)).first->second;
  }

 private:
  size_t capacity_;
  std::unordered_map<std::string, Value> current_, previous_;
};

// Bytes of a key, one array after the other, each behind its length.
class ContentKey {
 public:
  template <typename Range>
  ContentKey& add(const Range& range) {
    const size_t bytes = std::size(range) * sizeof(*std::data(range));
    bytes_.append(reinterpret_cast<const char*>(&bytes), sizeof(bytes));
    bytes_.append(reinterpret_cast<const char*>(std::data(range)), bytes);
    return *this;
  }
  std::string take() { return std::move(bytes_); }

 private:
  std::string bytes_;
};

}  // namespace asymkv::cuda
