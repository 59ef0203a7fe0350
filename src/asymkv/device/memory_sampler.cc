#include "asymkv/device/memory_sampler.h"

#include <algorithm>
#include <utility>

namespace asymkv {

MemorySampler::MemorySampler(std::function<int64_t()> measure, std::chrono::milliseconds interval)
    : measure_(std::move(measure)), interval_(interval), thread_([this] { run(); }) {}

MemorySampler::~MemorySampler() {
  {
    const std::lock_guard lock(mutex_);
    done_ = true;
  }
  wake_.notify_one();
  thread_.join();
}

void MemorySampler::sample() {
  if (failure_ != nullptr) return;
  try {
    peak_.bytes = std::max(peak_.bytes, measure_());
    ++peak_.samples;
  } catch (...) {
    failure_ = std::current_exception();
  }
}

void MemorySampler::run() {
  std::unique_lock lock(mutex_);
  while (!done_) {
    sample();
    wake_.wait_for(lock, interval_, [this] { return done_; });
  }
}

MemorySampler::Peak MemorySampler::peak() {
  const std::lock_guard lock(mutex_);
  sample();
  if (failure_ != nullptr) std::rethrow_exception(failure_);
  return peak_;
}

void MemorySampler::restart() {
  const std::lock_guard lock(mutex_);
  peak_ = {};
}

}  // namespace asymkv
