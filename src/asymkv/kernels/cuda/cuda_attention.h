#pragma once

#include <memory>
#include <string>

#include "asymkv/kernels/cuda/device_tables.h"
#include "asymkv/ops/attention.h"

namespace asymkv {

// The Hopper family on caches in device memory (KvMemory::kDevice); a model's FP32 activations stay there, too. Not
// thread-safe: calls share plans and tables.
//
// Where it differs from the FP32 families, because these kernels take 16-bit rows as a GPU's projections leave them:
// - keys and values to be written are rounded to native_dtype before bias and RoPE; an FP32 native_dtype is refused;
// - queries, and what comes back from one launch, are rounded to BF16 (BF16 keys) or FP16 (others); BF16 rows
//   (row_dtype) are taken as they are, whatever the keys, and come back as BF16;
// - fresh_dtype must be BF16 or FP16 (Error{kUnsupported} otherwise).
// Throws Error{kUnsupported} with cuda_attention_refusal() where it cannot run.
std::unique_ptr<AttentionBackend> make_cuda_attention(std::shared_ptr<cuda::DeviceTables> tables);

// Why this build on this machine has no such family; empty if it has.
std::string cuda_attention_refusal();

}  // namespace asymkv
