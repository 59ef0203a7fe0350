#include "asymkv/kernels/cuda/kernel_bench.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <memory>
#include <numeric>
#include <random>

#include "asymkv/base/error.h"
#include "asymkv/device/cuda/cuda_error.h"
#include "asymkv/kernels/cuda/bench_kernels.h"
#include "asymkv/kernels/cuda/decode_launch.h"
#include "asymkv/kernels/cuda/reference.h"
#include "asymkv/kernels/cuda/timing.h"
#include "asymkv/kernels/cuda/writer_bench.h"
#include "asymkv/kv/measured_bias.h"
#include "asymkv/kv/rope.h"

namespace asymkv::cuda {
namespace {

constexpr double kRopeTheta = 1e6;  // Qwen2.5 and Qwen3
constexpr float kFixedScale = 1.0F / 16.0F;
// Smaller slow part than the default split: the pairs above this bound hold only small components, which stay in the
// key.
constexpr double kMaxSlowError = 1e-4;
constexpr double kMaxRelErr = 0.004;
constexpr double kMaxRowErr = 0.01;

// every_pair: the largest measured magnitudes, drawn for every pair.
std::vector<float> draw_bias(int64_t num_kv_heads, int64_t head_dim, bool every_pair) {
  std::mt19937 random(5);
  std::uniform_real_distribution<double> angle(0.0, 6.283185307179586);
  const int64_t pairs = head_dim / 2;
  std::vector<float> bias(static_cast<size_t>(num_kv_heads * head_dim));
  for (int64_t head = 0; head < num_kv_heads; ++head) {
    for (int64_t p = 0; p < pairs; ++p) {
      const double magnitude = every_pair ? kMeasuredBias[random() % kMeasuredBias.size()] : measured_bias(p, pairs);
      const double phi = angle(random);
      bias[static_cast<size_t>(head * head_dim + p)] = static_cast<float>(magnitude * std::cos(phi));
      bias[static_cast<size_t>(head * head_dim + p + pairs)] = static_cast<float>(magnitude * std::sin(phi));
    }
  }
  return bias;
}

// Pools and inputs of one format at one geometry, and the launches over rotating sets of pages.
class FormatRun {
 public:
  FormatRun(const KernelBenchOptions& options, const BenchFormat& format, const BenchShape& shape, DeviceBuffer& blocks,
            DeviceBuffer& scales)
      : options_(options), shape_(shape), blocks_(blocks), scales_(scales) {
    const KvGeometry geometry{shape.num_kv_heads, shape.head_dim, shape.head_dim, kPageSize};
    row_.shape = shape;
    row_.format = format;
    if (format.format.key.prebias) prepare_bias();
    const DecodeChoice choice =
        choose_decode(geometry, format.format, shape.num_q_heads / shape.num_kv_heads, 1, bias_shape().fast_steps > 0);
    if (!choice.ok) throw_unsupported("{}", choice.reason);
    config_ = choice.config;
    draw_lengths();
    const int64_t q_elems = shape.batch * shape.num_q_heads * shape.head_dim;
    q_ = DeviceBuffer(q_elems * 2);
    out_ = DeviceBuffer(q_elems * 2);
    lse_ = DeviceBuffer(shape.batch * shape.num_q_heads * 4);
    fixed_ = to_device(std::vector<float>{kFixedScale, kFixedScale});
    fill_normal_16bit(true, q_.as<uint16_t>(), q_elems, 777, 2.0F, nullptr);
    make_plans();
  }

  KernelBenchRow measure(double read_tbps) {
    const int64_t calls = std::max<int64_t>(row_.rotations, row_.bytes > 2'000'000'000 ? 1
                                                            : row_.bytes > 200'000'000 ? 4
                                                                                       : row_.rotations);
    const int repeats = row_.bytes > 2'000'000'000 ? 9 : 21;
    auto time = [&](bool overlap) {
      DecodeArguments launch = arguments();
      launch.overlap_previous = overlap;
      const auto& plans = overlap ? overlap_plans_ : plans_;
      return time_graph(calls, repeats, [&](int64_t call, StreamHandle stream) {
        launch_decode(*plans[static_cast<size_t>(call % row_.rotations)], launch, stream);
      });
    };
    const Timing timing = time(false);
    row_.overlap_us = time(true).median_us;
    row_.us = timing.median_us;
    row_.min_us = timing.min_us;
    row_.share_of_read = static_cast<double>(row_.bytes) / row_.us / 1e6 / read_tbps;
    return row_;
  }

  // Fills the row's errors; throws if the result is wrong.
  void check(KernelBenchRow& row) {
    compare_with_reference();
    row.rel_err = row_.rel_err;
    row.worst_row = row_.worst_row;
  }

 private:
  void draw_lengths() {
    std::mt19937 random(3);
    for (int64_t i = 0; i < shape_.batch; ++i) {
      const auto longest = static_cast<uint32_t>(shape_.context_len);
      lens_.push_back(static_cast<int32_t>(shape_.ragged ? 16 + random() % (longest - 15) : longest));
    }
    for (const int32_t len : lens_) {
      page_rows_.push_back(pages_per_set_);
      pages_per_set_ += (len + kPageSize - 1) / kPageSize;
    }
  }

  void prepare_bias() {
    const std::vector<double> frequencies = rope_frequencies(kRopeTheta, shape_.head_dim);
    const std::vector<float> bias = draw_bias(shape_.num_kv_heads, shape_.head_dim, row_.format.every_pair);
    const KeySplitOptions slow_only{.max_slow_error = kMaxSlowError, .max_fast_pairs = 0};
    const KeySplitOptions all{.large_magnitude = 0.0, .max_fast_pairs = shape_.head_dim / 2};
    const KeyTransform transform =
        split_key_vector(bias, frequencies, shape_.num_kv_heads, row_.format.every_pair ? all : slow_only);
    bias_ = std::make_unique<DeviceKeyBias>(make_key_bias(transform, frequencies));
    removed_ = to_device(transform.removed);
    frequencies_ = to_device(frequencies);
  }

  void make_plans() {
    const DeviceLimits limits = query_limits(config_);
    std::mt19937 random(11);
    const int64_t pool = blocks_.bytes() / (shape_.num_kv_heads * config_.block_bytes());
    std::vector<int32_t> ids(static_cast<size_t>(std::min(pool, options_.pool_pages)));
    row_.pool_pages = static_cast<int64_t>(ids.size());
    std::iota(ids.begin(), ids.end(), 0);
    std::shuffle(ids.begin(), ids.end(), random);
    const int64_t bytes = pages_per_set_ * shape_.num_kv_heads * (config_.block_bytes() + config_.scale_bytes());
    const int64_t wanted = (options_.min_rotation_bytes + bytes - 1) / bytes;
    const int64_t room = static_cast<int64_t>(ids.size()) / pages_per_set_;
    if (room == 0) throw_unsupported("{} needs {} pages, the pool has {}", shape_.name(), pages_per_set_, ids.size());
    row_.rotations = std::clamp<int64_t>(wanted, 1, std::min<int64_t>(60, room));
    fill_blocks(config_, blocks_.data(), static_cast<int64_t>(ids.size()) * shape_.num_kv_heads, 1ULL << 40, nullptr);
    fill_scales(config_, scales_.as<float>(), static_cast<int64_t>(ids.size()) * shape_.num_kv_heads, 9, nullptr);
    for (int64_t i = 0; i < row_.rotations; ++i) {
      const std::span<const int32_t> set =
          std::span(ids).subspan(static_cast<size_t>(i * pages_per_set_), static_cast<size_t>(pages_per_set_));
      DecodeBatch batch{lens_, page_rows_, set, static_cast<int32_t>(shape_.num_kv_heads),
                        static_cast<int32_t>(shape_.num_q_heads / shape_.num_kv_heads)};
      const DecodePlan plan = plan_decode(config_, batch, limits, options_.launch, bias_shape());
      if (i == 0) {
        row_.plan = plan;
        first_set_ = to_device(set);
      }
      plans_.push_back(std::make_unique<DevicePlan>(plan, set));
      batch.overlaps = true;
      overlap_plans_.push_back(
          std::make_unique<DevicePlan>(plan_decode(config_, batch, limits, options_.launch, bias_shape()), set));
    }
    row_.bytes = row_.plan.bytes_read();
  }

  BiasShape bias_shape() const { return bias_ == nullptr ? BiasShape{} : bias_->shape(); }

  DecodeArguments arguments() const {
    DecodeArguments a;
    a.blocks = blocks_.data();
    a.scales = scales_.data();
    a.fixed_scales = fixed_.as<float>();
    a.q = q_.data();
    a.out = out_.data();
    a.lse = lse_.as<float>();
    a.bias = bias_.get();
    a.softmax_scale = 1.0F / std::sqrt(static_cast<float>(shape_.head_dim));
    return a;
  }

  void compare_with_reference() {
    const int64_t rows = shape_.batch * shape_.num_q_heads;
    const DeviceBuffer rows_buffer = to_device(page_rows_);
    const DeviceBuffer lens_buffer = to_device(lens_);
    const DeviceBuffer logits(rows * shape_.context_len * 8);
    const DeviceBuffer out(rows * shape_.head_dim * 8);
    const DeviceBuffer lse(rows * 8);
    ReferenceArguments reference;
    reference.config = config_;
    reference.blocks = blocks_.data();
    reference.scales = scales_.data();
    reference.fixed_scales = fixed_.as<float>();
    reference.q = q_.data();
    reference.page_table = first_set_.as<int32_t>();
    reference.page_rows = rows_buffer.as<int32_t>();
    reference.seq_lens = lens_buffer.as<int32_t>();
    reference.removed = config_.prebias ? removed_.as<float>() : nullptr;
    reference.frequencies = frequencies_.as<double>();
    reference.num_sequences = static_cast<int32_t>(shape_.batch);
    reference.num_kv_heads = static_cast<int32_t>(shape_.num_kv_heads);
    reference.group = static_cast<int32_t>(shape_.num_q_heads / shape_.num_kv_heads);
    reference.max_len = static_cast<int32_t>(shape_.context_len);
    reference.softmax_scale = 1.0 / std::sqrt(static_cast<double>(shape_.head_dim));
    reference.logits = logits.as<double>();
    reference.out = out.as<double>();
    reference.lse = lse.as<double>();
    launch_reference(reference, nullptr);
    out_.fill(0xff);
    launch_decode(*plans_.front(), arguments(), nullptr);
    ASYMKV_CUDA(cudaDeviceSynchronize());
    compare(to_host<double>(out, rows * shape_.head_dim), to_host<uint16_t>(out_, rows * shape_.head_dim));
  }

  void compare(const std::vector<double>& expected, const std::vector<uint16_t>& got) {
    double error = 0.0;
    double norm = 0.0;
    row_.worst_row = 0.0;
    const auto dim = static_cast<size_t>(shape_.head_dim);
    for (size_t begin = 0; begin < expected.size(); begin += dim) {
      double row_error = 0.0;
      double row_norm = 0.0;
      for (size_t i = begin; i < begin + dim; ++i) {
        const double difference = static_cast<double>(bf16_to_f32(got[i])) - expected[i];
        row_error += std::isnan(difference) ? std::numeric_limits<double>::infinity() : difference * difference;
        row_norm += expected[i] * expected[i];
      }
      error += row_error;
      norm += row_norm;
      row_.worst_row = std::max(row_.worst_row, std::sqrt(row_error / row_norm));
    }
    row_.rel_err = std::sqrt(error / norm);
    if (!(row_.rel_err <= kMaxRelErr) || !(row_.worst_row <= kMaxRowErr)) {
      throw_error(ErrorCode::kInternal, "{} {}: relative L2 {:.5f}, worst row {:.5f}: the kernel is wrong ({})",
                  shape_.name(), row_.format.name, row_.rel_err, row_.worst_row, row_.plan.describe());
    }
  }

  const KernelBenchOptions& options_;
  BenchShape shape_;
  DeviceBuffer& blocks_;
  DeviceBuffer& scales_;
  DecodeConfig config_;
  KernelBenchRow row_;
  std::vector<int32_t> lens_, page_rows_;
  int32_t pages_per_set_ = 0;
  DeviceBuffer q_, out_, lse_, fixed_, removed_, frequencies_, first_set_;
  std::unique_ptr<DeviceKeyBias> bias_;
  std::vector<std::unique_ptr<DevicePlan>> plans_, overlap_plans_;
};

double measure_read(const DeviceBuffer& buffer, int64_t num_sms) {
  const DeviceBuffer sink(64);
  double best = 0.0;
  for (const int per_sm : {4, 8, 16, 32}) {
    for (const int threads : {256, 512}) {
      const Timing timing = time_graph(2, 8, [&](int64_t, StreamHandle stream) {
        launch_read(buffer.data(), buffer.bytes(), static_cast<int>(num_sms) * per_sm, threads, sink.as<uint32_t>(),
                    stream);
      });
      best = std::max(best, static_cast<double>(buffer.bytes()) / timing.median_us / 1e6);
    }
  }
  return best;
}

// Bytes read plus bytes written.
double measure_copy(const DeviceBuffer& buffer, int64_t num_sms) {
  const int64_t half = buffer.bytes() / 2 / 256 * 256;
  double best = 0.0;
  for (const int per_sm : {2, 4, 8, 16}) {
    const Timing timing = time_graph(2, 8, [&](int64_t, StreamHandle stream) {
      launch_copy(buffer.data(), buffer.data() + half, half, static_cast<int>(num_sms) * per_sm, stream);
    });
    best = std::max(best, static_cast<double>(2 * half) / timing.median_us / 1e6);
  }
  return best;
}

bool is_selected(const std::string& name, const std::string& filter) {
  return filter.empty() || name.find(filter) != std::string::npos;
}

}  // namespace

double read_bytes_per_s() {
  constexpr int64_t kBytes = int64_t{4} << 30;
  const DeviceBuffer buffer(kBytes);
  buffer.fill(1);
  return measure_read(buffer, require_device().num_sms) * 1e12;
}

std::string BenchShape::name() const {
  return fmt::format("{}/{}x{} b{} c{}{}", num_q_heads, num_kv_heads, head_dim, batch, context_len,
                     ragged ? " ragged" : "");
}

std::vector<BenchShape> bench_shapes() {
  std::vector<BenchShape> shapes;
  for (const auto& [q_heads, kv_heads] : {std::pair<int64_t, int64_t>{32, 8}, {28, 4}}) {
    for (const int64_t batch : {1, 8, 32, 64}) {
      for (const int64_t context : {1024, 8192, 32768})
        shapes.push_back({q_heads, kv_heads, 128, batch, context, false});
    }
    shapes.push_back({q_heads, kv_heads, 128, 32, 16384, true});
  }
  shapes.push_back({28, 4, 128, 32, 30720, false});
  shapes.push_back({32, 8, 64, 32, 8192, false});
  shapes.push_back({16, 4, 256, 32, 8192, false});
  return shapes;
}

std::vector<BenchFormat> bench_formats() {
  constexpr DType kNative = DType::kBF16;
  auto parsed = [](const char* name, ScaleKind scale) {
    return BenchFormat{name, parse_kv_format(name, kNative, scale)};
  };
  auto value_fixed = [&](const char* name) {  // INT8 keys beside values with the layer's fixed scale
    BenchFormat format = parsed(name, ScaleKind::kDynamic);
    format.format.value.scale = ScaleKind::kFixed;
    return format;
  };
  auto every_pair = [](BenchFormat format) {
    format.name += "-all";
    format.every_pair = true;
    return format;
  };
  return {parsed("native", ScaleKind::kFixed),
          parsed("k16v8", ScaleKind::kFixed),
          parsed("k8v16", ScaleKind::kFixed),
          parsed("k8v8", ScaleKind::kFixed),
          parsed("k8v8-prebias", ScaleKind::kFixed),
          value_fixed("ki8v8"),
          value_fixed("ki8v8-prebias"),
          every_pair(parsed("k8v8-prebias", ScaleKind::kFixed)),
          every_pair(value_fixed("ki8v8-prebias")),
          parsed("k16v8", ScaleKind::kDynamic),
          parsed("k8v8", ScaleKind::kDynamic),
          parsed("k8v8-prebias", ScaleKind::kDynamic),
          parsed("ki8v8-prebias", ScaleKind::kDynamic)};
}

KernelBenchReport run_kernel_bench(const KernelBenchOptions& options,
                                   const std::function<void(const std::string&)>& progress) {
  KernelBenchReport report;
  report.device = require_device();
  if (report.device.compute_capability != 90) {
    throw_unsupported("the Hopper kernels need compute capability 9.0, {} has {}", report.device.name,
                      report.device.compute_capability);
  }
  constexpr int64_t kLargestBlock = 8 * 8192;  // 8 KV heads of native pages
  DeviceBuffer blocks(options.pool_pages * kLargestBlock);
  DeviceBuffer scales(options.pool_pages * 8 * 128);
  const DecodeConfig native;
  fill_blocks(native, blocks.data(), blocks.bytes() / native.block_bytes(), 1, nullptr);
  report.read_tbps = measure_read(blocks, report.device.num_sms);
  report.copy_tbps = measure_copy(blocks, report.device.num_sms);
  progress(fmt::format("read {:.3f} TB/s, copy {:.3f} TB/s", report.read_tbps, report.copy_tbps));
  if (options.writers) report.writer_rows = measure_writers(report.copy_tbps, progress);
  for (const BenchShape& shape : bench_shapes()) {
    if (!is_selected(shape.name(), options.shape_filter)) continue;
    std::vector<KernelBenchRow> rows;
    double native_us = 0.0;
    for (const BenchFormat& format : bench_formats()) {
      if (!is_selected(format.name, options.format_filter)) continue;
      KernelBenchRow row = FormatRun(options, format, shape, blocks, scales).measure(report.read_tbps);
      if (format.name == "native") native_us = row.us;
      row.ratio_to_native = native_us / row.us;
      rows.push_back(std::move(row));
    }
    // After all times of the shape: the double-precision reference leaves the device hot, and 1 to 2 % slower.
    for (KernelBenchRow& row : rows) {
      if (options.check) FormatRun(options, row.format, shape, blocks, scales).check(row);
      progress(fmt::format("{:24} {:14} {:8} {:8.2f} us  {:.3f} of read  overlap {:8.2f} us  err {:.1e} row {:.1e}  {}",
                           shape.name(), row.format.name, scale_kind_name(row.format.format.scale()), row.us,
                           row.share_of_read, row.overlap_us, row.rel_err, row.worst_row, row.plan.describe()));
      report.rows.push_back(std::move(row));
    }
  }
  return report;
}

}  // namespace asymkv::cuda
