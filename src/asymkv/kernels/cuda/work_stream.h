#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "asymkv/device/device.h"
#include "asymkv/kernels/cuda/decode_launch.h"
#include "asymkv/ops/model_ops.h"

// What a backend enqueues for one thread: on the default stream, or into a recording.
namespace asymkv::cuda {

// The stream that launches of this thread go to now.
StreamHandle current_stream();

// Device memory that is given back, in the order of the device's work, when the last copy of the pointer goes: for
// activations and scratch. Throws Error{kResourceExhausted} with the size.
std::shared_ptr<void> stream_memory(int64_t bytes);
// The same with a copy of host bytes in it, good for launches after the call.
std::shared_ptr<void> stream_copy(std::span<const std::byte> host);
// Enqueues a copy to the device, good for launches after the call; not part of a recording.
void copy_to_device(std::span<const std::byte> host, void* to);
// Enqueues a copy within the device's memory.
void copy_on_device(const void* from, void* to, int64_t bytes);

// Throws Error{kInternal} if a launch before it failed.
void check_launches();

// Calls work(0) to work(count - 1), none of which reads what another writes: their launches run side by side where they
// are recorded, one after the other elsewhere.
void side_by_side(int64_t count, const std::function<void(int64_t)>& work);

// Makes what a launch points to live as long as the recording under way; nothing where none is.
void keep_for_recording(const std::shared_ptr<const void>& thing);

// A stream of its own, which waits for nothing.
struct StreamDeleter {
  void operator()(void* stream) const;
};
using OwnStream = std::unique_ptr<void, StreamDeleter>;
struct GraphDeleter {
  void operator()(void* executable) const;
};

// A CUDA graph of what `work` enqueued, with the scratch that its launches use.
class StreamRecording final : public RecordedWork {
 public:
  explicit StreamRecording(const std::function<void()>& work);
  void replay() const override;
  // What the device's free memory shrank by while it was made.
  int64_t bytes() const override { return bytes_; }

 private:
  class Memory;
  friend StreamHandle current_stream();
  friend std::shared_ptr<void> stream_memory(int64_t bytes);
  friend std::shared_ptr<void> stream_copy(std::span<const std::byte> host);
  friend void copy_to_device(std::span<const std::byte> host, void* to);
  friend void side_by_side(int64_t count, const std::function<void(int64_t)>& work);
  friend void keep_for_recording(const std::shared_ptr<const void>& thing);
  void capture(const std::function<void()>& work);
  void branch(int64_t count, const std::function<void(int64_t)>& work);

  static thread_local StreamRecording* under_way;
  void* stream_ = nullptr;  // cudaStream_t that launches go to while it records
  std::vector<OwnStream> side_streams_;
  std::unique_ptr<void, GraphDeleter> executable_;  // cudaGraphExec_t
  int64_t bytes_ = 0;
  std::shared_ptr<Memory> memory_;
  std::vector<std::shared_ptr<const void>> kept_;
};

}  // namespace asymkv::cuda
