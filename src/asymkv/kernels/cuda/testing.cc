#include "asymkv/kernels/cuda/testing.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>

#include "asymkv/device/cuda/cuda_error.h"
#include "asymkv/kernels/backends.h"
#include "asymkv/kernels/cuda/slow_bias.h"

namespace asymkv::cuda::testing {
namespace {

constexpr double kRopeTheta = 1e6;
constexpr int64_t kSparePages = 3;  // pages that no sequence owns: poisoned
constexpr size_t kSentinelElems = 64;
constexpr uint16_t kSentinel = 0x5a5a;

// One layer in the plain layout, filled with 0xff first, so that every slot nobody wrote is NaN.
struct HostCache {
  KvLayout layout;
  int64_t num_pages;
  std::vector<std::byte> k, v;
  std::vector<float> k_scales, v_scales;
  LayerScales fixed{.key = 0.043F, .value = 0.027F};
  KeyTransform transform;

  HostCache(const KvLayout& layout_in, int64_t pages)
      : layout(layout_in),
        num_pages(pages),
        k(static_cast<size_t>(layout.k_plane_bytes(pages)), std::byte{0xff}),
        v(static_cast<size_t>(layout.v_plane_bytes(pages)), std::byte{0xff}),
        k_scales(static_cast<size_t>(pages * layout.page_scale_elems()), std::nanf("")),
        v_scales(k_scales) {}

  KvLayerView view() {
    return {&layout,
            num_pages,
            k.data(),
            v.data(),
            layout.has_k_scales() ? k_scales.data() : nullptr,
            layout.has_v_scales() ? v_scales.data() : nullptr,
            fixed,
            layout.format().key.prebias ? &transform : nullptr};
  }
};

class CaseBuilder {
 public:
  explicit CaseBuilder(const DecodeCase& c)
      : case_(c), random_(c.seed), geometry_{c.num_kv_heads, c.head_dim, c.head_dim, kPageSize} {}

  void assign_pages() {
    int64_t total = kSparePages;
    for (const int32_t len : case_.seq_lens) {
      rows.push_back(static_cast<int32_t>(total - kSparePages));
      total += (len + kPageSize - 1) / kPageSize;
    }
    ids.resize(static_cast<size_t>(total));
    std::iota(ids.begin(), ids.end(), 0);
    std::shuffle(ids.begin(), ids.end(), random_);
    num_pages = total;
    ids.resize(static_cast<size_t>(total - kSparePages));
  }

  void fill(HostCache& cache) {
    if (case_.format.key.prebias) cache.transform = transform();
    for (size_t s = 0; s < case_.seq_lens.size(); ++s) {
      for (int32_t t = 0; t < case_.seq_lens[s]; ++t) {
        const int64_t page = ids[static_cast<size_t>(rows[s] + t / kPageSize)];
        for (int64_t head = 0; head < case_.num_kv_heads; ++head) write_row(cache, page, head, t % kPageSize);
      }
    }
  }

  std::vector<float> normal(size_t count, float sigma) {
    std::normal_distribution<float> normal(0.0F, sigma);
    std::vector<float> out(count);
    for (float& x : out) x = normal(random_);
    return out;
  }

  std::vector<int32_t> ids, rows;
  int64_t num_pages = 0;

 private:
  void write_row(HostCache& cache, int64_t page, int64_t head, int64_t slot) {
    const auto dim = static_cast<size_t>(case_.head_dim);
    const bool large = case_.large_rows && random_() % 29 == 0;
    std::vector<float> key = normal(dim, 1.0F);
    std::vector<float> value = normal(dim, large ? 300.0F : 1.0F);
    const KvFormat& format = case_.format;
    if (format.key.dtype == DType::kE4M3 && format.key.scale == ScaleKind::kFixed)
      for (float& x : key) x = std::clamp(x, -15.0F, 15.0F);
    const auto row = static_cast<size_t>(cache.layout.scale_index(page, head, slot));
    SideCounters ignored;
    float k_scale = cache.fixed.key;
    float v_scale = cache.fixed.value;
    if (format.key.scale == ScaleKind::kDynamic) cache.k_scales[row] = k_scale = dynamic_scale(format.key.dtype, key);
    if (format.value.scale == ScaleKind::kDynamic)
      cache.v_scales[row] = v_scale = dynamic_scale(format.value.dtype, value);
    encode_row(format.key.dtype, k_scale, key, cache.k.data() + cache.layout.k_row_offset_bytes(page, head, slot),
               ignored);
    encode_row(format.value.dtype, v_scale, value, cache.v.data() + cache.layout.v_row_offset_bytes(page, head, slot),
               ignored);
  }

  KeyTransform transform() {
    const std::vector<double> frequencies = rope_frequencies(kRopeTheta, case_.head_dim);
    std::vector<float> vector;
    for (int64_t head = 0; head < case_.num_kv_heads; ++head) {
      for (const float x : normal(static_cast<size_t>(case_.head_dim), 1.0F))
        vector.push_back(static_cast<float>(case_.bias_magnitude) * x);
    }
    return split_key_vector(vector, frequencies, case_.num_kv_heads, {.max_fast_pairs = 0});
  }

  const DecodeCase& case_;
  std::mt19937_64 random_;
  KvGeometry geometry_;
};

struct OracleResult {
  std::vector<float> out, lse;
};

OracleResult run_oracle(const DecodeCase& c, HostCache& cache, const CaseBuilder& built, const std::vector<float>& q) {
  const int64_t q_heads = c.num_kv_heads * c.group;
  const int32_t longest = c.seq_lens.empty() ? 0 : std::ranges::max(c.seq_lens);
  const RopeTable rope(rope_frequencies(kRopeTheta, c.head_dim), longest + 1);
  std::vector<PageId> pages;
  for (const int32_t id : built.ids) pages.push_back(PageId{id});
  std::vector<AttendSequence> sequences;
  for (size_t s = 0; s < c.seq_lens.size(); ++s) {
    AttendSequence sequence;
    sequence.query_row = static_cast<int64_t>(s);
    sequence.num_queries = 1;
    sequence.query_pos = std::max(c.seq_lens[s] - 1, 0);
    sequence.cache = cache.view();
    const size_t end = s + 1 < built.rows.size() ? static_cast<size_t>(built.rows[s + 1]) : pages.size();
    sequence.pages =
        std::span(pages).subspan(static_cast<size_t>(built.rows[s]), end - static_cast<size_t>(built.rows[s]));
    sequence.stored_len = c.seq_lens[s];
    sequences.push_back(sequence);
  }
  OracleResult result;
  result.out.resize(q.size());
  result.lse.resize(c.seq_lens.size() * static_cast<size_t>(q_heads));
  AttendParams params;
  params.num_q_heads = q_heads;
  params.num_kv_heads = c.num_kv_heads;
  params.k_head_dim = params.v_head_dim = c.head_dim;
  params.softmax_scale = 1.0F / std::sqrt(static_cast<float>(c.head_dim));
  params.q = q.data();
  params.out = result.out.data();
  params.lse = result.lse.data();
  params.rope = &rope;
  params.sequences = sequences;
  make_ref_attention()->attend(params);
  return result;
}

std::vector<uint16_t> to_16bit(DType dtype, const std::vector<float>& from) {
  std::vector<uint16_t> to;
  for (const float x : from) to.push_back(dtype == DType::kBF16 ? f32_to_bf16(x) : f32_to_f16(x));
  return to;
}
std::vector<float> from_16bit(DType dtype, const std::vector<uint16_t>& from) {
  std::vector<float> to;
  for (const uint16_t x : from) to.push_back(dtype == DType::kBF16 ? bf16_to_f32(x) : f16_to_f32(x));
  return to;
}

// One layer on the device in "tiled-1".
struct DeviceLayer {
  DeviceBuffer blocks, scales, fixed, bias, bias_freq;
  int32_t chunks = 0;

  explicit DeviceLayer(HostCache& cache) {
    const TiledLayout tiled(cache.layout.geometry(), cache.layout.format());
    std::vector<std::byte> block_plane(static_cast<size_t>(tiled.plane_bytes(cache.num_pages)));
    std::vector<std::byte> scale_plane(static_cast<size_t>(tiled.scale_plane_bytes(cache.num_pages)));
    for (int64_t page = 0; page < cache.num_pages; ++page)
      plain_to_tiled(cache.view(), tiled, page, {block_plane, scale_plane});
    blocks = to_device(block_plane);
    scales = to_device(scale_plane);
    fixed = to_device(std::vector<float>{cache.fixed.key, cache.fixed.value});
    if (cache.layout.format().key.prebias) {
      const auto frequencies = rope_frequencies(kRopeTheta, cache.layout.geometry().k_head_dim);
      const SlowBias slow = make_slow_bias(cache.transform, frequencies);
      bias = to_device(slow.pairs);
      bias_freq = to_device(slow.freqs);
      chunks = slow.chunks;
    }
  }
};

void compare(const DecodeCase& c, const OracleResult& oracle, const std::vector<float>& out,
             const std::vector<float>& lse, DecodeOutcome& outcome) {
  const auto dim = static_cast<size_t>(c.head_dim);
  double error = 0.0;
  double norm = 0.0;
  for (size_t row = 0; row < lse.size(); ++row) {
    double row_error = 0.0;
    double row_norm = 0.0;
    for (size_t i = row * dim; i < (row + 1) * dim; ++i) {
      const double difference = static_cast<double>(out[i]) - static_cast<double>(oracle.out[i]);
      row_error += std::isnan(difference) ? std::numeric_limits<double>::infinity() : difference * difference;
      row_norm += static_cast<double>(oracle.out[i]) * static_cast<double>(oracle.out[i]);
    }
    error += row_error;
    norm += row_norm;
    const bool empty = c.seq_lens[row / static_cast<size_t>(c.num_kv_heads * c.group)] == 0;
    if (empty) {
      outcome.empty_rows_zero = outcome.empty_rows_zero && row_error == 0.0 && std::isinf(lse[row]) && lse[row] < 0;
      continue;
    }
    outcome.worst_row = std::max(outcome.worst_row, std::sqrt(row_error / row_norm));
    const double lse_error = std::fabs(static_cast<double>(lse[row]) - static_cast<double>(oracle.lse[row]));
    outcome.max_lse_error = std::max(outcome.max_lse_error, std::isnan(lse_error) ? 1e30 : lse_error);
  }
  outcome.rel_l2 = norm > 0.0 ? std::sqrt(error / norm) : error;
}

}  // namespace

std::string DecodeCase::describe() const {
  std::string lens;
  for (const int32_t len : seq_lens) lens += fmt::format("{}{}", lens.empty() ? "" : ",", len);
  return fmt::format("{} scale {} {}x{} dim {} q {} shape {}x{} cluster {} lens {}", format.id(),
                     scale_kind_name(format.scale()), num_kv_heads, group, head_dim, dtype_name(q_dtype), shape.warps,
                     shape.stages, shape.cluster_size, lens);
}

DecodeOutcome run_decode_case(const DecodeCase& c) {
  CaseBuilder builder(c);
  builder.assign_pages();
  const KvGeometry geometry{c.num_kv_heads, c.head_dim, c.head_dim, kPageSize};
  HostCache cache(KvLayout(geometry, c.format), builder.num_pages);
  builder.fill(cache);
  const size_t q_elems = c.seq_lens.size() * static_cast<size_t>(c.num_kv_heads * c.group * c.head_dim);
  const std::vector<uint16_t> q_bits = to_16bit(c.q_dtype, builder.normal(q_elems, 1.0F));
  const OracleResult oracle = run_oracle(c, cache, builder, from_16bit(c.q_dtype, q_bits));

  const DecodeChoice choice = choose_decode(geometry, c.format, c.group);
  if (!choice.ok) throw_unsupported("{}", choice.reason);
  const DeviceLayer layer(cache);
  const DecodeBatch batch{c.seq_lens, builder.rows, builder.ids, static_cast<int32_t>(c.num_kv_heads),
                          static_cast<int32_t>(c.group)};
  DecodeOutcome outcome;
  outcome.bias_error_bound = cache.transform.slow_error_bound;
  outcome.plan = plan_decode(choice.config, batch, query_limits(choice.config), c.shape, layer.chunks);
  const DevicePlan plan(outcome.plan, builder.ids);
  const DeviceBuffer q = to_device(q_bits);
  const DeviceBuffer out(static_cast<int64_t>((q_elems + kSentinelElems) * 2));
  const auto lse_elems = static_cast<int64_t>(oracle.lse.size());
  const DeviceBuffer lse(std::max<int64_t>(lse_elems * 4, 4));
  const DecodeArguments arguments{layer.blocks.data(),
                                  layer.scales.data(),
                                  layer.fixed.as<float>(),
                                  q.data(),
                                  out.data(),
                                  lse.as<float>(),
                                  layer.bias.as<BiasPair>(),
                                  layer.bias_freq.as<BiasFrequency>(),
                                  c.q_dtype == DType::kBF16,
                                  1.0F / std::sqrt(static_cast<float>(c.head_dim))};
  std::vector<uint16_t> first;
  for (int launch = 0; launch < 2; ++launch) {
    const std::vector<uint16_t> poison(q_elems + kSentinelElems, kSentinel);
    out.upload(std::as_bytes(std::span(poison)));
    lse.fill(0xff);
    launch_decode(plan, arguments, nullptr);
    ASYMKV_CUDA(cudaDeviceSynchronize());
    std::vector<uint16_t> bits = to_host<uint16_t>(out, static_cast<int64_t>(poison.size()));
    outcome.sentinels_intact =
        outcome.sentinels_intact && std::equal(bits.begin() + static_cast<ptrdiff_t>(q_elems), bits.end(),
                                               poison.begin() + static_cast<ptrdiff_t>(q_elems));
    bits.resize(q_elems);
    if (launch == 0) first = bits;
    if (outcome.plan.rule != SplitRule::kFlat) outcome.repeat_equal = outcome.repeat_equal && bits == first;
  }
  compare(c, oracle, from_16bit(c.q_dtype, first), to_host<float>(lse, lse_elems), outcome);
  return outcome;
}

std::string judge(const DecodeOutcome& outcome) {
  if (!(outcome.rel_l2 <= 0.004)) return fmt::format("relative L2 {:.5f} above 0.004", outcome.rel_l2);
  if (!(outcome.worst_row <= 0.01)) return fmt::format("worst row {:.5f} above 0.01", outcome.worst_row);
  if (!(outcome.max_lse_error <= 2e-3 + 2.0 * outcome.bias_error_bound))
    return fmt::format("LSE off by {:.5f}", outcome.max_lse_error);
  if (!outcome.sentinels_intact) return "bytes after the output were written";
  if (!outcome.empty_rows_zero) return "an empty sequence did not give zeros and -inf";
  if (!outcome.repeat_equal) return "a second launch gave other bits";
  return {};
}

}  // namespace asymkv::cuda::testing
