#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "asymkv/device/memory_sampler.h"
#include "asymkv/engine/loaded_model.h"
#include "kv_options.h"
#include "run_record.h"

namespace asymkv::app {

// Requests of equal lengths that are all there from the start: `running` of them at once, in waves.
struct Workload {
  int64_t input = 0;    // tokens of a prompt
  int64_t output = 0;   // tokens that are generated for it
  int64_t running = 0;  // at most
  int64_t total() const { return input + output; }
};
// "8192/128/32" each. Throws Error{kUsage} naming the text.
std::vector<Workload> parse_workloads(const std::vector<std::string>& texts);

// Multiply-adds of a backend's own products, counted twice, per second.
struct MatrixRates {
  double best = 0.0;       // of some passes on a chip at rest
  double sustained = 0.0;  // after seconds of them, when a chip may have lowered its clocks; 0: not measured
};

// What the machine gives, measured in the same run.
struct MachineRates {
  double read_bytes_per_s = 0.0;
  MatrixRates matrix;
};

// Of products of n x n x n. `seconds` of them are run for the sustained rate, which is the median of the last third.
MatrixRates measure_matrix_rates(const ModelBackend& backend, int64_t n, double seconds);

struct WorkloadBench {
  LoadedModel& model;
  MachineRates rates;
  double matrix_bytes = 0.0;   // that every pass reads
  int64_t pool_bytes = 0;      // for the pages of all sequences; 0: as many as `running` need
  int64_t waves = 1;           // timed
  int64_t prefill_tokens = 0;  // of one pass
  // Of a GPU; null on a CPU.
  MemorySampler* device_memory = nullptr;
  int64_t device_memory_before = 0;  // in use before the model was loaded: the driver's, and other programs'
  int64_t placed_bytes = 0;          // of the model's matrices
};

// Sequences that run at once: the workload's, or as many as the pool holds. Throws Error{kUsage} if it holds none.
int64_t fitting_sequences(const WorkloadBench& bench, const KvLayout& layout, const Workload& workload);

// Times one workload on one KV format and returns its row of `workloads` (docs/cli.md) with the record of its cache.
Json run_workload(const WorkloadBench& bench, const KvOptions& kv, const Workload& workload);

// The rows as a table.
void print_workloads(const Json& rows);

}  // namespace asymkv::app
