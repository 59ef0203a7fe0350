#include "asymkv/kernels/cuda/decode_launch.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <bit>
#include <numbers>

#include "asymkv/device/cuda/cuda_error.h"

namespace asymkv::cuda {
namespace {

void prepare_kernel(const void* kernel, bool large_cluster) {
  ASYMKV_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kMaxSharedBytes));
  if (large_cluster) ASYMKV_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1));
}

cudaLaunchAttribute cluster_attribute(int32_t size) {
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim.x = static_cast<unsigned>(size);
  attribute.val.clusterDim.y = 1;
  attribute.val.clusterDim.z = 1;
  return attribute;
}

int32_t active_clusters(const void* kernel, int32_t threads, int32_t size) {
  cudaLaunchAttribute attribute = cluster_attribute(size);
  cudaLaunchConfig_t launch{};
  launch.gridDim = dim3(static_cast<unsigned>(size) * 8);
  launch.blockDim = dim3(static_cast<unsigned>(threads));
  launch.dynamicSmemBytes = 120 * 1024;  // more than half an SM: one CTA each
  launch.attrs = &attribute;
  launch.numAttrs = 1;
  int clusters = 0;
  ASYMKV_CUDA(cudaOccupancyMaxActiveClusters(&clusters, kernel, &launch));
  return clusters;
}

void check_arguments(const DecodeConfig& config, const DecodeArguments& a) {
  if (a.blocks == nullptr || a.q == nullptr || a.out == nullptr) throw_usage("decode needs blocks, queries and output");
  if (config.scale_bytes() > 0 && a.scales == nullptr) throw_usage("{} needs a scale plane", config.name());
  const bool fixed = (config.k_bytes() == 1 && !config.k_dynamic) || (config.v_bytes() == 1 && !config.v_dynamic);
  if (fixed && a.fixed_scales == nullptr) throw_usage("{} needs fixed scales in device memory", config.name());
  if (config.prebias && (a.bias == nullptr || a.bias_freq == nullptr)) {
    throw_usage("{} needs the vector that was taken out of the keys", config.name());
  }
  if (config.key == DType::kBF16 && !a.q_is_bf16) throw_usage("{} needs BF16 queries", config.name());
}

template <typename T>
DeviceBuffer upload_or_one(const std::vector<T>& host) {
  return host.empty() ? to_device(std::vector<T>(1)) : to_device(host);
}

}  // namespace

DevicePlan::DevicePlan(const DecodePlan& plan, std::span<const int32_t> page_table)
    : plan_(plan),
      page_table_(upload_or_one(std::vector<int32_t>(page_table.begin(), page_table.end()))),
      segments_(upload_or_one(plan.segments)),
      records_(upload_or_one(plan.records)),
      partial_out_(std::max<int64_t>(plan.num_partials(), 1) * plan.group * plan.config.head_dim * 4),
      partial_state_(std::max<int64_t>(plan.num_partials(), 1) * plan.group * 8),
      arrivals_(std::max<int64_t>(int64_t{plan.num_sequences} * plan.num_kv_heads, 1) * 4) {
  arrivals_.fill(0);
}

void DevicePlan::fill(DecodeParams& params) const {
  params.page_table = page_table_.as<int32_t>();
  params.segments = segments_.as<Segment>();
  params.records = records_.as<WarpRecord>();
  params.partial_out = partial_out_.as<float>();
  params.partial_state = partial_state_.as<float>();
  params.arrivals = arrivals_.as<int32_t>();
  params.bias_chunks = plan_.bias_chunks;
  params.num_kv_heads = plan_.num_kv_heads;
  params.group = plan_.group;
  params.stages = plan_.shape.stages;
  const auto warps = static_cast<uint64_t>(plan_.shape.warps);
  params.per_warp = static_cast<uint32_t>(((uint64_t{1} << 32) + warps - 1) / warps);
  params.cluster_shift = std::countr_zero(static_cast<uint32_t>(plan_.shape.cluster_size));
  params.shared = plan_.shared;
}

DeviceLimits query_limits(const DecodeConfig& config) {
  const DeviceInfo device = require_device();
  const void* kernel = require_instance(config).kernel;
  prepare_kernel(kernel, true);
  const int32_t threads = std::min(config.max_warps(), 8) * 32;
  return {.num_sms = static_cast<int32_t>(device.num_sms),
          .clusters_of_2 = active_clusters(kernel, threads, 2),
          .clusters_of_4 = active_clusters(kernel, threads, 4),
          .clusters_of_8 = active_clusters(kernel, threads, 8),
          .clusters_of_16 = active_clusters(kernel, threads, 16)};
}

void launch_decode(const DevicePlan& plan, const DecodeArguments& arguments, StreamHandle stream) {
  const DecodePlan& host = plan.host();
  const void* kernel = require_instance(host.config).kernel;
  check_arguments(host.config, arguments);
  if (host.num_ctas == 0) return;
  prepare_kernel(kernel, host.shape.cluster_size > 8);
  DecodeParams params;
  params.blocks = arguments.blocks;
  params.scales = arguments.scales;
  params.fixed_scales = arguments.fixed_scales;
  params.q = arguments.q;
  params.out = arguments.out;
  params.lse = arguments.lse;
  params.bias = arguments.bias;
  params.bias_freq = arguments.bias_freq;
  params.q_is_bf16 = arguments.q_is_bf16;
  params.softmax_scale_log2 = arguments.softmax_scale * std::numbers::log2e_v<float>;
  plan.fill(params);
  cudaLaunchAttribute attribute = cluster_attribute(host.shape.cluster_size);
  cudaLaunchConfig_t launch{};
  launch.gridDim = dim3(static_cast<unsigned>(host.num_ctas));
  launch.blockDim = dim3(static_cast<unsigned>(host.shape.warps * 32));
  launch.dynamicSmemBytes = static_cast<size_t>(host.shared.total);
  launch.stream = static_cast<cudaStream_t>(stream);
  launch.attrs = &attribute;
  launch.numAttrs = host.shape.cluster_size > 1 ? 1 : 0;
  void* kernel_arguments[] = {&params};
  ASYMKV_CUDA(cudaLaunchKernelExC(&launch, kernel, kernel_arguments));
}

}  // namespace asymkv::cuda
