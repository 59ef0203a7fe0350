#pragma once

#include <functional>
#include <string>
#include <vector>

#include "asymkv/base/json.h"
#include "asymkv/device/device.h"
#include "asymkv/kernels/cuda/decode_plan.h"
#include "asymkv/kv/format.h"

namespace asymkv::cuda {

// One geometry, batch and context of the measuring program.
struct BenchShape {
  int64_t num_q_heads = 32;
  int64_t num_kv_heads = 8;
  int64_t head_dim = 128;
  int64_t batch = 1;
  int64_t context_len = 8192;  // of every sequence; a ragged batch draws its lengths from 1 to it
  bool ragged = false;
  std::string name() const;  // "32/8x128 b32 c8192"
};

struct BenchFormat {
  std::string name;  // "native", "k16v8", ...
  KvFormat format;
  // Of pre-bias formats: a large bias on every pair and none left in the keys, else one of the measured Qwen2.5 shape,
  // whose slow pairs alone are taken out.
  bool every_pair = false;
};

struct KernelBenchOptions {
  std::string format_filter;  // substring of the format's name; empty: all
  std::string shape_filter;   // substring of the shape's name; empty: all
  LaunchShape launch;         // zeros: the planner's choice
  int64_t pool_pages = 131072;
  int64_t min_rotation_bytes = 300'000'000;  // distinct bytes that replays walk through: over four times the L2
  bool writers = true;                       // the KV writer's rows too
  bool check = true;                         // compare every row with the double-precision reference
};

struct KernelBenchRow {
  BenchShape shape;
  BenchFormat format;
  DecodePlan plan;
  double us = 0.0;
  double min_us = 0.0;
  double overlap_us = 0.0;  // with programmatic dependent launch: each call may start while the one before it ends
  int64_t bytes = 0;        // K, V and scales that the launch must read
  double share_of_read = 0.0;
  double ratio_to_native = 0.0;  // native time over this one; 0 where native was not measured
  double rel_err = -1.0;         // relative L2 against the reference; -1: not checked
  double worst_row = -1.0;
  int64_t rotations = 0;   // sets of distinct pages
  int64_t pool_pages = 0;  // pages that the sets were drawn from
};

struct KernelBenchReport {
  DeviceInfo device;
  double read_tbps = 0.0;
  double copy_tbps = 0.0;
  std::vector<KernelBenchRow> rows;
  Json writer_rows = Json::array();
  Json to_json() const;  // the object of `asymkv bench kernel --json`
  std::string to_table() const;
};

// The shapes and formats of docs/kernels-hopper.md, in the order of its table.
std::vector<BenchShape> bench_shapes();
std::vector<BenchFormat> bench_formats();

// Measures on the current device. `progress` gets one line a row. Throws Error{kUnsupported} without a Hopper GPU,
// Error{kInternal} if a row's result is wrong: a wrong kernel has no time.
KernelBenchReport run_kernel_bench(const KernelBenchOptions& options,
                                   const std::function<void(const std::string&)>& progress);

// Bandwidth at which the first device reads memory that no cache holds.
double read_bytes_per_s();

}  // namespace asymkv::cuda
