#pragma once

#include <cstdint>
#include <functional>

namespace asymkv {

inline constexpr int kMaxThreads = 1024;

// Threads that parallel_for uses: ASYMKV_NUM_THREADS if set, else the cores this process may use. Throws Error{kUsage}
// for a value that is no number from 1 to kMaxThreads.
int num_threads();

// Runs body(i) for every i in [0, count), spread over num_threads() threads; returns when all are done. Iterations are
// handed out dynamically one by one, so make each worth at least some microseconds. The first exception thrown by a
// body is rethrown here after the others have finished. Nested calls run serially.
// thread_idx is in [0, num_threads()) and unique among concurrently running bodies: index scratch memory with it.
void parallel_for(int64_t count, const std::function<void(int64_t i, int thread_idx)>& body);

}  // namespace asymkv
