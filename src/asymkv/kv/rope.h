#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace asymkv {

// Rotary position embedding, rotate-half convention: pair p is channels p and p + head_dim/2, turned by the angle
// position * frequency(p), and multiplied by the magnitude (the attention factor of YaRN and LongRoPE, else 1). Angles
// are formed in double, magnitude times their cosines stored in FP32.
class RopeTable {
 public:
  RopeTable() = default;
  // frequencies: radians per position of each pair, [head_dim / 2]. Rows for positions [0, num_positions).
  RopeTable(std::vector<double> frequencies, int64_t num_positions, double magnitude = 1.0);

  int64_t num_pairs() const { return static_cast<int64_t>(frequencies_.size()); }
  int64_t num_positions() const { return num_positions_; }
  std::span<const double> frequencies() const { return frequencies_; }
  double magnitude() const { return magnitude_; }
  // magnitude * cos and magnitude * sin, [num_pairs] of one position. Throws Error{kInternal} for a position outside
  // the table.
  const float* cos_row(int64_t position) const;
  const float* sin_row(int64_t position) const;

  // Turns (and multiplies) one head in place: x has 2 * num_pairs() channels.
  void rotate(int64_t position, float* x) const;

 private:
  void check_position(int64_t position) const;
  std::vector<double> frequencies_;
  int64_t num_positions_ = 0;
  double magnitude_ = 1.0;
  std::vector<float> cos_;
  std::vector<float> sin_;
};

// theta^(-2p / head_dim), the default frequencies (Su et al., RoFormer, eq. 15).
std::vector<double> rope_frequencies(double theta, int64_t head_dim);

}  // namespace asymkv
