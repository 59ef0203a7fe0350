#include <gtest/gtest.h>

#include <algorithm>
#include <iostream>

#include "asymkv/base/error.h"
#include "asymkv/kernels/cuda/gpu_test_support.h"
#include "asymkv/kernels/cuda/testing.h"

// Device tests. Without a GPU every test says SKIPPED, and the program prints the mark that makes ctest say so too.
namespace asymkv::cuda {
namespace {

using testing::DecodeCase;
using testing::DecodeOutcome;
using testing::have_device;

struct NamedFormat {
  const char* name;
  ScaleKind scale;
  DType native;
};

KvFormat format_of(const NamedFormat& f) {
  return parse_kv_format(f.name, f.native, f.scale);
}

void expect_correct(const DecodeCase& c) {
  try {
    const DecodeOutcome outcome = testing::run_decode_case(c);
    const std::string why = testing::judge(outcome);
    EXPECT_TRUE(why.empty()) << why << "\n  " << c.describe() << "\n  " << outcome.plan.describe();
    std::cout << "  l2 " << outcome.rel_l2 << " row " << outcome.worst_row << " lse " << outcome.max_lse_error << "  "
              << outcome.plan.describe() << "\n";
  } catch (const Error& e) {
    FAIL() << e.what() << "\n  " << c.describe();
  }
}

std::vector<NamedFormat> served_formats(DType native) {
  std::vector<NamedFormat> formats = {{"native", ScaleKind::kFixed, native}};
  for (const char* name : {"k16v8", "k8v16", "k8v8", "k8v8-prebias"}) {
    formats.push_back({name, ScaleKind::kFixed, native});
    formats.push_back({name, ScaleKind::kDynamic, native});
  }
  formats.push_back({"ki8v8", ScaleKind::kDynamic, native});
  formats.push_back({"ki8v8-prebias", ScaleKind::kDynamic, native});
  return formats;
}

const std::vector<int32_t> kEdgeLens = {0, 1, 15, 16, 17, 33, 127, 128, 129, 255, 257, 511, 512, 513, 1000};

bool in_build(const DecodeCase& c) {
  const int32_t most = c.num_queries.empty() ? 1 : std::ranges::max(c.num_queries);
  const DecodeChoice choice =
      choose_decode({c.num_kv_heads, c.head_dim, c.head_dim, c.page_size}, c.format, c.group, most);
  if (!choice.ok) return false;
  for (const DecodeInstance& instance : decode_instance_table())
    if (instance.config == choice.config) return true;
  return false;
}

class EveryFormat : public ::testing::TestWithParam<int> {};

TEST_P(EveryFormat, AtPageAndSplitEdges) {
  if (!have_device()) GTEST_SKIP() << "no Hopper GPU";
  const int64_t head_dim = GetParam();
  int ran = 0;
  for (const DType native : {DType::kBF16, DType::kF16}) {
    for (const NamedFormat& format : served_formats(native)) {
      for (const int64_t group : {1, 4, 7, 8, 12}) {
        if (native == DType::kF16 && group != 4) continue;
        DecodeCase c{.format = format_of(format), .group = group, .head_dim = head_dim, .seq_lens = kEdgeLens};
        c.q_dtype = native;
        c.bias_magnitude = 150.0;
        if (!in_build(c)) continue;
        expect_correct(c);
        ++ran;
      }
    }
  }
  if (ran == 0) GTEST_SKIP() << "no instance of this head dim in this build";
}
INSTANTIATE_TEST_SUITE_P(HeadDims, EveryFormat, ::testing::Values(64, 128, 256, 80, 96, 192));

// Window, soft cap, sinks, several query tokens and pages of 64, alone and together, on every format.
std::vector<DecodeCase> feature_cases(const DecodeCase& plain) {
  const DecodeCase base = [&] {
    DecodeCase c = plain;
    c.seq_lens = {0, 1, 17, 129, 700, 1000};
    return c;
  }();
  std::vector<DecodeCase> cases(6, base);
  cases[0].window = 100;
  cases[1].logit_soft_cap = 5.0F;
  cases[2].sinks = true;
  cases[3].num_queries = {1, 2, 3, 4, 2, 5};
  cases[4].page_size = 64;
  cases[5] = cases[3];
  cases[5].window = 33;
  cases[5].logit_soft_cap = 20.0F;
  cases[5].sinks = true;
  cases[5].page_size = 64;
  return cases;
}

class EveryFeature : public ::testing::TestWithParam<int> {};

TEST_P(EveryFeature, OnEveryFormat) {
  if (!have_device()) GTEST_SKIP() << "no Hopper GPU";
  int ran = 0;
  for (const NamedFormat& format : served_formats(DType::kBF16)) {
    for (const int64_t group : {2, 7}) {
      DecodeCase plain{.format = format_of(format), .group = group, .head_dim = GetParam()};
      plain.bias_magnitude = 150.0;
      // A sink makes the output depend on the logits' common error: take the slow part's bound well below the limit.
      plain.split.max_slow_error = 1e-3;
      for (const DecodeCase& c : feature_cases(plain)) {
        if (!in_build(c)) continue;
        expect_correct(c);
        ++ran;
      }
    }
  }
  if (ran == 0) GTEST_SKIP() << "no instance of this head dim in this build";
}
INSTANTIATE_TEST_SUITE_P(HeadDims, EveryFeature, ::testing::Values(128, 80));

// Queries far behind the stored keys (the cached part of a prefill in chunks), and in the middle of them.
TEST(Decode, QueriesAnywhere) {
  if (!have_device()) GTEST_SKIP() << "no Hopper GPU";
  for (const char* name : {"native", "k16v8", "k8v8"}) {
    DecodeCase c{.format = format_of({name, ScaleKind::kFixed, DType::kBF16}), .seq_lens = {600, 77, 300}};
    c.num_queries = {16, 3, 8};
    c.query_pos = {600, 500, 100};
    expect_correct(c);
    c.window = 512;
    expect_correct(c);
  }
}

TEST(Decode, ClustersWithSeveralQueryTokens) {
  if (!have_device()) GTEST_SKIP() << "no Hopper GPU";
  for (const int32_t cluster : {2, 4, 8}) {
    DecodeCase c{.format = format_of({"k16v8", ScaleKind::kFixed, DType::kBF16}), .seq_lens = {1333}};
    c.shape = {8, 2, cluster};
    c.num_queries = {4};
    c.sinks = true;
    expect_correct(c);
  }
}

TEST(Decode, OverlappingThePreviousKernelChangesNothing) {
  if (!have_device()) GTEST_SKIP() << "no Hopper GPU";
  for (const std::vector<int32_t>& lens : {std::vector<int32_t>{4000}, {1, 30, 700, 5000}}) {
    DecodeCase c{.format = format_of({"k16v8", ScaleKind::kFixed, DType::kBF16}), .seq_lens = lens};
    c.overlap_previous = true;
    expect_correct(c);
  }
}

// A graph captured once, over a plan that has room for a range of batches, replays with each of them.
TEST(Decode, GraphReplaysWithOtherBatches) {
  if (!have_device()) GTEST_SKIP() << "no Hopper GPU";
  for (const char* name : {"k16v8", "k8v8-prebias"}) {
    DecodeCase c{.format = format_of({name, ScaleKind::kDynamic, DType::kBF16}), .seq_lens = {100}};
    c.bias_magnitude = 150.0;
    std::vector<DecodeCase> cases(5, c);
    cases[1].seq_lens = {1, 2, 3, 4, 5, 6, 7, 8};
    cases[2].seq_lens = {3000, 16, 900};
    cases[3].seq_lens = {0};
    cases[4].seq_lens = {512, 512};
    const PlanRange range{.max_sequences = 8,
                          .max_seq_len = 4096,
                          .max_queries = 1,
                          .max_page_ids = 400,
                          .num_kv_heads = static_cast<int32_t>(c.num_kv_heads),
                          .group = static_cast<int32_t>(c.group)};
    for (const DecodeOutcome& outcome : testing::run_graph_cases(cases, range))
      EXPECT_EQ(testing::judge(outcome), "") << name << " " << outcome.plan.describe();
  }
}

// Sixty-six heads cut over two CTAs each, 60 and 52 pages: five pages for the slowest of 12 warps in either, so that
// now and then the second CTA, which has another segment to do, is the last to arrive and finishes the head after that
// one.
TEST(Decode, HeadsFinishedASegmentLater) {
  if (!have_device()) GTEST_SKIP() << "no Hopper GPU";
  DecodeCase c{.format = format_of({"k16v8", ScaleKind::kFixed, DType::kBF16}), .num_kv_heads = 1};
  for (int i = 0; i < 66; ++i) c.seq_lens.insert(c.seq_lens.end(), {112 * 16, 8 * 16});
  c.shape = {12, 2, 1};
  expect_correct(c);
}

struct BiasCase {
  const char* format;
  int64_t head_dim;
  int64_t group;
  KeySplitOptions split;
};

// Every transform of kv/key_transform.h: slow pairs alone, a few fast ones, a large bias on all pairs and none kept.
TEST(Decode, EverySplitOfTheRemovedVector) {
  if (!have_device()) GTEST_SKIP() << "no Hopper GPU";
  const KeySplitOptions few{.max_slow_error = 1e-3};
  const KeySplitOptions all{.max_slow_error = 1e-3, .large_magnitude = 0.0, .max_fast_pairs = 1000};
  const KeySplitOptions only_fast{.max_slow_error = 0.0, .large_magnitude = 0.0, .max_fast_pairs = 1000};
  for (const BiasCase& b : {BiasCase{"k8v8-prebias", 128, 4, few},
                            {"k8v8-prebias", 128, 7, all},
                            {"ki8v8-prebias", 128, 4, all},
                            {"ki8v8-prebias", 128, 12, all},
                            {"ki8v8-prebias", 128, 4, only_fast},
                            {"ki8v8-prebias", 64, 7, all},
                            {"ki8v8-prebias", 80, 4, all},
                            {"k8v8-prebias", 256, 4, few}}) {
    DecodeCase c{.format = format_of({b.format, ScaleKind::kDynamic, DType::kBF16}),
                 .group = b.group,
                 .head_dim = b.head_dim,
                 .seq_lens = {1, 17, 500, 513, 1000, 2600}};
    c.bias_magnitude = 60.0;
    c.split = b.split;
    if (in_build(c)) expect_correct(c);
  }
}

// A window of one key makes the LSE the logit of that key: the error of the bias path at |b| = 450 on every pair, at
// positions up to 32,768, for queries of unit rms.
TEST(Decode, LogitErrorOfALargeRemovedVector) {
  if (!have_device()) GTEST_SKIP() << "no Hopper GPU";
  std::vector<int32_t> lens;
  for (int32_t i = 1; i <= 64; ++i) lens.push_back(i * 512 - (i * 37) % 512);
  for (const double theta : {1e6, 1e4}) {
    DecodeCase c{.format = format_of({"ki8v8-prebias", ScaleKind::kDynamic, DType::kBF16}),
                 .num_kv_heads = 1,
                 .group = 8,
                 .seq_lens = lens};
    c.window = 1;
    c.bias_magnitude = 450.0;
    c.rope_theta = theta;
    c.split = {.large_magnitude = 0.0, .max_fast_pairs = 1000};
    const DecodeOutcome outcome = testing::run_decode_case(c);
    std::cout << "  theta " << theta << ": largest logit error " << outcome.max_lse_error << ", bound of the slow part "
              << outcome.bias_error_bound << "\n";
    EXPECT_LE(outcome.max_lse_error, 0.05);
  }
}

TEST(Decode, EveryGroup) {
  if (!have_device()) GTEST_SKIP() << "no Hopper GPU";
  for (int64_t group = 1; group <= 16; ++group) {
    expect_correct(
        {.format = format_of({"k16v8", ScaleKind::kFixed, DType::kBF16}), .group = group, .seq_lens = {700, 45}});
  }
}

TEST(Decode, EverySplitRuleAndShape) {
  if (!have_device()) GTEST_SKIP() << "no Hopper GPU";
  for (const char* name : {"k16v8", "ki8v8-prebias"}) {
    for (const LaunchShape shape : {LaunchShape{8, 4, 1}, LaunchShape{8, 3, 2}, LaunchShape{8, 2, 4},
                                    LaunchShape{8, 2, 8}, LaunchShape{8, 2, 16}, LaunchShape{12, 2, 1}}) {
      DecodeCase c{.format = format_of({name, ScaleKind::kDynamic, DType::kBF16}), .seq_lens = {1333}, .shape = shape};
      c.bias_magnitude = 150.0;
      expect_correct(c);
    }
  }
}

TEST(Decode, ValuesOfVeryDifferentSize) {
  if (!have_device()) GTEST_SKIP() << "no Hopper GPU";
  for (const char* name : {"native", "k16v8", "k8v8", "ki8v8"}) {
    DecodeCase c{.format = format_of({name, ScaleKind::kDynamic, DType::kBF16}), .seq_lens = {600, 77}};
    c.large_rows = true;
    expect_correct(c);
  }
}

TEST(Decode, ServedGeometriesAt30720Tokens) {
  if (!have_device()) GTEST_SKIP() << "no Hopper GPU";
  for (const NamedFormat& format :
       {NamedFormat{"native", ScaleKind::kFixed, DType::kBF16}, NamedFormat{"k16v8", ScaleKind::kFixed, DType::kBF16},
        NamedFormat{"k8v8", ScaleKind::kFixed, DType::kBF16},
        NamedFormat{"ki8v8-prebias", ScaleKind::kDynamic, DType::kBF16}}) {
    for (const auto& [kv_heads, group] : {std::pair<int64_t, int64_t>{8, 4}, {4, 7}}) {
      DecodeCase c{.format = format_of(format), .num_kv_heads = kv_heads, .group = group, .seq_lens = {30720}};
      c.bias_magnitude = 150.0;
      if (in_build(c)) expect_correct(c);
    }
  }
}

}  // namespace
}  // namespace asymkv::cuda
