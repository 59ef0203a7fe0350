#include "memory_guard.h"

#include <sys/resource.h>

#include <string_view>
#include <utility>

#include "asymkv/base/error.h"
#include "asymkv/device/device.h"

namespace asymkv::app {
namespace {

void check_limit(std::string_view field, int64_t limit, int64_t used) {
  if (limit == 0 || used <= limit) return;
  throw_error(ErrorCode::kResourceExhausted,
              "the run took {} bytes so far, but the protocol's {} is {}; start another run (a limit is part of the "
              "protocol, so --resume is of no use) with a higher one, with fewer arms or with a smaller "
              "pool_limit_bytes",
              used, field, limit);
}

}  // namespace

MemoryUse host_memory_use() {
  rusage usage{};
  ASYMKV_CHECK(::getrusage(RUSAGE_SELF, &usage) == 0, "getrusage failed");
  return {int64_t{usage.ru_maxrss} * 1024, 0};  // Linux counts KiB
}

int64_t device_memory_use() {
  const DeviceMemory memory = device_memory();
  return memory.total_bytes - memory.free_bytes;
}

std::unique_ptr<MemorySampler> sample_device_memory() {
  return std::make_unique<MemorySampler>(device_memory_use, std::chrono::milliseconds(20));
}

MemoryGuard::MemoryGuard(CaseRunner& inner, const Protocol& protocol, std::function<MemoryUse()> measure)
    : inner_(inner),
      process_limit_(protocol.process_limit_bytes),
      device_limit_(protocol.device_limit_bytes),
      measure_(std::move(measure)) {}

void MemoryGuard::begin(const RunSummary& opened) {
  check();
  inner_.begin(opened);
}

std::vector<RawOutcome> MemoryGuard::run_unit(const Unit& unit) {
  std::vector<RawOutcome> outcomes = inner_.run_unit(unit);
  check();
  return outcomes;
}

void MemoryGuard::check() const {
  if (process_limit_ == 0 && device_limit_ == 0) return;
  const MemoryUse use = measure_();
  check_limit("process_limit_bytes", process_limit_, use.process_peak);
  check_limit("device_limit_bytes", device_limit_, use.device_peak);
}

}  // namespace asymkv::app
