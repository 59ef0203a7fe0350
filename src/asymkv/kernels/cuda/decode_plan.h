#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "asymkv/kernels/cuda/decode_types.h"

namespace asymkv::cuda {

// The sequences of one decode step. A query at position p sees the stored keys at positions j <= p, and with a window
// only those with p - j < window.
struct DecodeBatch {
  std::vector<int32_t> seq_lens;   // stored keys of each sequence; 0 is allowed
  std::vector<int32_t> page_rows;  // where each sequence's ids start in page_table
  std::span<const int32_t> page_table;
  int32_t num_kv_heads = 0;
  int32_t group = 0;
  // Query tokens of each sequence, consecutive positions, rows one after the other in q and out. Empty: one each.
  std::vector<int32_t> num_queries = {};
  // Position of each sequence's first query. Empty: its queries are the last stored keys (seq_len - num_queries, or 0).
  std::vector<int32_t> query_pos = {};
  int32_t window = 0;             // 0: none
  int32_t page_size = kPageSize;  // slots of a cache page: 16 times a power of two
  bool overlaps = false;          // the launches will overlap the kernel before them (DecodeArguments)
  bool side_by_side = false;      // those of other batches may run at the same time
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
  int32_t ctas_per_sm = 1;
  bool operator==(const LaunchShape&) const = default;
};

enum class SplitRule {
  kCluster,  // equal splits of each (query tile, KV head), merged inside a cluster
  kAligned,  // no CTA crosses a (query tile, KV head)
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
  int32_t columns = 0;  // of the largest query tile
  int32_t window = 0;
  int32_t page_shift = 0;
  BiasShape bias;
  std::vector<Segment> segments;    // of CTA 0, then of CTA 1, ...; parts of one (query tile, KV head) are consecutive
  std::vector<WarpRecord> records;  // [num_ctas * shape.warps]
  DecodeShared shared;

  // Rows of partial results that the launch may write: one per segment.
  int64_t num_partials() const { return static_cast<int64_t>(segments.size()); }
  // Bytes of K, V and scales that the launch must read.
  int64_t bytes_read() const;
  // A few lines: rule, CTAs, warps, stages, segments, pages of the least and most loaded CTA.
  std::string describe() const;
};

// bias: sizes of the layers' bias arrays (only with pre-bias; all layers of a step must share them, so take the
// largest). Throws Error{kUsage} for a negative length, a group outside the configuration's columns, a page row outside
// the table, a page size the layout has not, or a shape that does not fit shared memory.
DecodePlan plan_decode(const DecodeConfig& config, const DecodeBatch& batch, const DeviceLimits& device,
                       const LaunchShape& wanted = {}, const BiasShape& bias = {});

// What the launches of a captured graph have in common: all batches up to these sizes can be planned with one launch
// shape, one grid and one layout of shared memory, so that a graph replays with other contents.
struct PlanRange {
  int32_t max_sequences = 0;
  int32_t max_seq_len = 0;   // stored keys
  int32_t max_queries = 1;   // query tokens of a sequence
  int64_t max_page_ids = 0;  // entries of the page table
  int32_t num_kv_heads = 0;
  int32_t group = 0;
  int32_t page_size = kPageSize;
};

// The empty plan of a range: shape and grid for its largest batch, no work. Launches of it do nothing.
DecodePlan plan_range(const DecodeConfig& config, const PlanRange& range, const DeviceLimits& device,
                      const BiasShape& bias = {});
// A batch in the shape of `range_plan` (flat split). Throws Error{kUsage} for a batch outside the range.
DecodePlan plan_in_range(const DecodePlan& range_plan, const PlanRange& range, const DecodeBatch& batch,
                         const DeviceLimits& device);
// Most segments that a batch of the range can have.
int64_t max_segments(const PlanRange& range, const DecodeConfig& config, const DeviceLimits& device);

}  // namespace asymkv::cuda
