#pragma once

#include <string_view>

// Shared by the sources of this folder only.
namespace asymkv::stats::internal {

// Throws Error{kUsage} unless 0 < alpha < 0.5.
void check_alpha(double alpha);
// Throws Error{kUsage} unless 0 < level < 1.
void check_level(double level);
// Throws Error{kUsage} unless 0 < value < 1; `name` is what the sentence calls it.
void check_open_unit(double value, std::string_view name);

// Upper standard normal quantile: P(Z > z) = alpha.
double normal_critical_value(double alpha);

// The bounds of intervals.h for real counts (0 <= k <= n, lost + gained <= n), which projections need. No checks.
double clopper_pearson_upper_real(double k, double n, double alpha);

struct RealCounts {
  double n;
  double lost;
  double gained;
};
double tango_lower_real(const RealCounts& counts, double z);
double tango_upper_real(const RealCounts& counts, double z);

}  // namespace asymkv::stats::internal
