#include "asymkv/kernels/cuda/writer_bench.h"

#include <algorithm>
#include <numeric>
#include <random>
#include <vector>

#include "asymkv/base/error.h"
#include "asymkv/kernels/cuda/bench_kernels.h"
#include "asymkv/kernels/cuda/kernel_bench.h"
#include "asymkv/kernels/cuda/timing.h"
#include "asymkv/kernels/cuda/write_kernel.h"
#include "asymkv/kv/rope.h"
#include "asymkv/kv/tiled_layout.h"

namespace asymkv::cuda {
namespace {

constexpr int64_t kTokens = 65536;
constexpr int64_t kKvHeads = 8;
constexpr int64_t kHeadDim = 128;
constexpr int64_t kPositions = 8192;

// Inputs that all formats share: 268 MB of keys and values, several times the L2.
struct WriterInputs {
  DeviceBuffer k{kTokens * kKvHeads * kHeadDim * 2};
  DeviceBuffer v{kTokens * kKvHeads * kHeadDim * 2};
  DeviceBuffer fresh_k{kTokens * kKvHeads * kHeadDim * 2};
  DeviceBuffer norm, constant, cosines, sines, positions, runs, fixed, counters{sizeof(WriteCounters)};
  int32_t num_runs = 0;
  int32_t num_whole = 0;

  WriterInputs() {
    const RopeTable rope(rope_frequencies(1e6, kHeadDim), kPositions);
    const size_t elems = static_cast<size_t>(kPositions * rope.num_pairs());
    cosines = to_device(std::span<const float>(rope.cos_row(0), elems));
    sines = to_device(std::span<const float>(rope.sin_row(0), elems));
    std::vector<int32_t> at;
    std::vector<int64_t> pages(kTokens / kTiledPageSize);
    std::iota(pages.begin(), pages.end(), 0);
    std::shuffle(pages.begin(), pages.end(), std::mt19937(11));
    std::vector<int64_t> slots;
    for (int64_t t = 0; t < kTokens; ++t) {
      at.push_back(static_cast<int32_t>(t % kPositions));
      slots.push_back(pages[static_cast<size_t>(t / kTiledPageSize)] * kTiledPageSize + t % kTiledPageSize);
    }
    positions = to_device(at);
    const WritePlan plan = plan_write(slots, kTokens);
    runs = to_device(plan.launch_order());
    num_whole = static_cast<int32_t>(plan.num_whole());
    num_runs = static_cast<int32_t>(plan.runs.size());
    fixed = to_device(std::vector<float>{0.0625F, 0.0625F});
    constant = to_device(std::vector<float>(static_cast<size_t>(kKvHeads * kHeadDim), 0.5F));
    norm = to_device(std::vector<float>(static_cast<size_t>(kHeadDim), 1.5F));
    counters.fill(0);
    fill_normal_16bit(true, k.as<uint16_t>(), kTokens * kKvHeads * kHeadDim, 1, 1.0F, nullptr);
    fill_normal_16bit(true, v.as<uint16_t>(), kTokens * kKvHeads * kHeadDim, 2, 1.0F, nullptr);
  }

  WriteParams params(const DecodeConfig& config, const DeviceBuffer& blocks, const DeviceBuffer& scales) const {
    WriteParams p;
    p.k = k.data();
    p.v = v.data();
    p.k_bias = constant.as<float>();
    p.removed = config.prebias ? constant.as<float>() : nullptr;
    p.cosines = cosines.as<float>();
    p.sines = sines.as<float>();
    p.positions = positions.as<int32_t>();
    p.runs = runs.as<WriteRun>();
    p.num_runs = num_runs;
    p.num_whole = num_whole;
    p.num_kv_heads = kKvHeads;
    p.blocks = blocks.data();
    p.scales = scales.data();
    p.fixed_scales = fixed.as<float>();
    p.counters = counters.as<WriteCounters>();
    return p;
  }
};

struct Variant {
  std::string name = "";
  bool norm = false;   // RMS norm of each key head
  bool fresh = false;  // whole keys in 16 bits beside the stored ones
};

Json measure_writer(const WriterInputs& inputs, const BenchFormat& format, const Variant& variant, double copy_tbps) {
  const KvGeometry geometry{kKvHeads, kHeadDim, kHeadDim, kTiledPageSize};
  const TiledLayout layout(geometry, format.format);
  const DecodeConfig config = choose_decode(geometry, format.format, 4).config;
  const int64_t pages = kTokens / kTiledPageSize;
  const DeviceBuffer blocks(layout.plane_bytes(pages)), scales(layout.scale_plane_bytes(pages));
  WriteParams params = inputs.params(config, blocks, scales);
  params.k_norm = variant.norm ? inputs.norm.as<float>() : nullptr;
  params.k_norm_eps = 1e-6F;
  params.fresh_k = variant.fresh ? inputs.fresh_k.data() : nullptr;
  const Timing timing = time_graph(2, 11, [&](int64_t, StreamHandle stream) { launch_write(config, params, stream); });
  const int64_t rope_bytes = kTokens * kHeadDim * 4;
  const int64_t bytes = inputs.k.bytes() + inputs.v.bytes() + rope_bytes + blocks.bytes() + scales.bytes() +
                        (variant.fresh ? inputs.fresh_k.bytes() : 0);
  const double us_at_copy = 1.0 / copy_tbps / 1e6;
  return {{"format", format.name},
          {"variant", variant.name},
          {"key", format.format.key.id()},
          {"value", format.format.value.id()},
          {"key_scale", std::string(scale_kind_name(format.format.key.scale))},
          {"value_scale", std::string(scale_kind_name(format.format.value.scale))},
          {"tokens", kTokens},
          {"num_kv_heads", kKvHeads},
          {"head_dim", kHeadDim},
          {"us", timing.median_us},
          {"bytes", bytes},
          {"share_of_copy", static_cast<double>(bytes) * us_at_copy / timing.median_us},
          {"share_of_copy_without_rope", static_cast<double>(bytes - rope_bytes) * us_at_copy / timing.median_us}};
}

}  // namespace

Json measure_writers(double copy_tbps, const std::function<void(const std::string&)>& progress) {
  Json rows = Json::array();
  const WriterInputs inputs;
  const auto measure = [&](const BenchFormat& format, const Variant& variant) {
    rows.push_back(measure_writer(inputs, format, variant, copy_tbps));
    const Json& row = rows.back();
    progress(fmt::format("writer {:16} {:8} {:10} {:8.1f} us  {:.3f} of copy", format.name,
                         scale_kind_name(format.format.value.scale), variant.name, row.at("us").get<double>(),
                         row.at("share_of_copy").get<double>()));
  };
  for (const BenchFormat& format : bench_formats()) measure(format, {});
  for (const char* name : {"k16v8", "k8v8"}) {
    const BenchFormat format{name, parse_kv_format(name, DType::kBF16, ScaleKind::kFixed)};
    measure(format, {.name = "key norm", .norm = true});
    measure(format, {.name = "fresh keys", .fresh = true});
  }
  return rows;
}

}  // namespace asymkv::cuda
