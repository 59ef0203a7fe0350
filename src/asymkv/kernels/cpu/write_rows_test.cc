#include <gtest/gtest.h>

#include <bit>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "asymkv/base/error.h"
#include "asymkv/kernels/backends.h"
#include "asymkv/kernels/ref/ref_attention.h"

namespace asymkv {
namespace {

constexpr int64_t kTokens = 67;
constexpr KvGeometry kGeometry{.num_kv_heads = 2, .k_head_dim = 80, .v_head_dim = 48, .page_size = 16};

struct Formats {
  DType native;
  std::vector<std::string> ids;
};

// One write into caches of several formats, by one backend.
class Write {
 public:
  Write(const AttentionBackend& backend, const Formats& formats, ScaleKind scale)
      : rope_(rope_frequencies(1e4, kGeometry.k_head_dim), 500),
        k_(make(kTokens * 2 * kGeometry.k_head_dim, 1)),
        v_(make(kTokens * 2 * kGeometry.v_head_dim, 2)),
        bias_(make(2 * kGeometry.k_head_dim, 3)),
        fresh_k_(k_.size()),
        fresh_v_(v_.size()) {
    for (float& x : bias_) x *= 20.0F;
    spoil();
    positions_.resize(kTokens);
    for (size_t i = 0; i < positions_.size(); ++i) positions_[i] = static_cast<int32_t>((i * 7) % 500);
    for (const std::string& id : formats.ids) add_cache(parse_kv_format(id, formats.native, scale));
    std::vector<WriteTarget> targets;
    for (size_t i = 0; i < caches_.size(); ++i) {
      targets.push_back({caches_[i]->layer(0), slots_[i], &caches_[i]->k_counters(0), &caches_[i]->v_counters(0)});
    }
    WriteKvParams params;
    params.num_tokens = kTokens;
    params.k = k_.data();
    params.v = v_.data();
    params.k_bias = bias_.data();
    params.positions = positions_;
    params.rope = &rope_;
    params.geometry = kGeometry;
    params.native_dtype = formats.native;
    params.targets = targets;
    params.fresh_k = fresh_k_.data();
    params.fresh_v = fresh_v_.data();
    backend.write_kv(params);
  }

  void expect_same(const Write& other) const {
    EXPECT_EQ(bits(fresh_k_), bits(other.fresh_k_));
    EXPECT_EQ(bits(fresh_v_), bits(other.fresh_v_));
    for (size_t i = 0; i < caches_.size(); ++i) {
      const KvLayerView a = caches_[i]->layer(0);
      const KvLayerView b = other.caches_[i]->layer(0);
      const KvLayout& layout = *a.layout;
      const std::string id = layout.format().id();
      const auto same = [&](const auto* x, const auto* y, int64_t bytes) {
        return x == nullptr ? y == nullptr : std::memcmp(x, y, static_cast<size_t>(bytes)) == 0;
      };
      EXPECT_TRUE(same(a.k_plane, b.k_plane, layout.k_plane_bytes(a.num_pages))) << "keys of " << id;
      EXPECT_TRUE(same(a.v_plane, b.v_plane, layout.v_plane_bytes(a.num_pages))) << "values of " << id;
      EXPECT_TRUE(same(a.k_scales, b.k_scales, layout.k_scale_plane_bytes(a.num_pages))) << "key scales of " << id;
      EXPECT_TRUE(same(a.v_scales, b.v_scales, layout.v_scale_plane_bytes(a.num_pages))) << "value scales of " << id;
      expect_same(caches_[i]->k_counters(0), other.caches_[i]->k_counters(0));
      expect_same(caches_[i]->v_counters(0), other.caches_[i]->v_counters(0));
      EXPECT_GT(caches_[i]->k_counters(0).non_finite, 0);
    }
  }

 private:
  static void expect_same(const SideCounters& a, const SideCounters& b) {
    EXPECT_EQ(a.elems, b.elems);
    EXPECT_EQ(a.saturated, b.saturated);
    EXPECT_EQ(a.non_finite, b.non_finite);
  }
  static std::vector<uint32_t> bits(const std::vector<float>& data) {
    std::vector<uint32_t> result;
    for (const float x : data) result.push_back(std::bit_cast<uint32_t>(x));
    return result;
  }
  static std::vector<float> make(int64_t elems, uint64_t seed) {
    std::vector<float> data;
    for (int64_t i = 0; i < elems; ++i) {
      seed = seed * 6364136223846793005ULL + 1442695040888963407ULL;
      const double uniform = static_cast<double>(seed >> 33) * 0x1p-30 - 1.0;
      // Most within [-1, 1], some large, some subnormal after scaling.
      const int kind = static_cast<int>(i % 37);
      data.push_back(static_cast<float>(uniform * (kind == 5 ? 900.0 : kind == 9 ? 1e-4 : kind == 11 ? 1e-7 : 1.0)));
    }
    return data;
  }
  // Everything that is not an ordinary number, in rows of their own and among others.
  void spoil() {
    const float inf = std::numeric_limits<float>::infinity();
    const float values[] = {std::numeric_limits<float>::quiet_NaN(), inf, -inf, 3e38F, -3e38F, 1e-42F, -0.0F, 70000.0F};
    for (size_t i = 0; i < std::size(values); ++i) {
      k_[300 + 211 * i] = values[i];
      v_[200 + 131 * i] = values[i];
    }
    std::fill_n(v_.begin() + 48 * 10, 48, 0.0F);
  }
  void add_cache(const KvFormat& format) {
    const KvLayout layout(kGeometry, format, {.k_row_bytes = 4, .v_row_bytes = 12, .k_page_bytes = 8});
    KvCacheConfig config;
    config.num_layers = 1;
    config.num_pages = 7;
    config.scale_source = "unit";
    if (format.scale() == ScaleKind::kFixed) config.fixed_scales = {{0.013F, 0.0047F}};
    if (format.key.prebias) config.transforms = {split_key_vector(bias_, rope_.frequencies(), 2)};
    caches_.push_back(std::make_unique<KvCache>(layout, config));
    std::vector<int64_t> slots(kTokens);
    for (int64_t i = 0; i < kTokens; ++i) slots[static_cast<size_t>(i)] = (i * 31) % (7 * 16);  // 31 and 112 coprime
    slots[3] = slots[40] = -1;
    slots_.push_back(slots);
  }

  RopeTable rope_;
  std::vector<float> k_;
  std::vector<float> v_;
  std::vector<float> bias_;
  std::vector<float> fresh_k_;
  std::vector<float> fresh_v_;
  std::vector<int32_t> positions_;
  std::vector<std::unique_ptr<KvCache>> caches_;
  std::vector<std::vector<int64_t>> slots_;
};

// Targets of one call share their fresh types: one group of formats a call.
const std::vector<Formats>& groups() {
  static const std::vector<Formats> all = {
      {DType::kBF16, {"bf16/bf16", "bf16/e4m3", "e4m3/bf16", "e4m3/e4m3", "e4m3-prebias/e4m3", "e4m3-prebias/bf16"}},
      {DType::kF16, {"f16/f16", "f16/e4m3", "e4m3/f16", "e4m3-prebias/e4m3", "e4m3/e4m3"}},
      {DType::kF32, {"f32/f32", "f32/e4m3", "e4m3-prebias/f32"}},
      {DType::kBF16, {"f16/f32"}},
      {DType::kBF16, {}}};
  return all;
}

TEST(WriteKv, EveryTargetStoresTheBytesOfTheScalarDefinition) {
  for (const std::string name : {"cpu-avx512", "cpu-avx2", "cpu-sse4", "cpu-neon", "cpu-scalar"}) {
    std::unique_ptr<AttentionBackend> backend;
    try {
      backend = make_cpu_attention(name);
    } catch (const Error&) {
      continue;
    }
    for (const ScaleKind scale : {ScaleKind::kFixed, ScaleKind::kDynamic}) {
      for (Formats formats : groups()) {
        if (scale == ScaleKind::kDynamic && formats.native == DType::kBF16 && formats.ids.size() > 1) {
          for (const char* id : {"i8/e4m3", "i8-prebias/e4m3", "i8/bf16"}) formats.ids.emplace_back(id);
        }
        SCOPED_TRACE(name);
        Write(*backend, formats, scale).expect_same(Write(RefAttention(), formats, scale));
      }
    }
  }
}

TEST(WriteKv, RefusesSlotsOutsideThePlaneAndMixedFreshTypes) {
  const KvLayout layout(kGeometry, parse_kv_format("native", DType::kBF16, ScaleKind::kDynamic));
  KvCacheConfig config;
  config.num_layers = 1;
  config.num_pages = 2;
  KvCache cache(layout, config);
  const KvLayout half_layout(kGeometry, parse_kv_format("f16/f16", DType::kF16, ScaleKind::kDynamic));
  KvCache half_cache(half_layout, config);
  const RopeTable rope(rope_frequencies(1e4, kGeometry.k_head_dim), 4);
  const std::vector<float> k(160);
  const std::vector<float> v(96);
  const auto expect_internal = [&](std::vector<WriteTarget> targets, int32_t position) {
    WriteKvParams params;
    params.num_tokens = 1;
    params.k = k.data();
    params.v = v.data();
    params.positions = std::span(&position, 1);
    params.rope = &rope;
    params.geometry = kGeometry;
    params.targets = targets;
    const RefAttention ref;
    const std::unique_ptr<AttentionBackend> cpu = make_cpu_attention();
    for (const AttentionBackend* backend :
         {static_cast<const AttentionBackend*>(&ref), static_cast<const AttentionBackend*>(cpu.get())}) {
      try {
        backend->write_kv(params);
        ADD_FAILURE() << "accepted";
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::kInternal) << error.what();
      }
    }
  };
  for (const int64_t slot : {int64_t{32}, int64_t{-2}, std::numeric_limits<int64_t>::max()}) {
    expect_internal({{cache.layer(0), std::span(&slot, 1)}}, 0);
  }
  const int64_t good = 31;
  expect_internal({{cache.layer(0), std::span(&good, 1)}}, 4);
  expect_internal({{cache.layer(0), {}}}, 0);
  expect_internal({{cache.layer(0), std::span(&good, 1)}, {half_cache.layer(0), std::span(&good, 1)}}, 0);
}

}  // namespace
}  // namespace asymkv
