#pragma once

#include <memory>
#include <utility>

#include "asymkv/ops/model_ops.h"

namespace asymkv::test {

// Hands every call on: a base for a test that changes or counts some of them.
class ModelBackendWrapper : public ModelBackend {
 public:
  explicit ModelBackendWrapper(std::shared_ptr<const ModelBackend> inner) : inner_(std::move(inner)) {}
  std::string_view name() const override { return inner_->name(); }
  DType operand_dtype() const override { return inner_->operand_dtype(); }
  int64_t workspace_bytes() const override { return inner_->workspace_bytes(); }
  void release_unused() const override { inner_->release_unused(); }
  bool records() const override { return inner_->records(); }
  std::unique_ptr<RecordedWork> record(const std::function<void()>& work) const override {
    return inner_->record(work);
  }
  FloatArray allocate(int64_t elems) const override { return inner_->allocate(elems); }
  void upload(std::span<const float> from, float* to) const override { inner_->upload(from, to); }
  void download(const float* from, std::span<float> to) const override { inner_->download(from, to); }
  void place(WeightMatrix& matrix, bool keep_host) const override { inner_->place(matrix, keep_host); }
  void place_rows(WeightMatrix& matrix) const override { inner_->place_rows(matrix); }
  void embed(const WeightMatrix& matrix, std::span<const int32_t> rows, float scale, float* x) const override {
    inner_->embed(matrix, rows, scale, x);
  }
  void linear(const LinearParams& params) const override { inner_->linear(params); }
  void rms_norm(const RmsNormParams& params) const override { inner_->rms_norm(params); }
  int64_t mlp_rows() const override { return inner_->mlp_rows(); }
  void silu_mul(int64_t rows, int64_t dim, const float* gate_up, float* y) const override {
    inner_->silu_mul(rows, dim, gate_up, y);
  }
  void gelu_mul(int64_t rows, int64_t dim, const float* gate_up, float* y) const override {
    inner_->gelu_mul(rows, dim, gate_up, y);
  }
  void prepare_qkv(const PrepareQkvParams& params) const override { inner_->prepare_qkv(params); }
  void add(int64_t elems, const float* x, float* y) const override { inner_->add(elems, x, y); }
  void scale_rows(std::span<const float> factors, int64_t dim, float* x) const override {
    inner_->scale_rows(factors, dim, x);
  }
  void round_rows(DType dtype, int64_t rows, int64_t dim, float* x) const override {
    inner_->round_rows(dtype, rows, dim, x);
  }
  void cap_softly(float cap, int64_t elems, float* x) const override { inner_->cap_softly(cap, elems, x); }
  std::vector<std::optional<int32_t>> finite_argmax(int64_t rows, int64_t dim, const float* x) const override {
    return inner_->finite_argmax(rows, dim, x);
  }
  std::vector<std::optional<int32_t>> draw_tokens(const SamplingLaw& law, std::span<const double> uniforms, int64_t dim,
                                                  const float* x) const override {
    return inner_->draw_tokens(law, uniforms, dim, x);
  }
  std::vector<double> target_losses(std::span<const int32_t> targets, int64_t dim, const float* x) const override {
    return inner_->target_losses(targets, dim, x);
  }

 private:
  std::shared_ptr<const ModelBackend> inner_;
};

}  // namespace asymkv::test
