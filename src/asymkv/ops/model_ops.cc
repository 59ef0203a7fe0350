#include "asymkv/ops/model_ops.h"

#include <algorithm>
#include <cmath>

#include "asymkv/base/error.h"

namespace asymkv {

void ModelBackend::gelu_mul(int64_t /*rows*/, int64_t /*dim*/, const float* /*gate_up*/, float* /*y*/) const {
  throw_unsupported("{} has no GELU, which the model's MLP needs; use another backend", name());
}

void ModelBackend::embed(const WeightMatrix& matrix, std::span<const int32_t> rows, float scale, float* x) const {
  std::vector<float> values = matrix.widen_rows(rows);
  if (scale != 1.0F) {
    for (float& value : values) value *= scale;
  }
  upload(values, x);
}

std::vector<std::optional<int32_t>> ModelBackend::draw_tokens(const SamplingLaw& law, std::span<const double> uniforms,
                                                              int64_t dim, const float* x) const {
  if (law.temperature == 0.0) return finite_argmax(std::ssize(uniforms), dim, x);
  std::vector<float> logits(static_cast<size_t>(dim));
  std::vector<std::optional<int32_t>> tokens(uniforms.size());
  for (size_t row = 0; row < uniforms.size(); ++row) {
    download(x + static_cast<int64_t>(row) * dim, logits);
    if (!std::ranges::all_of(logits, [](float logit) { return std::isfinite(logit); })) continue;
    tokens[row] = draw_token(logits, law, uniforms[row]);
  }
  return tokens;
}

FloatArray place_values(const ModelBackend& backend, std::span<const float> values) {
  if (values.empty()) return {};
  FloatArray placed = backend.allocate(static_cast<int64_t>(values.size()));
  backend.upload(values, placed.data());
  return placed;
}

}  // namespace asymkv
