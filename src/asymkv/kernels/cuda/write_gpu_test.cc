#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iostream>
#include <limits>
#include <numeric>
#include <random>

#include "asymkv/device/cuda/cuda_error.h"
#include "asymkv/kernels/backends.h"
#include "asymkv/kernels/cuda/gpu_test_support.h"
#include "asymkv/kernels/cuda/key_norm.h"
#include "asymkv/kernels/cuda/write_checks.h"
#include "asymkv/kernels/cuda/write_kernel.h"
#include "asymkv/kv/tiled_layout.h"
#include "asymkv/ops/attention.h"

// The device writer against kernels/ref and kv/codec on the same 16-bit inputs: every byte of every page, every scale,
// every counter. Bytes that no token owns must stay as they were.
namespace asymkv::cuda {
namespace {

using testing::for_each_format;
using testing::have_device;

struct WriteCase {
  KvFormat format;
  DType native = DType::kBF16;
  int64_t num_kv_heads = 2;
  int64_t head_dim = 128;
  std::vector<int64_t> slots = {};
  bool with_bias = true;
  bool odd_inputs = false;  // NaN, infinities, values that saturate
  bool normed = false;      // RMS norm of each key head
  int64_t padding = 0;      // elements between the token rows of keys and values
  std::string describe() const {
    return fmt::format("{} scale {} native {} heads {} dim {} tokens {} odd {} norm {}", format.id(),
                       scale_kind_name(format.scale()), dtype_name(native), num_kv_heads, head_dim, slots.size(),
                       odd_inputs, normed);
  }
};

constexpr int64_t kPages = 9;
constexpr int64_t kMaxPosition = 5000;
constexpr float kNormEps = 1e-6F;

class WriterRun {
 public:
  explicit WriterRun(const WriteCase& c)
      : c_(c),
        geometry_{c.num_kv_heads, c.head_dim, c.head_dim, kPageSize},
        plain_(geometry_, c.format),
        tiled_(geometry_, c.format),
        rope_(rope_frequencies(1e6, c.head_dim), kMaxPosition + 1) {
    const size_t elems = c.slots.size() * static_cast<size_t>(c.num_kv_heads * c.head_dim);
    k_ = draw(elems, 1.0F);
    v_ = draw(elems, 1.0F);
    for (size_t i = 0; i < v_.size(); i += 97) v_[i] = bits(-0.0F);  // its sign is stored
    if (c.odd_inputs) make_odd();
    for (int64_t i = 0; i < c.num_kv_heads * c.head_dim; ++i) bias_.push_back(c.with_bias ? 20.0F * normal() : 0.0F);
    for (int64_t i = 0; i < c.head_dim; ++i) norm_weight_.push_back(1.0F + 0.5F * normal());
    for (size_t i = 0; i < c.slots.size(); ++i) positions_.push_back(static_cast<int32_t>(random_() % kMaxPosition));
    if (c.format.key.prebias)
      transform_ = split_key_vector(bias_, rope_.frequencies(), c.num_kv_heads, {.max_fast_pairs = 0});
  }

  void expect_equal() {
    run_host();
    run_device();
    if (c_.odd_inputs) {  // arithmetic gives other NaN payloads on the device; everything else must be the same
      for (auto* fresh : {&host_fresh_, &device_fresh_}) {
        for (uint16_t& x : *fresh) x = std::isnan(stored_float(fresh_key_dtype(c_.format, c_.native), x)) ? 0x7fff : x;
      }
      for (auto* blocks : {&host_blocks_, &device_blocks_}) one_nan(*blocks);
    }
    EXPECT_TRUE(host_blocks_ == device_blocks_)
        << "payload differs at byte " << first_difference(host_blocks_, device_blocks_) << " of " << host_blocks_.size()
        << ": " << c_.describe();
    EXPECT_TRUE(host_scales_ == device_scales_) << "scales differ: " << c_.describe();
    EXPECT_EQ(host_fresh_, device_fresh_) << c_.describe();
    EXPECT_EQ(k_counts_.saturated, static_cast<int64_t>(counters_.k_saturated)) << c_.describe();
    EXPECT_EQ(k_counts_.non_finite, static_cast<int64_t>(counters_.k_non_finite)) << c_.describe();
    EXPECT_EQ(v_counts_.saturated, static_cast<int64_t>(counters_.v_saturated)) << c_.describe();
    EXPECT_EQ(v_counts_.non_finite, static_cast<int64_t>(counters_.v_non_finite)) << c_.describe();
  }

 private:
  static size_t first_difference(const std::vector<std::byte>& a, const std::vector<std::byte>& b) {
    return static_cast<size_t>(std::mismatch(a.begin(), a.end(), b.begin()).first - a.begin());
  }
  static float stored_float(DType dtype, uint16_t x) { return dtype == DType::kBF16 ? bf16_to_f32(x) : f16_to_f32(x); }
  static void one_nan_at(std::byte* at, DType dtype) {
    uint16_t bits = 0;
    std::memcpy(&bits, at, 2);
    if (bits != 0xffff && std::isnan(stored_float(dtype, bits))) bits = 0x7fff;  // 0xffff: never written
    std::memcpy(at, &bits, 2);
  }
  void one_nan(std::vector<std::byte>& blocks) const {
    for (int64_t i = 0; i < kPages * c_.num_kv_heads * kPageSize * c_.head_dim; ++i) {
      const int64_t channel = i % c_.head_dim;
      const int64_t slot = i / c_.head_dim % kPageSize;
      const int64_t head = i / c_.head_dim / kPageSize % c_.num_kv_heads;
      const int64_t page = i / c_.head_dim / kPageSize / c_.num_kv_heads;
      const KvFormat& format = c_.format;
      if (!format.key.is_8bit())
        one_nan_at(blocks.data() + tiled_.k_offset_bytes(page, head, slot, channel), format.key.dtype);
      if (!format.value.is_8bit())
        one_nan_at(blocks.data() + tiled_.v_offset_bytes(page, head, slot, channel), format.value.dtype);
    }
  }
  float normal() { return normal_(random_); }
  uint16_t bits(float x) const { return c_.native == DType::kBF16 ? f32_to_bf16(x) : f32_to_f16(x); }
  float value(uint16_t x) const { return c_.native == DType::kBF16 ? bf16_to_f32(x) : f16_to_f32(x); }
  std::vector<uint16_t> draw(size_t count, float sigma) {
    std::vector<uint16_t> out;
    for (size_t i = 0; i < count; ++i) out.push_back(bits(sigma * normal()));
    return out;
  }
  void make_odd() {
    constexpr float kInfinity = std::numeric_limits<float>::infinity();
    for (const float x : {kInfinity, -kInfinity, std::nanf(""), 30000.0F, -30000.0F, 1e-7F, -0.0F}) {
      k_[random_() % k_.size()] = bits(x);
      v_[random_() % v_.size()] = bits(x);
    }
  }
  std::vector<float> widened(const std::vector<uint16_t>& from) const {
    std::vector<float> to;
    for (const uint16_t x : from) to.push_back(value(x));
    return to;
  }

  std::vector<uint16_t> padded(const std::vector<uint16_t>& rows) const {
    const auto row = static_cast<size_t>(c_.num_kv_heads * c_.head_dim);
    std::vector<uint16_t> out;
    for (size_t at = 0; at < rows.size(); at += row) {
      out.insert(out.end(), rows.begin() + static_cast<ptrdiff_t>(at), rows.begin() + static_cast<ptrdiff_t>(at + row));
      out.insert(out.end(), static_cast<size_t>(c_.padding), uint16_t{0xffff});
    }
    return out;
  }

  void run_host() {
    std::vector<std::byte> k_plane(static_cast<size_t>(plain_.k_plane_bytes(kPages)), std::byte{0xff});
    std::vector<std::byte> v_plane(static_cast<size_t>(plain_.v_plane_bytes(kPages)), std::byte{0xff});
    std::vector<float> k_scales(static_cast<size_t>(kPages * plain_.page_scale_elems()));
    std::memset(k_scales.data(), 0xff, k_scales.size() * 4);
    std::vector<float> v_scales = k_scales;
    KvLayerView view{&plain_,
                     kPages,
                     k_plane.data(),
                     v_plane.data(),
                     plain_.has_k_scales() ? k_scales.data() : nullptr,
                     plain_.has_v_scales() ? v_scales.data() : nullptr,
                     fixed_,
                     c_.format.key.prebias ? &transform_ : nullptr};
    std::vector<float> k = widened(k_);
    for (size_t row = 0; c_.normed && row < k.size(); row += norm_weight_.size())
      norm_key(norm_weight_, kNormEps, std::span(k).subspan(row, norm_weight_.size()));
    const std::vector<float> v = widened(v_);
    std::vector<float> fresh(k.size());
    const WriteTarget target{view, c_.slots, &k_counts_, &v_counts_};
    WriteKvParams params;
    params.num_tokens = static_cast<int64_t>(c_.slots.size());
    params.k = k.data();
    params.v = v.data();
    params.k_bias = bias_.data();
    params.positions = positions_;
    params.rope = &rope_;
    params.geometry = geometry_;
    params.native_dtype = c_.native;
    params.targets = std::span(&target, 1);
    params.fresh_k = fresh.data();
    make_ref_attention()->write_kv(params);
    // Channels behind the head dim are nobody's.
    host_blocks_.assign(static_cast<size_t>(tiled_.plane_bytes(kPages)), std::byte{0xff});
    host_scales_.resize(static_cast<size_t>(tiled_.scale_plane_bytes(kPages)));
    for (int64_t page = 0; page < kPages; ++page) plain_to_tiled(view, tiled_, page, {host_blocks_, host_scales_});
    const DType fresh_type = fresh_key_dtype(c_.format, c_.native);
    for (size_t i = 0; i < fresh.size(); ++i) {
      const size_t token = i / static_cast<size_t>(c_.num_kv_heads * c_.head_dim);
      const uint16_t x = fresh_type == DType::kBF16 ? f32_to_bf16(fresh[i]) : f32_to_f16(fresh[i]);
      host_fresh_.push_back(c_.slots[token] < 0 ? uint16_t{0xffff} : x);  // the device leaves skipped tokens alone
    }
  }

  void run_device() {
    const DecodeConfig config{.key = c_.format.key.dtype,
                              .value = c_.format.value.dtype,
                              .k_dynamic = c_.format.key.scale == ScaleKind::kDynamic,
                              .v_dynamic = c_.format.value.scale == ScaleKind::kDynamic,
                              .prebias = c_.format.key.prebias,
                              .head_dim = static_cast<int32_t>(c_.head_dim)};
    std::vector<float> cosines;
    std::vector<float> sines;
    for (int64_t p = 0; p <= kMaxPosition; ++p) {
      cosines.insert(cosines.end(), rope_.cos_row(p), rope_.cos_row(p) + rope_.num_pairs());
      sines.insert(sines.end(), rope_.sin_row(p), rope_.sin_row(p) + rope_.num_pairs());
    }
    const WritePlan plan = plan_write(c_.slots, kPages * kPageSize);
    const DeviceBuffer k = to_device(padded(k_)), v = to_device(padded(v_)), norm = to_device(norm_weight_),
                       bias = to_device(bias_), cos = to_device(cosines), sin = to_device(sines),
                       positions = to_device(positions_), runs = to_device(plan.launch_order()),
                       removed = to_device(transform_.removed),
                       fixed = to_device(std::vector<float>{fixed_.key, fixed_.value});
    const DeviceBuffer blocks(tiled_.plane_bytes(kPages)), scales(tiled_.scale_plane_bytes(kPages)),
        fresh(static_cast<int64_t>(k_.size() * 2)), counters(sizeof(WriteCounters));
    blocks.fill(0xff);
    scales.fill(0xff);
    fresh.fill(0xff);
    counters.fill(0);
    WriteParams params;
    params.k = k.data();
    params.v = v.data();
    if (c_.padding > 0) params.k_token_stride = params.v_token_stride = c_.num_kv_heads * c_.head_dim + c_.padding;
    params.k_norm = c_.normed ? norm.as<float>() : nullptr;
    params.k_norm_eps = kNormEps;
    params.k_bias = bias.as<float>();
    params.removed = c_.format.key.prebias ? removed.as<float>() : nullptr;
    params.cosines = cos.as<float>();
    params.sines = sin.as<float>();
    params.positions = positions.as<int32_t>();
    params.runs = runs.as<WriteRun>();
    params.num_runs = static_cast<int32_t>(plan.runs.size());
    params.num_whole = static_cast<int32_t>(plan.num_whole());
    params.num_kv_heads = static_cast<int32_t>(c_.num_kv_heads);
    params.blocks = blocks.data();
    params.scales = scales.data();
    params.fixed_scales = fixed.as<float>();
    params.fresh_k = fresh.data();
    params.counters = counters.as<WriteCounters>();
    params.native_is_bf16 = c_.native == DType::kBF16;
    launch_write(config, params, nullptr);
    ASYMKV_CUDA(cudaDeviceSynchronize());
    device_blocks_ = to_host<std::byte>(blocks, blocks.bytes());
    device_scales_ = to_host<std::byte>(scales, scales.bytes());
    device_fresh_ = to_host<uint16_t>(fresh, static_cast<int64_t>(k_.size()));
    counters_ = to_host<WriteCounters>(counters, 1).front();
  }

  const WriteCase& c_;
  KvGeometry geometry_;
  KvLayout plain_;
  TiledLayout tiled_;
  RopeTable rope_;
  LayerScales fixed_{.key = 0.11F, .value = 0.013F};
  KeyTransform transform_;
  std::mt19937_64 random_{42};
  std::normal_distribution<float> normal_;
  std::vector<uint16_t> k_, v_, host_fresh_, device_fresh_;
  std::vector<float> bias_, norm_weight_;
  std::vector<int32_t> positions_;
  std::vector<std::byte> host_blocks_, host_scales_, device_blocks_, device_scales_;
  SideCounters k_counts_, v_counts_;
  WriteCounters counters_;
};

std::vector<int64_t> prompt_slots() {  // 70 tokens from the middle of page 7 on, over pages in no order, some skipped
  std::vector<int64_t> slots;
  for (int64_t s = 7 * 16 + 5; s < 8 * 16; ++s) slots.push_back(s);
  for (const int64_t page : {2, 8, 0}) {
    for (int64_t s = 0; s < 16; ++s) slots.push_back(page * 16 + s);
  }
  slots[30] = -1;
  for (int64_t s = 0; s < 11; ++s) slots.push_back(4 * 16 + s);
  return slots;
}

TEST(Writer, BytesScalesAndCountersOfEveryFormat) {
  if (!have_device()) GTEST_SKIP() << "no Hopper GPU";
  for (const DType native : {DType::kBF16, DType::kF16}) {
    for (const int64_t head_dim : {64, 80, 96, 128, 192, 256}) {
      for_each_format(native, [&](const KvFormat& format) {
        for (const bool odd : {false, true}) {
          const WriteCase c{.format = format,
                            .native = native,
                            .head_dim = head_dim,
                            .slots = prompt_slots(),
                            .odd_inputs = odd,
                            .normed = odd == (head_dim % 128 == 0)};
          WriterRun(c).expect_equal();
        }
      });
    }
  }
}

TEST(Writer, AnyNumberOfHeadsAndStrides) {
  if (!have_device()) GTEST_SKIP() << "no Hopper GPU";
  for (const int64_t heads : {1, 3, 5, 8}) {
    for_each_format(DType::kBF16, [&](const KvFormat& format) {
      const WriteCase c{.format = format,
                        .num_kv_heads = heads,
                        .head_dim = heads == 3 ? 256 : 128,
                        .slots = prompt_slots(),
                        .normed = heads == 5,
                        .padding = heads == 8 ? 0 : 24};
      WriterRun(c).expect_equal();
    });
  }
}

TEST(Writer, SixteenBitSidesOfAnotherTypeThanTheModels) {
  if (!have_device()) GTEST_SKIP() << "no Hopper GPU";
  for (const char* name : {"f16/e4m3", "e4m3/f16", "f16/f16"}) {
    const WriteCase c{.format = parse_kv_format(name, DType::kBF16, ScaleKind::kFixed), .slots = prompt_slots()};
    WriterRun(c).expect_equal();
  }
}

TEST(Writer, DecodeTokensLandAlone) {
  if (!have_device()) GTEST_SKIP() << "no Hopper GPU";
  for (const char* name : {"native", "k16v8", "ki8v8"}) {
    const WriteCase c{.format = parse_kv_format(name, DType::kBF16, ScaleKind::kDynamic),
                      .slots = {5, 37, -1, 143, 16, 64},
                      .with_bias = false};
    WriterRun(c).expect_equal();
  }
}

// Every significand of a scale against every significand of a BF16 and an FP16 element: 2^23 x (2^7 + 2^10) quotients.
TEST(Quotient, EqualsTheDivisionForEverySignificand) {
  if (!have_device()) GTEST_SKIP() << "no Hopper GPU";
  EXPECT_EQ(count_wrong_quotients(7), 0U);
  EXPECT_EQ(count_wrong_quotients(10), 0U);
}

}  // namespace
}  // namespace asymkv::cuda
