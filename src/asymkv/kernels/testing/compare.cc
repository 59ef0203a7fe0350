#include "asymkv/kernels/testing/compare.h"

#include <algorithm>
#include <cmath>

#include "asymkv/base/error.h"

namespace asymkv::testing {
namespace {

enum class ValueClass { kFinite, kNan, kPlusInf, kMinusInf };

ValueClass class_of(float x) {
  if (std::isnan(x)) return ValueClass::kNan;
  if (std::isinf(x)) return x > 0 ? ValueClass::kPlusInf : ValueClass::kMinusInf;
  return ValueClass::kFinite;
}

double error_of(float x, float y) {
  return class_of(y) == ValueClass::kFinite ? std::fabs(static_cast<double>(x) - static_cast<double>(y)) : 0.0;
}

double magnitude(float x) {
  return std::isfinite(x) ? std::fabs(static_cast<double>(x)) : 0.0;
}

struct Norms {
  double actual_error = 0.0;
  double twin_error = 0.0;
  double oracle = 0.0;
};

}  // namespace

std::string compare(std::span<const float> actual, std::span<const float> oracle, std::span<const float> twin,
                    int64_t row_elems, const CompareLimits& limits) {
  ASYMKV_CHECK(actual.size() == oracle.size() && twin.size() == oracle.size() && row_elems > 0 &&
                   oracle.size() % static_cast<size_t>(row_elems) == 0,
               "comparison of {}, {} and {} elements in rows of {}", actual.size(), oracle.size(), twin.size(),
               row_elems);
  Norms norms;
  const auto step = static_cast<size_t>(row_elems);
  for (size_t row = 0; row < oracle.size(); row += step) {
    double twin_error = 0.0;
    double scale = 0.0;
    for (size_t i = row; i < row + step; ++i) {
      if (class_of(actual[i]) != class_of(oracle[i])) {
        return fmt::format("element {} of row {}: {} where the oracle has {}", i - row, row / step, actual[i],
                           oracle[i]);
      }
      if (class_of(twin[i]) != class_of(oracle[i])) {
        return fmt::format("mistrusted: the twin has {} at element {} of row {} where the oracle has {}", twin[i],
                           i - row, row / step, oracle[i]);
      }
      twin_error = std::max(twin_error, error_of(twin[i], oracle[i]));
      scale = std::max(scale, magnitude(oracle[i]));
      norms.twin_error += std::pow(error_of(twin[i], oracle[i]), 2);
      norms.actual_error += std::pow(error_of(actual[i], oracle[i]), 2);
      norms.oracle += std::pow(magnitude(oracle[i]), 2);
    }
    const double limit = limits.row_factor * twin_error + limits.quantum * scale;
    for (size_t i = row; i < row + step; ++i) {
      if (error_of(actual[i], oracle[i]) <= limit) continue;
      return fmt::format("element {} of row {}: {} where the oracle has {}, error {:.3g} over the limit {:.3g}",
                         i - row, row / step, actual[i], oracle[i], error_of(actual[i], oracle[i]), limit);
    }
  }
  const double oracle_norm = std::sqrt(norms.oracle);
  if (oracle_norm == 0.0 && std::ranges::all_of(oracle, [](float x) { return x == 0.0F; })) {
    return "mistrusted: the oracle holds nothing but zeros";
  }
  if (std::sqrt(norms.twin_error) > 0.01 * oracle_norm) {
    return fmt::format("mistrusted: the twin errs by {:.3g} of a norm of {:.3g}", std::sqrt(norms.twin_error),
                       oracle_norm);
  }
  const double limit = limits.norm_factor * std::sqrt(norms.twin_error) + limits.quantum * oracle_norm;
  if (std::sqrt(norms.actual_error) <= limit) return {};
  return fmt::format("norm of all errors {:.3g} over the limit {:.3g}", std::sqrt(norms.actual_error), limit);
}

}  // namespace asymkv::testing
