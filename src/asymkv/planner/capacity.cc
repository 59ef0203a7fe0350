#include "asymkv/planner/capacity.h"

#include <algorithm>
#include <limits>
#include <string_view>
#include <utility>

#include "asymkv/base/error.h"

namespace asymkv {
namespace {

void check_request(const CapacityRequest& request) {
  const std::pair<std::string_view, int64_t> sizes[] = {{"budget", request.budget_bytes},
                                                        {"reserve", request.reserve_bytes},
                                                        {"number of tokens", request.tokens},
                                                        {"shared prefix", request.shared_prefix_tokens},
                                                        {"offload tier", request.offload_bytes},
                                                        {"prefill budget", request.prefill_budget_bytes},
                                                        {"number of sequences", request.num_sequences}};
  for (const auto& [name, size] : sizes) {
    if (size < 0) throw_usage("the {} is {}: it cannot be negative", name, size);
  }
  if (request.tokens > 0 && request.shared_prefix_tokens >= request.tokens) {
    throw_usage("a shared prefix of {} tokens is no part of sequences of {}", request.shared_prefix_tokens,
                request.tokens);
  }
}

// Whole pages that sequences with a prefix in common hold once.
int64_t shared_pages(const CachePlan& cache, int64_t shared_prefix_tokens) {
  return cache.pages_for(shared_prefix_tokens - shared_prefix_tokens % cache.page_size);
}

struct FixedBytes {
  int64_t window = 0;
  int64_t state = 0;
};

// Windows and states of the request's sequences, each as long as its tokens or, where none were asked for, any.
FixedBytes fixed_bytes(const CachePlan& cache, const CapacityRequest& request) {
  const int64_t tokens = request.tokens > 0 ? request.tokens : kMaxPlannedTokens;
  const SequenceBytes one = cache.sequence(tokens);
  FixedBytes bytes;
  if (__builtin_mul_overflow(one.window, request.num_sequences, &bytes.window) ||
      __builtin_mul_overflow(one.state, request.num_sequences, &bytes.state)) {
    throw_usage("{} sequences with {} fixed bytes each leave 64 bits", request.num_sequences, one.window + one.state);
  }
  return bytes;
}

// For pages, windows and states.
int64_t available_bytes(const CachePlan& cache, int64_t budget_bytes, int64_t reserve_bytes) {
  return budget_bytes - reserve_bytes - cache.fixed_scale_bytes();
}

// `budget` is the one of the request that `budget_bytes` is, for the error: "budget" or "prefill budget".
PoolPlan plan_pool(const CachePlan& cache, const CapacityRequest& request, std::string_view budget,
                   int64_t budget_bytes) {
  const FixedBytes fixed = fixed_bytes(cache, request);
  PoolPlan pool;
  pool.budget_bytes = budget_bytes;
  pool.reserve_bytes = request.reserve_bytes;
  pool.fixed_scales = cache.fixed_scale_bytes();
  pool.window = fixed.window;
  pool.state = fixed.state;
  const int64_t available = available_bytes(cache, budget_bytes, request.reserve_bytes);
  if (available < 0 || available - fixed.window < fixed.state) {
    throw_error(ErrorCode::kResourceExhausted,
                "a {} of {} bytes does not hold the reserve of {}, fixed scales of {}, windows of {} and states of {} "
                "of {} sequences",
                budget, budget_bytes, request.reserve_bytes, pool.fixed_scales, fixed.window, fixed.state,
                request.num_sequences);
  }
  const PageBytes page = cache.growing_page();
  const int64_t for_pages = available - fixed.window - fixed.state;
  // A pool numbers its pages with 31 bits (kv/page_pool.h).
  if (page.total() > 0)
    pool.num_pages = std::min<int64_t>(for_pages / page.total(), std::numeric_limits<int32_t>::max());
  pool.num_slots = pool.num_pages * cache.page_size;
  pool.planes = page.scaled(pool.num_pages);
  pool.unused = budget_bytes - request.reserve_bytes - pool.pool_bytes();
  if (request.tokens > 0) {
    pool.num_concurrent = concurrent_sequences(cache, available, request.tokens, request.shared_prefix_tokens);
    pool.partial_last_pages = pool.num_concurrent * cache.sequence(request.tokens).partial_last_page;
  }
  return pool;
}

}  // namespace

int64_t staging_bytes(const ModelShape& shape, const CachePlanOptions& options, int64_t num_tokens) {
  CachePlanOptions native = options;
  native.format = parse_kv_format("native", shape.native_dtype, ScaleKind::kDynamic);
  native.memory = KvMemory::kHost;  // rows one after another, as a prefill kernel reads them
  int64_t largest = 0;
  for (const CacheGroup& group : plan_cache(shape, native).groups) {
    largest = std::max(largest, group.layout.page_bytes().scaled(group.layout.pages_for(num_tokens)).total());
  }
  return largest;
}

int64_t budget_of_device(int64_t device_bytes, const MemoryTerms& terms) {
  if (terms.total() >= device_bytes) {
    throw_error(
        ErrorCode::kResourceExhausted,
        "{} bytes of device memory leave none for caches: weights {}, activations {}, staging {}, workspace {}, "
        "graph capture {}, other {}",
        device_bytes, terms.weights, terms.activations, terms.staging, terms.workspace, terms.graph_capture,
        terms.other);
  }
  return device_bytes - terms.total();
}

int64_t concurrent_sequences(const CachePlan& cache, int64_t bytes, int64_t num_tokens, int64_t shared_prefix_tokens) {
  const int64_t page = cache.growing_page().total();
  const int64_t shared = shared_pages(cache, shared_prefix_tokens);
  const SequenceBytes sequence = cache.sequence(num_tokens);
  const int64_t own = sequence.total() - shared * page;
  const int64_t left = bytes - shared * page;
  return left < 0 || own <= 0 ? 0 : left / own;
}

int64_t sequences_in_budget(const CachePlan& cache, const CapacityRequest& request, int64_t num_tokens) {
  return concurrent_sequences(cache, available_bytes(cache, request.budget_bytes, request.reserve_bytes), num_tokens,
                              std::min(request.shared_prefix_tokens, num_tokens - 1));
}

CapacityAnswer plan_capacity(const CachePlan& cache, const CapacityRequest& request) {
  check_request(request);
  CapacityAnswer answer;
  answer.pool = plan_pool(cache, request, "budget", request.budget_bytes);
  if (request.prefill_budget_bytes > 0) {
    answer.prefill_pool = plan_pool(cache, request, "prefill budget", request.prefill_budget_bytes);
  }
  if (const int64_t page = cache.growing_page().total(); page > 0) {
    answer.offload_pages = request.offload_bytes / page;
    answer.offload_slots = answer.offload_pages * cache.page_size;
  }
  answer.shared_pages = shared_pages(cache, request.shared_prefix_tokens);
  if (request.tokens > 0) {
    answer.sequence = cache.sequence(request.tokens);
    if (answer.prefill_pool) answer.transfer_bytes = answer.sequence->total();
  }
  return answer;
}

}  // namespace asymkv
