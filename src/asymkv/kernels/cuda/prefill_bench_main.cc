// The measuring program of the writer and of prefill. Usage: prefill_bench [--json FILE]

#include <fmt/format.h>

#include <cstdio>
#include <fstream>
#include <string>

#include "asymkv/base/error.h"
#include "asymkv/kernels/cuda/prefill_bench.h"

namespace {

int run(int argc, char** argv) {
  std::string json_path;
  for (int i = 1; i < argc; ++i) {
    const std::string flag = argv[i];
    if (flag != "--json" || i + 1 >= argc) asymkv::throw_usage("usage: prefill_bench [--json FILE], found {}", flag);
    json_path = argv[++i];
  }
  const asymkv::Json answer = asymkv::cuda::measure_prefill([](const std::string& line) {
    fmt::print("{}\n", line);
    std::fflush(stdout);
  });
  if (!json_path.empty()) std::ofstream(json_path) << answer.dump(1) << "\n";
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const asymkv::Error& e) {
    fmt::print(stderr, "prefill_bench: {}\n", e.what());
    return asymkv::exit_code(e.code());
  }
}
