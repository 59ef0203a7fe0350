#include "asymkv/ops/model_ops.h"

#include "asymkv/base/error.h"

namespace asymkv {

void ModelBackend::gelu_mul(int64_t /*rows*/, int64_t /*dim*/, const float* /*gate_up*/, float* /*y*/) const {
  throw_unsupported("{} has no GELU, which the model's MLP needs; use another backend", name());
}

FloatArray place_values(const ModelBackend& backend, std::span<const float> values) {
  if (values.empty()) return {};
  FloatArray placed = backend.allocate(static_cast<int64_t>(values.size()));
  backend.upload(values, placed.data());
  return placed;
}

}  // namespace asymkv
