#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "asymkv/kernels/cuda/decode_types.h"

namespace asymkv::cuda {

// The sequences of one decode step: one query token each.
struct DecodeBatch {
  std::vector<int32_t> seq_lens;   // stored keys of each sequence; 0 is allowed
  std::vector<int32_t> page_rows;  // where each sequence's ids start in page_table
  std::span<const int32_t> page_table;
  int32_t num_kv_heads = 0;
  int32_t group = 0;
};

// What the planner must know of a device. Cluster limits: how many clusters of 2, 4, 8 and 16 CTAs with one CTA an SM
// run at once (some SMs of a Hopper part have no partner).
struct DeviceLimits {
  int32_t num_sms = 132;
  int32_t clusters_of_2 = 66;
  int32_t clusters_of_4 = 30;
  int32_t clusters_of_8 = 15;
  int32_t clusters_of_16 = 7;
};

// Work split inside a CTA; zero: the planner chooses.
struct LaunchShape {
  int32_t warps = 0;
  int32_t stages = 0;
  int32_t cluster_size = 0;
  bool operator==(const LaunchShape&) const = default;
};

enum class SplitRule {
  kCluster,  // equal splits of each (sequence, KV head), merged inside a cluster
  kAligned,  // no CTA crosses a (sequence, KV head)
  kFlat,     // all pages in one line, cut into equal costs
};
std::string_view split_rule_name(SplitRule rule);

// Everything about one launch that depends on lengths and page ids. A plan is made once a step and serves all layers.
struct DecodePlan {
  DecodeConfig config;
  LaunchShape shape;
  SplitRule rule = SplitRule::kFlat;
  int32_t num_ctas = 0;
  int32_t group = 0;
  int32_t num_kv_heads = 0;
  int32_t num_sequences = 0;
  int32_t bias_chunks = 0;
  std::vector<Segment> segments;    // of CTA 0, then of CTA 1, ...; parts of one (sequence, KV head) are consecutive
  std::vector<WarpRecord> records;  // [num_ctas * shape.warps]
  DecodeShared shared;

  // Rows of partial results that the launch may write: one per segment.
  int64_t num_partials() const { return static_cast<int64_t>(segments.size()); }
  // Bytes of K, V and scales that the launch must read.
  int64_t bytes_read() const;
  // A few lines: rule, CTAs, warps, stages, segments, pages of the least and most loaded CTA.
  std::string describe() const;
};

// bias_chunks: groups of 32 slow RoPE pairs (only with pre-bias). Throws Error{kUsage} for a negative length, a group
// outside the configuration's columns, a page row outside the table, or a shape that does not fit shared memory.
DecodePlan plan_decode(const DecodeConfig& config, const DecodeBatch& batch, const DeviceLimits& device,
                       const LaunchShape& wanted = {}, int32_t bias_chunks = 0);

}  // namespace asymkv::cuda
