#pragma once

#include <cstdint>
#include <optional>

#include "asymkv/planner/capacity_cache.h"

namespace asymkv {

// Staging of a prefill that reads its keys and values in the model's own type: so many tokens of one layer.
inline constexpr int64_t kStagingTokens = 65536;
// Bytes of that on one rank, native type, the larger layer kind: 256 MiB for Qwen3-8B.
int64_t staging_bytes(const ModelShape& shape, const CachePlanOptions& options, int64_t num_tokens = kStagingTokens);

// What else lies in a device's memory, each a line of the answer. All bytes.
struct MemoryTerms {
  int64_t weights = 0;
  int64_t activations = 0;
  int64_t staging = 0;
  int64_t workspace = 0;
  int64_t graph_capture = 0;
  int64_t other = 0;
  int64_t total() const { return weights + activations + staging + workspace + graph_capture + other; }
};
// What is left for caches. Throws Error{kResourceExhausted} naming every term if nothing is.
int64_t budget_of_device(int64_t device_bytes, const MemoryTerms& terms);

struct CapacityRequest {
  int64_t budget_bytes = 0;
  int64_t reserve_bytes = 0;         // of the budget, never used for pages
  int64_t num_sequences = 1;         // whose windows and states are set aside before pages are counted
  int64_t tokens = 0;                // of one sequence; 0: not asked
  int64_t shared_prefix_tokens = 0;  // that all sequences have in common; its whole pages are held once
  int64_t offload_bytes = 0;         // of a second tier, which holds pages that left the pool
  int64_t prefill_budget_bytes =
      0;  // of a pool of its own for prefill, the budget being the decode pool's; 0: one pool
};

// One pool on one rank. budget = reserve + pool_bytes + unused, and
// pool_bytes = planes + fixed_scales + window + state.
struct PoolPlan {
  int64_t budget_bytes = 0;
  int64_t reserve_bytes = 0;
  int64_t num_pages = 0;  // whole growing pages
  int64_t num_slots = 0;  // pages times page size
  PageBytes planes;       // of all growing pages, as CacheInventory counts them
  int64_t fixed_scales = 0;
  int64_t window = 0;  // pages of layers with a window, of num_sequences
  int64_t state = 0;   // recurrent states of num_sequences
  int64_t unused = 0;  // less than a page
  int64_t pool_bytes() const { return planes.total() + fixed_scales + window + state; }

  // With tokens asked for: sequences of so many tokens that fit at once, and what their last pages leave empty.
  int64_t num_concurrent = 0;
  int64_t partial_last_pages = 0;
};

struct CapacityAnswer {
  PoolPlan pool;
  std::optional<PoolPlan> prefill_pool;
  int64_t offload_pages = 0;
  int64_t offload_slots = 0;
  std::optional<SequenceBytes> sequence;  // with tokens asked for
  int64_t shared_pages = 0;               // of the common prefix
  int64_t transfer_bytes = 0;             // that one sequence moves from the prefill pool to the decode pool
};

// Throws Error{kUsage} for negative sizes and for a prefix that is the whole sequence or longer,
// Error{kResourceExhausted} if the budget does not hold the reserve and the fixed parts.
CapacityAnswer plan_capacity(const CachePlan& cache, const CapacityRequest& request);

// Sequences of num_tokens tokens that fit into `bytes` at once; whole pages of the prefix are held once.
int64_t concurrent_sequences(const CachePlan& cache, int64_t bytes, int64_t num_tokens, int64_t shared_prefix_tokens);
// The same in the request's budget, less its reserve and the fixed scales. A prefix as long as the sequence or longer
// counts up to its last token but one.
int64_t sequences_in_budget(const CachePlan& cache, const CapacityRequest& request, int64_t num_tokens);

}  // namespace asymkv
