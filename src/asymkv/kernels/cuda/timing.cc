#include "asymkv/kernels/cuda/timing.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <vector>

#include "asymkv/device/cuda/cuda_error.h"

namespace asymkv::cuda {
namespace {

constexpr int kWarmups = 2;
constexpr double kWarmupUs = 20e3;  // a device that idled takes milliseconds to reach its clocks

// Stream, events and graph of one measurement.
struct GraphRun {
  cudaStream_t stream = nullptr;
  cudaEvent_t begin = nullptr;
  cudaEvent_t end = nullptr;
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;

  GraphRun() {
    ASYMKV_CUDA(cudaStreamCreate(&stream));
    ASYMKV_CUDA(cudaEventCreate(&begin));
    ASYMKV_CUDA(cudaEventCreate(&end));
  }
  ~GraphRun() {
    if (executable != nullptr) (void)cudaGraphExecDestroy(executable);
    if (graph != nullptr) (void)cudaGraphDestroy(graph);
    (void)cudaEventDestroy(begin);
    (void)cudaEventDestroy(end);
    (void)cudaStreamDestroy(stream);
  }
  GraphRun(const GraphRun&) = delete;
  GraphRun& operator=(const GraphRun&) = delete;

  double replay_us() const {
    ASYMKV_CUDA(cudaEventRecord(begin, stream));
    ASYMKV_CUDA(cudaGraphLaunch(executable, stream));
    ASYMKV_CUDA(cudaEventRecord(end, stream));
    ASYMKV_CUDA(cudaEventSynchronize(end));
    float milliseconds = 0.0F;
    ASYMKV_CUDA(cudaEventElapsedTime(&milliseconds, begin, end));
    return static_cast<double>(milliseconds) * 1e3;
  }
};

}  // namespace

Timing time_graph(int64_t calls, int repeats, const std::function<void(int64_t, StreamHandle)>& launch) {
  ASYMKV_CUDA(cudaDeviceSynchronize());
  GraphRun run;
  ASYMKV_CUDA(cudaStreamBeginCapture(run.stream, cudaStreamCaptureModeGlobal));
  for (int64_t call = 0; call < calls; ++call) launch(call, run.stream);
  ASYMKV_CUDA(cudaStreamEndCapture(run.stream, &run.graph));
  ASYMKV_CUDA(cudaGraphInstantiate(&run.executable, run.graph, 0));
  double warm_us = 0.0;
  for (int i = 0; i < kWarmups || warm_us < kWarmupUs; ++i) warm_us += run.replay_us();
  std::vector<double> times;
  for (int i = 0; i < repeats; ++i) times.push_back(run.replay_us() / static_cast<double>(calls));
  std::ranges::sort(times);
  return {times[times.size() / 2], times.front()};
}

}  // namespace asymkv::cuda
