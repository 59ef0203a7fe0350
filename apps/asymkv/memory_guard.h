#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "asymkv/device/memory_sampler.h"
#include "asymkv/gate/protocol.h"
#include "asymkv/gate/runner.h"

namespace asymkv::app {

// Bytes in use.
struct MemoryUse {
  int64_t process_peak = 0;  // largest resident size of this process so far
  int64_t device_peak = 0;   // largest sample on the GPU, all programs on it counted; 0 where none is used
};
MemoryUse host_memory_use();
// Bytes in use on the GPU now, by all programs.
int64_t device_memory_use();
// Samples that, 20 ms apart.
std::unique_ptr<MemorySampler> sample_device_memory();

// Holds a run to its protocol's process_limit_bytes and device_limit_bytes: throws Error{kResourceExhausted} naming the
// field, the limit and what was measured, before the first unit or after one.
class MemoryGuard final : public CaseRunner {
 public:
  MemoryGuard(CaseRunner& inner, const Protocol& protocol, std::function<MemoryUse()> measure);
  void begin(const RunSummary& opened) override;
  std::vector<RawOutcome> run_unit(const Unit& unit) override;

 private:
  void check() const;

  CaseRunner& inner_;
  int64_t process_limit_;
  int64_t device_limit_;
  std::function<MemoryUse()> measure_;
};

}  // namespace asymkv::app
