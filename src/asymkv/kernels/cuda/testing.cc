#include "asymkv/kernels/cuda/testing.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <numbers>
#include <numeric>
#include <random>

#include "asymkv/device/cuda/cuda_error.h"
#include "asymkv/kernels/backends.h"
#include "asymkv/kernels/cuda/key_bias.h"

namespace asymkv::cuda::testing {
namespace {

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
  explicit CaseBuilder(const DecodeCase& c) : case_(c), random_(c.seed) {}

  void assign_pages() {
    int64_t total = kSparePages;
    for (const int32_t len : case_.seq_lens) {
      rows.push_back(static_cast<int32_t>(total - kSparePages));
      total += (len + case_.page_size - 1) / case_.page_size;
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
      for (int32_t t = first_needed(s); t < case_.seq_lens[s]; ++t) {
        const int64_t page = ids[static_cast<size_t>(rows[s] + t / case_.page_size)];
        for (int64_t head = 0; head < case_.num_kv_heads; ++head) write_row(cache, page, head, t % case_.page_size);
      }
    }
  }

  // First slot of the first page that a query of the sequence sees; what lies before stays poisoned.
  int32_t first_needed(size_t s) const {
    if (case_.window == 0) return 0;
    const int32_t count = case_.num_queries.empty() ? 1 : case_.num_queries[s];
    const int32_t pos = case_.query_pos.empty() ? std::max(case_.seq_lens[s] - count, 0) : case_.query_pos[s];
    return std::max(pos - case_.window + 1, 0) / kPageSize * kPageSize;
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
    const std::vector<double> frequencies = rope_frequencies(case_.rope_theta, case_.head_dim);
    const auto pairs = static_cast<size_t>(case_.head_dim / 2);
    std::uniform_real_distribution<double> angle(0.0, 2.0 * std::numbers::pi);
    std::vector<float> vector(static_cast<size_t>(case_.num_kv_heads * case_.head_dim));
    for (size_t i = 0; i < vector.size(); i += 2 * pairs) {
      for (size_t p = 0; p < pairs; ++p) {
        const double phi = angle(random_);
        vector[i + p] = static_cast<float>(case_.bias_magnitude * std::cos(phi));
        vector[i + p + pairs] = static_cast<float>(case_.bias_magnitude * std::sin(phi));
      }
    }
    return split_key_vector(vector, frequencies, case_.num_kv_heads, case_.split);
  }

  const DecodeCase& case_;
  std::mt19937_64 random_;
};

int32_t queries_of(const DecodeCase& c, size_t sequence) {
  return c.num_queries.empty() ? 1 : c.num_queries[sequence];
}
int64_t num_rows(const DecodeCase& c) {
  int64_t rows = 0;
  for (size_t s = 0; s < c.seq_lens.size(); ++s) rows += queries_of(c, s);
  return rows;
}

struct OracleResult {
  std::vector<float> out, lse;
};

// The parts of the batch as the oracle wants them.
std::vector<AttendSequence> oracle_sequences(const DecodeCase& c, HostCache& cache, const CaseBuilder& built,
                                             std::span<const PageId> pages) {
  std::vector<AttendSequence> sequences;
  int64_t row = 0;
  for (size_t s = 0; s < c.seq_lens.size(); ++s) {
    AttendSequence sequence;
    sequence.query_row = row;
    sequence.num_queries = queries_of(c, s);
    sequence.query_pos = c.query_pos.empty() ? std::max(c.seq_lens[s] - queries_of(c, s), 0) : c.query_pos[s];
    sequence.cache = cache.view();
    const size_t end = s + 1 < built.rows.size() ? static_cast<size_t>(built.rows[s + 1]) : pages.size();
    sequence.pages = pages.subspan(static_cast<size_t>(built.rows[s]), end - static_cast<size_t>(built.rows[s]));
    sequence.stored_len = c.seq_lens[s];
    sequences.push_back(sequence);
    row += sequence.num_queries;
  }
  return sequences;
}

OracleResult run_oracle(const DecodeCase& c, HostCache& cache, const CaseBuilder& built, const std::vector<float>& q,
                        std::span<const float> sinks) {
  const int64_t q_heads = c.num_kv_heads * c.group;
  int32_t longest = c.seq_lens.empty() ? 0 : std::ranges::max(c.seq_lens);
  const RopeTable rope(rope_frequencies(c.rope_theta, c.head_dim), longest + 1);
  std::vector<PageId> pages;
  for (const int32_t id : built.ids) pages.push_back(PageId{id});
  const std::vector<AttendSequence> sequences = oracle_sequences(c, cache, built, pages);
  OracleResult result;
  result.out.resize(q.size());
  result.lse.resize(static_cast<size_t>(num_rows(c) * q_heads));
  AttendParams params;
  params.num_q_heads = q_heads;
  params.num_kv_heads = c.num_kv_heads;
  params.k_head_dim = params.v_head_dim = c.head_dim;
  params.softmax_scale = 1.0F / std::sqrt(static_cast<float>(c.head_dim));
  params.logit_soft_cap = c.logit_soft_cap;
  params.window = c.window;
  params.sinks = sinks.empty() ? nullptr : sinks.data();
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
  DeviceBuffer blocks, scales, fixed;
  std::unique_ptr<DeviceKeyBias> bias;

  DeviceLayer(const DecodeCase& c, HostCache& cache) {
    const TiledLayout tiled(cache.layout.geometry(), cache.layout.format());
    std::vector<std::byte> block_plane(static_cast<size_t>(tiled.plane_bytes(cache.num_pages)));
    std::vector<std::byte> scale_plane(static_cast<size_t>(tiled.scale_plane_bytes(cache.num_pages)));
    for (int64_t page = 0; page < cache.num_pages; ++page)
      plain_to_tiled(cache.view(), tiled, page, {block_plane, scale_plane});
    blocks = to_device(block_plane);
    scales = to_device(scale_plane);
    fixed = to_device(std::vector<float>{cache.fixed.key, cache.fixed.value});
    if (cache.layout.format().key.prebias) {
      const auto frequencies = rope_frequencies(c.rope_theta, c.head_dim);
      bias = std::make_unique<DeviceKeyBias>(make_key_bias(cache.transform, frequencies));
    }
  }
  BiasShape bias_shape() const { return bias == nullptr ? BiasShape{} : bias->shape(); }
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
    constexpr double kSmallestNorm = 1e-30;  // a sink may leave less than FP32 can hold
    if (row_norm < kSmallestNorm * kSmallestNorm) row_norm = row_error < 1e-60 ? 0.0 : row_norm;
    if (row_norm == 0.0) {  // nothing visible: zeros, and the sink or -inf
      const bool same_lse = std::isinf(oracle.lse[row]) ? std::isinf(lse[row]) && lse[row] < 0
                                                        : std::fabs(lse[row] - oracle.lse[row]) < 1e-3F;
      outcome.empty_rows_zero = outcome.empty_rows_zero && row_error < 1e-60 && same_lse;
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
  std::string text = fmt::format("{} scale {} {}x{} dim {} q {} shape {}x{} cluster {} lens {}", format.id(),
                                 scale_kind_name(format.scale()), num_kv_heads, group, head_dim, dtype_name(q_dtype),
                                 shape.warps, shape.stages, shape.cluster_size, lens);
  for (const int32_t n : num_queries) text += fmt::format(" q{}", n);
  if (window > 0) text += fmt::format(" window {}", window);
  if (logit_soft_cap > 0.0F) text += fmt::format(" cap {}", logit_soft_cap);
  return text + fmt::format("{} pages of {}", sinks ? " sinks" : "", page_size);
}

namespace {

// One case on the host and on the device, ready to be planned and launched.
struct CaseRun {
  const DecodeCase& c;
  CaseBuilder builder;
  KvGeometry geometry;
  std::unique_ptr<HostCache> cache;
  std::vector<uint16_t> q_bits;
  std::vector<float> sinks;
  OracleResult oracle;
  std::unique_ptr<DeviceLayer> layer;
  DeviceBuffer q, out, lse, device_sinks;

  explicit CaseRun(const DecodeCase& test_case)
      : c(test_case), builder(c), geometry{c.num_kv_heads, c.head_dim, c.head_dim, c.page_size} {
    builder.assign_pages();
    cache = std::make_unique<HostCache>(KvLayout(geometry, c.format), builder.num_pages);
    builder.fill(*cache);
    q_bits = to_16bit(c.q_dtype, builder.normal(q_elems(), 1.0F));
    if (c.sinks) sinks = builder.normal(static_cast<size_t>(c.num_kv_heads * c.group), 3.0F);
    oracle = run_oracle(c, *cache, builder, from_16bit(c.q_dtype, q_bits), sinks);
    layer = std::make_unique<DeviceLayer>(c, *cache);
    q = to_device(q_bits);
    out = DeviceBuffer(static_cast<int64_t>((q_elems() + kSentinelElems) * 2));
    lse = DeviceBuffer(std::max<int64_t>(static_cast<int64_t>(oracle.lse.size()) * 4, 4));
    if (c.sinks) device_sinks = to_device(sinks);
  }

  size_t q_elems() const { return static_cast<size_t>(num_rows(c) * c.num_kv_heads * c.group * c.head_dim); }
  DecodeBatch batch() const {
    return {
        c.seq_lens,    builder.rows, builder.ids, static_cast<int32_t>(c.num_kv_heads), static_cast<int32_t>(c.group),
        c.num_queries, c.query_pos,  c.window,    static_cast<int32_t>(c.page_size)};
  }
  DecodeConfig config() const {
    const int32_t most = c.num_queries.empty() ? 1 : std::ranges::max(c.num_queries);
    const DecodeChoice choice = choose_decode(geometry, c.format, c.group, most, layer->bias_shape().fast_steps > 0);
    if (!choice.ok) throw_unsupported("{}", choice.reason);
    return choice.config;
  }
  DecodeArguments arguments() const {
    DecodeArguments a;
    a.blocks = layer->blocks.data();
    a.scales = layer->scales.data();
    a.fixed_scales = layer->fixed.as<float>();
    a.q = q.data();
    a.out = out.data();
    a.lse = lse.as<float>();
    a.bias = layer->bias.get();
    a.q_is_bf16 = c.q_dtype == DType::kBF16;
    a.softmax_scale = 1.0F / std::sqrt(static_cast<float>(c.head_dim));
    a.logit_soft_cap = c.logit_soft_cap;
    a.sinks = c.sinks ? device_sinks.as<float>() : nullptr;
    a.overlap_previous = c.overlap_previous;
    return a;
  }
  void poison_output() const {
    const std::vector<uint16_t> poison(q_elems() + kSentinelElems, kSentinel);
    out.upload(std::as_bytes(std::span(poison)));
    lse.fill(0xff);
  }
  // The output's bits; notes whether bytes behind it were written.
  std::vector<uint16_t> read_output(DecodeOutcome& outcome) const {
    std::vector<uint16_t> bits = to_host<uint16_t>(out, static_cast<int64_t>(q_elems() + kSentinelElems));
    for (size_t i = q_elems(); i < bits.size(); ++i)
      outcome.sentinels_intact = outcome.sentinels_intact && bits[i] == kSentinel;
    bits.resize(q_elems());
    return bits;
  }
  void judge_output(const std::vector<uint16_t>& bits, DecodeOutcome& outcome) const {
    outcome.bias_error_bound = cache->transform.slow_error_bound;
    compare(c, oracle, from_16bit(c.q_dtype, bits), to_host<float>(lse, static_cast<int64_t>(oracle.lse.size())),
            outcome);
  }
};

}  // namespace

DecodeOutcome run_decode_case(const DecodeCase& c) {
  const CaseRun run(c);
  const DecodeConfig config = run.config();
  DecodeOutcome outcome;
  outcome.plan = plan_decode(config, run.batch(), query_limits(config), c.shape, run.layer->bias_shape());
  const DevicePlan plan(outcome.plan, run.builder.ids);
  std::vector<uint16_t> first;
  for (int launch = 0; launch < 2; ++launch) {
    run.poison_output();
    launch_decode(plan, run.arguments(), nullptr);
    if (c.overlap_previous) launch_decode(plan, run.arguments(), nullptr);
    ASYMKV_CUDA(cudaDeviceSynchronize());
    const std::vector<uint16_t> bits = run.read_output(outcome);
    if (launch == 0) first = bits;
    outcome.repeat_equal = outcome.repeat_equal && bits == first;
  }
  run.judge_output(first, outcome);
  return outcome;
}

std::vector<DecodeOutcome> run_graph_cases(std::span<const DecodeCase> cases, const PlanRange& range) {
  // Every graph is captured before any batch is known: it holds the addresses of one case's arrays and of the plan.
  std::vector<std::unique_ptr<CaseRun>> runs;
  for (const DecodeCase& c : cases) runs.push_back(std::make_unique<CaseRun>(c));
  const DecodeConfig config = runs.front()->config();
  const DeviceLimits limits = query_limits(config);
  const DecodePlan shape = plan_range(config, range, limits, runs.front()->layer->bias_shape());
  DevicePlan plan(shape, range, limits);
  std::vector<DecodeOutcome> outcomes;
  cudaStream_t stream = nullptr;
  ASYMKV_CUDA(cudaStreamCreate(&stream));
  std::vector<cudaGraphExec_t> graphs;
  for (const auto& run : runs) {
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t executable = nullptr;
    ASYMKV_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    launch_decode(plan, run->arguments(), stream);
    ASYMKV_CUDA(cudaStreamEndCapture(stream, &graph));
    ASYMKV_CUDA(cudaGraphInstantiate(&executable, graph, 0));
    ASYMKV_CUDA(cudaGraphDestroy(graph));
    graphs.push_back(executable);
  }
  for (size_t i = 0; i < runs.size(); ++i) {
    DecodeOutcome outcome;
    runs[i]->poison_output();
    outcome.plan = plan_in_range(shape, range, runs[i]->batch(), limits);
    plan.update(outcome.plan, runs[i]->builder.ids, stream);
    ASYMKV_CUDA(cudaGraphLaunch(graphs[i], stream));
    ASYMKV_CUDA(cudaStreamSynchronize(stream));
    runs[i]->judge_output(runs[i]->read_output(outcome), outcome);
    outcomes.push_back(outcome);
  }
  for (cudaGraphExec_t graph : graphs) ASYMKV_CUDA(cudaGraphExecDestroy(graph));
  ASYMKV_CUDA(cudaStreamDestroy(stream));
  return outcomes;
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
