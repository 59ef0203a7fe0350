#pragma once

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <span>

namespace asymkv::test {

inline std::filesystem::path source_dir() {
  const char* folder = std::getenv("ASYMKV_SOURCE_DIR");
  return folder == nullptr ? "." : folder;
}

// Relative L2 distance of a from b; NaN where their sizes differ.
inline double relative_distance(std::span<const float> a, std::span<const float> b) {
  if (a.size() != b.size()) return std::nan("");
  double delta = 0.0, norm = 0.0;
  for (size_t i = 0; i < b.size(); ++i) {
    delta += std::pow(static_cast<double>(a[i]) - static_cast<double>(b[i]), 2);
    norm += std::pow(static_cast<double>(b[i]), 2);
  }
  return std::sqrt(delta / norm);
}

}  // namespace asymkv::test
