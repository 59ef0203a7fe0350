#pragma once

#include <cstdint>
#include <span>
#include <string>

namespace asymkv::testing {

// Limits of a comparison, in units of what the naive same-precision twin errs.
struct CompareLimits {
  double row_factor = 16.0;  // an element against the twin's largest error in its row, or the usual one if that is more
  double norm_factor = 3.0;  // the norm of all errors against that of the twin
  double quantum = 0x1p-20;  // added, relative to the row's (the tensor's) largest oracle element
};

// Judges `actual` against the oracle, with the twin's error as the measure: every element's class (finite, NaN, which
// infinity), every element's error by row, and the norm of all errors. Rows have row_elems elements. Returns an empty
// string if all hold, else one sentence with the place and the values. A case that cannot judge is not passed: it is
// "mistrusted" when the twin is far from the oracle (1 % of its norm) or the oracle holds nothing but zeros.
std::string compare(std::span<const float> actual, std::span<const float> oracle, std::span<const float> twin,
                    int64_t row_elems, const CompareLimits& limits = {});

}  // namespace asymkv::testing
