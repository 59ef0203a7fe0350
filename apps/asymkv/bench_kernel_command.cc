#include <fmt/format.h>

#include <memory>

#include "asymkv/base/error.h"
#include "asymkv/base/file.h"
#include "asymkv/base/progress.h"
#include "asymkv/device/device.h"
#include "command.h"

#if ASYMKV_CUDA_BUILT
#include "asymkv/kernels/cuda/kernel_bench.h"
#include "asymkv/record/kernel_row.h"
#include "run_record.h"
#endif

namespace asymkv::app {
namespace {

struct KernelBenchArgs {
  std::string formats;
  std::string shapes;
  std::string out;
  bool no_check = false;
  bool json = false;
};

#if ASYMKV_CUDA_BUILT
// The benchmark's report with the short record of each row in full (record/kernel_row.h).
Json with_records(Json report, const RunClock& clock) {
  for (Json& row : report.at("rows")) {
    Record record = record_from_kernel_row(row, "bench kernel");
    record.engine_version = kVersion;
    record.argv_sha256 = argv_sha256();
    record.started = utc_timestamp(clock.start());
    record.ended = utc_timestamp(std::chrono::system_clock::now());
    row["record"] = record_to_json(record);
  }
  return report;
}

int run_kernel_bench_command(const KernelBenchArgs& args) {
  const RunClock clock;
  cuda::KernelBenchOptions options;
  options.format_filter = args.formats;
  options.shape_filter = args.shapes;
  options.check = !args.no_check;
  const auto progress = [](const std::string& line) { print_note("{}\n", line); };
  const cuda::KernelBenchReport report = cuda::run_kernel_bench(options, progress);
  const Json answer = with_records(report.to_json(), clock);
  if (!args.out.empty()) write_file_atomic(args.out, answer.dump(1) + "\n");
  if (args.json) {
    print_json(answer);
  } else {
    fmt::print("{}", report.to_table());
  }
  return 0;
}
#else
int run_kernel_bench_command(const KernelBenchArgs&) {
  throw_unsupported("bench kernel cannot run: {}", list_devices().why_none);
}
#endif

}  // namespace

void add_bench_command(CLI::App& root, Action& action) {
  CLI::App* bench = root.add_subcommand("bench", "measurements, each row with its record");
  bench->footer("Example: asymkv bench engine models/probe-robust --depth 0,1024 --reps 3");
  bench->require_subcommand(1);
  add_bench_engine_command(*bench, action);
  CLI::App* command = bench->add_subcommand("kernel", "time the attention kernels of this machine's GPU");
  const auto args = std::make_shared<KernelBenchArgs>();
  command->add_option("--formats", args->formats, "only formats whose name contains this, e.g. k16v8");
  command->add_option("--shapes", args->shapes, "only shapes whose name contains this, e.g. \"32/8x128 b32\"");
  command->add_option("--out", args->out, "also write the JSON object to this file");
  command->add_flag("--no-check", args->no_check, "do not compare each row with the double-precision reference");
  command->add_flag("--json", args->json, "print the JSON object instead of the table");
  command->footer("Example: asymkv bench kernel --shapes \"b1 c8192\" --json > kernel.json");
  command->callback([args, &action] { action = [args] { return run_kernel_bench_command(*args); }; });
}

}  // namespace asymkv::app
