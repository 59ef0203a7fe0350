#include "asymkv/kernels/cuda/decode_launch.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <bit>
#include <numbers>
#include <set>
#include <utility>

#include "asymkv/device/cuda/cuda_error.h"

namespace asymkv::cuda {
namespace {

// Once a kernel: the calls cost as much as half a launch.
void prepare_kernel(const void* kernel, bool large_cluster) {
  static thread_local std::set<std::pair<const void*, bool>> prepared;
  if (prepared.contains({kernel, large_cluster})) return;
  ASYMKV_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kMaxSharedBytes));
  if (large_cluster) ASYMKV_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1));
  prepared.emplace(kernel, large_cluster);
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

void check_arguments(const DecodePlan& plan, const DecodeArguments& a) {
  const DecodeConfig& config = plan.config;
  if (a.blocks == nullptr || a.q == nullptr || a.out == nullptr) throw_usage("decode needs blocks, queries and output");
  if (config.scale_bytes() > 0 && a.scales == nullptr) throw_usage("{} needs a scale plane", config.name());
  const bool fixed = (config.k_bytes() == 1 && !config.k_dynamic) || (config.v_bytes() == 1 && !config.v_dynamic);
  if (fixed && a.fixed_scales == nullptr) throw_usage("{} needs fixed scales in device memory", config.name());
  if (config.prebias && a.bias == nullptr) {
    throw_usage("{} needs the vector that was taken out of the keys", config.name());
  }
  if (a.logit_soft_cap < 0.0F) throw_usage("a logit soft cap of {} is negative", a.logit_soft_cap);
  if (config.prebias && !(a.bias->shape() == plan.bias)) {
    throw_usage("the plan is for {} slow chunks and {} fast steps of a removed vector, the layer has {} and {}",
                plan.bias.slow_chunks, plan.bias.fast_steps, a.bias->shape().slow_chunks, a.bias->shape().fast_steps);
  }
  if (config.key == DType::kBF16 && !a.q_is_bf16) throw_usage("{} needs BF16 queries", config.name());
}

template <typename T>
DeviceBuffer upload_or_one(const std::vector<T>& host) {
  return host.empty() ? to_device(std::vector<T>(1)) : to_device(host);
}

int64_t records_bytes(const DecodePlan& plan) {
  return static_cast<int64_t>(plan.records.size() * sizeof(WarpRecord));
}

// Whether the buffer is a new one, a quarter larger than asked for: a later step of a decode needs a little more.
bool grow(DeviceBuffer& buffer, int64_t bytes) {
  if (buffer.bytes() >= bytes) return false;
  buffer = DeviceBuffer(bytes + bytes / 4);
  return true;
}

void add_soft_cap(DecodeParams& params, float cap) {
  if (cap <= 0.0F) return;
  constexpr float kLog2E = std::numbers::log2e_v<float>;
  params.soft_cap_log2 = cap * kLog2E;
  params.soft_cap_slope = 2.0F * kLog2E / params.soft_cap_log2;
}

}  // namespace

DevicePlan::DevicePlan(const DecodePlan& plan, std::span<const int32_t> page_table) {
  reset(plan, page_table);
  ASYMKV_CUDA(cudaStreamSynchronize(nullptr));  // whatever stream it is launched on
}

DevicePlan::DevicePlan(const DecodePlan& plan, const PlanRange& range, const DeviceLimits& device) : plan_(plan) {
  allocate({max_segments(range, plan.config, device), range.max_page_ids});
  upload(plan, {}, nullptr);
  ASYMKV_CUDA(cudaStreamSynchronize(nullptr));
}

void DevicePlan::allocate(const Room& room) {
  room_ = {std::max<int64_t>(room.segments, 1), std::max<int64_t>(room.page_ids, 1)};
  grow(contents_, records_bytes(plan_) + room_.segments * static_cast<int64_t>(sizeof(Segment)) +
                      room_.page_ids * static_cast<int64_t>(sizeof(int32_t)));
  grow(partial_out_, room_.segments * plan_.columns * plan_.config.head_dim * 4);
  grow(partial_state_, room_.segments * plan_.columns * 8);
  if (grow(arrivals_, room_.segments * 4)) arrivals_.fill(0);  // every launch leaves them at zero
}

void DevicePlan::reset(const DecodePlan& plan, std::span<const int32_t> page_table, int64_t spare) {
  plan_ = plan;
  const auto segments = static_cast<int64_t>(plan.segments.size()), ids = static_cast<int64_t>(page_table.size());
  allocate({segments + spare * segments, ids + spare * ids});
  upload(plan, page_table, nullptr);
}

bool DevicePlan::has_launch_of(const DecodePlan& plan) const {
  return plan.config == plan_.config && plan.shape == plan_.shape && plan.columns == plan_.columns &&
         plan.group == plan_.group && plan.num_kv_heads == plan_.num_kv_heads && plan.num_ctas == plan_.num_ctas &&
         plan.page_shift == plan_.page_shift && plan.bias == plan_.bias && plan.window == plan_.window &&
         plan.shared == plan_.shared;
}

bool DevicePlan::has_room(const DecodePlan& plan, std::span<const int32_t> page_table) const {
  return std::ssize(plan.segments) <= room_.segments && std::ssize(page_table) <= room_.page_ids;
}

bool DevicePlan::replace(DecodePlan&& plan, std::span<const int32_t> page_table) {
  if (!has_launch_of(plan) || !has_room(plan, page_table)) return false;
  plan_ = std::move(plan);
  upload(plan_, page_table, nullptr);
  return true;
}

void DevicePlan::upload(const DecodePlan& plan, std::span<const int32_t> page_table, StreamHandle stream) {
  const int64_t segments_at = records_bytes(plan_);
  const int64_t ids_at = segments_at + room_.segments * static_cast<int64_t>(sizeof(Segment));
  staging_.resize(static_cast<size_t>(ids_at) + page_table.size_bytes());
  std::ranges::copy(std::as_bytes(std::span(plan.records)), staging_.begin());
  std::ranges::copy(std::as_bytes(std::span(plan.segments)), staging_.begin() + segments_at);
  std::ranges::copy(std::as_bytes(page_table), staging_.begin() + ids_at);
  // From pageable memory: the call returns once the bytes have left it.
  ASYMKV_CUDA(cudaMemcpyAsync(contents_.data(), staging_.data(), staging_.size(), cudaMemcpyHostToDevice,
                              static_cast<cudaStream_t>(stream)));
}

void DevicePlan::update(const DecodePlan& plan, std::span<const int32_t> page_table, StreamHandle stream) {
  if (!has_launch_of(plan) || plan.shape.cluster_size != 1) {
    throw_usage("the plan \"{}\" is not of the range \"{}\"", plan.describe(), plan_.describe());
  }
  if (!has_room(plan, page_table)) {
    throw_usage("a plan of {} segments and {} page ids needs more room than the range's {} and {}",
                plan.segments.size(), page_table.size(), room_.segments, room_.page_ids);
  }
  upload(plan, page_table, stream);
}

void DevicePlan::fill(DecodeParams& params) const {
  const std::byte* segments = contents_.data() + records_bytes(plan_);
  params.records = contents_.as<WarpRecord>();
  params.segments = reinterpret_cast<const Segment*>(segments);
  params.page_table = reinterpret_cast<const int32_t*>(segments + room_.segments * int64_t{sizeof(Segment)});
  params.partial_out = partial_out_.as<float>();
  params.partial_state = partial_state_.as<float>();
  params.arrivals = arrivals_.as<int32_t>();
  params.num_kv_heads = plan_.num_kv_heads;
  params.group = plan_.group;
  params.columns = plan_.columns;
  const auto group = static_cast<uint32_t>(plan_.group);
  params.per_group = (65536U + group - 1U) / group;
  params.row_skip = plan_.group * (plan_.num_kv_heads - 1);
  params.window = plan_.window;
  params.page_shift = plan_.page_shift;
  params.stages = plan_.shape.stages;
  const auto warps = static_cast<uint64_t>(plan_.shape.warps);
  params.per_warp = static_cast<uint32_t>(((uint64_t{1} << 32) + warps - 1) / warps);
  params.cluster_shift = std::countr_zero(static_cast<uint32_t>(plan_.shape.cluster_size));
  params.shared = plan_.shared;
}

DeviceKeyBias::DeviceKeyBias(const KeyBias& bias)
    : shape_(bias.shape),
      slow_pairs_(upload_or_one(bias.slow_pairs)),
      slow_freqs_(upload_or_one(bias.slow_freqs)),
      fast_pairs_(upload_or_one(bias.fast_pairs)),
      fast_freqs_(upload_or_one(bias.fast_freqs)),
      table_(upload_or_one(bias.table)) {}

void DeviceKeyBias::fill(DecodeParams& params) const {
  params.bias = slow_pairs_.as<BiasPair>();
  params.bias_freq = slow_freqs_.as<BiasFrequency>();
  params.fast_bias = fast_pairs_.as<FastBiasPair>();
  params.fast_freq = fast_freqs_.as<BiasFrequency>();
  params.bias_table = table_.data();
  params.bias_shape = shape_;
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
  check_arguments(host, arguments);
  if (host.num_ctas == 0) return;
  prepare_kernel(kernel, host.shape.cluster_size > 8);
  DecodeParams params;
  params.blocks = arguments.blocks;
  params.scales = arguments.scales;
  params.fixed_scales = arguments.fixed_scales;
  params.q = arguments.q;
  params.out = arguments.out;
  params.lse = arguments.lse;
  params.sinks = arguments.sinks;
  if (arguments.bias != nullptr) arguments.bias->fill(params);
  add_soft_cap(params, arguments.logit_soft_cap);
  params.q_is_bf16 = arguments.q_is_bf16;
  params.overlaps = arguments.overlap_previous;
  params.softmax_scale_log2 = arguments.softmax_scale * std::numbers::log2e_v<float>;
  plan.fill(params);
  std::array<cudaLaunchAttribute, 2> attributes{};
  unsigned num_attributes = 0;
  if (host.shape.cluster_size > 1) attributes[num_attributes++] = cluster_attribute(host.shape.cluster_size);
  if (arguments.overlap_previous) {
    attributes[num_attributes].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[num_attributes++].val.programmaticStreamSerializationAllowed = 1;
  }
  cudaLaunchConfig_t launch{};
  launch.gridDim = dim3(static_cast<unsigned>(host.num_ctas));
  launch.blockDim = dim3(static_cast<unsigned>(host.shape.warps * 32));
  launch.dynamicSmemBytes = static_cast<size_t>(host.shared.total);
  launch.stream = static_cast<cudaStream_t>(stream);
  launch.attrs = attributes.data();
  launch.numAttrs = num_attributes;
  void* kernel_arguments[] = {&params};
  ASYMKV_CUDA(cudaLaunchKernelExC(&launch, kernel, kernel_arguments));
}

}  // namespace asymkv::cuda
