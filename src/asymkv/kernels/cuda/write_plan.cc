#include "asymkv/kernels/cuda/write_plan.h"

#include <algorithm>

#include "asymkv/base/error.h"
#include "asymkv/kernels/cuda/decode_types.h"

namespace asymkv::cuda {

int64_t WritePlan::num_whole() const {
  return std::ranges::count(runs, kPageSize, &WriteRun::count);
}

std::vector<WriteRun> WritePlan::launch_order() const {
  std::vector<WriteRun> ordered = runs;
  std::stable_partition(ordered.begin(), ordered.end(), [](const WriteRun& run) { return run.count == kPageSize; });
  return ordered;
}

std::string WritePlan::describe() const {
  return fmt::format("{} of {} tokens in {} runs, {} of them whole pages", num_written, num_tokens, runs.size(),
                     num_whole());
}

WritePlan plan_write(std::span<const int64_t> slots, int64_t num_slots) {
  WritePlan plan;
  plan.num_tokens = static_cast<int64_t>(slots.size());
  std::vector<bool> seen(static_cast<size_t>(std::max<int64_t>(num_slots, 0)));
  int64_t expected = -1;  // the slot that would lengthen the last run
  for (size_t token = 0; token < slots.size(); ++token) {
    const int64_t slot = slots[token];
    if (slot < -1 || slot >= num_slots) throw_usage("token {} goes to slot {} of {}", token, slot, num_slots);
    if (slot >= 0) {
      if (seen[static_cast<size_t>(slot)]) throw_usage("token {} goes to slot {}, which is taken", token, slot);
      seen[static_cast<size_t>(slot)] = true;
      ++plan.num_written;
      if (slot == expected && slot % kPageSize != 0) {
        ++plan.runs.back().count;
      } else {
        plan.runs.push_back({static_cast<int32_t>(token), 1, static_cast<int32_t>(slot / kPageSize),
                             static_cast<int32_t>(slot % kPageSize)});
      }
    }
    expected = slot < 0 ? -1 : slot + 1;
  }
  return plan;
}

}  // namespace asymkv::cuda
