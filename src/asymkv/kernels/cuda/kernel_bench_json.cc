#include <cmath>

#include "asymkv/base/error.h"
#include "asymkv/kernels/cuda/kernel_bench.h"

#ifndef ASYMKV_CUDA_BUILD_HASH
#define ASYMKV_CUDA_BUILD_HASH "unknown"
#endif
#ifndef ASYMKV_CUDA_COMPILER
#define ASYMKV_CUDA_COMPILER "unknown"
#endif

namespace asymkv::cuda {
namespace {

// The nearest multiple of 1 / steps.
double rounded(double value, double steps) {
  return std::round(value * steps) / steps;
}

// The four facts of one side: asked for, resolved, in the pool, read by the kernel. Each is filled from its own source.
Json side_facts(const std::string& requested, const std::string& resolved, DType allocated, DType launched,
                ScaleKind scale) {
  return {{"requested", requested},
          {"resolved", resolved},
          {"allocated", std::string(dtype_name(allocated))},
          {"launched", std::string(dtype_name(launched))},
          {"scale", std::string(scale_kind_name(scale))}};
}

Json record_of(const KernelBenchRow& row, const DeviceInfo& device) {
  const KvFormat& format = row.format.format;
  const DecodePlan& plan = row.plan;
  return {{"schema", "asymkv-kernel-record-1"},
          {"key", side_facts(row.format.name, format.key.id(), plan.config.key, plan.config.key, format.key.scale)},
          {"value",
           side_facts(row.format.name, format.value.id(), plan.config.value, plan.config.value, format.value.scale)},
          {"layout", "tiled-1"},
          {"page_size", kPageSize},
          {"kernel", plan.config.name()},
          {"kernel_build", ASYMKV_CUDA_BUILD_HASH},
          {"compiler", ASYMKV_CUDA_COMPILER},
          {"device", device.name},
          {"compute_capability", device.compute_capability},
          {"driver", device.driver},
          {"toolkit", device.toolkit},
          {"launch",
           {{"split", std::string(split_rule_name(plan.rule))},
            {"ctas", plan.num_ctas},
            {"warps", plan.shape.warps},
            {"stages", plan.shape.stages},
            {"cluster", plan.shape.cluster_size},
            {"graph", true},
            {"page_sets", row.rotations},
            {"pool_pages", row.pool_pages}}}};
}

}  // namespace

Json KernelBenchReport::to_json() const {
  Json out;
  out["schema"] = "asymkv-bench-kernel-1";
  out["device"] = device.name;
  out["read_bandwidth_tbps"] = rounded(read_tbps, 1e4);
  out["copy_bandwidth_tbps"] = rounded(copy_tbps, 1e4);
  out["rows"] = Json::array();
  out["writer_rows"] = writer_rows;
  for (const KernelBenchRow& row : rows) {
    out["rows"].push_back({{"num_q_heads", row.shape.num_q_heads},
                           {"num_kv_heads", row.shape.num_kv_heads},
                           {"head_dim", row.shape.head_dim},
                           {"batch", row.shape.batch},
                           {"context_len", row.shape.context_len},
                           {"ragged", row.shape.ragged},
                           {"page_size", kPageSize},
                           {"format", row.format.name},
                           {"key", row.format.format.key.id()},
                           {"value", row.format.format.value.id()},
                           {"scale", std::string(scale_kind_name(row.format.format.scale()))},
                           {"value_scale", std::string(scale_kind_name(row.format.format.value.scale))},
                           {"kernel", row.plan.config.name()},
                           {"us", rounded(row.us, 1e3)},
                           {"min_us", rounded(row.min_us, 1e3)},
                           {"overlap_us", rounded(row.overlap_us, 1e3)},
                           {"bytes", row.bytes},
                           {"gbps", rounded(static_cast<double>(row.bytes) / row.us / 1e3, 10.0)},
                           {"share_of_read", rounded(row.share_of_read, 1e4)},
                           {"ratio_to_native", rounded(row.ratio_to_native, 1e4)},
                           {"rel_err", rounded(row.rel_err, 1e7)},
                           {"worst_row_err", rounded(row.worst_row, 1e7)},
                           {"record", record_of(row, device)}});
  }
  return out;
}

std::string KernelBenchReport::to_table() const {
  std::string table = fmt::format("{}: read {:.3f} TB/s, copy {:.3f} TB/s\n", device.name, read_tbps, copy_tbps);
  table += fmt::format("{:26} {:18} {:8} {:>9} {:>9} {:>7} {:>9} {:>9}\n", "shape", "format", "scale", "us", "GB/s",
                       "share", "x native", "overlap");
  for (const KernelBenchRow& row : rows) {
    table += fmt::format("{:26} {:18} {:8} {:9.2f} {:9.1f} {:7.3f} {:9.3f} {:9.2f}\n", row.shape.name(),
                         row.format.name, scale_kind_name(row.format.format.value.scale), row.us,
                         static_cast<double>(row.bytes) / row.us / 1e3, row.share_of_read, row.ratio_to_native,
                         row.overlap_us);
  }
  return table;
}

}  // namespace asymkv::cuda
