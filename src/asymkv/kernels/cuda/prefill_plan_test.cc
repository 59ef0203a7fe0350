#include "asymkv/kernels/cuda/prefill_plan.h"

#include <gtest/gtest.h>

#include <map>
#include <numeric>
#include <random>

#include "asymkv/base/error.h"

namespace asymkv::cuda {
namespace {

std::vector<int32_t> iota_table(int32_t size, int32_t first = 0) {
  std::vector<int32_t> table(static_cast<size_t>(size));
  std::iota(table.begin(), table.end(), first);
  return table;
}

TEST(PrefillPlan, QwenStagingHoldsTheDocumentedTokens) {
  EXPECT_EQ(staging_bytes_per_token(8, 128) * 65536, int64_t{256} << 20);   // Qwen3-8B
  EXPECT_EQ(staging_bytes_per_token(10, 128) * 65536, int64_t{320} << 20);  // Phi-4
}

TEST(PrefillPlan, RoutesEachRequestOfAMixedBatch) {
  const std::vector<int32_t> table = iota_table(100);
  const PrefillBatch batch{
      {{500, 1, 0}, {0, 40, 0}, {33, 17, 40}, {7, 0, 50}, {0, 1, 0}, {64, 4, 60}, {64, 5, 70}}, table, 16, 32, 8, 128};
  const PrefillPlan plan = plan_prefill(batch, {.max_decode_columns = 16});
  EXPECT_EQ(plan.decode, (std::vector<int32_t>{0, 4, 5}));  // 4 new tokens times group 4 fill the decode columns
  EXPECT_EQ(plan.fresh, (std::vector<int32_t>{1, 2, 6}));
  EXPECT_EQ(plan.staged, (std::vector<int32_t>{2, 6}));
  EXPECT_EQ(plan.query_rows, (std::vector<int32_t>{0, 1, 41, 58, 58, 59, 63}));
  EXPECT_EQ(plan.num_rows, 68);
  ASSERT_EQ(plan.rounds.size(), 1U);
  const std::vector<StagedPiece> pieces = {{2, 0, 33, 0, true, true}, {6, 0, 64, 48, true, true}};
  EXPECT_EQ(plan.rounds[0].pieces, pieces);
  const std::vector<WidenPage> pages = {{40, 0, 16, 0},   {41, 16, 16, 16}, {42, 32, 1, 32}, {70, 48, 16, 0},
                                        {71, 64, 16, 16}, {72, 80, 16, 32}, {73, 96, 16, 48}};
  EXPECT_EQ(plan.rounds[0].pages, pages);
  EXPECT_EQ(plan.staging_rows, 112);
  EXPECT_EQ(plan.staging_bytes, 112 * 4096);
  EXPECT_FALSE(plan.accumulates);
  EXPECT_EQ(plan.describe(),
            "decode 3, fresh 3, of them staged 2: 97 stored tokens in 1 rounds of at most 112 rows (458752 bytes)");
}

TEST(PrefillPlan, CutsLongContextsAtPages) {
  const std::vector<int32_t> table = iota_table(20, 3);
  const PrefillBatch batch{{{40, 100, 0}, {90, 100, 5}}, table, 16, 8, 8, 64};
  const PrefillPlan plan =
      plan_prefill(batch, {.staging_bytes = 64 * staging_bytes_per_token(8, 64) + 5, .max_decode_columns = 1});
  ASSERT_EQ(plan.rounds.size(), 3U);
  EXPECT_TRUE(plan.accumulates);
  EXPECT_EQ(plan.rounds[0].pieces, (std::vector<StagedPiece>{{0, 0, 40, 0, true, true}, {1, 0, 16, 48, true, false}}));
  EXPECT_EQ(plan.rounds[1].pieces, (std::vector<StagedPiece>{{1, 16, 64, 0, false, false}}));
  EXPECT_EQ(plan.rounds[2].pieces, (std::vector<StagedPiece>{{1, 80, 10, 0, false, true}}));
  EXPECT_EQ(plan.rounds[2].pages, (std::vector<WidenPage>{{3 + 5 + 5, 0, 10, 80}}));
}

TEST(PrefillPlan, DecodeTakesSmallChunksByDefault) {
  const std::vector<int32_t> table = iota_table(4);
  const PrefillPlan plan = plan_prefill({{{64, 64, 0}, {64, 65, 0}}, table, 16, 32, 8, 128});
  EXPECT_EQ(plan.decode, (std::vector<int32_t>{0}));
  EXPECT_EQ(plan.staged, (std::vector<int32_t>{1}));
}

TEST(PrefillPlan, PagesOf64AreFourSmallOnes) {
  const std::vector<int32_t> table = {9, 2};
  const PrefillPlan plan = plan_prefill({{{100, 50, 0}}, table, 64, 8, 8, 128}, {.max_decode_columns = 16});
  std::vector<int32_t> ids;
  for (const WidenPage& page : plan.rounds[0].pages) ids.push_back(page.page);
  EXPECT_EQ(ids, (std::vector<int32_t>{36, 37, 38, 39, 8, 9, 10}));
  EXPECT_EQ(plan.rounds[0].pages.back().count, 4);
}

// Every stored token of every staged request is widened once, in order, within the buffer, for any batch and limit.
TEST(PrefillPlan, StagesEveryTokenOnceWithinTheBuffer) {
  std::mt19937 random(1);
  for (int trial = 0; trial < 300; ++trial) {
    PrefillBatch batch{{}, {}, trial % 2 == 0 ? 16 : 64, 14, 2, 64};
    int32_t entries = 0;
    for (uint32_t i = 0; i < 1 + random() % 6; ++i) {
      const auto cached = static_cast<int32_t>(random() % 400);
      batch.requests.push_back({cached, static_cast<int32_t>(random() % 40), entries});
      entries += (cached + batch.page_size - 1) / batch.page_size;
    }
    const std::vector<int32_t> table = iota_table(entries, 100);
    batch.page_table = table;
    const auto capacity = static_cast<int32_t>(16 * (1 + random() % 12));
    const PrefillPlan plan =
        plan_prefill(batch, {.staging_bytes = capacity * staging_bytes_per_token(2, 64), .max_decode_columns = 14});
    std::map<int32_t, int32_t> next;
    for (const StagingRound& round : plan.rounds) {
      EXPECT_LE(round.num_rows, capacity);
      std::vector<int> taken(static_cast<size_t>(capacity));
      size_t page = 0;
      for (const StagedPiece& piece : round.pieces) {
        EXPECT_EQ(piece.token_begin, next[piece.request]);
        EXPECT_EQ(piece.first, piece.token_begin == 0);
        next[piece.request] += piece.count;
        const int32_t cached = batch.requests[static_cast<size_t>(piece.request)].cached_len;
        EXPECT_EQ(piece.last, next[piece.request] == cached);
        for (int32_t done = 0; done < piece.count; ++page) {
          ASSERT_LT(page, round.pages.size());
          EXPECT_EQ(round.pages[page].row, piece.staging_row + done);
          EXPECT_EQ(round.pages[page].position, piece.token_begin + done);
          for (int32_t i = 0; i < round.pages[page].count; ++i) ++taken[static_cast<size_t>(round.pages[page].row + i)];
          done += round.pages[page].count;
        }
      }
      EXPECT_EQ(page, round.pages.size());
      for (const int times : taken) EXPECT_LE(times, 1);
    }
    for (const int32_t request : plan.staged)
      EXPECT_EQ(next[request], batch.requests[static_cast<size_t>(request)].cached_len);
    EXPECT_EQ(next.size(), plan.staged.size());
  }
}

TEST(PrefillPlan, RefusesWhatDoesNotFit) {
  const std::vector<int32_t> table = iota_table(2);
  const auto plan = [&](const PrefillRequest& r, int32_t page_size, int64_t bytes) {
    return plan_prefill({{r}, table, page_size, 8, 8, 128}, {.staging_bytes = bytes});
  };
  EXPECT_NO_THROW(plan({32, 9, 0}, 16, 1 << 20));
  EXPECT_THROW(plan({33, 9, 0}, 16, 1 << 20), Error);
  EXPECT_THROW(plan({16, 9, -1}, 16, 1 << 20), Error);
  EXPECT_THROW(plan({-1, 9, 0}, 16, 1 << 20), Error);
  EXPECT_THROW(plan({1, -9, 0}, 16, 1 << 20), Error);
  EXPECT_THROW(plan({32, 9, 0}, 24, 1 << 20), Error);
  EXPECT_THROW(plan({32, 9, 0}, 16, 16 * 4096 - 1), Error);
  EXPECT_THROW(plan_prefill({{}, table, 16, 9, 8, 128}), Error);
}

}  // namespace
}  // namespace asymkv::cuda
