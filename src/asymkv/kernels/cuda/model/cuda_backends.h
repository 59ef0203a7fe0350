#pragma once

#include <memory>
#include <string>

#include "asymkv/ops/attention.h"
#include "asymkv/ops/model_ops.h"

namespace asymkv {

// Both families on one GPU, for one thread. Device memory holds activations, matrices and caches.
struct CudaBackends {
  std::unique_ptr<AttentionBackend> attention;
  std::shared_ptr<const ModelBackend> model;
};

// Activations::kF32: matrices are widened to FP32 and products are FP32 ("cuda-cublaslt-a32"). k16: matrices and the
// activations that meet them are rounded to BF16, with FP32 sums ("cuda-cublaslt-a16"). Throws Error{kUnsupported} with
// cuda_refusal() where this cannot run.
CudaBackends make_cuda_backends(Activations activations);

// Why this build on this machine cannot run the families; empty if it can.
std::string cuda_refusal();

}  // namespace asymkv
