#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "asymkv/gate/protocol.h"
#include "asymkv/gate/runner.h"

namespace asymkv::app {

// Bytes in use.
struct MemoryUse {
  int64_t process_peak = 0;  // largest resident size of this process so far
  int64_t device = 0;        // on the GPU, by all programs; 0 where none is used
};
MemoryUse host_memory_use();
MemoryUse host_and_device_memory_use();

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
