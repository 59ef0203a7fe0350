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
  DeviceBuffer constant, cosines, sines, positions, runs, fixed, counters{sizeof(WriteCounters)};
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

}  // namespace

Json measure_writers(double copy_tbps, const std::function<void(const std::string&)>& progress) {
  Json rows = Json::array();
  const WriterInputs inputs;
  const KvGeometry geometry{kKvHeads, kHeadDim, kHeadDim, kTiledPageSize};
  for (const BenchFormat& format : bench_formats()) {
    const TiledLayout layout(geometry, format.format);
    const DecodeConfig config = choose_decode(geometry, format.format, 4).config;
    const int64_t pages = kTokens / kTiledPageSize;
    const DeviceBuffer blocks(layout.plane_bytes(pages)), scales(layout.scale_plane_bytes(pages));
    const WriteParams params = inputs.params(config, blocks, scales);
    const Timing timing =
        time_graph(2, 11, [&](int64_t, StreamHandle stream) { launch_write(config, params, stream); });
    const int64_t bytes =
        inputs.k.bytes() + inputs.v.bytes() + kTokens * kHeadDim * 4 + blocks.bytes() + scales.bytes();
    const double share = static_cast<double>(bytes) / timing.median_us / 1e6 / copy_tbps;
    rows.push_back({{"format", format.name},
                    {"key", format.format.key.id()},
                    {"value", format.format.value.id()},
                    {"key_scale", std::string(scale_kind_name(format.format.key.scale))},
                    {"value_scale", std::string(scale_kind_name(format.format.value.scale))},
                    {"tokens", kTokens},
                    {"num_kv_heads", kKvHeads},
                    {"head_dim", kHeadDim},
                    {"us", timing.median_us},
                    {"bytes", bytes},
                    {"share_of_copy", share}});
    progress(fmt::format("writer {:14} {:8} {:8.1f} us  {:.3f} of copy", format.name,
                         scale_kind_name(format.format.value.scale), timing.median_us, share));
  }
  return rows;
}

}  // namespace asymkv::cuda
