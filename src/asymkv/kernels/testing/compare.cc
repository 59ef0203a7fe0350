#include "asymkv/kernels/testing/compare.h"

#include <algorithm>
#include <cmath>
#include <vector>

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

// What the twin errs in one row, and the row's largest oracle element.
struct RowMeasure {
  double twin_error = 0.0;
  double scale = 0.0;
};

class Comparison {
 public:
  Comparison(std::span<const float> actual, std::span<const float> oracle, std::span<const float> twin,
             int64_t row_elems, const CompareLimits& limits)
      : actual_(actual), oracle_(oracle), twin_(twin), row_(static_cast<size_t>(row_elems)), limits_(limits) {}

  std::string judge() {
    for (size_t row = 0; row < oracle_.size(); row += row_) {
      if (std::string fault = judge_classes(row); !fault.empty()) return fault;
      measure(row);
    }
    if (std::string fault = mistrust(); !fault.empty()) return fault;
    for (size_t row = 0; row < oracle_.size(); row += row_) {
      if (std::string fault = judge_row(row); !fault.empty()) return fault;
    }
    const double limit = limits_.norm_factor * std::sqrt(twin_norm2_) + limits_.quantum * std::sqrt(oracle_norm2_);
    if (std::sqrt(actual_norm2_) <= limit) return {};
    return fmt::format("norm of all errors {:.3g} over the limit {:.3g}", std::sqrt(actual_norm2_), limit);
  }

 private:
  std::string place(size_t i) const { return fmt::format("element {} of row {}", i % row_, i / row_); }

  std::string judge_classes(size_t row) const {
    for (size_t i = row; i < row + row_; ++i) {
      if (class_of(actual_[i]) != class_of(oracle_[i])) {
        return fmt::format("{}: {} where the oracle has {}", place(i), actual_[i], oracle_[i]);
      }
      if (class_of(twin_[i]) != class_of(oracle_[i])) {
        return fmt::format("mistrusted: {} of the twin is {} where the oracle has {}", place(i), twin_[i], oracle_[i]);
      }
    }
    return {};
  }

  void measure(size_t row) {
    RowMeasure measure;
    for (size_t i = row; i < row + row_; ++i) {
      measure.twin_error = std::max(measure.twin_error, error_of(twin_[i], oracle_[i]));
      measure.scale = std::max(measure.scale, magnitude(oracle_[i]));
      twin_norm2_ += std::pow(error_of(twin_[i], oracle_[i]), 2);
      actual_norm2_ += std::pow(error_of(actual_[i], oracle_[i]), 2);
      oracle_norm2_ += std::pow(magnitude(oracle_[i]), 2);
    }
    rows_.push_back(measure);
    if (measure.scale > 0.0) relative2_ += std::pow(measure.twin_error / measure.scale, 2);
  }

  std::string mistrust() const {
    if (std::ranges::all_of(oracle_, [](float x) { return x == 0.0F; })) {
      return "mistrusted: the oracle holds nothing but zeros";
    }
    if (twin_norm2_ <= 1e-4 * oracle_norm2_) return {};
    return fmt::format("mistrusted: the twin errs by {:.3g} of a norm of {:.3g}", std::sqrt(twin_norm2_),
                       std::sqrt(oracle_norm2_));
  }

  std::string judge_row(size_t row) const {
    const RowMeasure& measure = rows_[row / row_];
    const double typical = std::sqrt(relative2_ / static_cast<double>(rows_.size())) * measure.scale;
    const double limit = limits_.row_factor * std::max(measure.twin_error, typical) + limits_.quantum * measure.scale;
    for (size_t i = row; i < row + row_; ++i) {
      const double error = error_of(actual_[i], oracle_[i]);
      if (error <= limit) continue;
      return fmt::format("{}: {} where the oracle has {}, error {:.3g} over the limit {:.3g}", place(i), actual_[i],
                         oracle_[i], error, limit);
    }
    return {};
  }

  std::span<const float> actual_;
  std::span<const float> oracle_;
  std::span<const float> twin_;
  size_t row_;
  const CompareLimits& limits_;
  std::vector<RowMeasure> rows_;
  double twin_norm2_ = 0.0;
  double actual_norm2_ = 0.0;
  double oracle_norm2_ = 0.0;
  double relative2_ = 0.0;  // sum over rows of (twin error / scale)^2
};

}  // namespace

std::string compare(std::span<const float> actual, std::span<const float> oracle, std::span<const float> twin,
                    int64_t row_elems, const CompareLimits& limits) {
  ASYMKV_CHECK(actual.size() == oracle.size() && twin.size() == oracle.size() && row_elems > 0 &&
                   oracle.size() % static_cast<size_t>(row_elems) == 0,
               "comparison of {}, {} and {} elements in rows of {}", actual.size(), oracle.size(), twin.size(),
               row_elems);
  return Comparison(actual, oracle, twin, row_elems, limits).judge();
}

}  // namespace asymkv::testing
