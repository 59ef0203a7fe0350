#include "asymkv/base/parallel.h"

#include <sched.h>

#include <atomic>
#include <cstdlib>
#include <exception>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#ifndef ASYMKV_STD_THREADS
#include <tbb/parallel_for.h>
#include <tbb/task_arena.h>
#endif

#include "asymkv/base/error.h"
#include "asymkv/base/number.h"

namespace asymkv {
namespace {

int detect_threads() {
  if (const char* text = std::getenv("ASYMKV_NUM_THREADS"); text != nullptr) {
    const std::optional<int> wanted = parse_number<int>(text);
    if (!wanted || *wanted < 1 || *wanted > kMaxThreads) {
      throw_usage("ASYMKV_NUM_THREADS is \"{}\"; give a number of threads from 1 to {}, or unset it", text,
                  kMaxThreads);
    }
    return *wanted;
  }
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) == 0) return std::max(1, CPU_COUNT(&set));
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

// Hands out iterations to the threads of one loop and keeps the first exception.
class Loop {
 public:
  Loop(int64_t count, const std::function<void(int64_t, int)>& body) : count_(count), body_(body) {}
  void work(int thread_idx) {
    for (int64_t i = next_.fetch_add(1); i < count_; i = next_.fetch_add(1)) {
      try {
        body_(i, thread_idx);
      } catch (...) {
        const std::scoped_lock lock(mutex_);
        if (!error_) error_ = std::current_exception();
        next_.store(count_);
      }
    }
  }
  void finish() const {
    if (error_) std::rethrow_exception(error_);
  }

 private:
  const int64_t count_;
  const std::function<void(int64_t, int)>& body_;
  std::atomic<int64_t> next_{0};
  std::mutex mutex_;
  std::exception_ptr error_;
};

thread_local bool inside_parallel_for = false;

// Calls run(t) once for each t in [0, threads), on as many threads as are free.
template <typename Run>
void run_on_threads(int threads, const Run& run) {
#ifdef ASYMKV_STD_THREADS
  std::vector<std::jthread> workers;
  for (int t = 1; t < threads; ++t) workers.emplace_back(run, t);
  run(0);
#else
  // A worker that the system has not scheduled is not waited for: its call finds the loop finished.
  static tbb::task_arena arena(num_threads());
  arena.execute([&] { tbb::parallel_for(0, threads, run, tbb::simple_partitioner()); });
#endif
}

}  // namespace

int num_threads() {
  static const int kThreads = detect_threads();
  return kThreads;
}

void parallel_for(int64_t count, const std::function<void(int64_t, int)>& body) {
  const int threads = static_cast<int>(std::min<int64_t>(num_threads(), count));
  Loop loop(count, body);
  if (threads <= 1 || inside_parallel_for) {
    loop.work(0);
    loop.finish();
    return;
  }
  run_on_threads(threads, [&loop](int thread_idx) {
    inside_parallel_for = true;
    loop.work(thread_idx);
    inside_parallel_for = false;
  });
  loop.finish();
}

}  // namespace asymkv
