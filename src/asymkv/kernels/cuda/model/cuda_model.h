#pragma once

#include <memory>

#include "asymkv/kernels/cuda/device_tables.h"
#include "asymkv/kernels/cuda/model/cuda_linear.h"
#include "asymkv/kernels/cuda/model/model_kernels.h"

namespace asymkv::cuda {

// The model's operations on the device's default stream. For one thread.
class CudaModel final : public ModelBackend {
 public:
  CudaModel(Activations activations, std::shared_ptr<DeviceTables> tables);

  std::string_view name() const override;
  DType operand_dtype() const override { return linear_.rounds() ? DType::kBF16 : DType::kF32; }
  int64_t workspace_bytes() const override { return linear_.workspace_bytes(); }
  std::unique_ptr<RecordedWork> record(const std::function<void()>& work) const override;
  bool records() const override { return true; }
  void release_unused() const override;
  FloatArray allocate(int64_t elems) const override;
  void upload(std::span<const float> from, float* to) const override;
  void download(const float* from, std::span<float> to) const override;
  void place(WeightMatrix& matrix, bool keep_host) const override;
  void place_rows(WeightMatrix& matrix) const override;
  void embed(const WeightMatrix& matrix, std::span<const int32_t> rows, float scale, float* x) const override;
  void linear(const LinearParams& params) const override;
  void rms_norm(const RmsNormParams& params) const override;
  int64_t mlp_rows() const override { return 16384; }  // products of fewer rows leave multiprocessors idle
  void silu_mul(int64_t rows, int64_t dim, const float* gate_up, float* y) const override;
  void gelu_mul(int64_t rows, int64_t dim, const float* gate_up, float* y) const override;
  void prepare_qkv(const PrepareQkvParams& params) const override;
  void add(int64_t elems, const float* x, float* y) const override;
  void scale_rows(std::span<const float> factors, int64_t dim, float* x) const override;
  void round_rows(DType dtype, int64_t rows, int64_t dim, float* x) const override;
  void cap_softly(float cap, int64_t elems, float* x) const override;
  std::vector<std::optional<int32_t>> finite_argmax(int64_t rows, int64_t dim, const float* x) const override;
  std::vector<std::optional<int32_t>> draw_tokens(const SamplingLaw& law, std::span<const double> uniforms, int64_t dim,
                                                  const float* x) const override;
  std::vector<double> target_losses(std::span<const int32_t> targets, int64_t dim, const float* x) const override;

 private:
  std::shared_ptr<DeviceTables> tables_;
  mutable CudaLinear linear_;
};

}  // namespace asymkv::cuda
