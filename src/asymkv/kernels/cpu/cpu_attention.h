#pragma once

#include "asymkv/kernels/cpu/scratch.h"
#include "asymkv/kernels/cpu/simd_kernels.h"
#include "asymkv/ops/attention.h"

namespace asymkv {

namespace cpu {
// Plans and runs one call. one_thread: for tests of independence from the number of threads.
void run_attend(const AttendParams& params, const SimdKernels& kernels, CallScratch& scratch, bool one_thread = false);
}  // namespace cpu

// The Highway family. FP32 arithmetic: a tile of keys and values is widened and packed once and used by all query rows
// of a block (attend_block-inl.h); work is planned on the host (attend_plan.h). Calls from several threads are safe.
class CpuAttention : public AttentionBackend {
 public:
  explicit CpuAttention(const cpu::SimdKernels& kernels) : kernels_(kernels) {}

  std::string_view name() const override { return kernels_.name; }
  Support supports(const KvGeometry& geometry, const KvFormat& format, int64_t group, Phase phase) const override;
  void write_kv(const WriteKvParams& params) const override;
  void attend(const AttendParams& params) const override;

 private:
  cpu::SimdKernels kernels_;
  mutable cpu::ScratchPool scratch_;
};

}  // namespace asymkv
