#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <new>
#include <utility>
#include <vector>

namespace asymkv::cpu {

// A growing array of floats aligned to a cache line; contents are lost when it grows.
class FloatBuffer {
 public:
  float* reserve(int64_t count) {
    if (count > capacity_) {
      data_.reset(static_cast<float*>(::operator new(static_cast<size_t>(count) * sizeof(float), kAlignment)));
      capacity_ = count;
    }
    return data_.get();
  }

 private:
  static constexpr std::align_val_t kAlignment{64};
  struct Free {
    void operator()(float* p) const { ::operator delete(p, kAlignment); }
  };
  std::unique_ptr<float, Free> data_;
  int64_t capacity_ = 0;
};

// Working memory of one thread, kept between calls. Shapes are BlockAttention's; QueryAttention lays out its own.
struct Scratch {
  FloatBuffer queries;     // [rows, k_head_dim], scaled
  FloatBuffer outputs;     // [rows, padded v_head_dim], running sums
  FloatBuffer maxima;      // [rows], base-2 logits
  FloatBuffer sums;        // [rows, vector lanes]
  FloatBuffer key_rows;    // [tile keys, k_head_dim], widened
  FloatBuffer key_tile;    // [panels of keys][k_head_dim][panel width]
  FloatBuffer value_tile;  // [panels of channels][tile keys][panel width]
  FloatBuffer scores;      // [strip rows, tile keys]
  std::vector<int64_t> removed_groups;
};

// Scratch memory of all threads of one attend() call, and its partial results.
struct CallScratch {
  std::vector<Scratch> threads;
  FloatBuffer partials;
};

// Lends scratch memory to concurrent calls. Thread-safe.
template <typename T>
class Pool {
 public:
  std::unique_ptr<T> take() {
    const std::scoped_lock lock(mutex_);
    if (free_.empty()) return std::make_unique<T>();
    auto scratch = std::move(free_.back());
    free_.pop_back();
    return scratch;
  }
  void give_back(std::unique_ptr<T> scratch) {
    const std::scoped_lock lock(mutex_);
    free_.push_back(std::move(scratch));
  }

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<T>> free_;
};
using ScratchPool = Pool<CallScratch>;

}  // namespace asymkv::cpu
