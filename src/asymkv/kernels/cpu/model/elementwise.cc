#include "asymkv/kernels/cpu/model/elementwise.h"

#include <cmath>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "asymkv/kernels/cpu/model/elementwise.cc"
#include <hwy/foreach_target.h>  // includes this file again, once a target: must come before highway.h

#include <hwy/highway.h>

#include <hwy/contrib/math/math-inl.h>

HWY_BEFORE_NAMESPACE();
namespace asymkv::cpu::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

void RmsNormRow(int64_t dim, float eps, const float* x, const float* weight, float* y) {
  const hn::ScalableTag<float> d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  auto sum0 = hn::Zero(d);
  auto sum1 = hn::Zero(d);
  int64_t i = 0;
  for (; i + 2 * lanes <= dim; i += 2 * lanes) {
    const auto a = hn::LoadU(d, x + i);
    const auto b = hn::LoadU(d, x + i + lanes);
    sum0 = hn::MulAdd(a, a, sum0);
    sum1 = hn::MulAdd(b, b, sum1);
  }
  float sum = hn::GetLane(hn::SumOfLanes(d, hn::Add(sum0, sum1)));
  for (; i < dim; ++i) sum += x[i] * x[i];
  const float inverse = 1.0F / std::sqrt(sum / static_cast<float>(dim) + eps);
  const auto factor = hn::Set(d, inverse);
  for (i = 0; i + lanes <= dim; i += lanes) {
    hn::StoreU(hn::Mul(hn::Mul(hn::LoadU(d, x + i), factor), hn::LoadU(d, weight + i)), d, y + i);
  }
  for (; i < dim; ++i) y[i] = x[i] * inverse * weight[i];
}

void RmsNormRows(const RmsNormParams& params) {
  for (int64_t r = 0; r < params.rows; ++r) {
    RmsNormRow(params.dim, params.eps, params.x + r * params.dim, params.weight, params.y + r * params.dim);
  }
}

constexpr float kMaxExponent = 88.0F;  // exp of it is finite; hn::Exp of more than 104 is not defined

void SiluMulRow(int64_t dim, const float* gate, const float* up, float* y) {
  const hn::ScalableTag<float> d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const auto one = hn::Set(d, 1.0F);
  const auto limit = hn::Set(d, kMaxExponent);
  int64_t i = 0;
  for (; i + lanes <= dim; i += lanes) {
    const auto g = hn::LoadU(d, gate + i);
    const auto sigmoid = hn::Div(one, hn::Add(one, hn::Exp(d, hn::Min(hn::Neg(g), limit))));
    hn::StoreU(hn::Mul(hn::Mul(g, sigmoid), hn::LoadU(d, up + i)), d, y + i);
  }
  for (; i < dim; ++i) y[i] = gate[i] / (1.0F + std::exp(-gate[i])) * up[i];
}

// gelu(x) = x / (1 + exp(-2 z)) with z = sqrt(2 / pi) (x + 0.044715 x^3): the tanh form without its cancellation.
void GeluMulRow(int64_t dim, const float* gate, const float* up, float* y) {
  constexpr float kMinusTwoZ = -1.5957691216057308F;  // -2 sqrt(2 / pi)
  constexpr float kCubic = 0.044715F;
  const hn::ScalableTag<float> d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const auto one = hn::Set(d, 1.0F);
  const auto limit = hn::Set(d, kMaxExponent);
  const auto factor = hn::Set(d, kMinusTwoZ);
  const auto cubic = hn::Set(d, kCubic);
  int64_t i = 0;
  for (; i + lanes <= dim; i += lanes) {
    const auto g = hn::LoadU(d, gate + i);
    const auto inner = hn::Mul(g, hn::MulAdd(cubic, hn::Mul(g, g), one));
    const auto gelu = hn::Div(g, hn::Add(one, hn::Exp(d, hn::Min(hn::Mul(factor, inner), limit))));
    hn::StoreU(hn::Mul(gelu, hn::LoadU(d, up + i)), d, y + i);
  }
  for (; i < dim; ++i) {
    const float inner = gate[i] * (1.0F + kCubic * gate[i] * gate[i]);
    y[i] = gate[i] / (1.0F + std::exp(kMinusTwoZ * inner)) * up[i];
  }
}

void RotateHead(int64_t num_pairs, const float* cosine, const float* sine, float* x) {
  const hn::ScalableTag<float> d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  float* high = x + num_pairs;
  int64_t p = 0;
  for (; p + lanes <= num_pairs; p += lanes) {
    const auto c = hn::LoadU(d, cosine + p);
    const auto s = hn::LoadU(d, sine + p);
    const auto a = hn::LoadU(d, x + p);
    const auto b = hn::LoadU(d, high + p);
    hn::StoreU(hn::Sub(hn::Mul(a, c), hn::Mul(b, s)), d, x + p);
    hn::StoreU(hn::Add(hn::Mul(b, c), hn::Mul(a, s)), d, high + p);
  }
  for (; p < num_pairs; ++p) {
    const float a = x[p];
    const float b = high[p];
    x[p] = a * cosine[p] - b * sine[p];
    high[p] = b * cosine[p] + a * sine[p];
  }
}

}  // namespace asymkv::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace asymkv::cpu {

HWY_EXPORT(RmsNormRows);
HWY_EXPORT(SiluMulRow);
HWY_EXPORT(GeluMulRow);
HWY_EXPORT(RotateHead);

void rms_norm_rows(const RmsNormParams& params) {
  HWY_DYNAMIC_DISPATCH(RmsNormRows)(params);
}

void silu_mul_row(int64_t dim, const float* gate, const float* up, float* y) {
  HWY_DYNAMIC_DISPATCH(SiluMulRow)(dim, gate, up, y);
}

void gelu_mul_row(int64_t dim, const float* gate, const float* up, float* y) {
  HWY_DYNAMIC_DISPATCH(GeluMulRow)(dim, gate, up, y);
}

void rotate_head(int64_t num_pairs, const float* cosine, const float* sine, float* x) {
  HWY_DYNAMIC_DISPATCH(RotateHead)(num_pairs, cosine, sine, x);
}

}  // namespace asymkv::cpu
#endif  // HWY_ONCE
