#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>

namespace asymkv {

// Samples an amount of memory on a thread of its own, from construction to destruction.
class MemorySampler {
 public:
  // measure: bytes in use; called by that thread and by peak(), one call at a time.
  MemorySampler(std::function<int64_t()> measure, std::chrono::milliseconds interval);
  ~MemorySampler();
  MemorySampler(const MemorySampler&) = delete;
  MemorySampler& operator=(const MemorySampler&) = delete;

  struct Peak {
    int64_t bytes = 0;  // the largest sample so far, one taken now among them
    int64_t samples = 0;
  };
  // Throws what a sample threw.
  Peak peak();
  // Forgets the samples so far.
  void restart();
  std::chrono::milliseconds interval() const { return interval_; }

 private:
  void run();
  void sample();  // under mutex_

  std::function<int64_t()> measure_;
  std::chrono::milliseconds interval_;
  std::mutex mutex_;
  std::condition_variable wake_;
  bool done_ = false;
  Peak peak_;
  std::exception_ptr failure_;
  std::thread thread_;
};

}  // namespace asymkv
