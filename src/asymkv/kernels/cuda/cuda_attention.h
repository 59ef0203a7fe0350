#pragma once

#include <memory>
#include <string>

#include "asymkv/ops/attention.h"

namespace asymkv {

// The Hopper family behind the interface of the CPU families: params point to host memory, so every call converts the
// pages it touches to tiled-1, moves them to the device and back. It is for checks and for running a whole model
// through these kernels, not for speed.
//
// Where it differs from the FP32 families, because these kernels take 16-bit rows as a GPU's projections leave them:
// - keys and values to be written are rounded to native_dtype before bias and RoPE; an FP32 native_dtype is refused;
// - queries are rounded to BF16 (BF16 keys) or FP16 (others);
// - fresh keys and values must be exact in BF16 or in FP16 (Error{kUnsupported} otherwise).
// Throws Error{kUnsupported} with cuda_attention_refusal() where it cannot run.
std::unique_ptr<AttentionBackend> make_cuda_attention();

// Why this build on this machine has no such family; empty if it has.
std::string cuda_attention_refusal();

}  // namespace asymkv
