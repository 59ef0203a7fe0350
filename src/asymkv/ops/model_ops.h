#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "asymkv/kv/rope.h"
#include "asymkv/ops/sampling.h"
#include "asymkv/tensor/dtype.h"
#include "asymkv/tensor/weight_matrix.h"

namespace asymkv {

// What a matrix product rounds its activations to, in bits; each backend's name says what it makes of it.
enum class Activations { kF32, k16 };

// Memory of so many FP32 elements (or twice as many narrower ones) where one backend's operations read and write them:
// the host's, or a device's. Not filled.
class FloatArray {
 public:
  FloatArray() = default;
  FloatArray(std::shared_ptr<float> memory, int64_t size) : memory_(std::move(memory)), size_(size) {}
  float* data() const { return memory_.get(); }
  int64_t size() const { return size_; }
  bool empty() const { return size_ == 0; }

 private:
  std::shared_ptr<float> memory_;
  int64_t size_ = 0;
};

// An operand is an array that only goes from one operation to the next: FP32 elements, or what the backend's products
// read where that is narrower (BF16 on CUDA with 16-bit activations): operand_dtype().

// y[rows, out] = x[rows, in] * w[out, in]^T (+ bias[out]) (+ y, if accumulate). out and in are the matrix's rows and
// row length. FP32 accumulation; what the activations are rounded to is the backend's, named in its name(). On the CPU
// a row's result depends on that row alone: not on the other rows of the call and not on the number of threads. On
// CUDA it is the same for the same call.
struct LinearParams {
  int64_t rows = 0;
  const float* x = nullptr;
  const WeightMatrix* w = nullptr;
  const float* bias = nullptr;  // may be null
  float* y = nullptr;
  bool accumulate = false;
  bool x_is_operand = false;
  bool y_is_operand = false;  // then without bias and accumulate
};

// y = x / sqrt(mean(x^2) + eps) * weight, row by row; x and y are [rows, dim] and may be the same.
struct RmsNormParams {
  int64_t rows = 0;
  int64_t dim = 0;
  float eps = 0.0F;
  const float* x = nullptr;
  const float* weight = nullptr;  // [dim]
  float* y = nullptr;
  bool y_is_operand = false;  // then y is not x
};

// Rows of [q | k | v] into three matrices, with the query and value biases added.
struct SplitQkvParams {
  int64_t rows = 0;
  int64_t q_dim = 0;
  int64_t kv_dim = 0;
  const float* qkv = nullptr;     // [rows, q_dim + 2 kv_dim]
  const float* q_bias = nullptr;  // [q_dim]; may be null
  const float* v_bias = nullptr;  // [kv_dim]; may be null
  float* q = nullptr;             // [rows, q_dim]
  float* k = nullptr;             // [rows, kv_dim]
  float* v = nullptr;             // [rows, kv_dim]
};

// The split, then head by head: norms of query and key heads, and RoPE on the queries.
struct PrepareQkvParams {
  SplitQkvParams split;
  int64_t head_dim = 0;
  float eps = 0.0F;
  const float* q_norm = nullptr;  // [head_dim]; null: none
  const float* k_norm = nullptr;  // [head_dim]; null: none
  const RopeTable* rope = nullptr;
  std::span<const int32_t> positions;         // [rows]
  DType row_dtype = DType::kF32;              // of qkv, q, k and v: FP32, or operand_dtype()
  const int32_t* placed_positions = nullptr;  // the same in the backend's memory; may be null
};

// Work that was recorded, to be done again in one go.
class RecordedWork {
 public:
  virtual ~RecordedWork() = default;
  virtual void replay() const = 0;
  virtual int64_t bytes() const = 0;  // of the backend's memory, as far as it can tell
};

// Everything of a decoder layer that is not attention, on one device. `float` pointers are memory of that device, as
// allocate() gives it; spans are host memory. Calls run in their order; download() waits for those before it.
class ModelBackend {
 public:
  virtual ~ModelBackend() = default;
  virtual std::string_view name() const = 0;
  // Elements of an operand.
  virtual DType operand_dtype() const { return DType::kF32; }
  // Memory that it keeps beside what it was asked for.
  virtual int64_t workspace_bytes() const { return 0; }
  // What `work` enqueues, recorded instead of done: it is done by replay(), with what arrays hold then. Those, and what
  // attention planned (AttentionBackend::keep_pass), must stay. Null, and work is not called, unless records().
  virtual std::unique_ptr<RecordedWork> record(const std::function<void()>& /*work*/) const { return nullptr; }
  virtual bool records() const { return false; }
  // Gives back what freed arrays left behind for later ones.
  virtual void release_unused() const {}

  // Throws Error{kResourceExhausted} if there is not so much memory.
  virtual FloatArray allocate(int64_t elems) const = 0;
  virtual void upload(std::span<const float> from, float* to) const = 0;
  virtual void download(const float* from, std::span<float> to) const = 0;
  // Brings a matrix to where linear() reads it, once, before the first product. The host's bytes may go unless
  // keep_host is set.
  virtual void place(WeightMatrix& matrix, bool keep_host) const = 0;

  // The same for a matrix whose rows embed() reads; the host's bytes stay.
  virtual void place_rows(WeightMatrix& /*matrix*/) const {}

  // x[i] = scale * row rows[i] of the matrix, exactly widened.
  virtual void embed(const WeightMatrix& matrix, std::span<const int32_t> rows, float scale, float* x) const;
  virtual void linear(const LinearParams& params) const = 0;
  virtual void rms_norm(const RmsNormParams& params) const = 0;
  // Rows that should pass an MLP together: enough to be fast, few enough to bound working memory.
  virtual int64_t mlp_rows() const { return 512; }
  // y[rows, dim] = silu(gate) * up, where gate_up is [rows, gate dim | up dim]; both are operands.
  virtual void silu_mul(int64_t rows, int64_t dim, const float* gate_up, float* y) const = 0;
  // y[rows, dim] = gelu(gate) * up, laid out the same; gelu(x) = x / 2 * (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))).
  // Throws Error{kUnsupported} on a backend that has none.
  virtual void gelu_mul(int64_t rows, int64_t dim, const float* gate_up, float* y) const;
  virtual void prepare_qkv(const PrepareQkvParams& params) const = 0;
  // y += x.
  virtual void add(int64_t elems, const float* x, float* y) const = 0;
  // Row r of x [factors, dim] times factors[r].
  virtual void scale_rows(std::span<const float> factors, int64_t dim, float* x) const = 0;
  // Each row of x [rows, dim] through round_row (kv/codec.h). Throws Error{kUnsupported} for a type the backend lacks.
  virtual void round_rows(DType dtype, int64_t rows, int64_t dim, float* x) const = 0;
  // x = cap * tanh(x / cap).
  virtual void cap_softly(float cap, int64_t elems, float* x) const = 0;
  // Index of the first largest element of each row of x [rows, dim]; nothing for a row with an element that is not
  // finite.
  virtual std::vector<std::optional<int32_t>> finite_argmax(int64_t rows, int64_t dim, const float* x) const = 0;
  // draw_token() of each row of x [uniforms, dim] with its uniform; nothing for a row with an element that is not
  // finite. A device's sums may round differently.
  virtual std::vector<std::optional<int32_t>> draw_tokens(const SamplingLaw& law, std::span<const double> uniforms,
                                                          int64_t dim, const float* x) const;
  // -log(softmax(row)[target]) in nats of each row of x [targets, dim], summed in FP64; not finite for a row that has
  // an element that is NaN or +inf, or whose target is -inf.
  virtual std::vector<double> target_losses(std::span<const int32_t> targets, int64_t dim, const float* x) const = 0;
};

// A copy of `values` where the backend's operations read it; no values give a null pointer.
FloatArray place_values(const ModelBackend& backend, std::span<const float> values);

}  // namespace asymkv
