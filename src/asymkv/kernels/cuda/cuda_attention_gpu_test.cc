#include "asymkv/kernels/cuda/cuda_attention.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <iostream>

#include "asymkv/base/error.h"
#include "asymkv/kernels/cuda/host_attention.h"
#include "asymkv/kernels/ref/ref_attention.h"
#include "asymkv/kernels/testing/attend_case.h"

// The whole family behind its host interface against the oracle: decode, fresh prefill and chunks on stored pages, all
// formats, windows, caps and sinks. Limits: relative L2 0.4 %, worst row 1 % (queries have 16 bits in both).
namespace asymkv {
namespace {

using testing::AttendCase;
using testing::AttendData;
using testing::AttendOutput;
using testing::SequenceShape;

bool cannot_run() {
  const std::string refusal = cuda_attention_refusal();
  if (!refusal.empty()) std::cout << "ASYMKV_TEST_SKIPPED_ENTIRELY: " << refusal << "\n";
  return !refusal.empty();
}

void expect_close(const AttendCase& shape) {
  static const std::unique_ptr<AttentionBackend> on_device = cuda::testing::make_host_attention();
  AttendData data(shape);
  for (float& x : data.queries()) x = round_to(DType::kBF16, x);
  const AttendOutput actual = data.run(*on_device);
  const AttendOutput oracle = data.run(RefAttention());
  double error = 0.0, norm = 0.0, worst = 0.0;
  const auto dim = static_cast<size_t>(shape.v_head_dim);
  for (size_t row = 0; row < oracle.lse.size(); ++row) {
    double row_error = 0.0, row_norm = 0.0;
    for (size_t i = row * dim; i < (row + 1) * dim; ++i) {
      const double difference = static_cast<double>(actual.out[i]) - static_cast<double>(oracle.out[i]);
      row_error += std::isnan(difference) ? 1e30 : difference * difference;
      row_norm += static_cast<double>(oracle.out[i]) * static_cast<double>(oracle.out[i]);
    }
    error += row_error, norm += row_norm;
    if (row_norm > 0.0) worst = std::max(worst, std::sqrt(row_error / row_norm));
    const bool both_empty = std::isinf(oracle.lse[row]) && actual.lse[row] == oracle.lse[row];
    if (!both_empty) {
      EXPECT_NEAR(actual.lse[row], oracle.lse[row], 0.01) << row << " of " << shape.to_string();
    }
  }
  EXPECT_LE(std::sqrt(error / norm), 0.004) << shape.to_string();
  EXPECT_LE(worst, 0.01) << shape.to_string();
}

std::vector<SequenceShape> every_phase(size_t format_idx = 0) {
  return {{.stored = 75, .queries = 1, .format_idx = format_idx},
          {.stored = 0, .queries = 40, .fresh = true, .format_idx = format_idx},
          {.stored = 83, .queries = 21, .fresh = true, .format_idx = format_idx},
          {.stored = 50, .queries = 3, .format_idx = format_idx}};
}

std::vector<KvFormat> formats() {
  std::vector<KvFormat> all;
  for (const char* name : {"native", "k16v8", "k8v16", "k8v8", "k8v8-prebias", "ki8v8", "ki8v8-prebias"})
    all.push_back(parse_kv_format(name, DType::kBF16, ScaleKind::kDynamic));
  all.push_back(parse_kv_format("k8v8", DType::kBF16, ScaleKind::kFixed));
  return all;
}

TEST(CudaAttention, EveryFormatAndPhase) {
  if (cannot_run()) GTEST_SKIP();
  for (const KvFormat& format : formats()) {
    AttendCase shape;
    shape.k_head_dim = shape.v_head_dim = 128;
    shape.formats = {format};
    shape.sequences = every_phase();
    shape.bias = format.key.prebias ? 20.0F : 0.0F;
    expect_close(shape);
  }
}

TEST(CudaAttention, PagesOf64AndPaddedRows) {
  if (cannot_run()) GTEST_SKIP();
  AttendCase shape;
  shape.k_head_dim = shape.v_head_dim = 128;
  shape.page_size = 64;
  shape.padding = {.k_row_bytes = 3, .v_row_bytes = 5, .k_page_bytes = 7, .v_page_bytes = 0};
  shape.formats = {formats()[1], formats()[5]};
  shape.sequences = every_phase();
  for (const SequenceShape& s : every_phase(1)) shape.sequences.push_back(s);
  expect_close(shape);
}

TEST(CudaAttention, WindowsCapsAndSinks) {
  if (cannot_run()) GTEST_SKIP();
  for (const int64_t window : {0, 1, 20}) {
    for (const bool capped : {false, true}) {
      AttendCase shape;
      shape.k_head_dim = shape.v_head_dim = 128;
      shape.formats = {formats()[3]};
      shape.sequences = every_phase();
      shape.window = window;
      shape.soft_cap = capped ? 5.0F : 0.0F;
      shape.sinks = capped;
      expect_close(shape);
    }
  }
}

// Keys and values in the model's own type: the device writer behind the host interface stores the oracle's bytes.
TEST(CudaAttention, WritesTheBytesOfTheOracle) {
  if (cannot_run()) GTEST_SKIP();
  const auto on_device = cuda::testing::make_host_attention();
  for (const KvFormat& format : formats()) {
    const KvGeometry geometry{2, 128, 128, 16};
    const KvLayout layout(geometry, format);
    const RopeTable rope(rope_frequencies(1e6, 128), 64);
    constexpr int64_t kPages = 4, kTokens = 40;
    std::vector<float> k, v, bias;
    for (int64_t i = 0; i < kTokens * 256; ++i) k.push_back(round_to(DType::kBF16, std::sin(static_cast<float>(i))));
    for (int64_t i = 0; i < kTokens * 256; ++i) v.push_back(round_to(DType::kBF16, std::cos(static_cast<float>(i))));
    for (int64_t i = 0; i < 256; ++i) bias.push_back(std::sin(0.1F * static_cast<float>(i)));
    KeyTransform transform;
    if (format.key.prebias) transform = split_key_vector(bias, rope.frequencies(), 2);
    std::vector<int32_t> positions;
    std::vector<int64_t> slots;
    for (int32_t t = 0; t < kTokens; ++t) positions.push_back(t), slots.push_back(t == 7 ? -1 : 63 - t);
    struct Planes {
      std::vector<std::byte> k, v;
      std::vector<float> k_scales, v_scales, fresh_k, fresh_v;
      SideCounters k_counters, v_counters;
      bool operator==(const Planes& o) const {
        return k == o.k && v == o.v && k_scales == o.k_scales && v_scales == o.v_scales && fresh_k == o.fresh_k &&
               fresh_v == o.fresh_v && k_counters.elems == o.k_counters.elems &&
               v_counters.saturated == o.v_counters.saturated;
      }
    };
    const auto write = [&](const AttentionBackend& backend) {
      Planes p;
      p.k.assign(static_cast<size_t>(layout.k_plane_bytes(kPages)), std::byte{0x11});
      p.v.assign(static_cast<size_t>(layout.v_plane_bytes(kPages)), std::byte{0x22});
      p.k_scales.assign(static_cast<size_t>(kPages * layout.page_scale_elems()), 3.0F);
      p.v_scales = p.k_scales;
      p.fresh_k.resize(k.size());
      p.fresh_v.resize(v.size());
      const KvLayerView view{&layout,
                             kPages,
                             p.k.data(),
                             p.v.data(),
                             layout.has_k_scales() ? p.k_scales.data() : nullptr,
                             layout.has_v_scales() ? p.v_scales.data() : nullptr,
                             {0.02F, 0.01F},
                             format.key.prebias ? &transform : nullptr};
      const WriteTarget target{view, slots, &p.k_counters, &p.v_counters};
      WriteKvParams params;
      params.num_tokens = kTokens;
      params.k = k.data();
      params.v = v.data();
      params.k_bias = bias.data();
      params.positions = positions;
      params.rope = &rope;
      params.geometry = geometry;
      params.targets = std::span(&target, 1);
      params.fresh_k = p.fresh_k.data();
      params.fresh_v = p.fresh_v.data();
      backend.write_kv(params);
      return p;
    };
    EXPECT_TRUE(write(*on_device) == write(RefAttention())) << format.id();
  }
}

TEST(CudaAttention, RefusesFreshRowsOf32Bits) {
  if (cannot_run()) GTEST_SKIP();
  AttendCase shape;
  shape.k_head_dim = shape.v_head_dim = 128;
  shape.sequences = {{.stored = 0, .queries = 5, .fresh = true}};
  AttendData data(shape);
  data.fresh_values(0).front() = 0.1F;
  EXPECT_THROW(data.run(*cuda::testing::make_host_attention()), Error);
}

}  // namespace
}  // namespace asymkv
