#include "asymkv/planner/capacity.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "asymkv/base/error.h"
#include "asymkv/base/error_testkit.h"
#include "asymkv/planner/capacity_testkit.h"
#include "asymkv/planner/capacity_verify.h"

namespace asymkv {
namespace {

using planner_testkit::full_layers;
using planner_testkit::shape_of;
using ::testing::HasSubstr;

constexpr int64_t kMiB = int64_t{1} << 20;
constexpr int64_t kGiB = int64_t{1} << 30;

LayerGroup sliding_layers(int64_t num_layers, int64_t num_kv_heads, int64_t head_dim, int64_t window) {
  LayerGroup group = full_layers(num_layers, num_kv_heads, head_dim);
  group.kind = LayerKind::kSliding;
  group.window = window;
  return group;
}

LayerGroup linear_layers(int64_t num_layers, int64_t state_elems) {
  return {.kind = LayerKind::kLinear, .num_layers = num_layers, .state_elems = state_elems};
}

ModelShape qwen3_8b() {
  return shape_of({full_layers(36, 8, 128)}, 32);
}
ModelShape phi4() {
  return shape_of({full_layers(40, 10, 128)}, 40);
}
ModelShape gemma3_27b() {
  return shape_of({full_layers(10, 16, 128), sliding_layers(52, 16, 128, 1024)}, 32);
}
// 79,429,632 bytes of BF16 state.
ModelShape qwen3_8_27b() {
  return shape_of({full_layers(16, 4, 256), linear_layers(48, 827392)}, 24);
}

CachePlan plan(const ModelShape& shape, std::string_view kv = "native", ScaleKind scale = ScaleKind::kDynamic,
               int64_t page_size = 16) {
  CachePlanOptions options;
  options.format = parse_kv_format(kv, shape.native_dtype, scale);
  options.page_size = page_size;
  return plan_cache(shape, options);
}

PoolPlan pool(const CachePlan& cache, int64_t budget_bytes, int64_t reserve_bytes = 0) {
  CapacityRequest request;
  request.budget_bytes = budget_bytes;
  request.reserve_bytes = reserve_bytes;
  return plan_capacity(cache, request).pool;
}

std::string refusal(const auto& call, ErrorCode code) {
  try {
    call();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), code) << e.what();
    return e.what();
  }
  ADD_FAILURE() << "nothing was refused";
  return {};
}

// The rows of "Values to reproduce".
struct PoolRow {
  const char* name;
  ModelShape shape;
  int64_t budget_bytes;
  int64_t reserve_bytes;
  std::string_view kv;
  ScaleKind scale;
  int64_t num_pages;
  int64_t num_slots;
};

TEST(Capacity, PagesAndSlotsOfPublishedModels) {
  const PoolRow rows[] = {
      {"Qwen3-8B", qwen3_8b(), 40 * kGiB, 0, "native", ScaleKind::kFixed, 18204, 291264},
      {"Qwen3-8B", qwen3_8b(), 40 * kGiB, 0, "k16v8", ScaleKind::kFixed, 24272, 388352},
      {"Qwen3-8B", qwen3_8b(), 40 * kGiB, 36 * kMiB, "native", ScaleKind::kFixed, 18188, 291008},
      {"Qwen3-8B", qwen3_8b(), 40 * kGiB, 36 * kMiB, "k16v8", ScaleKind::kFixed, 24251, 388016},
      {"Qwen3-8B", qwen3_8b(), 40 * kGiB, 36 * kMiB, "k8v8", ScaleKind::kDynamic, 35274, 564384},
      {"Phi-4", phi4(), 32 * kGiB, 0, "native", ScaleKind::kFixed, 10485, 167760},
      {"Phi-4", phi4(), 32 * kGiB, 0, "k16v8", ScaleKind::kFixed, 13981, 223696},
  };
  for (const PoolRow& row : rows) {
    const PoolPlan answer = pool(plan(row.shape, row.kv, row.scale), row.budget_bytes, row.reserve_bytes);
    EXPECT_EQ(answer.num_pages, row.num_pages) << row.name << " " << row.kv;
    EXPECT_EQ(answer.num_slots, row.num_slots) << row.name << " " << row.kv;
    EXPECT_EQ(answer.pool_bytes() + answer.unused + answer.reserve_bytes, row.budget_bytes);
    EXPECT_LT(answer.unused, plan(row.shape, row.kv, row.scale).growing_page().total());
  }
}

// Exact to the four decimals that were published.
double gib(int64_t bytes) {
  return static_cast<double>(bytes) / static_cast<double>(kGiB);
}

TEST(Capacity, BytesOfEqualSlots) {
  EXPECT_NEAR(gib(plan(qwen3_8b()).sequence(272000).total()), 37.3535, 5e-5);
  EXPECT_NEAR(gib(plan(qwen3_8b(), "k16v8", ScaleKind::kFixed).sequence(272000).total()), 28.0151, 5e-5);
  EXPECT_NEAR(gib(plan(qwen3_8b(), "k8v8").sequence(272000).total()), 19.2604, 5e-5);
}

TEST(Capacity, HybridWithRecurrentState) {
  const int64_t native = plan(qwen3_8_27b()).sequence(8320).total();
  EXPECT_EQ(native, 624689152);
  EXPECT_EQ(plan(qwen3_8_27b()).sequence(8320).state, 79429632);
  const auto saved_pct = [&](std::string_view kv) {
    return 100 -
           100 * static_cast<double>(plan(qwen3_8_27b(), kv).sequence(8320).total()) / static_cast<double>(native);
  };
  EXPECT_NEAR(saved_pct("k16v8"), 21.48, 0.005);
  EXPECT_NEAR(saved_pct("k8v8"), 42.96, 0.005);
}

TEST(Capacity, StagingOfOneLayer) {
  EXPECT_EQ(staging_bytes(qwen3_8b(), {}), 256 * kMiB);
  EXPECT_EQ(staging_bytes(phi4(), {}), 320 * kMiB);
  // Of the larger kind of layer, in the native type whatever is stored.
  EXPECT_EQ(staging_bytes(gemma3_27b(), {}), 512 * kMiB);
  const KvFormat stored = parse_kv_format("k8v8", DType::kBF16, ScaleKind::kDynamic);
  EXPECT_EQ(staging_bytes(qwen3_8b(), {.format = stored}), 256 * kMiB);
}

// The table "Tiers": bytes of a K/V element pair, head dim 128.
TEST(Capacity, Tiers) {
  const ModelShape shape = shape_of({full_layers(1, 1, 128)}, 1);
  const auto token = [&](std::string_view kv, ScaleKind scale) { return plan(shape, kv, scale).bytes_per_token(); };
  EXPECT_EQ(token("native", ScaleKind::kFixed), 4 * 128);
  EXPECT_EQ(token("k16v8", ScaleKind::kFixed), 3 * 128);
  EXPECT_EQ(token("k8v16", ScaleKind::kFixed), 3 * 128);
  EXPECT_EQ(token("k8v8", ScaleKind::kFixed), 256);
  EXPECT_EQ(token("k8v8-prebias", ScaleKind::kFixed), 256);
  for (const std::string_view kv : {"k8v8", "k8v8-prebias", "ki8v8", "ki8v8-prebias"}) {
    EXPECT_EQ(token(kv, ScaleKind::kDynamic), 264) << kv;
  }
  EXPECT_DOUBLE_EQ(100.0 * (512 - 264) / 512, 48.4375);
  EXPECT_EQ(token("k16v8", ScaleKind::kDynamic), 3 * 128 + 4);
}

struct GeometryRow {
  const char* model;
  ModelShape shape;
  int64_t growing;  // bytes per token, BF16
  int64_t fixed;    // bytes per sequence, BF16
};

TEST(Capacity, GeometryTable) {
  const GeometryRow rows[] = {
      {"Qwen2.5-0.5B", shape_of({full_layers(24, 2, 64)}, 14), 12288, 0},
      {"Qwen2.5-1.5B", shape_of({full_layers(28, 2, 128)}, 12), 28672, 0},
      {"Qwen2.5-7B", shape_of({full_layers(28, 4, 128)}, 28), 57344, 0},
      {"Qwen3-0.6B", shape_of({full_layers(28, 8, 128)}, 16), 114688, 0},
      {"Qwen3-8B", qwen3_8b(), 147456, 0},
      {"Qwen3-32B", shape_of({full_layers(64, 8, 128)}, 64), 262144, 0},
      {"Qwen3-30B-A3B", shape_of({full_layers(48, 4, 128)}, 32), 98304, 0},
      {"Llama-3.1-8B", shape_of({full_layers(32, 8, 128)}, 32), 131072, 0},
      {"Llama-3.1-70B", shape_of({full_layers(80, 8, 128)}, 64), 327680, 0},
      {"Phi-4", phi4(), 204800, 0},
      {"Ministral-3-8B", shape_of({full_layers(34, 8, 128)}, 32), 139264, 0},
      {"Gemma-3-270m", shape_of({full_layers(3, 1, 256), sliding_layers(15, 1, 256, 512)}, 4), 3072, 7864320},
      {"Gemma-3-27B", gemma3_27b(), 81920, 436207616},
      {"Gemma-4-26B-A4B", shape_of({full_layers(5, 2, 512), sliding_layers(25, 8, 256, 1024)}, 16), 20480, 209715200},
      {"Qwen3.5-9B", shape_of({full_layers(8, 4, 256), linear_layers(24, 1)}, 16), 32768, 48},
      {"gpt-oss-20b", shape_of({full_layers(12, 8, 64), sliding_layers(12, 8, 64, 128)}, 64), 24576, 3145728},
      {"gpt-oss-120b", shape_of({full_layers(18, 8, 64), sliding_layers(18, 8, 64, 128)}, 64), 36864, 4718592},
  };
  for (const GeometryRow& row : rows) {
    EXPECT_EQ(plan(row.shape).bytes_per_token(), row.growing) << row.model;
    EXPECT_EQ(plan(row.shape).fixed_bytes_per_sequence(), row.fixed) << row.model;
    EXPECT_EQ(native_bytes_per_token(row.shape), row.growing) << row.model;
  }
}

TEST(Capacity, LatentLayersHaveNativeBytesAndNoPlan) {
  ModelShape shape = shape_of({{.kind = LayerKind::kLatent, .num_layers = 61, .latent_dim = 512 + 64}}, 128);
  EXPECT_EQ(native_bytes_per_token(shape), 70272);
  EXPECT_NEAR(gib(native_bytes_per_token(shape) * 163840), 10.72, 0.005);
  EXPECT_THAT(refusal([&] { plan(shape); }, ErrorCode::kUnsupported), HasSubstr("no keys and values"));
  shape.verdict = ShapeVerdict::kRefuse;
  shape.reason = "kv_lora_rank is set";
  EXPECT_EQ(refusal([&] { plan(shape); }, ErrorCode::kUnsupported), "kv_lora_rank is set");
}

// "Wrong answers that users of other planners reported".
TEST(Capacity, RegressionRows) {
  EXPECT_NEAR(gib(plan(gemma3_27b()).sequence(131072).total()), 10.41, 0.005);
  EXPECT_NEAR(gib(plan(gemma3_27b()).sequence(262144).total()), 20.41, 0.005);
  const SequenceBytes hybrid = plan(qwen3_8_27b()).sequence(262144);
  EXPECT_EQ(hybrid.total() - hybrid.state, 16 * kGiB);
  EXPECT_NEAR(gib(plan(shape_of({full_layers(28, 8, 128)}, 16)).sequence(40960).total()), 4.38, 0.006);
}

TEST(Capacity, EveryTermOfASequenceApart) {
  const CachePlan cache = plan(shape_of({full_layers(3, 2, 64)}, 4), "k8v16", ScaleKind::kDynamic, 16);
  const SequenceBytes bytes = cache.sequence(17);
  EXPECT_EQ(bytes.slots.k_payload, 17 * 3 * 2 * 64);
  EXPECT_EQ(bytes.slots.v_payload, 17 * 3 * 2 * 64 * 2);
  EXPECT_EQ(bytes.slots.k_scales, 17 * 3 * 2 * 4);
  EXPECT_EQ(bytes.slots.v_scales, 0);
  EXPECT_EQ(bytes.slots.padding, 0);
  EXPECT_EQ(bytes.partial_last_page, 15 * 3 * 2 * (64 + 128 + 4));
  EXPECT_EQ(bytes.total(), cache.growing_page().scaled(2).total());
  EXPECT_EQ(cache.sequence(32).partial_last_page, 0);
  EXPECT_EQ(cache.sequence(0).total(), 0);
}

TEST(Capacity, WindowsFillUpAndStop) {
  const CachePlan cache = plan(gemma3_27b());
  EXPECT_EQ(cache.sequence(1000).window, 436207616 / 64 * 63);  // 63 pages of 16
  EXPECT_EQ(cache.sequence(1024).window, 436207616);
  EXPECT_EQ(cache.sequence(100000).window, 436207616);
  EXPECT_EQ(cache.sequence(100).slots.total(), 100 * 81920);
}

TEST(Capacity, UnifiedWindowsGrowWithEveryToken) {
  CachePlanOptions options;
  options.windows = WindowPages::kUnified;
  const CachePlan cache = plan_cache(gemma3_27b(), options);
  EXPECT_EQ(cache.fixed_bytes_per_sequence(), 0);
  EXPECT_NEAR(gib(cache.sequence(131072).total()), 62, 0.005);
}

TEST(Capacity, WindowsOfSequencesAreSetAsideBeforePages) {
  CapacityRequest request;
  request.budget_bytes = 10 * kGiB;
  request.num_sequences = 8;
  const PoolPlan answer = plan_capacity(plan(gemma3_27b()), request).pool;
  EXPECT_EQ(answer.window, 8 * int64_t{436207616});
  EXPECT_EQ(answer.num_pages, (10 * kGiB - answer.window) / (16 * 81920));
  EXPECT_EQ(answer.pool_bytes() + answer.unused, 10 * kGiB);
  request.num_sequences = 25;
  EXPECT_THAT(refusal([&] { plan_capacity(plan(gemma3_27b()), request); }, ErrorCode::kResourceExhausted),
              HasSubstr("25 sequences"));
}

TEST(Capacity, OnlyWindowLayersHaveNoPagesThatGrow) {
  const CachePlan cache = plan(shape_of({sliding_layers(32, 8, 128, 4096)}, 32));
  EXPECT_EQ(cache.bytes_per_token(), 0);
  CapacityRequest request;
  request.budget_bytes = 4 * kGiB;
  request.tokens = 100000;
  const CapacityAnswer answer = plan_capacity(cache, request);
  EXPECT_EQ(answer.pool.num_pages, 0);
  EXPECT_EQ(answer.pool.num_concurrent, 8);
}

TEST(Capacity, FixedScalesAreTakenBeforePages) {
  const PoolPlan answer = pool(plan(qwen3_8b(), "k8v8", ScaleKind::kFixed), kGiB);
  EXPECT_EQ(answer.fixed_scales, 36 * 4 * 2);
  EXPECT_EQ(answer.planes.k_scales + answer.planes.v_scales, 0);
  const CachePlan one_side = plan(qwen3_8b(), "k16v8", ScaleKind::kFixed);
  EXPECT_EQ(pool(one_side, kGiB).fixed_scales, 36 * 4);
  const int64_t page = one_side.growing_page().total();
  EXPECT_EQ(pool(one_side, page + 36 * 4).num_pages, 1);
  EXPECT_EQ(pool(one_side, page + 36 * 4 - 1).num_pages, 0);
}

TEST(Capacity, TensorParallelSplitsOrReplicatesHeads) {
  CachePlanOptions options;
  options.tensor_parallel = 2;
  EXPECT_EQ(plan_cache(qwen3_8b(), options).bytes_per_token(), 147456 / 2);
  EXPECT_EQ(plan_cache(qwen3_8b(), options).groups[0].replicas, 1);
  options.tensor_parallel = 16;
  EXPECT_EQ(plan_cache(qwen3_8b(), options).bytes_per_token(), 147456 / 8);
  EXPECT_EQ(plan_cache(qwen3_8b(), options).groups[0].replicas, 2);
  options.tensor_parallel = 4;
  EXPECT_EQ(plan_cache(qwen3_8_27b(), options).state_bytes, 79429632 / 4);
  EXPECT_EQ(refusal([&] { plan_cache(phi4(), options); }, ErrorCode::kUnsupported),
            "10 KV heads do not divide over 4 ranks, and 4 ranks are no multiple of 10 heads");
  options.tensor_parallel = 5;
  EXPECT_EQ(plan_cache(phi4(), options).bytes_per_token(), 204800 / 5);
  EXPECT_EQ(plan_cache(phi4(), options).groups[0].layout.geometry().num_kv_heads, 2);
  options.tensor_parallel = 3;
  EXPECT_THAT(refusal([&] { plan_cache(qwen3_8b(), options); }, ErrorCode::kUnsupported), HasSubstr("32 query heads"));
}

TEST(Capacity, ConcurrentSequencesAreWholeOnes) {
  CapacityRequest request;
  request.budget_bytes = 40 * kGiB;
  request.tokens = 8193;  // one slot more than 512 pages
  const CapacityAnswer answer = plan_capacity(plan(qwen3_8b()), request);
  EXPECT_EQ(answer.pool.num_concurrent, 18204 / 513);
  EXPECT_EQ(answer.pool.partial_last_pages, answer.pool.num_concurrent * 15 * 147456);
}

TEST(Capacity, WholePagesOfASharedPrefixAreHeldOnce) {
  CapacityRequest request;
  request.budget_bytes = 40 * kGiB;
  request.tokens = 8192;
  request.shared_prefix_tokens = 4100;  // 256 whole pages and a part
  const CapacityAnswer answer = plan_capacity(plan(qwen3_8b()), request);
  EXPECT_EQ(answer.shared_pages, 256);
  EXPECT_EQ(answer.pool.num_concurrent, (18204 - 256) / 256);
  request.shared_prefix_tokens = 8192;
  EXPECT_THAT(refusal([&] { plan_capacity(plan(qwen3_8b()), request); }, ErrorCode::kUsage), HasSubstr("8192"));
}

TEST(Capacity, SequencesInABudgetAreThoseOfThePlan) {
  CapacityRequest request;
  request.budget_bytes = 40 * kGiB;
  request.reserve_bytes = 36 * kMiB;
  for (const int64_t tokens : {1, 1000, 8192, 300000}) {
    const CachePlan cache = plan(qwen3_8b(), "k16v8", ScaleKind::kFixed);
    request.tokens = tokens;
    EXPECT_EQ(sequences_in_budget(cache, request, tokens), plan_capacity(cache, request).pool.num_concurrent);
  }
  EXPECT_EQ(sequences_in_budget(plan(qwen3_8b()), request, 300000), 0);
}

TEST(Capacity, DraftSharesPageIds) {
  CachePlan cache = plan(qwen3_8b());
  cache.add_draft(plan(shape_of({full_layers(28, 8, 128)}, 16)));
  EXPECT_EQ(cache.bytes_per_token(), 147456 + 114688);
  EXPECT_EQ(pool(cache, 40 * kGiB).num_pages, 40 * kGiB / (16 * (147456 + 114688)));
  cache.add_draft(plan(qwen3_8_27b()));
  EXPECT_EQ(cache.fixed_bytes_per_sequence(), 79429632);
}

TEST(Capacity, OffloadTierAndTwoPools) {
  CapacityRequest request;
  request.budget_bytes = 40 * kGiB;
  request.prefill_budget_bytes = 20 * kGiB;
  request.offload_bytes = 10 * kGiB;
  request.tokens = 1000;
  const CapacityAnswer answer = plan_capacity(plan(qwen3_8b()), request);
  EXPECT_EQ(answer.pool.num_pages, 18204);
  EXPECT_EQ(answer.prefill_pool->num_pages, 9102);
  EXPECT_EQ(answer.offload_pages, 4551);
  EXPECT_EQ(answer.offload_slots, 4551 * 16);
  EXPECT_EQ(answer.transfer_bytes, 63 * 16 * int64_t{147456});
}

TEST(Capacity, TheBudgetThatIsTooSmallIsNamed) {
  CapacityRequest request;
  request.budget_bytes = 40 * kGiB;
  request.reserve_bytes = kGiB;
  request.prefill_budget_bytes = 5;
  test::expect_error([&] { plan_capacity(plan(qwen3_8b()), request); }, ErrorCode::kResourceExhausted,
                     "a prefill budget of 5 bytes does not hold the reserve");
}

TEST(Capacity, BudgetOfADevice) {
  MemoryTerms terms{.weights = 16 * kGiB,
                    .activations = kGiB,
                    .staging = 256 * kMiB,
                    .workspace = 128 * kMiB,
                    .graph_capture = 512 * kMiB,
                    .other = 128 * kMiB};
  EXPECT_EQ(budget_of_device(58 * kGiB, terms), 40 * kGiB);
  terms.weights = 80 * kGiB;
  EXPECT_THAT(refusal([&] { budget_of_device(58 * kGiB, terms); }, ErrorCode::kResourceExhausted),
              HasSubstr("weights 85899345920"));
}

TEST(Capacity, DeviceLayoutPadsEightBitSides) {
  CachePlanOptions options;
  options.memory = KvMemory::kDevice;
  options.format = parse_kv_format("k8v16", DType::kBF16, ScaleKind::kDynamic);
  const CachePlan cache = plan_cache(shape_of({full_layers(2, 3, 80)}, 3), options);
  EXPECT_EQ(cache.growing_page().k_payload, 2 * 3 * 16 * 80);
  EXPECT_EQ(cache.growing_page().padding, 2 * 3 * 16 * (96 - 80));
  options.page_size = 8;
  EXPECT_THAT(refusal([&] { plan_cache(qwen3_8b(), options); }, ErrorCode::kUnsupported), HasSubstr("16"));
}

TEST(Capacity, WhatIsOutOfRangeIsRefusedByName) {
  CachePlanOptions options;
  for (const int64_t page_size : {0, 257}) {
    options.page_size = page_size;
    EXPECT_THAT(refusal([&] { plan_cache(qwen3_8b(), options); }, ErrorCode::kUsage), HasSubstr("page size"));
  }
  options.page_size = 16;
  options.tensor_parallel = 0;
  EXPECT_THAT(refusal([&] { plan_cache(qwen3_8b(), options); }, ErrorCode::kUsage), HasSubstr("tensor parallel"));
  CapacityRequest request;
  request.offload_bytes = -1;
  EXPECT_THAT(refusal([&] { plan_capacity(plan(qwen3_8b()), request); }, ErrorCode::kUsage), HasSubstr("offload"));
  request.offload_bytes = 0;
  request.budget_bytes = 100;
  request.reserve_bytes = 101;
  EXPECT_THAT(refusal([&] { plan_capacity(plan(qwen3_8b()), request); }, ErrorCode::kResourceExhausted),
              HasSubstr("101"));
  EXPECT_THAT(refusal([&] { plan(qwen3_8b()).sequence(kMaxPlannedTokens + 1); }, ErrorCode::kUsage),
              HasSubstr("tokens"));
  const ModelShape huge = shape_of({full_layers(int64_t{1} << 40, 8, 1 << 16)}, 8);
  EXPECT_THAT(refusal([&] { plan(huge, "native", ScaleKind::kDynamic, 256); }, ErrorCode::kUnsupported),
              HasSubstr("64 bits"));
}

// What a plan says of random caches, their real pools take; and a sequence takes as many pages as planned.
TEST(Capacity, EqualsRealCachesOfRandomGeometries) {
  std::mt19937_64 random(20261130);
  const auto pick = [&](int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(random);
  };
  for (int round = 0; round < 400; ++round) {
    const auto formats = planner_testkit::all_formats(round % 3 == 0 ? DType::kF16 : DType::kBF16);
    const KvFormat& format = formats[static_cast<size_t>(pick(0, static_cast<int64_t>(formats.size()) - 1))];
    LayerGroup layers = full_layers(pick(1, 4), pick(1, 5), 2 * pick(1, 40));
    layers.v_head_dim = pick(1, 90);
    CachePlanOptions options{.format = format, .page_size = pick(1, 256)};
    const CachePlan cache = plan_cache(shape_of({layers}, layers.num_kv_heads), options);
    const CacheGroup& group = cache.groups.at(0);
    const int64_t num_pages = pick(2, 6);
    KvCache real(group.layout, verify_config(group, num_pages));
    const CacheInventory inventory = real.inventory();
    EXPECT_EQ(inventory.planes, cache.growing_page().scaled(num_pages)) << round << " " << format.id();
    EXPECT_EQ(inventory.fixed_scale_bytes, cache.fixed_scale_bytes()) << round << " " << format.id();
    const int64_t tokens = pick(1, 2 * options.page_size);
    SequencePages sequence(real);
    sequence.append(tokens);
    const int64_t used = std::ssize(sequence.pages());
    EXPECT_EQ(cache.sequence(tokens).total(), cache.growing_page().scaled(used).total()) << round;
  }
}

TEST(Capacity, PrefixIsSharedAsForkedSequencesShareIt) {
  const CachePlan cache = plan(shape_of({full_layers(1, 1, 8)}, 1));
  const int64_t prefix = 40, tokens = 70;
  KvCache real(cache.groups[0].layout, verify_config(cache.groups[0], 32));
  SequencePages root(real);
  root.append(prefix);
  root.truncate(prefix - prefix % 16);  // the whole pages stay, as in a prefix cache
  const int64_t bytes = cache.growing_page().scaled(real.pool().num_pages()).total();
  const int64_t planned = concurrent_sequences(cache, bytes, tokens, prefix);
  std::vector<SequencePages> sequences;
  for (int64_t i = 0; i < planned; ++i) {
    sequences.push_back(root.fork());
    sequences.back().append(tokens - sequences.back().num_tokens());
  }
  SequencePages one_more = root.fork();
  EXPECT_THROW(one_more.append(tokens - one_more.num_tokens()), Error);
  EXPECT_EQ(planned, 10);
}

}  // namespace
}  // namespace asymkv
