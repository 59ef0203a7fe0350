#pragma once

#include "asymkv/ops/model_ops.h"

// One launch each on current_stream(), with pointers to device memory; ops/model_ops.h defines what they compute.
// check_launches() throws their errors.
namespace asymkv::cuda {

enum class Gate { kSilu, kGelu };

struct RotateParams {
  const float* cosines = nullptr;  // [position][num_pairs]
  const float* sines = nullptr;
  const int32_t* positions = nullptr;  // of each row
  int64_t num_pairs = 0;               // even
};

// x[i] = scale * row rows[i] of a [.., dim] matrix.
struct EmbedParams {
  const void* matrix = nullptr;
  DType dtype = DType::kF32;  // BF16, FP16 or FP32
  const int32_t* rows = nullptr;
  int64_t num_rows = 0;
  int64_t dim = 0;
  float scale = 1.0F;
  float* x = nullptr;  // [num_rows, dim]
};

struct GateParams {
  int64_t rows = 0;
  int64_t dim = 0;
  const void* gate_up = nullptr;
  void* y = nullptr;
  bool bf16 = false;  // both, else FP32
};

void launch_embed(const EmbedParams& params);
// to_bf16: y holds BF16 elements.
void launch_rms_norm(const RmsNormParams& params, bool to_bf16);
void launch_gate_mul(Gate gate, const GateParams& params);
// Heads have 2 num_pairs channels.
void launch_prepare_qkv(const PrepareQkvParams& params, const RotateParams& rotate);
void launch_add(int64_t elems, const float* x, float* y);
void launch_add_bias(int64_t rows, int64_t dim, const float* bias, float* y);
void launch_scale_rows(int64_t rows, int64_t dim, const float* factors, float* x);
// round_row(kE4M3) of kv/codec.h, row by row.
void launch_round_e4m3(int64_t rows, int64_t dim, float* x);
void launch_cap_softly(float cap, int64_t elems, float* x);
// best [rows], zero before: raised to the rank of each row's first largest element, 2^32 - 1 less its index in the
// lower half, or to kNotFinite where a row has an element that is not finite.
constexpr unsigned long long kNotFinite = ~0ULL;
void launch_finite_argmax(int64_t rows, int64_t dim, const float* x, unsigned long long* best);
// losses [rows]: target_losses().
void launch_target_losses(int64_t rows, int64_t dim, const float* x, const int32_t* targets, double* losses);

}  // namespace asymkv::cuda
