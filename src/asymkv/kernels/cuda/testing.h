#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "asymkv/kernels/cuda/decode_launch.h"
#include "asymkv/kv/cache.h"
#include "asymkv/kv/tiled_layout.h"
#include "asymkv/ops/attention.h"

// Cases for the device tests: caches with random rows, poisoned slots and shuffled pages, run on the device and through
// the host oracle.
namespace asymkv::cuda::testing {

struct DecodeCase {
  KvFormat format;
  int64_t num_kv_heads = 2;
  int64_t group = 4;
  int64_t head_dim = 128;
  std::vector<int32_t> seq_lens = {};
  DType q_dtype = DType::kBF16;
  LaunchShape shape = {};       // zeros: the planner's choice
  double bias_magnitude = 0.0;  // of the vector removed from pre-bias keys, per pair
  KeySplitOptions split = {.max_fast_pairs = 0};
  double rope_theta = 1e6;
  std::vector<int32_t> num_queries = {};  // of each sequence; empty: one
  std::vector<int32_t> query_pos = {};    // of each sequence's first query; empty: the last stored keys
  int32_t window = 0;
  float logit_soft_cap = 0.0F;
  bool sinks = false;
  int64_t page_size = 16;
  bool overlap_previous = false;
  bool large_rows = false;  // some rows a thousand times larger
  uint64_t seed = 1;
  std::string describe() const;
};

struct DecodeOutcome {
  double rel_l2 = 0.0;     // whole output against the oracle
  double worst_row = 0.0;  // largest relative L2 of a (sequence, head) row
  double max_lse_error = 0.0;
  double bias_error_bound = 0.0;  // of the window polynomial, in logits of a unit-rms query
  bool sentinels_intact = true;
  bool empty_rows_zero = true;
  bool repeat_equal = true;  // a second launch gives the same bits
  DecodePlan plan;
};

// Runs one case on the current device and compares it with kernels/ref.
DecodeOutcome run_decode_case(const DecodeCase& test_case);

// Cases of one format and geometry run one after the other through a graph that was captured once, over the plan of a
// range that holds them all. Captured before the first batch is known.
std::vector<DecodeOutcome> run_graph_cases(std::span<const DecodeCase> cases, const PlanRange& range);

// Why a case failed, or an empty string. Limits: rel_l2 <= 0.4 %, worst row <= 1 %, LSE within 2e-3
// plus twice the bound of the bias polynomial.
std::string judge(const DecodeOutcome& outcome);

}  // namespace asymkv::cuda::testing
