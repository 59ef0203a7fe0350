#include "asymkv/ops/model_ops.h"

#include "asymkv/base/error.h"

namespace asymkv {

void ModelBackend::gelu_mul(int64_t /*rows*/, int64_t /*dim*/, const float* /*gate_up*/, float* /*y*/) const {
  throw_unsupported("{} has no GELU, which the model's MLP needs; use another backend", name());
}

void ModelBackend::embed(const WeightMatrix& matrix, std::span<const int32_t> rows, float scale, float* x) const {
  const auto in = static_cast<size_t>(matrix.in());
  std::vector<float> values(rows.size() * in);
  for (size_t i = 0; i < rows.size(); ++i) matrix.widen_row(rows[i], std::span(values).subspan(i * in, in));
  if (scale != 1.0F) {
    for (float& value : values) value *= scale;
  }
  upload(values, x);
}

void ModelBackend::prepare_qkv(const PrepareQkvParams& p) const {
  const SplitQkvParams& split = p.split;
  const int64_t num_q_heads = split.q_dim / p.head_dim, num_kv_heads = split.kv_dim / p.head_dim;
  split_qkv(split);
  if (p.q_norm != nullptr) rms_norm({split.rows * num_q_heads, p.head_dim, p.eps, split.q, p.q_norm, split.q});
  if (p.k_norm != nullptr) rms_norm({split.rows * num_kv_heads, p.head_dim, p.eps, split.k, p.k_norm, split.k});
  rotate(*p.rope, p.positions, num_q_heads, split.q);
}

FloatArray place_values(const ModelBackend& backend, std::span<const float> values) {
  if (values.empty()) return {};
  FloatArray placed = backend.allocate(static_cast<int64_t>(values.size()));
  backend.upload(values, placed.data());
  return placed;
}

}  // namespace asymkv
