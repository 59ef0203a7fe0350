#include "asymkv/kernels/cpu/cpu_attention.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "asymkv/base/error.h"
#include "asymkv/base/parallel.h"
#include "asymkv/kernels/backends.h"
#include "asymkv/kernels/checks.h"
#include "asymkv/kernels/cpu/attend_plan.h"
#include "asymkv/kernels/cpu/merge.h"

namespace asymkv {
namespace {

constexpr int64_t kMaxHeadDim = 512;
constexpr int64_t kHeadDimStep = 8;     // rows are widened eight channels at a time
constexpr int64_t kPrebiasStep = 16;    // and removed vectors eight pairs at a time
constexpr int64_t kTokensPerTask = 16;  // of write_kv

bool serves_head_dim(int64_t dim) {
  return dim % kHeadDimStep == 0 && dim <= kMaxHeadDim;
}

}  // namespace

Support CpuAttention::supports(const KvGeometry& geometry, const KvFormat& format, int64_t group, Phase phase) const {
  const std::string refusal = common_refusal(geometry, group);
  if (!refusal.empty()) return {false, "", refusal};
  if (!serves_head_dim(geometry.k_head_dim) || !serves_head_dim(geometry.v_head_dim)) {
    return {false, "",
            fmt::format("{} serves head dims that are multiples of {} up to {}, found {} for keys and {} for values",
                        name(), kHeadDimStep, kMaxHeadDim, geometry.k_head_dim, geometry.v_head_dim)};
  }
  if (format.key.prebias && geometry.k_head_dim % kPrebiasStep != 0) {
    return {false, "",
            fmt::format("{} serves bias removal for key head dims that are multiples of {}, found {}", name(),
                        kPrebiasStep, geometry.k_head_dim)};
  }
  return {true, fmt::format("{}/{}/{}", name(), phase_name(phase), format.id()), ""};
}

void CpuAttention::write_kv(const WriteKvParams& params) const {
  check_write_params(params);
  require_write_support(*this, params);
  const int64_t num_tasks = (params.num_tokens + kTokensPerTask - 1) / kTokensPerTask;
  std::vector<cpu::TargetCounters> counters(static_cast<size_t>(num_tasks) * params.targets.size());
  parallel_for(num_tasks, [&](int64_t task, int) {
    const int64_t begin = task * kTokensPerTask;
    const int64_t end = std::min(begin + kTokensPerTask, params.num_tokens);
    kernels_.write_tokens(params, begin, end, counters.data() + static_cast<size_t>(task) * params.targets.size());
  });
  for (size_t i = 0; i < counters.size(); ++i) {
    const WriteTarget& target = params.targets[i % params.targets.size()];
    if (target.k_counters != nullptr) *target.k_counters += counters[i].k;
    if (target.v_counters != nullptr) *target.v_counters += counters[i].v;
  }
}

void CpuAttention::attend(const AttendParams& params) const {
  check_attend_params(params);
  require_attend_support(*this, params);
  std::unique_ptr<cpu::CallScratch> scratch = scratch_.take();
  cpu::run_attend(params, kernels_, *scratch);
  scratch_.give_back(std::move(scratch));
}

void cpu::run_attend(const AttendParams& params, const SimdKernels& kernels, CallScratch& scratch, bool one_thread) {
  const AttendPlan plan = plan_attend(params);
  scratch.threads.resize(static_cast<size_t>(num_threads()));
  float* partials = scratch.partials.reserve(plan.partial_floats);
  const auto run_task = [&](int64_t i, int thread_idx) {
    Scratch& own = scratch.threads[static_cast<size_t>(thread_idx)];
    kernels.attend_task(params, plan.tasks[static_cast<size_t>(i)], own, partials);
  };
  const auto run_merge = [&](int64_t i, int) { merge_splits(params, plan.merges[static_cast<size_t>(i)], partials); };
  const auto num_tasks = static_cast<int64_t>(plan.tasks.size());
  const auto num_merges = static_cast<int64_t>(plan.merges.size());
  if (one_thread) {
    for (int64_t i = 0; i < num_tasks; ++i) run_task(i, 0);
    for (int64_t i = 0; i < num_merges; ++i) run_merge(i, 0);
    return;
  }
  parallel_for(num_tasks, run_task);
  if (num_merges > 0) parallel_for(num_merges, run_merge);
}

std::unique_ptr<AttentionBackend> make_cpu_attention(std::string_view name) {
  std::string known;
  for (const cpu::SimdKernels& kernels : cpu::available_simd_kernels()) {
    if (name.empty() || name == kernels.name) return std::make_unique<CpuAttention>(kernels);
    known += fmt::format(" {}", kernels.name);
  }
  throw_unsupported("no attention kernels named \"{}\" on this machine; available:{}", name, known);
}

}  // namespace asymkv
