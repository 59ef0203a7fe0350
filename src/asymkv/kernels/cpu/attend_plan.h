#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "asymkv/ops/attention.h"

namespace asymkv::cpu {

// Keys of one tile: widened to FP32 and packed once, then used by every query row of a block.
inline constexpr int64_t kTileKeys = 64;
// Largest number of query rows (query x head of the group) of one block, for head dims up to 128.
inline constexpr int64_t kBlockRows = 384;
// Tiles of one split of a sequence with a single query block; longer with more blocks, so that the partial results of
// one sequence stay within rows x (length / 1024).
inline constexpr int64_t kSplitTiles = 16;
// From this many query blocks on, a sequence is not split over keys.
inline constexpr int64_t kUnsplitBlocks = 8;

// The tiles of a sequence: stored ones first (positions [0, stored_len)), then fresh ones (from query_pos). A tile
// never holds both.
struct TileMap {
  int64_t stored_len = 0;
  int64_t fresh_pos = 0;
  int64_t num_fresh = 0;

  int64_t num_stored_tiles() const { return (stored_len + kTileKeys - 1) / kTileKeys; }
  int64_t num_tiles() const { return num_stored_tiles() + (num_fresh + kTileKeys - 1) / kTileKeys; }
  bool is_stored(int64_t tile) const { return tile < num_stored_tiles(); }
  int64_t first_pos(int64_t tile) const;
  int64_t num_keys(int64_t tile) const;
};

// One unit of parallel work: a block of queries of one KV head against a run of tiles. It writes the output itself
// (partial_offset -1) or a partial state at partial_offset floats: [rows, v_head_dim] sums, then [rows] maxima (base-2
// logits), then [rows] sums of weights, rows = queries x group, query-major.
struct AttendTask {
  int64_t sequence_idx = 0;
  int64_t kv_head = 0;
  int64_t query_begin = 0;
  int64_t query_end = 0;
  int64_t tile_begin = 0;
  int64_t tile_end = 0;
  int64_t partial_offset = -1;
  bool operator==(const AttendTask&) const = default;
};

// The splits of one block, one after another from first_offset, `stride` floats apart, merged in that order.
struct MergeTask {
  int64_t sequence_idx = 0;
  int64_t kv_head = 0;
  int64_t query_begin = 0;
  int64_t query_end = 0;
  int64_t first_offset = 0;
  int64_t stride = 0;
  int64_t num_splits = 0;
  bool operator==(const MergeTask&) const = default;
};

// What one attend() call does. The tasks of a sequence follow from that sequence alone: neither the batch nor the
// number of threads changes a result.
struct AttendPlan {
  std::vector<AttendTask> tasks;
  std::vector<MergeTask> merges;
  int64_t partial_floats = 0;
  std::string to_string() const;
};

AttendPlan plan_attend(const AttendParams& params);

TileMap tile_map(const AttendSequence& sequence);

}  // namespace asymkv::cpu
