#include "asymkv/kernels/cpu/attend_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <tuple>

namespace asymkv::cpu {
namespace {

AttendParams params_of(std::span<const AttendSequence> sequences, int64_t group = 7, int64_t window = 0) {
  AttendParams params;
  params.num_kv_heads = 2;
  params.num_q_heads = 2 * group;
  params.k_head_dim = params.v_head_dim = 64;
  params.window = window;
  params.sequences = sequences;
  return params;
}

AttendSequence sequence(int64_t stored, int64_t queries, int64_t fresh) {
  AttendSequence s;
  s.stored_len = stored;
  s.num_queries = queries;
  s.num_fresh = fresh;
  s.query_pos = fresh > 0 ? stored : stored - queries;
  return s;
}

// Every query of every head must meet every tile that it can see exactly once.
void expect_complete(const AttendParams& params) {
  const AttendPlan plan = plan_attend(params);
  std::map<std::tuple<int64_t, int64_t, int64_t, int64_t>, int> met;
  for (const AttendTask& t : plan.tasks) {
    for (int64_t q = t.query_begin; q < t.query_end; ++q) {
      for (int64_t tile = t.tile_begin; tile < t.tile_end; ++tile) ++met[{t.sequence_idx, t.kv_head, q, tile}];
    }
  }
  for (int64_t i = 0; i < static_cast<int64_t>(params.sequences.size()); ++i) {
    const AttendSequence& s = params.sequences[static_cast<size_t>(i)];
    const TileMap map = tile_map(s);
    for (int64_t q = 0; q < s.num_queries; ++q) {
      for (int64_t tile = 0; tile < map.num_tiles(); ++tile) {
        const int64_t pos = s.query_pos + q;
        const int64_t last = map.first_pos(tile) + map.num_keys(tile) - 1;
        const bool seen = map.first_pos(tile) <= pos && (params.window == 0 || last > pos - params.window);
        const int count = met[{i, 1, q, tile}];
        ASSERT_LE(count, 1);
        if (seen) {
          ASSERT_EQ(count, 1) << "sequence " << i << " query " << q << " tile " << tile;
        }
      }
    }
  }
}

TEST(TileMap, NeverMixesStoredAndFreshKeys) {
  const TileMap map{.stored_len = 130, .fresh_pos = 140, .num_fresh = 65};
  EXPECT_EQ(map.num_stored_tiles(), 3);
  EXPECT_EQ(map.num_tiles(), 5);
  EXPECT_EQ(map.num_keys(2), 2);
  EXPECT_EQ(map.first_pos(3), 140);
  EXPECT_EQ(map.num_keys(3), 64);
  EXPECT_EQ(map.first_pos(4), 204);
  EXPECT_EQ(map.num_keys(4), 1);
}

TEST(AttendPlan, MeetsEveryVisibleTileOnce) {
  for (const int64_t window : {0, 1, 64, 100, 5000}) {
    for (const int64_t group : {1, 7, 16}) {
      const std::vector<AttendSequence> sequences = {
          sequence(0, 0, 0),     sequence(1, 1, 0),    sequence(64, 1, 0),
          sequence(1024, 1, 0),  sequence(1025, 1, 0), sequence(9000, 3, 0),
          sequence(0, 500, 500), sequence(70, 65, 65), sequence(3000, 90, 90)};
      expect_complete(params_of(sequences, group, window));
    }
  }
}

TEST(AttendPlan, SplitsOneLongSequenceOverKeys) {
  const std::vector<AttendSequence> sequences = {sequence(8192, 1, 0)};
  const AttendPlan plan = plan_attend(params_of(sequences));
  EXPECT_EQ(plan.tasks.size(), 2U * 8192 / (kSplitTiles * kTileKeys));
  ASSERT_EQ(plan.merges.size(), 2U);
  EXPECT_EQ(plan.merges[0].num_splits, 8);
  EXPECT_EQ(plan.partial_floats, 16 * 7 * (64 + 2));
}

TEST(AttendPlan, DoesNotSplitWhatHasManyBlocks) {
  const std::vector<AttendSequence> sequences = {sequence(0, 8192, 8192)};
  const AttendPlan plan = plan_attend(params_of(sequences));
  EXPECT_TRUE(plan.merges.empty());
  EXPECT_EQ(plan.partial_floats, 0);
}

// The tasks of a sequence do not change with its batch: only their indices and offsets move.
TEST(AttendPlan, OfASequenceFollowsFromItAlone) {
  const std::vector<AttendSequence> sequences = {sequence(5000, 1, 0), sequence(0, 300, 300), sequence(2000, 1, 0)};
  const AttendPlan together = plan_attend(params_of(sequences));
  std::vector<AttendTask> joined;
  for (size_t i = 0; i < sequences.size(); ++i) {
    AttendPlan alone = plan_attend(params_of(std::span(sequences).subspan(i, 1)));
    for (AttendTask& t : alone.tasks) {
      t.sequence_idx = static_cast<int64_t>(i);
      joined.push_back(t);
    }
  }
  ASSERT_EQ(joined.size(), together.tasks.size());
  for (size_t i = 0; i < joined.size(); ++i) {
    joined[i].partial_offset = together.tasks[i].partial_offset;
    EXPECT_EQ(joined[i], together.tasks[i]);
  }
}

TEST(AttendPlan, PrintsEveryTask) {
  const std::vector<AttendSequence> sequences = {sequence(2048, 1, 0)};
  const std::string text = plan_attend(params_of(sequences)).to_string();
  EXPECT_THAT(text, ::testing::HasSubstr("4 tasks, 2 merges, 1848 partial floats"));
  EXPECT_THAT(text, ::testing::HasSubstr("task sequence 0 head 1 queries [0, 1) tiles [16, 32) partial 1386"));
  EXPECT_THAT(text, ::testing::HasSubstr("merge sequence 0 head 0 queries [0, 1) splits 2 from 0 by 462"));
}

}  // namespace
}  // namespace asymkv::cpu
