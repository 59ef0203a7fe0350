#include "asymkv/kernels/cuda/work_stream.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <utility>

#include "asymkv/device/cuda/cuda_error.h"

namespace asymkv::cuda {

// Scratch of a recording: what one launch gave back, a later one takes, as the stream would have it.
class StreamRecording::Memory : public std::enable_shared_from_this<Memory> {
 public:
  std::shared_ptr<void> take(int64_t bytes) {
    auto known = free_.find(bytes);
    if (known == free_.end()) known = free_.emplace(bytes, blocks_.emplace_back(bytes).data());
    void* data = known->second;
    free_.erase(known);
    return {data, [self = shared_from_this(), bytes](void* done) {
              (self->holds_ ? self->held_ : self->free_).emplace(bytes, static_cast<std::byte*>(done));
            }};
  }
  // What is given back between the two calls is not taken before the second.
  void hold() { holds_ = true; }
  bool holds() const { return holds_; }
  void let_go() {
    holds_ = false;
    free_.merge(held_);
  }

 private:
  std::vector<DeviceBuffer> blocks_;
  std::multimap<int64_t, std::byte*> free_, held_;
  bool holds_ = false;
};

namespace {

OwnStream make_stream() {
  cudaStream_t stream = nullptr;
  // Apart from the default stream, which goes on meanwhile.
  ASYMKV_CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  return OwnStream(stream);
}

// Work enqueued on `after` from now on waits for what was enqueued on `before`.
void order_streams(void* before, void* after) {
  cudaEvent_t event = nullptr;
  ASYMKV_CUDA(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  cudaError_t status = cudaEventRecord(event, static_cast<cudaStream_t>(before));
  if (status == cudaSuccess) status = cudaStreamWaitEvent(static_cast<cudaStream_t>(after), event, 0);
  (void)cudaEventDestroy(event);
  cuda_check(status, "the order of two streams");
}

}  // namespace

void StreamDeleter::operator()(void* stream) const {
  (void)cudaStreamDestroy(static_cast<cudaStream_t>(stream));
}

void GraphDeleter::operator()(void* executable) const {
  (void)cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(executable));
}

thread_local StreamRecording* StreamRecording::under_way = nullptr;

StreamRecording::StreamRecording(const std::function<void()>& work) : memory_(std::make_shared<Memory>()) {
  ASYMKV_CHECK(under_way == nullptr, "a recording within another");
  const int64_t free_before = device_memory().free_bytes;
  const OwnStream stream = make_stream();
  stream_ = stream.get();
  under_way = this;
  try {
    capture(work);
  } catch (...) {
    under_way = nullptr;
    side_streams_.clear();
    (void)cudaGetLastError();  // what threw is told
    throw;
  }
  under_way = nullptr;
  stream_ = nullptr;
  side_streams_.clear();
  bytes_ = std::max<int64_t>(0, free_before - device_memory().free_bytes);
}

void StreamRecording::capture(const std::function<void()>& work) {
  auto* stream = static_cast<cudaStream_t>(stream_);
  cudaGraph_t graph = nullptr;
  ASYMKV_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
  try {
    work();
  } catch (...) {
    (void)cudaStreamEndCapture(stream, &graph);
    if (graph != nullptr) (void)cudaGraphDestroy(graph);
    throw;
  }
  ASYMKV_CUDA(cudaStreamEndCapture(stream, &graph));
  cudaGraphExec_t executable = nullptr;
  const cudaError_t status = cudaGraphInstantiate(&executable, graph, 0);
  (void)cudaGraphDestroy(graph);
  cuda_check(status, "cudaGraphInstantiate");
  executable_.reset(executable);
  // Its memory is taken now, not at the first launch.
  ASYMKV_CUDA(cudaGraphUpload(executable, nullptr));
}

void StreamRecording::branch(int64_t count, const std::function<void(int64_t)>& work) {
  struct Branching {  // ends however the branches do
    explicit Branching(StreamRecording& recording) : of(recording), main(recording.stream_) { of.memory_->hold(); }
    ~Branching() {
      of.memory_->let_go();
      of.stream_ = main;
    }
    StreamRecording& of;
    void* main;
  };
  ASYMKV_CHECK(!memory_->holds(), "branches within a branch of a recording");
  // A launch of one branch must not write what one of another still reads: scratch is held until all have joined.
  const Branching branching(*this);
  void* main = branching.main;
  for (int64_t i = 0; i < count; ++i) {
    if (i == std::ssize(side_streams_)) side_streams_.push_back(make_stream());
    stream_ = side_streams_[static_cast<size_t>(i)].get();
    order_streams(main, stream_);
    work(i);
  }
  for (int64_t i = 0; i < count; ++i) order_streams(side_streams_[static_cast<size_t>(i)].get(), main);
}

void StreamRecording::replay() const {
  ASYMKV_CUDA(cudaGraphLaunch(static_cast<cudaGraphExec_t>(executable_.get()), nullptr));
}

StreamHandle current_stream() {
  return StreamRecording::under_way == nullptr ? nullptr : StreamRecording::under_way->stream_;
}

void side_by_side(int64_t count, const std::function<void(int64_t)>& work) {
  if (StreamRecording::under_way != nullptr && count > 1) return StreamRecording::under_way->branch(count, work);
  for (int64_t i = 0; i < count; ++i) work(i);
}

void keep_for_recording(const std::shared_ptr<const void>& thing) {
  if (StreamRecording::under_way != nullptr) StreamRecording::under_way->kept_.push_back(thing);
}

std::shared_ptr<void> stream_memory(int64_t bytes) {
  if (bytes == 0) return nullptr;
  if (StreamRecording::under_way != nullptr) return StreamRecording::under_way->memory_->take(bytes);
  void* memory = nullptr;
  const cudaError_t status = cudaMallocAsync(&memory, static_cast<size_t>(bytes), nullptr);
  if (status == cudaErrorMemoryAllocation) {
    (void)cudaGetLastError();
    throw_error(ErrorCode::kResourceExhausted, "{} bytes of device memory are not to be had", bytes);
  }
  cuda_check(status, "cudaMallocAsync");
  return {memory, [](void* done) { (void)cudaFreeAsync(done, nullptr); }};
}

std::shared_ptr<void> stream_copy(std::span<const std::byte> host) {
  const auto bytes = static_cast<int64_t>(host.size());
  if (StreamRecording::under_way != nullptr && bytes > 0) {  // now, and once
    const auto buffer = std::make_shared<DeviceBuffer>(bytes);
    buffer->upload(host);
    keep_for_recording(buffer);
    return {buffer, buffer->data()};
  }
  std::shared_ptr<void> copy = stream_memory(bytes);
  copy_to_device(host, copy.get());
  return copy;
}

void copy_to_device(std::span<const std::byte> host, void* to) {
  if (host.empty()) return;
  ASYMKV_CHECK(StreamRecording::under_way == nullptr, "a copy of {} bytes would not be replayed", host.size());
  // From pageable memory: the call returns once the bytes have left it.
  ASYMKV_CUDA(cudaMemcpyAsync(to, host.data(), host.size(), cudaMemcpyHostToDevice, nullptr));
}

void copy_on_device(const void* from, void* to, int64_t bytes) {
  ASYMKV_CUDA(cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyDeviceToDevice,
                              static_cast<cudaStream_t>(current_stream())));
}

void check_launches() {
  ASYMKV_CUDA(cudaGetLastError());
}

}  // namespace asymkv::cuda
