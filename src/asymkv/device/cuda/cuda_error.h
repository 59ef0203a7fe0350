#pragma once

#include <cuda_runtime_api.h>

#include "asymkv/base/error.h"

namespace asymkv {

// Every CUDA call goes through here. Memory that is not to be had is Error{kResourceExhausted}, anything else
// Error{kInternal}; the message names the call and the driver's reason.
inline void cuda_check(cudaError_t status, const char* call) {
  if (status == cudaSuccess) return;
  (void)cudaGetLastError();  // this one is told: the next call is not to find it again
  const auto code = status == cudaErrorMemoryAllocation ? ErrorCode::kResourceExhausted : ErrorCode::kInternal;
  throw_error(code, "{} failed: {}", call, cudaGetErrorString(status));
}

}  // namespace asymkv

#define ASYMKV_CUDA(call) ::asymkv::cuda_check((call), #call)
