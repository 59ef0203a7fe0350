#include "asymkv/kernels/cpu/cpu_attention.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "asymkv/base/error.h"
#include "asymkv/kernels/backends.h"
#include "asymkv/kernels/ref/ref_attention.h"
#include "asymkv/kernels/testing/attend_case.h"
#include "asymkv/kernels/testing/compare.h"

namespace asymkv {
namespace {

using testing::AttendCase;
using testing::AttendData;
using testing::AttendOutput;
using testing::SequenceShape;

const AttentionBackend& cpu() {
  static const std::unique_ptr<AttentionBackend> backend = make_cpu_attention();
  return *backend;
}

void expect_agrees(AttendData& data, const AttentionBackend& backend = cpu()) {
  const AttendOutput actual = data.run(backend);
  const AttendOutput oracle = data.run(RefAttention());
  const AttendOutput twin = data.run(RefAttention(RefAttention::Precision::kFloat));
  EXPECT_EQ(testing::compare(actual.out, oracle.out, twin.out, data.shape().v_head_dim), "")
      << "out of " << data.shape().to_string();
  EXPECT_EQ(testing::compare(actual.lse, oracle.lse, twin.lse, data.num_q_heads()), "")
      << "lse of " << data.shape().to_string();
}

void expect_agrees(const AttendCase& shape, const AttentionBackend& backend = cpu()) {
  AttendData data(shape);
  expect_agrees(data, backend);
}

std::vector<KvFormat> all_formats() {
  std::vector<KvFormat> formats;
  for (const ScaleKind scale : {ScaleKind::kFixed, ScaleKind::kDynamic}) {
    for (const std::string key : {"bf16", "f16", "f32", "e4m3", "e4m3-prebias", "i8", "i8-prebias"}) {
      for (const std::string value : {"bf16", "f16", "f32", "e4m3"}) {
        if (key.starts_with("i8") && scale == ScaleKind::kFixed) continue;
        const KvFormat format = parse_kv_format(key + "/" + value, DType::kBF16, scale);
        if (std::ranges::find(formats, format) == formats.end()) formats.push_back(format);
      }
    }
  }
  return formats;
}

const std::vector<KvFormat>& served_formats() {
  static const std::vector<KvFormat> formats = {parse_kv_format("native", DType::kBF16, ScaleKind::kDynamic),
                                                parse_kv_format("f16/e4m3", DType::kF16, ScaleKind::kFixed),
                                                parse_kv_format("k8v8-prebias", DType::kBF16, ScaleKind::kDynamic),
                                                parse_kv_format("ki8v8-prebias", DType::kBF16, ScaleKind::kDynamic)};
  return formats;
}

// Decode, fresh prefill and a chunk on stored pages, in one call.
std::vector<SequenceShape> every_phase(size_t format_idx = 0) {
  return {{.stored = 75, .queries = 1, .format_idx = format_idx},
          {.stored = 0, .queries = 70, .fresh = true, .format_idx = format_idx},
          {.stored = 83, .queries = 21, .fresh = true, .format_idx = format_idx}};
}

TEST(CpuAttention, AgreesWithTheOracleForEveryFormat) {
  for (const KvFormat& format : all_formats()) {
    AttendCase shape;
    shape.formats = {format};
    shape.sequences = every_phase();
    shape.bias = 20.0F;
    expect_agrees(shape);
  }
}

TEST(CpuAttention, AgreesWithTheOracleForEveryGeometry) {
  struct Geometry {
    int64_t num_kv_heads, group, k_head_dim, v_head_dim, page_size;
  };
  for (const Geometry& g : {Geometry{2, 2, 64, 64, 16}, Geometry{1, 7, 64, 64, 64}, Geometry{2, 6, 128, 128, 16},
                            Geometry{3, 1, 80, 80, 1}, Geometry{1, 16, 96, 64, 16}, Geometry{1, 5, 64, 192, 16},
                            Geometry{1, 4, 192, 128, 64}, Geometry{1, 3, 256, 256, 16}, Geometry{2, 3, 16, 32, 16},
                            Geometry{1, 13, 32, 8, 16}, Geometry{1, 8, 128, 80, 1}}) {
    for (const KvFormat& format : served_formats()) {
      AttendCase shape;
      shape.num_kv_heads = g.num_kv_heads;
      shape.group = g.group;
      shape.k_head_dim = g.k_head_dim;
      shape.v_head_dim = g.v_head_dim;
      shape.page_size = g.page_size;
      shape.formats = {format};
      shape.sequences = every_phase();
      shape.bias = 10.0F;
      expect_agrees(shape);
    }
  }
}

TEST(CpuAttention, AgreesWithTheOracleForEveryFeature) {
  for (const int64_t window : {0, 1, 20, 64}) {
    for (const float cap : {0.0F, 5.0F}) {
      for (const bool sinks : {false, true}) {
        for (const KvFormat& format : {served_formats()[0], served_formats()[2]}) {
          AttendCase shape;
          shape.formats = {format};
          shape.sequences = every_phase();
          shape.sequences.push_back({.stored = 1100, .queries = 1});
          shape.window = window;
          shape.soft_cap = cap;
          shape.sinks = sinks;
          expect_agrees(shape);
        }
      }
    }
  }
}

// Around slots, pages, tiles (64 keys) and splits (1024 keys); an empty cache among them.
TEST(CpuAttention, AgreesWithTheOracleAroundEveryEdge) {
  for (const int64_t page_size : {1, 16, 64}) {
    AttendCase shape;
    shape.num_kv_heads = 1;
    shape.group = 4;
    shape.page_size = page_size;
    shape.padding = {.k_row_bytes = 8, .v_row_bytes = 4, .k_page_bytes = 24, .v_page_bytes = 40};
    shape.formats = served_formats();
    shape.sequences = {{.stored = 0, .queries = 1, .gap = 3}};
    for (const int64_t stored : {1, 15, 16, 17, 63, 64, 65, 127, 129, 1023, 1024, 1025, 2050}) {
      for (size_t format = 0; format < shape.formats.size(); ++format) {
        shape.sequences.push_back({.stored = stored, .queries = 1, .format_idx = format});
      }
      shape.sequences.push_back({.stored = stored, .queries = 3, .fresh = true, .format_idx = 2});
      shape.sequences.push_back({.stored = stored, .queries = 2, .gap = 5, .format_idx = 3});
      shape.sequences.push_back({.stored = stored, .queries = 1, .gap = 5, .format_idx = 1});
    }
    expect_agrees(shape);
  }
}

// Several query blocks of one sequence: with splits (two blocks) and beyond (eight and more).
TEST(CpuAttention, AgreesWithTheOracleOverManyBlocks) {
  AttendCase shape;
  shape.num_kv_heads = 1;
  shape.group = 16;
  shape.k_head_dim = shape.v_head_dim = 16;
  shape.formats = {served_formats()[2]};
  shape.sequences = {{.stored = 2200, .queries = 30, .fresh = true}, {.stored = 30, .queries = 200, .fresh = true}};
  expect_agrees(shape);
}

TEST(CpuAttention, AgreesWithTheOracleOnLargeBiasesAndOutliers) {
  for (const KvFormat& format : served_formats()) {
    for (const float bias : {60.0F, 250.0F}) {
      AttendCase shape;
      shape.formats = {format};
      shape.sequences = every_phase();
      shape.bias = bias;
      shape.outlier = 30.0F;
      shape.fixed_scales = {1.7F, 0.31F};
      expect_agrees(shape);
    }
  }
}

// YaRN and LongRoPE multiply what they turn: the removed vector too, where it comes back at the read.
TEST(CpuAttention, AgreesWithTheOracleUnderARopeMagnitude) {
  for (const KvFormat& format : served_formats()) {
    AttendCase shape;
    shape.formats = {format};
    shape.sequences = every_phase();
    shape.bias = 40.0F;
    shape.rope_magnitude = 1.19;
    expect_agrees(shape);
  }
}

TEST(CpuAttention, AgreesWithTheOracleOnEveryTargetOfThisMachine) {
  for (const cpu::SimdKernels& kernels : cpu::available_simd_kernels()) {
    const std::unique_ptr<AttentionBackend> backend = make_cpu_attention(kernels.name);
    EXPECT_EQ(backend->name(), kernels.name);
    for (const KvFormat& format : {served_formats()[1], served_formats()[2], served_formats()[3]}) {
      AttendCase shape;
      shape.formats = {format};
      shape.k_head_dim = 96;
      shape.v_head_dim = 80;
      shape.sequences = every_phase();
      shape.window = 50;
      shape.soft_cap = 20.0F;
      shape.bias = 10.0F;
      expect_agrees(shape, *backend);
    }
  }
}

// A stored read gives what a fresh read of the round-tripped rows gives: a hit is a cold start.
TEST(CpuAttention, ReadingFromPagesEqualsReadingTheSameRowsFresh) {
  AttendCase shape;
  shape.formats = {parse_kv_format("f16/bf16", DType::kF16, ScaleKind::kDynamic)};
  shape.sequences = {{.stored = 128, .queries = 40}};
  AttendData data(shape);
  const AttendOutput hit = data.run(cpu());
  AttendSequence& sequence = data.sequences()[0];
  std::vector<float> k(128 * 2 * 64);
  std::vector<float> v(128 * 2 * 64);
  const KvLayout& layout = *sequence.cache.layout;
  for (int64_t j = 0; j < 128; ++j) {
    for (int64_t head = 0; head < 2; ++head) {
      const int64_t page = page_index(sequence.pages[static_cast<size_t>(j / 16)]);
      decode_row(DType::kF16, 1.0F, sequence.cache.k_plane + layout.k_row_offset_bytes(page, head, j % 16),
                 std::span(k).subspan(static_cast<size_t>((j * 2 + head) * 64), 64));
      decode_row(DType::kBF16, 1.0F, sequence.cache.v_plane + layout.v_row_offset_bytes(page, head, j % 16),
                 std::span(v).subspan(static_cast<size_t>((j * 2 + head) * 64), 64));
    }
  }
  // Fresh rows start at query_pos: the queries in front of the old ones are idle, so compare the last 40 rows.
  std::vector<float> q(static_cast<size_t>(128 * data.num_q_heads() * 64), 0.0F);
  std::ranges::copy(
      std::span(data.queries())
          .subspan(static_cast<size_t>(data.num_q_heads() * 64), static_cast<size_t>(40 * data.num_q_heads() * 64)),
      q.begin() + 88 * data.num_q_heads() * 64);
  std::vector<float> out(q.size());
  AttendSequence fresh;
  fresh.num_queries = fresh.num_fresh = 128;
  fresh.fresh_k = k.data();
  fresh.fresh_v = v.data();
  AttendParams params = data.params();
  params.q = q.data();
  params.out = out.data();
  params.sequences = std::span(&fresh, 1);
  cpu().attend(params);
  const auto first = static_cast<size_t>(data.num_q_heads() * 64);
  for (size_t i = 0; i < 40 * first; ++i) ASSERT_EQ(out[88 * first + i], hit.out[first + i]) << i;
}

AttendCase mixed_batch() {
  AttendCase shape;
  shape.formats = served_formats();
  shape.sequences = {};
  for (size_t format = 0; format < 4; ++format) {
    for (const SequenceShape& s : every_phase(format)) shape.sequences.push_back(s);
    shape.sequences.push_back({.stored = 3000, .queries = 1, .format_idx = format});
  }
  return shape;
}

TEST(CpuAttention, IsBitwiseTheSameInEveryBatch) {
  AttendData data(mixed_batch());
  const AttendOutput together = data.run(cpu());
  const std::vector<AttendSequence> all = data.sequences();
  const int64_t row_elems = data.num_q_heads() * 64;
  for (const AttendSequence& alone : all) {
    AttendParams params = data.params();
    std::vector<float> out(together.out.size());
    params.out = out.data();
    params.sequences = std::span(&alone, 1);
    cpu().attend(params);
    for (int64_t i = alone.query_row * row_elems; i < (alone.query_row + alone.num_queries) * row_elems; ++i) {
      ASSERT_EQ(out[static_cast<size_t>(i)], together.out[static_cast<size_t>(i)]) << "row " << i / row_elems;
    }
  }
}

// A single query takes a kernel of its own (attend_query-inl.h): it gives the bits that the same query gets among
// others. Up to one split of keys; beyond, the plan cuts a longer block in other places.
TEST(CpuAttention, GivesAQueryTheSameBitsAloneAndInABlock) {
  constexpr int64_t kGroups[] = {7, 1, 3, 8, 9, 16};
  size_t case_idx = 0;
  for (const KvFormat& format : all_formats()) {
    const int64_t group = kGroups[case_idx++ % std::size(kGroups)];
    AttendCase shape;
    shape.group = group;
    shape.formats = {format};
    shape.sequences = {{.stored = 150, .queries = 3}};
    shape.v_head_dim = 72;
    shape.bias = 10.0F;
    shape.window = group == 7 ? 77 : 0;
    shape.soft_cap = group == 8 ? 30.0F : 0.0F;
    shape.sinks = group == 9;
    AttendData data(shape);
    const AttendOutput block = data.run(cpu());
    for (int64_t i = 0; i < 3; ++i) {
      AttendSequence alone = data.sequences()[0];
      alone.query_row += i;
      alone.query_pos += i;
      alone.num_queries = 1;
      AttendParams params = data.params();
      std::vector<float> out(block.out.size());
      params.out = out.data();
      params.sequences = std::span(&alone, 1);
      cpu().attend(params);
      const int64_t row_elems = data.num_q_heads() * shape.v_head_dim;
      for (int64_t c = alone.query_row * row_elems; c < (alone.query_row + 1) * row_elems; ++c) {
        ASSERT_EQ(out[static_cast<size_t>(c)], block.out[static_cast<size_t>(c)])
            << "query " << i << " channel " << c % row_elems << " of " << shape.to_string();
      }
    }
  }
}

TEST(CpuAttention, IsBitwiseTheSameOnOneThreadAndOnAll) {
  AttendData data(mixed_batch());
  const AttendOutput all = data.run(cpu());
  AttendParams params = data.params();
  std::vector<float> one(all.out.size());
  params.out = one.data();
  for (const cpu::SimdKernels& kernels : cpu::available_simd_kernels()) {
    if (kernels.name != cpu().name()) continue;
    cpu::CallScratch scratch;
    cpu::run_attend(params, kernels, scratch, true);
  }
  const int64_t row_elems = data.num_q_heads() * 64;
  for (const AttendSequence& s : data.sequences()) {
    for (int64_t i = s.query_row * row_elems; i < (s.query_row + s.num_queries) * row_elems; ++i) {
      ASSERT_EQ(one[static_cast<size_t>(i)], all.out[static_cast<size_t>(i)]);
    }
  }
}

// 0 x NaN: a value that later tokens carry must not reach the rows that do not see it, and must reach those that do.
TEST(CpuAttention, KeepsNanFromRowsThatDoNotSeeIt) {
  for (const int64_t window : {0, 8}) {
    AttendCase shape;
    shape.window = window;
    shape.sequences = {{.stored = 5, .queries = 90, .fresh = true}};
    AttendData data(shape);
    data.fresh_values(0)[static_cast<size_t>(70 * 2 * 64 + 3)] = std::numeric_limits<float>::quiet_NaN();
    const AttendOutput out = data.run(cpu());
    EXPECT_TRUE(std::isfinite(out.out[static_cast<size_t>(70 * data.num_q_heads() * 64 + 3)]));
    EXPECT_TRUE(std::isnan(out.out[static_cast<size_t>(71 * data.num_q_heads() * 64 + 3)]));
    expect_agrees(data);
  }
}

// The E4M3 codes 0x7f and 0xff are NaN, also where a kernel widens through halves.
TEST(CpuAttention, ReadsNanCodesAsNan) {
  AttendCase shape;
  shape.formats = {served_formats()[1]};
  shape.sequences = {{.stored = 20, .queries = 1}};
  AttendData data(shape);
  const AttendSequence& sequence = data.sequences()[0];
  const int64_t page = page_index(sequence.pages[0]);
  std::byte* row = sequence.cache.v_plane + sequence.cache.layout->v_row_offset_bytes(page, 0, 2);
  row[3] = std::byte{0x7f};
  row[12] = std::byte{0xff};
  const AttendOutput out = data.run(cpu());
  const auto first = static_cast<size_t>(sequence.query_row * data.num_q_heads() * 64);
  EXPECT_TRUE(std::isnan(out.out[first + 3]));
  EXPECT_TRUE(std::isfinite(out.out[first + 4]));
  EXPECT_TRUE(std::isnan(out.out[first + 12]));
  expect_agrees(data);
}

TEST(CpuAttention, LetsNanQueriesSpoilOnlyThemselves) {
  AttendCase shape;
  shape.sequences = every_phase();
  for (const int64_t row : {1, 10}) {  // of the single query, of a block
    AttendData data(shape);
    data.queries()[static_cast<size_t>(row * data.num_q_heads() * 64 + 5)] = std::numeric_limits<float>::quiet_NaN();
    expect_agrees(data);
  }
}

TEST(CpuAttention, RefusesParamsThatContradictEachOther) {
  AttendCase shape;
  shape.sequences = {{.stored = 40, .queries = 2, .fresh = true}};
  AttendData data(shape);
  const auto expect_internal = [&](auto change) {
    AttendSequence sequence = data.sequences()[0];
    std::vector<PageId> pages(sequence.pages.begin(), sequence.pages.end());
    change(sequence, pages);
    sequence.pages = pages;
    AttendParams params = data.params();
    std::vector<float> out(static_cast<size_t>(data.num_rows() * data.num_q_heads() * 64));
    params.out = out.data();
    params.sequences = std::span(&sequence, 1);
    const RefAttention ref;
    for (const AttentionBackend* backend : {&cpu(), static_cast<const AttentionBackend*>(&ref)}) {
      try {
        backend->attend(params);
        ADD_FAILURE() << "accepted";
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::kInternal) << error.what();
      }
    }
  };
  for (const int32_t id : {-1, 8, std::numeric_limits<int32_t>::min(), std::numeric_limits<int32_t>::max()}) {
    expect_internal([id](AttendSequence&, std::vector<PageId>& pages) { pages[1] = PageId{id}; });
  }
  expect_internal([](AttendSequence&, std::vector<PageId>& pages) { pages.pop_back(); });
  expect_internal([](AttendSequence& s, std::vector<PageId>&) { s.query_pos = 39; });
  expect_internal([](AttendSequence& s, std::vector<PageId>&) { s.cache.layout = nullptr; });
  expect_internal([](AttendSequence& s, std::vector<PageId>&) { s.fresh_k = nullptr; });
}

TEST(CpuAttention, SaysWhatItCannotServe) {
  const KvFormat native;
  EXPECT_TRUE(cpu().supports({2, 64, 64, 16}, native, 7, Phase::kDecode).ok);
  EXPECT_THAT(cpu().supports({2, 64, 64, 16}, native, 7, Phase::kDecode).kernel, ::testing::StartsWith("cpu-"));
  EXPECT_THAT(cpu().supports({2, 64, 64, 16}, native, 17, Phase::kDecode).reason, ::testing::HasSubstr("17"));
  EXPECT_THAT(cpu().supports({2, 60, 64, 16}, native, 1, Phase::kDecode).reason, ::testing::HasSubstr("60"));
  KvFormat prebias = served_formats()[2];
  EXPECT_THAT(cpu().supports({2, 24, 64, 16}, prebias, 1, Phase::kDecode).reason, ::testing::HasSubstr("24"));
  EXPECT_THROW(make_cpu_attention("cpu-abacus"), Error);
}

TEST(SimdKernels, Exp2IsWithinTwoUlp) {
  for (const cpu::SimdKernels& kernels : cpu::available_simd_kernels()) {
    std::vector<float> in = {0.0F, -0.0F, -126.0F, -126.5F, -1e30F, -std::numeric_limits<float>::infinity()};
    for (int i = 0; i < 200000; ++i) in.push_back(-126.0F * static_cast<float>(i) / 200000.0F);
    std::vector<float> out(in.size());
    kernels.exp2_all(in.data(), out.data(), static_cast<int64_t>(in.size()));
    EXPECT_EQ(out[0], 1.0F);
    EXPECT_EQ(out[1], 1.0F);
    EXPECT_EQ(out[3], 0.0F);
    EXPECT_EQ(out[4], 0.0F);
    EXPECT_EQ(out[5], 0.0F);
    double worst = 0.0;
    for (size_t i = 6; i < in.size(); ++i) {
      worst = std::max(worst, std::fabs(static_cast<double>(out[i]) / std::exp2(static_cast<double>(in[i])) - 1.0));
    }
    EXPECT_LT(worst, 0x1p-22) << kernels.name;
  }
}

}  // namespace
}  // namespace asymkv
