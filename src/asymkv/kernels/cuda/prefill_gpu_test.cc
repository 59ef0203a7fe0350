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
#include "asymkv/kernels/cuda/prefill_launch.h"
#include "asymkv/kv/tiled_layout.h"
#include "asymkv/ops/attention.h"

// Widening against its definition byte for byte, merging against the law of softmax_state.h, and whole prefill steps
// against kernels/ref, which decodes the same stored bytes in double precision.
namespace asymkv::cuda {
namespace {

using testing::for_each_format;
using testing::have_device;

constexpr double kRopeTheta = 1e6;
constexpr int64_t kMaxPosition = 1024;

DecodeConfig config_of(const KvFormat& format, int64_t head_dim) {
  return {.key = format.key.dtype,
          .value = format.value.dtype,
          .k_dynamic = format.key.scale == ScaleKind::kDynamic,
          .v_dynamic = format.value.scale == ScaleKind::kDynamic,
          .prebias = format.key.prebias,
          .head_dim = static_cast<int32_t>(head_dim)};
}

uint16_t to_bits(DType dtype, float x) {
  return dtype == DType::kBF16 ? f32_to_bf16(x) : f32_to_f16(x);
}
float from_bits(DType dtype, uint16_t x) {
  return dtype == DType::kBF16 ? bf16_to_f32(x) : f16_to_f32(x);
}

struct PrefillCase {
  KvFormat format;
  DType native = DType::kBF16;
  int64_t num_kv_heads = 2;
  int64_t group = 4;
  int64_t head_dim = 128;
  std::vector<PrefillRequest> requests = {};  // page rows are filled in
  int64_t staging_tokens = 4096;
  std::string describe() const {
    return fmt::format("{} scale {} native {} {}x{} dim {} staging {}", format.id(), scale_kind_name(format.scale()),
                       dtype_name(native), num_kv_heads, group, head_dim, staging_tokens);
  }
};

// Stored tokens of all requests on shuffled pages, in the host's plain layout and on the device in tiled-1. Slots that
// no token owns hold 0xff.
class StoredContext {
 public:
  explicit StoredContext(PrefillCase& c)
      : c_(c),
        geometry_{c.num_kv_heads, c.head_dim, c.head_dim, 16},
        layout_(geometry_, c.format),
        rope_(rope_frequencies(kRopeTheta, c.head_dim), kMaxPosition) {
    int32_t pages = 0;
    for (PrefillRequest& r : c.requests) {
      r.page_row = pages;
      pages += (r.cached_len + 15) / 16;
    }
    num_pages_ = pages + 2;
    table_.resize(static_cast<size_t>(num_pages_));
    std::iota(table_.begin(), table_.end(), 0);
    std::shuffle(table_.begin(), table_.end(), random_);
    table_.resize(static_cast<size_t>(pages));
    k_.assign(static_cast<size_t>(layout_.k_plane_bytes(num_pages_)), std::byte{0xff});
    v_.assign(static_cast<size_t>(layout_.v_plane_bytes(num_pages_)), std::byte{0xff});
    k_scales_.assign(static_cast<size_t>(num_pages_ * layout_.page_scale_elems()), std::nanf(""));
    v_scales_ = k_scales_;
    bias_ = normal(static_cast<size_t>(c.num_kv_heads * c.head_dim), 1.0F);
    if (c.format.key.prebias)
      transform_ = split_key_vector(bias_, rope_.frequencies(), c.num_kv_heads, {.max_fast_pairs = 0});
    for (const PrefillRequest& r : c.requests) store(r);
    upload();
  }

  KvLayerView view() {
    return {&layout_,
            num_pages_,
            k_.data(),
            v_.data(),
            layout_.has_k_scales() ? k_scales_.data() : nullptr,
            layout_.has_v_scales() ? v_scales_.data() : nullptr,
            fixed_,
            c_.format.key.prebias ? &transform_ : nullptr};
  }
  std::vector<float> normal(size_t count, float sigma) {
    std::normal_distribution<float> normal(0.0F, sigma);
    std::vector<float> out(count);
    for (float& x : out) x = normal(random_);
    return out;
  }
  void fill(WidenParams& p) const {
    p.blocks = blocks.data();
    p.scales = scales.data();
    p.fixed_scales = fixed.as<float>();
    p.removed = c_.format.key.prebias ? removed.as<float>() : nullptr;
    p.cosines = cosines.as<float>();
    p.sines = sines.as<float>();
  }
  PrefillBatch batch() const {
    return {c_.requests,
            table_,
            16,
            static_cast<int32_t>(c_.num_kv_heads * c_.group),
            static_cast<int32_t>(c_.num_kv_heads),
            static_cast<int32_t>(c_.head_dim)};
  }
  // The definition of prefill_kernels.h for one stored element.
  uint16_t widened(bool key, int64_t page, int64_t head, int64_t slot, int64_t channel, int64_t position) {
    const KvLayerView at = view();
    const DType dtype = key ? c_.format.key.dtype : c_.format.value.dtype;
    const std::byte* row = key ? k_.data() + layout_.k_row_offset_bytes(page, head, slot)
                               : v_.data() + layout_.v_row_offset_bytes(page, head, slot);
    float x = 0.0F;
    decode_row(dtype, 1.0F, row + channel * dtype_bytes(dtype), std::span(&x, 1));
    x *= key ? at.k_scale(page, head, slot) : at.v_scale(page, head, slot);
    if (key && c_.format.key.prebias) {
      const int64_t half = c_.head_dim / 2;
      const int64_t pair = channel % half;
      const float* vector = transform_.removed_of(head);
      const float own = vector[channel] * rope_.cos_row(position)[pair];
      const float other = vector[channel < half ? channel + half : pair] * rope_.sin_row(position)[pair];
      x += channel < half ? own - other : own + other;
    }
    return to_bits(c_.native, x);
  }

  const std::vector<int32_t>& table() const { return table_; }
  const RopeTable& rope() const { return rope_; }
  DeviceBuffer blocks, scales, fixed, removed, cosines, sines;

 private:
  void store(const PrefillRequest& r) {
    const size_t elems = static_cast<size_t>(r.cached_len * c_.num_kv_heads * c_.head_dim);
    const std::vector<float> k = normal(elems, 1.0F);
    const std::vector<float> v = normal(elems, 1.0F);
    std::vector<int32_t> positions(static_cast<size_t>(r.cached_len));
    std::iota(positions.begin(), positions.end(), 0);
    std::vector<int64_t> slots;
    for (int32_t t = 0; t < r.cached_len; ++t)
      slots.push_back(int64_t{table_[static_cast<size_t>(r.page_row + t / 16)]} * 16 + t % 16);
    const WriteTarget target{view(), slots};
    WriteKvParams params;
    params.num_tokens = r.cached_len;
    params.k = k.data();
    params.v = v.data();
    params.k_bias = bias_.data();
    params.positions = positions;
    params.rope = &rope_;
    params.geometry = geometry_;
    params.native_dtype = c_.native;
    params.targets = std::span(&target, 1);
    make_ref_attention()->write_kv(params);
  }

  void upload() {
    const TiledLayout tiled(geometry_, c_.format);
    std::vector<std::byte> block_plane(static_cast<size_t>(tiled.plane_bytes(num_pages_)));
    std::vector<std::byte> scale_plane(static_cast<size_t>(tiled.scale_plane_bytes(num_pages_)));
    for (int64_t page = 0; page < num_pages_; ++page) plain_to_tiled(view(), tiled, page, {block_plane, scale_plane});
    blocks = to_device(block_plane);
    scales = to_device(scale_plane);
    fixed = to_device(std::vector<float>{fixed_.key, fixed_.value});
    removed = to_device(transform_.removed);
    const size_t elems = static_cast<size_t>(kMaxPosition * rope_.num_pairs());
    cosines = to_device(std::span<const float>(rope_.cos_row(0), elems));
    sines = to_device(std::span<const float>(rope_.sin_row(0), elems));
  }

  PrefillCase& c_;
  KvGeometry geometry_;
  KvLayout layout_;
  RopeTable rope_;
  std::mt19937_64 random_{7};
  int64_t num_pages_ = 0;
  std::vector<int32_t> table_;
  std::vector<std::byte> k_, v_;
  std::vector<float> k_scales_, v_scales_, bias_;
  LayerScales fixed_{.key = 0.043F, .value = 0.027F};
  KeyTransform transform_;
};

TEST(Widen, EqualsItsDefinitionByteForByte) {
  if (!have_device()) GTEST_SKIP() << "no Hopper GPU";
  for (const DType native : {DType::kBF16, DType::kF16}) {
    for (const int64_t head_dim : {64, 80, 96, 128, 192, 256}) {
      for_each_format(native, [&](const KvFormat& format) {
        PrefillCase c{.format = format, .native = native, .head_dim = head_dim, .requests = {{37, 9}, {16, 9}}};
        StoredContext context(c);
        const PrefillPlan plan = plan_prefill(context.batch(), {.max_decode_columns = 16});
        const StagingRound& round = plan.rounds.at(0);
        const int64_t elems = round.num_rows * c.num_kv_heads * head_dim;
        const DeviceBuffer k(elems * 2), v(elems * 2), pages = to_device(round.pages);
        k.fill(0x5a);
        v.fill(0x5a);
        WidenParams p;
        context.fill(p);
        p.pages = pages.as<WidenPage>();
        p.num_pages = static_cast<int32_t>(round.pages.size());
        p.num_kv_heads = static_cast<int32_t>(c.num_kv_heads);
        p.k = k.data();
        p.v = v.data();
        p.to_bf16 = native == DType::kBF16;
        launch_widen(config_of(format, head_dim), p, nullptr);
        ASYMKV_CUDA(cudaDeviceSynchronize());
        std::vector<uint16_t> expected_k(static_cast<size_t>(elems), 0x5a5a), expected_v = expected_k;
        for (const WidenPage& page : round.pages) {
          for (int64_t i = 0; i < page.count * c.num_kv_heads * head_dim; ++i) {
            const int64_t slot = i / (c.num_kv_heads * head_dim);
            const int64_t head = i / head_dim % c.num_kv_heads;
            const auto at = static_cast<size_t>(page.row * c.num_kv_heads * head_dim + i);
            expected_k[at] = context.widened(true, page.page, head, slot, i % head_dim, page.position + slot);
            expected_v[at] = context.widened(false, page.page, head, slot, i % head_dim, 0);
          }
        }
        EXPECT_TRUE(to_host<uint16_t>(k, elems) == expected_k) << "keys: " << c.describe();
        EXPECT_TRUE(to_host<uint16_t>(v, elems) == expected_v) << "values: " << c.describe();
      });
    }
  }
}

// Rows: both full; the first empty; the second empty with NaN in its output; both empty.
TEST(Merge, FollowsTheLawAndIgnoresEmptyStates) {
  if (!have_device()) GTEST_SKIP() << "no Hopper GPU";
  constexpr float kInf = std::numeric_limits<float>::infinity();
  const std::vector<float> before = {1.5F, -kInf, 0.25F, -kInf};
  const std::vector<float> part_lse = {0.5F, 2.0F, -kInf, -kInf};
  constexpr size_t kDim = 64;
  std::vector<uint16_t> out_bits, part_bits;
  for (size_t row = 0; row < before.size(); ++row) {
    for (size_t i = 0; i < kDim; ++i) {
      out_bits.push_back(row == 1 || row == 3 ? 0x7fc0 : f32_to_bf16(static_cast<float>(i)));
      part_bits.push_back(row >= 2 ? 0x7fc0 : f32_to_bf16(-2.0F * static_cast<float>(i)));
    }
  }
  const std::vector<MergePiece> pieces = {{0, 4, 1, 1}};
  const DeviceBuffer out = to_device(out_bits), part = to_device(part_bits), lse = to_device(before),
                     stats = to_device(part_lse), on_device = to_device(pieces);
  launch_merge({.pieces = on_device.as<MergePiece>(),
                .num_pieces = 1,
                .max_queries = 4,
                .num_q_heads = 1,
                .head_dim = kDim,
                .part = part.data(),
                .part_stats = stats.as<float>(),
                .stats_stride = 4,
                .out = out.data(),
                .lse = lse.as<float>()},
               nullptr);
  ASYMKV_CUDA(cudaDeviceSynchronize());
  const std::vector<uint16_t> got = to_host<uint16_t>(out, static_cast<int64_t>(out_bits.size()));
  const std::vector<float> got_lse = to_host<float>(lse, 4);
  const double a = std::exp(1.5), b = std::exp(0.5);
  EXPECT_NEAR(static_cast<double>(got_lse[0]), std::log(a + b), 1e-6);
  EXPECT_EQ(got_lse[1], 2.0F);
  EXPECT_EQ(got_lse[2], 0.25F);
  EXPECT_EQ(got_lse[3], -kInf);
  for (size_t i = 0; i < kDim; ++i) {
    const double x = static_cast<double>(i);
    EXPECT_NEAR(static_cast<double>(bf16_to_f32(got[i])), (a * x - b * 2.0 * x) / (a + b), 0.004 * x);
    EXPECT_EQ(bf16_to_f32(got[kDim + i]), -2.0F * static_cast<float>(i));
    EXPECT_EQ(bf16_to_f32(got[2 * kDim + i]), static_cast<float>(i));
    EXPECT_EQ(got[3 * kDim + i], 0);
  }
}

// One whole step: its fresh requests on the device and through the oracle.
class PrefillStep {
 public:
  explicit PrefillStep(PrefillCase& c) : c_(c), context_(c) {
    plan_ =
        plan_prefill(context_.batch(),
                     {.staging_bytes = c.staging_tokens * staging_bytes_per_token(static_cast<int32_t>(c.num_kv_heads),
                                                                                  static_cast<int32_t>(c.head_dim)),
                      .max_decode_columns = 16});
    const int64_t kv_row = c.num_kv_heads * c.head_dim;
    q_ = draw(plan_.num_rows * kv_row * c.group);
    k_ = draw(plan_.num_rows * kv_row);
    v_ = draw(plan_.num_rows * kv_row);
  }

  void expect_close(Sdpa& sdpa) {
    run_oracle();
    run_device(sdpa);
    double error = 0.0, norm = 0.0, worst_row = 0.0, worst_lse = 0.0;
    const auto dim = static_cast<size_t>(c_.head_dim), heads = static_cast<size_t>(c_.num_kv_heads * c_.group);
    for (const int32_t request : plan_.fresh) {
      const auto begin = static_cast<size_t>(plan_.query_rows[static_cast<size_t>(request)]) * heads;
      const size_t end = begin + static_cast<size_t>(c_.requests[static_cast<size_t>(request)].num_new) * heads;
      for (size_t row = begin; row < end; ++row) {
        double row_error = 0.0, row_norm = 0.0;
        for (size_t i = row * dim; i < (row + 1) * dim; ++i) {
          const double difference = static_cast<double>(from_bits(c_.native, out_[i]) - expected_[i]);
          row_error += std::isnan(difference) ? 1e30 : difference * difference;
          row_norm += static_cast<double>(expected_[i]) * static_cast<double>(expected_[i]);
          out_[i] = kUntouched;
        }
        error += row_error;
        norm += row_norm;
        worst_row = std::max(worst_row, std::sqrt(row_error / row_norm));
        worst_lse = std::max(worst_lse, static_cast<double>(std::fabs(lse_[row] - expected_lse_[row])));
      }
    }
    EXPECT_LE(std::sqrt(error / norm), 0.004) << c_.describe() << ": " << plan_.describe();
    EXPECT_LE(worst_row, 0.01) << c_.describe() << ": " << plan_.describe();
    EXPECT_LE(worst_lse, 0.01) << c_.describe();
    EXPECT_TRUE(std::ranges::all_of(out_, [](uint16_t x) { return x == kUntouched; }))
        << "rows of decode requests were written: " << c_.describe();
    std::cout << fmt::format("{:70} {:2} rounds  rel {:.5f} row {:.5f} lse {:.5f}\n", c_.describe(),
                             plan_.rounds.size(), std::sqrt(error / norm), worst_row, worst_lse);
  }

 private:
  static constexpr uint16_t kUntouched = 0x5a5a;

  std::vector<uint16_t> draw(int64_t count) {
    std::vector<uint16_t> bits;
    for (const float x : context_.normal(static_cast<size_t>(count), 1.0F)) bits.push_back(to_bits(c_.native, x));
    return bits;
  }
  std::vector<float> widened(const std::vector<uint16_t>& bits) const {
    std::vector<float> out;
    for (const uint16_t x : bits) out.push_back(from_bits(c_.native, x));
    return out;
  }
  float softmax_scale() const { return 1.0F / std::sqrt(static_cast<float>(c_.head_dim)); }

  void run_oracle() {
    const std::vector<float> q = widened(q_), k = widened(k_), v = widened(v_);
    std::vector<PageId> pages;
    for (const int32_t id : context_.table()) pages.push_back(PageId{id});
    std::vector<AttendSequence> sequences;
    for (const int32_t request : plan_.fresh) {
      const PrefillRequest& r = c_.requests[static_cast<size_t>(request)];
      AttendSequence s;
      s.query_row = plan_.query_rows[static_cast<size_t>(request)];
      s.num_queries = s.num_fresh = r.num_new;
      s.query_pos = s.stored_len = r.cached_len;
      s.cache = context_.view();
      s.pages =
          std::span(pages).subspan(static_cast<size_t>(r.page_row), static_cast<size_t>((r.cached_len + 15) / 16));
      s.fresh_k = k.data() + s.query_row * c_.num_kv_heads * c_.head_dim;
      s.fresh_v = v.data() + s.query_row * c_.num_kv_heads * c_.head_dim;
      sequences.push_back(s);
    }
    expected_.resize(q.size());
    expected_lse_.resize(q.size() / static_cast<size_t>(c_.head_dim));
    AttendParams params;
    params.num_q_heads = c_.num_kv_heads * c_.group;
    params.num_kv_heads = c_.num_kv_heads;
    params.k_head_dim = params.v_head_dim = c_.head_dim;
    params.softmax_scale = softmax_scale();
    params.q = q.data();
    params.out = expected_.data();
    params.lse = expected_lse_.data();
    params.rope = &context_.rope();
    params.sequences = sequences;
    make_ref_attention()->attend(params);
  }

  void run_device(Sdpa& sdpa) {
    const DeviceBuffer q = to_device(q_), k = to_device(k_), v = to_device(v_),
                       out = to_device(std::vector<uint16_t>(q_.size(), kUntouched)),
                       lse(static_cast<int64_t>(expected_lse_.size() * 4));
    lse.fill(0xff);
    WidenParams stored;
    context_.fill(stored);
    const DevicePrefill prefill(config_of(c_.format, c_.head_dim), context_.batch(), plan_);
    prefill.run(sdpa,
                {.blocks = stored.blocks,
                 .scales = stored.scales,
                 .fixed_scales = stored.fixed_scales,
                 .removed = stored.removed,
                 .cosines = stored.cosines,
                 .sines = stored.sines,
                 .q = q.data(),
                 .fresh_k = k.data(),
                 .fresh_v = v.data(),
                 .out = out.data(),
                 .lse = lse.as<float>(),
                 .bf16 = c_.native == DType::kBF16,
                 .softmax_scale = softmax_scale()},
                nullptr);
    ASYMKV_CUDA(cudaDeviceSynchronize());
    out_ = to_host<uint16_t>(out, static_cast<int64_t>(q_.size()));
    lse_ = to_host<float>(lse, static_cast<int64_t>(expected_lse_.size()));
  }

  PrefillCase& c_;
  StoredContext context_;
  PrefillPlan plan_;
  std::vector<uint16_t> q_, k_, v_, out_;
  std::vector<float> expected_, expected_lse_, lse_;
};

// A fresh request, decode requests in between, contexts of whole and partial pages.
const std::vector<PrefillRequest> kMixedStep = {{0, 70}, {100, 1}, {45, 33}, {0, 1}, {200, 50}, {16, 17}, {30, 2}};

TEST(Prefill, EveryFormatMatchesTheOracle) {
  if (!have_device()) GTEST_SKIP() << "no Hopper GPU";
  if (!sdpa_refusal().empty()) GTEST_SKIP() << sdpa_refusal();
  Sdpa sdpa;
  std::cout << sdpa.version() << "\n";
  for (const DType native : {DType::kBF16, DType::kF16}) {
    for_each_format(native, [&](const KvFormat& format) {
      PrefillCase c{.format = format, .native = native, .requests = kMixedStep};
      PrefillStep(c).expect_close(sdpa);
    });
  }
}

TEST(Prefill, RoundsOfASmallStagingBufferAddUp) {
  if (!have_device()) GTEST_SKIP() << "no Hopper GPU";
  if (!sdpa_refusal().empty()) GTEST_SKIP() << sdpa_refusal();
  Sdpa sdpa;
  for (const int64_t staging : {16, 64, 112}) {
    for (const char* name : {"native", "k8v8"}) {
      PrefillCase c{.format = parse_kv_format(name, DType::kBF16, ScaleKind::kDynamic),
                    .num_kv_heads = 4,
                    .group = 7,
                    .requests = kMixedStep,
                    .staging_tokens = staging};
      PrefillStep(c).expect_close(sdpa);
    }
  }
}

TEST(Prefill, HeadDims) {
  if (!have_device()) GTEST_SKIP() << "no Hopper GPU";
  if (!sdpa_refusal().empty()) GTEST_SKIP() << sdpa_refusal();
  Sdpa sdpa;
  for (const int64_t head_dim : {64, 80, 96, 192, 256}) {
    PrefillCase c{.format = parse_kv_format("k16v8", DType::kBF16, ScaleKind::kDynamic),
                  .head_dim = head_dim,
                  .requests = kMixedStep,
                  .staging_tokens = 128};
    PrefillStep(c).expect_close(sdpa);
  }
}

}  // namespace
}  // namespace asymkv::cuda
