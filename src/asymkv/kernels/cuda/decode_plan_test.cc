#include "asymkv/kernels/cuda/decode_plan.h"

#include <gtest/gtest.h>

#include <map>
#include <numeric>
#include <random>

#include "asymkv/base/error.h"
#include "asymkv/kernels/cuda/instance_table.h"
#include "asymkv/kernels/cuda/write_plan.h"
#include "asymkv/kv/rope.h"

namespace asymkv::cuda {
namespace {

constexpr DecodeConfig kK16V8{.key = DType::kBF16, .value = DType::kE4M3};
constexpr DecodeConfig kK8V8{.key = DType::kE4M3, .value = DType::kE4M3};
constexpr DecodeConfig kPrebias{.key = DType::kI8, .value = DType::kE4M3, .k_dynamic = true, .prebias = true};

struct Case {
  std::vector<int32_t> table;
  DecodeBatch batch;
  Case(const std::vector<int32_t>& lens, int32_t kv_heads, int32_t group) {
    int32_t next = 0;
    for (const int32_t len : lens) {
      batch.page_rows.push_back(next);
      next += (len + kPageSize - 1) / kPageSize;
    }
    table.resize(static_cast<size_t>(next));
    for (size_t i = 0; i < table.size(); ++i) table[i] = static_cast<int32_t>(7919 * i % 100003);
    batch.seq_lens = lens;
    batch.page_table = table;
    batch.num_kv_heads = kv_heads;
    batch.group = group;
  }
};

// Every page of every head once, parts in order, records that agree with segments.
void expect_complete(const DecodePlan& plan, const Case& c) {
  std::map<std::pair<int32_t, int32_t>, int32_t> next_page;
  for (size_t i = 0; i < plan.segments.size(); ++i) {
    const Segment& s = plan.segments[i];
    EXPECT_EQ(s.page_begin, (next_page[{s.sequence, s.kv_head}])) << plan.describe();
    next_page[{s.sequence, s.kv_head}] = s.page_end;
    EXPECT_EQ(s.seq_len, c.batch.seq_lens[static_cast<size_t>(s.sequence)]);
    EXPECT_LE(s.first_partial, static_cast<int32_t>(i));
    EXPECT_LT(static_cast<int32_t>(i), s.first_partial + s.num_partials);
  }
  for (size_t b = 0; b < c.batch.seq_lens.size(); ++b) {
    for (int32_t h = 0; h < c.batch.num_kv_heads; ++h) {
      const auto found = next_page.find({static_cast<int32_t>(b), h});
      ASSERT_NE(found, next_page.end()) << "no CTA writes sequence " << b << " head " << h;
      EXPECT_EQ(found->second, (c.batch.seq_lens[b] + 15) / 16);
    }
  }
  ASSERT_EQ(plan.records.size(), static_cast<size_t>(plan.num_ctas * plan.shape.warps));
  int32_t segment = 0;
  for (int32_t cta = 0; cta < plan.num_ctas; ++cta) {
    for (int32_t w = 0; w < plan.shape.warps; ++w) {
      const WarpRecord& r = plan.records[static_cast<size_t>(cta * plan.shape.warps + w)];
      EXPECT_EQ(r.segment_begin, segment);
      if (r.segment_begin == r.segment_end) continue;
      EXPECT_EQ(r.first, plan.segments[static_cast<size_t>(r.segment_begin)]);
      EXPECT_TRUE(w > 0 || r.page_begin == r.first.page_begin);
      EXPECT_TRUE(w + 1 < plan.shape.warps || r.page_end == r.first.page_end);
      for (int32_t i = 0; i < std::min(kRecordPages, r.page_end - r.page_begin); ++i)
        EXPECT_EQ(r.page_ids[i], c.table[static_cast<size_t>(r.first.page_row + r.page_begin + i)]);
    }
    segment = plan.records[static_cast<size_t>(cta * plan.shape.warps)].segment_end;
  }
  EXPECT_EQ(segment, static_cast<int32_t>(plan.segments.size()));
  EXPECT_LE(plan.shared.total, kMaxSharedBytes);
}

TEST(DecodePlan, CoversEveryPageOnce) {
  std::mt19937 random(3);
  for (int round = 0; round < 60; ++round) {
    std::vector<int32_t> lens(1 + random() % 40);
    for (int32_t& len : lens) len = static_cast<int32_t>(random() % 5 == 0 ? 0 : random() % 9000);
    for (const DecodeConfig& config : {kK16V8, kK8V8, kPrebias}) {
      const Case c(lens, 1 + static_cast<int32_t>(random() % 8), 1 + static_cast<int32_t>(random() % 8));
      expect_complete(plan_decode(config, c.batch, {}, {}, {config.prebias ? 1 : 0, 0, 0}), c);
    }
  }
}

TEST(DecodePlan, ServedShapesUseTheMeasuredRules) {
  const Case one(std::vector<int32_t>(1, 8192), 8, 4);
  const DecodePlan latency = plan_decode(kK16V8, one.batch, {});
  EXPECT_EQ(latency.rule, SplitRule::kCluster);
  EXPECT_EQ(latency.shape.cluster_size, 8);
  EXPECT_EQ(latency.num_ctas, 64);
  expect_complete(latency, one);

  EXPECT_EQ(latency.shape, (LaunchShape{8, 2, 8}));
  EXPECT_EQ(plan_decode(kK8V8, one.batch, {}).shape, (LaunchShape{16, 2, 8}));
  const Case eight(std::vector<int32_t>(8, 8192), 8, 4);
  EXPECT_EQ(plan_decode(kK8V8, eight.batch, {}).shape, (LaunchShape{8, 2, 2}));
  const Case seven(std::vector<int32_t>(1, 8192), 4, 7);
  EXPECT_EQ(plan_decode(kK8V8, seven.batch, {}).shape, (LaunchShape{8, 2, 16}));

  const Case many(std::vector<int32_t>(32, 8192), 8, 4);
  const DecodePlan whole = plan_decode(kK8V8, many.batch, {});
  EXPECT_EQ(whole.rule, SplitRule::kAligned);
  EXPECT_EQ(whole.num_ctas, 128);
  EXPECT_EQ(whole.shape, (LaunchShape{16, 2, 1}));
  for (const Segment& s : whole.segments) EXPECT_EQ(s.num_partials, 1);
  expect_complete(whole, many);

  const Case ragged({1, 16, 17, 5000, 300, 16384}, 8, 4);
  const DecodePlan flat = plan_decode(kK8V8, ragged.batch, {});
  EXPECT_EQ(flat.rule, SplitRule::kFlat);
  EXPECT_EQ(flat.num_ctas, 132);
  expect_complete(flat, ragged);
  EXPECT_NE(flat.describe().find("flat split, 132 CTAs"), std::string::npos) << flat.describe();
}

// Narrow formats with much to do: two CTAs share an SM. Others, and launches with a wanted shape, have it alone.
TEST(DecodePlan, RaggedNarrowBatchesPutTwoCtasOnAnSm) {
  std::vector<int32_t> lens;
  for (int32_t i = 0; i < 32; ++i) lens.push_back(500 * i + 3);
  const Case c(lens, 8, 4);
  for (const DecodeConfig& config : {kK8V8, kPrebias}) {
    const DecodePlan pair = plan_decode(config, c.batch, {}, {}, {config.prebias ? 1 : 0, 0, 0});
    EXPECT_EQ(pair.shape, (LaunchShape{8, 2, 1, 2})) << pair.describe();
    EXPECT_EQ(pair.num_ctas, 264);
    EXPECT_LE(pair.shared.total, kMaxSharedBytesOfTwo);
    expect_complete(pair, c);
  }
  EXPECT_EQ(plan_decode(kK16V8, c.batch, {}).num_ctas, 132);
  EXPECT_EQ(plan_decode(kK8V8, c.batch, {}, {.warps = 16, .stages = 2}).num_ctas, 132);
}

TEST(DecodePlan, ShortWorkBesideOthersTakesPartsOfAnSm) {
  std::vector<int32_t> lengths;
  for (int32_t i = 0; i < 100; ++i) lengths.push_back(300 + 7 * i);
  Case c(lengths, 2, 7);
  c.batch.side_by_side = true;
  const DecodePlan plan = plan_decode(kK16V8, c.batch, {});
  EXPECT_EQ(plan.shape, (LaunchShape{4, 2, 1, 1}));
  EXPECT_LE(plan.shared.total, kMaxSharedBytes / 3);
  expect_complete(plan, c);
  Case one({4096}, 2, 7);  // would be spread over clusters
  one.batch.side_by_side = true;
  EXPECT_EQ(plan_decode(kK16V8, one.batch, {}).shape.cluster_size, 1);
  Case much(std::vector<int32_t>(64, 8192), 8, 4);  // fills the device by itself
  const DecodePlan alone = plan_decode(kK16V8, much.batch, {});
  much.batch.side_by_side = true;
  EXPECT_EQ(plan_decode(kK16V8, much.batch, {}).shape, alone.shape);
}

TEST(DecodePlan, EmptySequencesHaveAnOwner) {
  const Case none({0, 0, 0}, 2, 4);
  expect_complete(plan_decode(kK16V8, none.batch, {}), none);
  const Case empty({}, 2, 4);
  expect_complete(plan_decode(kK16V8, empty.batch, {}), empty);
}

TEST(DecodePlan, RefusesContradictions) {
  const Case good({100}, 2, 4);
  DecodeBatch batch = good.batch;
  batch.group = 9;
  EXPECT_THROW(plan_decode(kK16V8, batch, {}), Error);
  batch = good.batch;
  batch.seq_lens = {-1};
  EXPECT_THROW(plan_decode(kK16V8, batch, {}), Error);
  batch.seq_lens = {1000};
  EXPECT_THROW(plan_decode(kK16V8, batch, {}), Error);
  EXPECT_THROW(plan_decode(kK16V8, good.batch, {}, {.warps = 12, .stages = 9}), Error);
  EXPECT_THROW(plan_decode(kK16V8, good.batch, {}, {.warps = 64, .stages = 2}), Error);
}

TEST(DecodeConfig, CodeRoundTrips) {
  DecodeConfig fast = kPrebias;
  fast.fast_bias = true;
  fast.column_tiles = 2;
  fast.head_dim = 256;
  for (const DecodeConfig& c : {kK16V8, kK8V8, kPrebias, fast}) EXPECT_EQ(DecodeConfig::from_code(c.code()), c);
  EXPECT_EQ(kPrebias.name(), "decode_i8_e4m3_d128_c1_kd_pb");
}

TEST(DecodeSupport, SaysWhyNot) {
  const KvGeometry geometry{.num_kv_heads = 8, .k_head_dim = 128, .v_head_dim = 128, .page_size = 16};
  const KvFormat k16v8 = parse_kv_format("k16v8", DType::kBF16, ScaleKind::kFixed);
  EXPECT_EQ(choose_decode(geometry, k16v8, 7).config, kK16V8);
  EXPECT_EQ(choose_decode(geometry, k16v8, 16).config.column_tiles, 2);
  auto reason = [&](KvGeometry g, const KvFormat& f, int64_t group) {
    const DecodeChoice choice = choose_decode(g, f, group);
    EXPECT_FALSE(choice.ok);
    return choice.reason;
  };
  KvGeometry other = geometry;
  other.k_head_dim = other.v_head_dim = 112;
  EXPECT_NE(reason(other, k16v8, 4).find("head dim 112"), std::string::npos);
  other = geometry;
  other.page_size = 32;
  EXPECT_NE(reason(other, k16v8, 4).find("pages of 32"), std::string::npos);
  other.page_size = 64;
  other.k_head_dim = other.v_head_dim = 80;
  EXPECT_TRUE(choose_decode(other, k16v8, 4).ok);
  EXPECT_EQ(choose_decode(geometry, k16v8, 4, 3).config.column_tiles, 2);
  EXPECT_NE(reason(geometry, k16v8, 17).find("1 to 16"), std::string::npos);
  EXPECT_NE(reason(geometry, parse_kv_format("f32/e4m3", DType::kBF16, ScaleKind::kFixed), 4).find("32-bit"),
            std::string::npos);
  EXPECT_NE(reason(geometry, parse_kv_format("f16/bf16", DType::kBF16, ScaleKind::kFixed), 4).find("one type"),
            std::string::npos);
}

// Windows, several query tokens and pages of 64: every tile of query tokens gets the pages that it sees.
TEST(DecodePlan, QueryTilesSeeTheirPages) {
  Case c({1000, 5, 64}, 2, 4);
  c.batch.num_queries = {5, 3, 1};
  c.batch.window = 100;
  const DecodePlan plan = plan_decode(kK16V8, c.batch, {.num_sms = 1}, {.cluster_size = 1});
  EXPECT_EQ(plan.columns, 8);  // two tokens of a group of four
  std::map<int32_t, Segment> by_row;
  for (const Segment& s : plan.segments) {
    if (s.kv_head == 0) by_row[s.query_row] = s;
  }
  ASSERT_EQ(by_row.size(), 6U);  // 3 + 2 + 1 tiles
  const Segment& first = by_row[0];
  EXPECT_EQ(first.query_pos, 995);
  EXPECT_EQ(first.num_queries, 2);
  EXPECT_EQ(first.seq_len, 997);                 // its last token sits at 996
  EXPECT_EQ(first.page_begin, (995 - 99) / 16);  // its first token sees keys from 896 on
  EXPECT_EQ(first.page_end, 63);
  EXPECT_EQ(first.full_begin, (996 - 99 + 15) / 16);
  EXPECT_EQ(first.full_end, 996 / 16);
  const Segment& third = by_row[4];
  EXPECT_EQ(third.num_queries, 1);
  EXPECT_EQ(third.seq_len, 1000);
  EXPECT_EQ(by_row[5].query_pos, 2);  // the second sequence's tokens are its last three keys
  EXPECT_EQ(by_row[8].page_end, 4);
}

TEST(DecodePlan, PagesOf64ReadTheTableEveryFourPages) {
  Case c({200}, 1, 4);
  c.table = {7, 9, 4, 30};
  c.batch.page_table = c.table;
  c.batch.page_size = 64;
  const DecodePlan plan = plan_decode(kK16V8, c.batch, {.num_sms = 1}, {.warps = 8, .stages = 2, .cluster_size = 1});
  EXPECT_EQ(plan.page_shift, 2);
  std::vector<int32_t> ids;
  for (const WarpRecord& r : plan.records) {
    for (int32_t i = 0; i < r.page_end - r.page_begin; ++i) ids.push_back(r.page_ids[i]);
  }
  EXPECT_EQ(ids, (std::vector<int32_t>{7, 7, 7, 7, 9, 9, 9, 9, 4, 4, 4, 4, 30}));
  c.batch.page_size = 48;
  EXPECT_THROW(plan_decode(kK16V8, c.batch, {}), Error);
}

TEST(DecodePlan, BatchesOfARangeShareShapeAndSharedMemory) {
  const PlanRange range{
      .max_sequences = 16, .max_seq_len = 9000, .max_queries = 2, .max_page_ids = 4000, .num_kv_heads = 4, .group = 4};
  const DeviceLimits limits;
  for (const DecodeConfig& config : {kK16V8, kPrebias}) {
    const BiasShape bias{config.prebias ? 1 : 0, 0, 0};
    const DecodePlan empty = plan_range(config, range, limits, bias);
    EXPECT_EQ(empty.num_ctas, config.prebias ? 264 : 132);
    for (const WarpRecord& r : empty.records) EXPECT_EQ(r.segment_begin, r.segment_end);
    std::mt19937 random(5);
    for (int round = 0; round < 20; ++round) {
      std::vector<int32_t> lens(1 + random() % 16);
      for (int32_t& len : lens) len = static_cast<int32_t>(random() % 3000);
      Case c(lens, 4, 4);
      const DecodePlan plan = plan_in_range(empty, range, c.batch, limits);
      expect_complete(plan, c);
      EXPECT_EQ(plan.records.size(), empty.records.size());
      EXPECT_EQ(plan.shared.total, empty.shared.total);
      EXPECT_LE(static_cast<int64_t>(plan.segments.size()), max_segments(range, config, limits));
    }
    Case longer({9001}, 4, 4);
    EXPECT_THROW(plan_in_range(empty, range, longer.batch, limits), Error);
    Case other({100}, 2, 4);
    EXPECT_THROW(plan_in_range(empty, range, other.batch, limits), Error);
  }
}

TEST(WritePlan, FindsWholePagesAndRefusesDoubles) {
  std::vector<int64_t> slots = {14, 15, 32, 33, -1, 34};
  for (int64_t s = 48; s < 64; ++s) slots.push_back(s);
  const WritePlan plan = plan_write(slots, 64);
  EXPECT_EQ(plan.num_written, 21);
  const std::vector<WriteRun> expected = {{0, 2, 0, 14}, {2, 2, 2, 0}, {5, 1, 2, 2}, {6, 16, 3, 0}};
  EXPECT_EQ(plan.runs, expected);
  EXPECT_EQ(plan.describe(), "21 of 22 tokens in 4 runs, 1 of them whole pages");
  EXPECT_THROW(plan_write(std::vector<int64_t>{1, 1}, 16), Error);
  EXPECT_THROW(plan_write(std::vector<int64_t>{16}, 16), Error);
  EXPECT_THROW(plan_write(std::vector<int64_t>{-2}, 16), Error);
}

}  // namespace
}  // namespace asymkv::cuda
