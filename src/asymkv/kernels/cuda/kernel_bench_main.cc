// The measuring program of `asymkv bench kernel` alone, for machines that have nvcc but not the libraries of the whole
// project. Usage: kernel_bench [--formats TEXT] [--shapes TEXT] [--shape WARPS,STAGES,CLUSTER] [--no-check]
// [--no-writers] [--json FILE]

#include <fmt/format.h>

#include <cstdio>
#include <fstream>
#include <string>

#include "asymkv/base/error.h"
#include "asymkv/kernels/cuda/kernel_bench.h"

namespace {

using asymkv::cuda::KernelBenchOptions;
using asymkv::cuda::LaunchShape;

LaunchShape parse_shape(const std::string& text) {
  LaunchShape shape;
  if (std::sscanf(text.c_str(), "%d,%d,%d", &shape.warps, &shape.stages, &shape.cluster_size) != 3)
    asymkv::throw_usage("--shape wants WARPS,STAGES,CLUSTER, found \"{}\"", text);
  return shape;
}

int run(int argc, char** argv) {
  KernelBenchOptions options;
  std::string json_path;
  for (int i = 1; i < argc; ++i) {
    const std::string flag = argv[i];
    auto value = [&] {
      if (i + 1 >= argc) asymkv::throw_usage("{} wants a value", flag);
      return std::string(argv[++i]);
    };
    if (flag == "--formats") {
      options.format_filter = value();
    } else if (flag == "--shapes") {
      options.shape_filter = value();
    } else if (flag == "--shape") {
      options.launch = parse_shape(value());
    } else if (flag == "--no-check") {
      options.check = false;
    } else if (flag == "--no-writers") {
      options.writers = false;
    } else if (flag == "--json") {
      json_path = value();
    } else {
      asymkv::throw_usage("unknown option {}", flag);
    }
  }
  const auto report = asymkv::cuda::run_kernel_bench(options, [](const std::string& line) {
    fmt::print(stderr, "{}\n", line);
    std::fflush(stderr);
  });
  fmt::print("{}", report.to_table());
  if (!json_path.empty()) std::ofstream(json_path) << report.to_json().dump(1) << "\n";
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const asymkv::Error& e) {
    fmt::print(stderr, "kernel_bench: {}\n", e.what());
    return asymkv::exit_code(e.code());
  }
}
