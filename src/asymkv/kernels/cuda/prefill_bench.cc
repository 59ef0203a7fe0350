#include "asymkv/kernels/cuda/prefill_bench.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <numeric>
#include <random>

#include "asymkv/device/cuda/cuda_error.h"
#include "asymkv/kernels/cuda/bench_kernels.h"
#include "asymkv/kernels/cuda/kernel_bench.h"
#include "asymkv/kernels/cuda/prefill_launch.h"
#include "asymkv/kernels/cuda/reference.h"
#include "asymkv/kernels/cuda/timing.h"
#include "asymkv/kernels/cuda/writer_bench.h"
#include "asymkv/kv/rope.h"

namespace asymkv::cuda {
namespace {

constexpr int32_t kQHeads = 32, kKvHeads = 8, kHeadDim = 128;
constexpr float kFixedScale = 1.0F / 16.0F;
constexpr float kRemoved = 1.0F;  // on every channel: small, so that the staged key's own rounding stays small too
constexpr int64_t kMaxPosition = 40960;
constexpr double kMaxRelErr = 0.004, kMaxRowErr = 0.01;
constexpr int32_t kSampleRows = 4;

struct Step {
  std::string name;
  std::vector<PrefillRequest> requests;
};

std::vector<Step> fresh_steps() {
  return {{"1 x 2048 new", {{0, 2048}}},
          {"1 x 8192 new", {{0, 8192}}},
          {"4 x 2048 new", std::vector<PrefillRequest>(4, PrefillRequest{0, 2048})},
          {"512, 1024, 2048, 4096 new", {{0, 512}, {0, 1024}, {0, 2048}, {0, 4096}}}};
}
std::vector<Step> staged_steps() {
  return {{"512 new after 8192", {{8192, 512}}},
          {"2048 new after 30720", {{30720, 2048}}},
          {"8 x 256 new after 4096", std::vector<PrefillRequest>(8, PrefillRequest{4096, 256})}};
}

double measure_copy(int64_t num_sms) {
  constexpr int64_t kBytes = int64_t{1} << 30;
  const DeviceBuffer from(kBytes), to(kBytes);
  fill_normal_16bit(true, from.as<uint16_t>(), kBytes / 2, 5, 1.0F, nullptr);
  double best = 0.0;
  for (const int per_sm : {2, 4, 8, 16}) {
    const Timing timing = time_graph(2, 8, [&](int64_t, StreamHandle stream) {
      launch_copy(from.data(), to.data(), kBytes, static_cast<int>(num_sms) * per_sm, stream);
    });
    best = std::max(best, static_cast<double>(2 * kBytes) / timing.median_us / 1e6);
  }
  return best;
}

// One step in one format: stored pages with random contents, new rows, and the launches over them.
class StepRun {
 public:
  StepRun(const Step& step, const BenchFormat& format) : step_(step), format_(format) {
    const KvGeometry geometry{kKvHeads, kHeadDim, kHeadDim, kPageSize};
    const DecodeChoice choice = choose_decode(geometry, format.format, kQHeads / kKvHeads);
    if (!choice.ok) throw_unsupported("{}", choice.reason);
    config_ = choice.config;
    int32_t pages = 0;
    for (PrefillRequest& r : step_.requests) {
      r.page_row = pages;
      pages += (r.cached_len + kPageSize - 1) / kPageSize;
    }
    table_.resize(static_cast<size_t>(pages));
    std::iota(table_.begin(), table_.end(), 0);
    std::shuffle(table_.begin(), table_.end(), std::mt19937(11));
    const PrefillBatch batch{step_.requests, table_, kPageSize, kQHeads, kKvHeads, kHeadDim};
    plan_ = plan_prefill(batch, {.max_decode_columns = 0});
    prefill_ = std::make_unique<DevicePrefill>(config_, batch, plan_);
    const int64_t blocks = std::max<int64_t>(pages, 1) * kKvHeads;
    blocks_ = DeviceBuffer(blocks * config_.block_bytes());
    scales_ = DeviceBuffer(std::max<int64_t>(blocks * config_.scale_bytes(), 16));
    fill_blocks(config_, blocks_.data(), blocks, 1ULL << 40, nullptr);
    if (config_.scale_bytes() > 0) fill_scales(config_, scales_.as<float>(), blocks, 9, nullptr);
    fixed_ = to_device(std::vector<float>{kFixedScale, kFixedScale});
    removed_ = to_device(std::vector<float>(kKvHeads * kHeadDim, kRemoved));
    make_rows();
  }

  // Microseconds of the whole step.
  double step_us(Sdpa& sdpa) const {
    prefill_->run(sdpa, arguments(), nullptr);  // builds the graphs
    return time_graph(1, 11, [&](int64_t, StreamHandle stream) { prefill_->run(sdpa, arguments(), stream); }).median_us;
  }

  // Widening of all rounds alone.
  double widen_us() const {
    const int64_t elems = int64_t{plan_.staging_rows} * kKvHeads * kHeadDim;
    const DeviceBuffer k(elems * 2), v(elems * 2);
    std::vector<DeviceBuffer> pages;
    for (const StagingRound& round : plan_.rounds) pages.push_back(to_device(round.pages));
    return time_graph(1, 11,
                      [&](int64_t, StreamHandle stream) {
                        for (size_t i = 0; i < pages.size(); ++i) {
                          WidenParams p;
                          p.blocks = blocks_.data();
                          p.scales = scales_.data();
                          p.fixed_scales = fixed_.as<float>();
                          p.removed = config_.prebias ? removed_.as<float>() : nullptr;
                          p.cosines = cosines_.as<float>();
                          p.sines = sines_.as<float>();
                          p.pages = pages[i].as<WidenPage>();
                          p.num_pages = static_cast<int32_t>(plan_.rounds[i].pages.size());
                          p.num_kv_heads = kKvHeads;
                          p.k = k.data();
                          p.v = v.data();
                          p.to_bf16 = prefill_->stages_bf16(true);
                          launch_widen(config_, p, stream);
                        }
                      })
        .median_us;
  }
  // The decode kernel over the same stored tokens, with the step's new tokens as query tiles (a step of one request;
  // its fresh keys are taken as stored).
  double decode_us() const {
    const PrefillRequest& r = step_.requests.front();
    const KvGeometry geometry{kKvHeads, kHeadDim, kHeadDim, kPageSize};
    const DecodeConfig config = choose_decode(geometry, format_.format, kQHeads / kKvHeads, r.num_new).config;
    DecodeBatch batch;
    batch.seq_lens = {r.cached_len};
    batch.page_rows = {r.page_row};
    batch.page_table = table_;
    batch.num_kv_heads = kKvHeads;
    batch.group = kQHeads / kKvHeads;
    batch.num_queries = {r.num_new};
    const DevicePlan plan(plan_decode(config, batch, query_limits(config)), table_);
    DecodeArguments a;
    a.blocks = blocks_.data();
    a.scales = scales_.data();
    a.fixed_scales = fixed_.as<float>();
    a.q = q_.data();
    a.out = out_.data();
    a.softmax_scale = softmax_scale();
    return time_graph(4, 11, [&](int64_t, StreamHandle stream) { launch_decode(plan, a, stream); }).median_us;
  }
  int64_t stored_tokens() const {
    int64_t tokens = 0;
    for (const PrefillRequest& r : step_.requests) tokens += r.cached_len;
    return tokens;
  }
  // Pages read once, 16-bit rows written once, and for pre-bias the two RoPE rows of each token.
  int64_t widen_bytes() const {
    const int64_t per_token = kKvHeads * (config_.block_bytes() + config_.scale_bytes()) / kPageSize +
                              staging_bytes_per_token(kKvHeads, kHeadDim) + (config_.prebias ? kHeadDim * 4 : 0);
    return stored_tokens() * per_token;
  }
  // Two products of every query with the keys it sees.
  double flops() const {
    double pairs = 0.0;
    for (const PrefillRequest& r : step_.requests)
      pairs += static_cast<double>(r.num_new) * (static_cast<double>(r.cached_len) + 0.5 * (r.num_new + 1.0));
    return 4.0 * pairs * kQHeads * kHeadDim;
  }
  const PrefillPlan& plan() const { return plan_; }
  const DecodeConfig& config() const { return config_; }

  // Largest relative L2 error over sampled rows, and over their heads. Runs the step first.
  std::pair<double, double> errors(Sdpa& sdpa);

 private:
  PrefillArguments arguments() const {
    PrefillArguments a;
    a.blocks = blocks_.data();
    a.scales = scales_.data();
    a.fixed_scales = fixed_.as<float>();
    a.removed = config_.prebias ? removed_.as<float>() : nullptr;
    a.cosines = cosines_.as<float>();
    a.sines = sines_.as<float>();
    a.q = q_.data();
    a.fresh_k = k_.data();
    a.fresh_v = v_.data();
    a.out = out_.data();
    a.softmax_scale = softmax_scale();
    return a;
  }
  static float softmax_scale() { return 1.0F / std::sqrt(static_cast<float>(kHeadDim)); }

  void make_rows() {
    const int64_t kv_elems = int64_t{plan_.num_rows} * kKvHeads * kHeadDim, q_elems = kv_elems * kQHeads / kKvHeads;
    q_ = DeviceBuffer(q_elems * 2);
    out_ = DeviceBuffer(q_elems * 2);
    k_ = DeviceBuffer(kv_elems * 2);
    v_ = DeviceBuffer(kv_elems * 2);
    fill_normal_16bit(true, q_.as<uint16_t>(), q_elems, 777, 1.0F, nullptr);
    fill_normal_16bit(true, k_.as<uint16_t>(), kv_elems, 778, 1.0F, nullptr);
    fill_normal_16bit(true, v_.as<uint16_t>(), kv_elems, 779, 1.0F, nullptr);
    const RopeTable rope(rope_frequencies(1e6, kHeadDim), config_.prebias ? kMaxPosition : 1);
    const auto elems = static_cast<size_t>(rope.num_positions() * rope.num_pairs());
    cosines_ = to_device(std::span<const float>(rope.cos_row(0), elems));
    sines_ = to_device(std::span<const float>(rope.sin_row(0), elems));
    frequencies_ = to_device(rope_frequencies(1e6, kHeadDim));
  }

  struct Reference {
    std::vector<double> out, lse;  // [sample][q head]([head_dim]) over the stored keys
  };
  Reference stored_reference(const PrefillRequest& r, const std::vector<uint16_t>& q_rows) const;

  Step step_;
  BenchFormat format_;
  DecodeConfig config_;
  PrefillPlan plan_;
  std::vector<int32_t> table_;
  std::unique_ptr<DevicePrefill> prefill_;
  DeviceBuffer blocks_, scales_, fixed_, removed_, q_, k_, v_, out_, cosines_, sines_, frequencies_;
};

StepRun::Reference StepRun::stored_reference(const PrefillRequest& r, const std::vector<uint16_t>& q_rows) const {
  Reference result;
  result.lse.assign(kSampleRows * kQHeads, -std::numeric_limits<double>::infinity());
  result.out.assign(kSampleRows * kQHeads * kHeadDim, 0.0);
  if (r.cached_len == 0) return result;
  const DeviceBuffer q = to_device(q_rows), table = to_device(table_),
                     rows = to_device(std::vector<int32_t>(kSampleRows, r.page_row)),
                     lens = to_device(std::vector<int32_t>(kSampleRows, r.cached_len)),
                     logits(int64_t{kSampleRows} * kQHeads * r.cached_len * 8),
                     out(int64_t{kSampleRows} * kQHeads * kHeadDim * 8), lse(int64_t{kSampleRows} * kQHeads * 8);
  ReferenceArguments a;
  a.config = config_;
  a.blocks = blocks_.data();
  a.scales = scales_.data();
  a.fixed_scales = fixed_.as<float>();
  a.q = q.data();
  a.page_table = table.as<int32_t>();
  a.page_rows = rows.as<int32_t>();
  a.seq_lens = lens.as<int32_t>();
  a.removed = config_.prebias ? removed_.as<float>() : nullptr;
  a.frequencies = frequencies_.as<double>();
  a.num_sequences = kSampleRows;
  a.num_kv_heads = kKvHeads;
  a.group = kQHeads / kKvHeads;
  a.max_len = r.cached_len;
  a.softmax_scale = static_cast<double>(softmax_scale());
  a.logits = logits.as<double>();
  a.out = out.as<double>();
  a.lse = lse.as<double>();
  launch_reference(a, nullptr);
  ASYMKV_CUDA(cudaDeviceSynchronize());
  result.out = to_host<double>(out, kSampleRows * kQHeads * kHeadDim);
  result.lse = to_host<double>(lse, kSampleRows * kQHeads);
  return result;
}

// Host copies of the last request's rows.
struct HostRows {
  std::vector<uint16_t> q, k, v, out;
};

// One head of one sampled row in double precision: stored part and fresh part joined.
std::vector<double> expected_head(const HostRows& rows, int32_t row, int32_t head, const double* stored_out,
                                  double stored_lse, double softmax_scale) {
  constexpr int32_t kGroup = kQHeads / kKvHeads;
  const uint16_t* query = rows.q.data() + (int64_t{row} * kQHeads + head) * kHeadDim;
  std::vector<double> logits;
  for (int32_t j = 0; j <= row; ++j) {
    const uint16_t* key = rows.k.data() + (int64_t{j} * kKvHeads + head / kGroup) * kHeadDim;
    double dot = 0.0;
    for (int32_t c = 0; c < kHeadDim; ++c)
      dot += static_cast<double>(bf16_to_f32(query[c])) * static_cast<double>(bf16_to_f32(key[c]));
    logits.push_back(dot * softmax_scale);
  }
  const double top = std::max(stored_lse, std::ranges::max(logits));
  double sum = std::exp(stored_lse - top);
  std::vector<double> out(kHeadDim);
  for (size_t c = 0; c < kHeadDim; ++c) out[c] = sum * stored_out[c];
  for (int32_t j = 0; j <= row; ++j) {
    const uint16_t* value = rows.v.data() + (int64_t{j} * kKvHeads + head / kGroup) * kHeadDim;
    const double weight = std::exp(logits[static_cast<size_t>(j)] - top);
    sum += weight;
    for (size_t c = 0; c < kHeadDim; ++c) out[c] += weight * static_cast<double>(bf16_to_f32(value[c]));
  }
  for (double& x : out) x /= sum;
  return out;
}

std::vector<uint16_t> rows_from(const DeviceBuffer& buffer, int64_t first, int64_t count, int64_t row_elems) {
  std::vector<uint16_t> host(static_cast<size_t>(count * row_elems));
  buffer.download(std::as_writable_bytes(std::span(host)), first * row_elems * 2);
  return host;
}

std::pair<double, double> StepRun::errors(Sdpa& sdpa) {
  out_.fill(0xff);
  prefill_->run(sdpa, arguments(), nullptr);
  ASYMKV_CUDA(cudaDeviceSynchronize());
  constexpr int64_t kQRow = kQHeads * kHeadDim, kKvRow = kKvHeads * kHeadDim;
  const PrefillRequest& r = step_.requests.back();
  const int64_t first = plan_.query_rows.back();
  const HostRows rows{rows_from(q_, first, r.num_new, kQRow), rows_from(k_, first, r.num_new, kKvRow),
                      rows_from(v_, first, r.num_new, kKvRow), rows_from(out_, first, r.num_new, kQRow)};
  std::vector<uint16_t> sampled;
  std::vector<int32_t> samples;
  for (int32_t i = 0; i < kSampleRows; ++i) {
    samples.push_back(i * (r.num_new - 1) / (kSampleRows - 1));
    const auto begin = rows.q.begin() + samples.back() * kQRow;
    sampled.insert(sampled.end(), begin, begin + kQRow);
  }
  const Reference stored = stored_reference(r, sampled);
  double error = 0.0, norm = 0.0, worst = 0.0;
  for (int32_t i = 0; i < kSampleRows * kQHeads; ++i) {
    const int32_t row = samples[static_cast<size_t>(i / kQHeads)], head = i % kQHeads;
    const auto at = static_cast<size_t>(i);
    const std::vector<double> expected = expected_head(rows, row, head, stored.out.data() + at * kHeadDim,
                                                       stored.lse[at], static_cast<double>(softmax_scale()));
    const uint16_t* got = rows.out.data() + row * kQRow + head * kHeadDim;
    double row_error = 0.0, row_norm = 0.0;
    for (size_t c = 0; c < kHeadDim; ++c) {
      const double difference = static_cast<double>(bf16_to_f32(got[c])) - expected[c];
      row_error += std::isnan(difference) ? 1e30 : difference * difference;
      row_norm += expected[c] * expected[c];
    }
    error += row_error, norm += row_norm;
    worst = std::max(worst, std::sqrt(row_error / row_norm));
  }
  return {std::sqrt(error / norm), worst};
}

std::vector<BenchFormat> staged_formats() {
  std::vector<BenchFormat> out;
  for (const char* name : {"native", "k16v8", "k8v16", "k8v8", "k8v8-prebias"})
    out.push_back({name, parse_kv_format(name, DType::kBF16, ScaleKind::kFixed)});
  for (const char* name : {"k16v8", "k8v8", "ki8v8", "ki8v8-prebias"})
    out.push_back({name, parse_kv_format(name, DType::kBF16, ScaleKind::kDynamic)});
  return out;
}

Json record_of(const BenchFormat& format, const DeviceInfo& device, const std::string& kernel) {
  return {{"schema", "asymkv-kernel-record-1"},
          {"key", format.format.key.id()},
          {"value", format.format.value.id()},
          {"key_scale", std::string(scale_kind_name(format.format.key.scale))},
          {"value_scale", std::string(scale_kind_name(format.format.value.scale))},
          {"layout", "tiled-1"},
          {"page_size", kPageSize},
          {"kernel", kernel},
          {"kernel_build", ASYMKV_CUDA_BUILD_HASH},
          {"compiler", ASYMKV_CUDA_COMPILER},
          {"device", device.name},
          {"driver", device.driver},
          {"toolkit", device.toolkit}};
}

Json measure_step(const Step& step, const BenchFormat& format, Sdpa& sdpa, const DeviceInfo& device) {
  StepRun run(step, format);
  const auto [rel, row] = run.errors(sdpa);
  if (!(rel <= kMaxRelErr) || !(row <= kMaxRowErr)) {
    throw_error(ErrorCode::kInternal, "{} {}: relative L2 {:.5f}, worst row {:.5f}: prefill is wrong ({})", step.name,
                format.name, rel, row, run.plan().describe());
  }
  const double us = run.step_us(sdpa);
  return {{"step", step.name},
          {"format", format.name},
          {"num_q_heads", kQHeads},
          {"num_kv_heads", kKvHeads},
          {"head_dim", kHeadDim},
          {"us", us},
          {"tflops", run.flops() / us / 1e6},
          {"rounds", run.plan().rounds.size()},
          {"staging_bytes", run.plan().staging_bytes},
          {"sampled_rows", kSampleRows},
          {"rel_err", rel},
          {"worst_row_err", row},
          {"record", record_of(format, device, fmt::format("sdpa ({}), widen, merge", sdpa.version()))}};
}

std::string line_of(const Json& row) {
  return fmt::format("prefill {:26} {:14} {:9.1f} us  {:6.1f} TFLOP/s  {} rounds  err {:.1e} row {:.1e}",
                     row.at("step").get<std::string>(), row.at("format").get<std::string>(), row.at("us").get<double>(),
                     row.at("tflops").get<double>(), row.at("rounds").get<int64_t>(), row.at("rel_err").get<double>(),
                     row.at("worst_row_err").get<double>());
}

Json measure_widen(const BenchFormat& format, double copy_tbps, const DeviceInfo& device) {
  const StepRun run({"65536 stored", {{32768, 512}, {32768, 512}}}, format);
  const double us = run.widen_us();
  const double share = static_cast<double>(run.widen_bytes()) / us / 1e6 / copy_tbps;
  return {
      {"format", format.name},      {"tokens", run.stored_tokens()}, {"us", us},
      {"bytes", run.widen_bytes()}, {"share_of_copy", share},        {"record", record_of(format, device, "widen")}};
}

// From how many new tokens on staging beats the decode kernel's query tiles: PrefillLimits::max_decode_columns.
Json measure_route(const BenchFormat& format, int32_t num_new, Sdpa& sdpa) {
  const StepRun run({fmt::format("{} new after 8192", num_new), {{8192, num_new}}}, format);
  return {{"format", format.name},
          {"cached", 8192},
          {"new", num_new},
          {"staged_us", run.step_us(sdpa)},
          {"decode_us", run.decode_us()}};
}

}  // namespace

Json measure_prefill(const std::function<void(const std::string&)>& progress) {
  const DeviceInfo device = require_device();
  if (device.compute_capability != 90) {
    throw_unsupported("the Hopper kernels need compute capability 9.0, {} has {}", device.name,
                      device.compute_capability);
  }
  const double copy_tbps = measure_copy(device.num_sms);
  progress(fmt::format("{}: copy {:.3f} TB/s", device.name, copy_tbps));
  Json answer = {{"schema", "asymkv-bench-prefill-1"}, {"device", device.name},
                 {"copy_bandwidth_tbps", copy_tbps},   {"writer_rows", measure_writers(copy_tbps, progress)},
                 {"widen_rows", Json::array()},        {"prefill_rows", Json::array()},
                 {"route_rows", Json::array()},        {"prefill_refusal", sdpa_refusal()}};
  for (Json& row : answer["writer_rows"]) {
    const KvFormat format{{.dtype = DType::kBF16}, {.dtype = DType::kBF16}};
    Json record = record_of({"", format}, device, "write");
    for (const char* fact : {"key", "value", "value_scale"}) record[fact] = row.at(fact);
    record["key_scale"] = row.at("key_scale");
    row["record"] = record;
  }
  for (const BenchFormat& format : staged_formats()) {
    answer["widen_rows"].push_back(measure_widen(format, copy_tbps, device));
    const Json& row = answer["widen_rows"].back();
    progress(fmt::format("widen {:14} {:8} {:8.1f} us  {:.3f} of copy", format.name,
                         scale_kind_name(format.format.value.scale), row.at("us").get<double>(),
                         row.at("share_of_copy").get<double>()));
  }
  if (!sdpa_refusal().empty()) return answer;
  Sdpa sdpa;
  const auto measure = [&](const Step& step, const BenchFormat& format) {
    answer["prefill_rows"].push_back(measure_step(step, format, sdpa, device));
    progress(line_of(answer["prefill_rows"].back()));
  };
  for (const Step& step : fresh_steps()) measure(step, staged_formats().front());
  for (const Step& step : staged_steps()) {
    for (const BenchFormat& format : staged_formats()) measure(step, format);
  }
  for (const char* name : {"native", "k8v8"}) {
    for (const int32_t num_new : {8, 16, 32, 64, 128}) {
      const BenchFormat format{name, parse_kv_format(name, DType::kBF16, ScaleKind::kFixed)};
      answer["route_rows"].push_back(measure_route(format, num_new, sdpa));
      const Json& row = answer["route_rows"].back();
      progress(fmt::format("route {:8} {:4} new after 8192: staged {:7.1f} us, decode kernel {:7.1f} us", name, num_new,
                           row.at("staged_us").get<double>(), row.at("decode_us").get<double>()));
    }
  }
  return answer;
}

}  // namespace asymkv::cuda
