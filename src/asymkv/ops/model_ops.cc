#include "asymkv/ops/model_ops.h"

#include <algorithm>

#include "asymkv/base/error.h"
#include "asymkv/base/parallel.h"

namespace asymkv {

void ModelBackend::gelu_mul(int64_t /*rows*/, int64_t /*dim*/, const float* /*gate_up*/, float* /*y*/) const {
  throw_unsupported("{} has no GELU, which the model's MLP needs; use another backend", name());
}

void ModelBackend::embed(const WeightMatrix& matrix, std::span<const int32_t> rows, float scale, float* x) const {
  const auto in = static_cast<size_t>(matrix.in());
  std::vector<float> values(rows.size() * in);
  constexpr size_t kRowsATask = 32;
  parallel_for(static_cast<int64_t>((rows.size() + kRowsATask - 1) / kRowsATask), [&](int64_t task, int) {
    const size_t begin = static_cast<size_t>(task) * kRowsATask;
    for (size_t i = begin; i < std::min(begin + kRowsATask, rows.size()); ++i) {
      matrix.widen_row(rows[i], std::span(values).subspan(i * in, in));
    }
  });
  if (scale != 1.0F) {
    for (float& value : values) value *= scale;
  }
  upload(values, x);
}

FloatArray place_values(const ModelBackend& backend, std::span<const float> values) {
  if (values.empty()) return {};
  FloatArray placed = backend.allocate(static_cast<int64_t>(values.size()));
  backend.upload(values, placed.data());
  return placed;
}

}  // namespace asymkv
