#include "asymkv/kernels/cpu/merge.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

namespace asymkv::cpu {
namespace {

constexpr float kMinusInf = -std::numeric_limits<float>::infinity();

// One row of one split with a two-channel value: base-2 maximum, sum of weights, sums of weighted values.
struct Split {
  float max;
  float sum;
  float out[2];
};
constexpr Split kEmpty{kMinusInf, 0.0F, {0.0F, 0.0F}};

struct Result {
  float out[2];
  float lse;
};

Result merge(const std::vector<Split>& splits, const float* sink = nullptr) {
  std::vector<float> partials;
  for (const Split& s : splits) partials.insert(partials.end(), {s.out[0], s.out[1], s.max, s.sum});
  AttendSequence sequence;
  sequence.num_queries = 1;
  AttendParams params;
  params.num_q_heads = params.num_kv_heads = 1;
  params.k_head_dim = params.v_head_dim = 2;
  params.sinks = sink;
  params.sequences = std::span(&sequence, 1);
  Result result{};
  params.out = result.out;
  params.lse = &result.lse;
  MergeTask task;
  task.query_end = 1;
  task.stride = 4;
  task.num_splits = static_cast<int64_t>(splits.size());
  merge_splits(params, task, partials.data());
  return result;
}

TEST(MergeSplits, WeighsSplitsByTheirMaxima) {
  // Weights 2^3 x 1.5 of values summing to (3, 6), and 2^1 x 2 of (-4, 2): (24 - 8, 48 + 4) / (12 + 4).
  const Result merged = merge({{3, 1.5F, {3, 6}}, {1, 2, {-4, 2}}});
  EXPECT_FLOAT_EQ(merged.out[0], 1.0F);
  EXPECT_FLOAT_EQ(merged.out[1], 3.25F);
  EXPECT_FLOAT_EQ(merged.lse, std::log(16.0F));
}

TEST(MergeSplits, EmptySplitsChangeNothingWhereverTheyAre) {
  const Split some{-200.0F, 1.5F, {3, 6}};
  const Result alone = merge({some});
  for (const std::vector<Split>& splits : std::vector<std::vector<Split>>{
           {kEmpty, some}, {some, kEmpty}, {kEmpty, kEmpty, some}, {kEmpty, some, kEmpty, kEmpty}}) {
    const Result merged = merge(splits);
    EXPECT_EQ(merged.out[0], alone.out[0]);
    EXPECT_EQ(merged.out[1], alone.out[1]);
    EXPECT_EQ(merged.lse, alone.lse);
  }
  const Result nothing = merge({kEmpty, kEmpty});
  EXPECT_EQ(nothing.out[0], 0.0F);
  EXPECT_EQ(nothing.lse, kMinusInf);
}

TEST(MergeSplits, SinkCountsOnce) {
  const float sink = std::log(16.0F);
  const Result merged = merge({{3, 1.5F, {3, 6}}, {1, 2, {-4, 2}}}, &sink);
  EXPECT_FLOAT_EQ(merged.out[0], 0.5F);
  EXPECT_FLOAT_EQ(merged.lse, std::log(32.0F));
  const Result only_sink = merge({kEmpty, kEmpty}, &sink);
  EXPECT_EQ(only_sink.out[1], 0.0F);
  EXPECT_FLOAT_EQ(only_sink.lse, sink);
}

TEST(MergeSplits, NanReachesTheResult) {
  const Result merged = merge({{3, 1.5F, {3, 6}}, {1, std::nanf(""), {std::nanf(""), 0}}});
  EXPECT_TRUE(std::isnan(merged.out[0]));
}

}  // namespace
}  // namespace asymkv::cpu
