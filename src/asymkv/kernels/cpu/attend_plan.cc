#include "asymkv/kernels/cpu/attend_plan.h"

#include <fmt/format.h>

#include <algorithm>

namespace asymkv::cpu {
namespace {

int64_t ceil_div(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

// Builds the plan of one sequence.
class SequencePlanner {
 public:
  SequencePlanner(const AttendParams& params, int64_t sequence_idx, AttendPlan& plan)
      : params_(params),
        sequence_(params.sequences[static_cast<size_t>(sequence_idx)]),
        sequence_idx_(sequence_idx),
        tiles_(tile_map(sequence_)),
        group_(params.num_q_heads / params.num_kv_heads),
        plan_(plan) {
    const int64_t dim_factor = ceil_div(std::max(params.k_head_dim, params.v_head_dim), 128);
    block_queries_ = std::max<int64_t>(1, kBlockRows / dim_factor / group_);
    num_blocks_ = ceil_div(sequence_.num_queries, block_queries_);
  }

  void run() {
    // Later blocks see more keys: started first, they leave no long tail.
    for (int64_t block = num_blocks_ - 1; block >= 0; --block) {
      for (int64_t head = 0; head < params_.num_kv_heads; ++head) add_block(block, head);
    }
  }

 private:
  // First tile that query `query` may see.
  int64_t first_tile(int64_t query) const {
    if (params_.window == 0) return 0;
    const int64_t oldest = sequence_.query_pos + query - params_.window + 1;
    int64_t tile = 0;
    while (tile < tiles_.num_tiles() && tiles_.first_pos(tile) + tiles_.num_keys(tile) <= oldest) ++tile;
    return tile;
  }
  // One past the last tile that query `query` may see.
  int64_t last_tile(int64_t query) const {
    int64_t tile = tiles_.num_tiles();
    while (tile > 0 && tiles_.first_pos(tile - 1) > sequence_.query_pos + query) --tile;
    return tile;
  }

  void add_block(int64_t block, int64_t head) {
    AttendTask task;
    task.sequence_idx = sequence_idx_;
    task.kv_head = head;
    task.query_begin = block * block_queries_;
    task.query_end = std::min(task.query_begin + block_queries_, sequence_.num_queries);
    task.tile_begin = first_tile(task.query_begin);
    task.tile_end = std::max(task.tile_begin, last_tile(task.query_end - 1));
    const int64_t split_tiles = kSplitTiles * num_blocks_;
    const int64_t num_splits = ceil_div(task.tile_end - task.tile_begin, split_tiles);
    if (num_blocks_ >= kUnsplitBlocks || num_splits <= 1) {
      plan_.tasks.push_back(task);
      return;
    }
    add_splits(task, num_splits, split_tiles);
  }

  void add_splits(const AttendTask& whole, int64_t num_splits, int64_t split_tiles) {
    const int64_t rows = (whole.query_end - whole.query_begin) * group_;
    const int64_t stride = rows * (params_.v_head_dim + 2);
    plan_.merges.push_back({whole.sequence_idx, whole.kv_head, whole.query_begin, whole.query_end, plan_.partial_floats,
                            stride, num_splits});
    for (int64_t split = 0; split < num_splits; ++split) {
      AttendTask task = whole;
      task.tile_begin = whole.tile_begin + split * split_tiles;
      task.tile_end = std::min(task.tile_begin + split_tiles, whole.tile_end);
      task.partial_offset = plan_.partial_floats;
      plan_.partial_floats += stride;
      plan_.tasks.push_back(task);
    }
  }

  const AttendParams& params_;
  const AttendSequence& sequence_;
  int64_t sequence_idx_;
  TileMap tiles_;
  int64_t group_;
  int64_t block_queries_ = 1;
  int64_t num_blocks_ = 0;
  AttendPlan& plan_;
};

}  // namespace

int64_t TileMap::first_pos(int64_t tile) const {
  const int64_t num_stored = num_stored_tiles();
  return tile < num_stored ? tile * kTileKeys : fresh_pos + (tile - num_stored) * kTileKeys;
}

int64_t TileMap::num_keys(int64_t tile) const {
  const int64_t num_stored = num_stored_tiles();
  const int64_t left = tile < num_stored ? stored_len - tile * kTileKeys : num_fresh - (tile - num_stored) * kTileKeys;
  return std::min(left, kTileKeys);
}

TileMap tile_map(const AttendSequence& sequence) {
  return {sequence.stored_len, sequence.query_pos, sequence.num_fresh};
}

AttendPlan plan_attend(const AttendParams& params) {
  AttendPlan plan;
  for (int64_t i = 0; i < static_cast<int64_t>(params.sequences.size()); ++i) SequencePlanner(params, i, plan).run();
  return plan;
}

std::string AttendPlan::to_string() const {
  std::string text =
      fmt::format("{} tasks, {} merges, {} partial floats\n", tasks.size(), merges.size(), partial_floats);
  for (const AttendTask& t : tasks) {
    text += fmt::format("task sequence {} head {} queries [{}, {}) tiles [{}, {}) partial {}\n", t.sequence_idx,
                        t.kv_head, t.query_begin, t.query_end, t.tile_begin, t.tile_end, t.partial_offset);
  }
  for (const MergeTask& m : merges) {
    text += fmt::format("merge sequence {} head {} queries [{}, {}) splits {} from {} by {}\n", m.sequence_idx,
                        m.kv_head, m.query_begin, m.query_end, m.num_splits, m.first_offset, m.stride);
  }
  return text;
}

}  // namespace asymkv::cpu
