#include "asymkv/kv/rope.h"

#include <cmath>
#include <utility>

#include "asymkv/base/error.h"

namespace asymkv {

RopeTable::RopeTable(std::vector<double> frequencies, int64_t num_positions, double magnitude)
    : frequencies_(std::move(frequencies)), num_positions_(num_positions), magnitude_(magnitude) {
  const size_t elems = frequencies_.size() * static_cast<size_t>(num_positions);
  cos_.reserve(elems);
  sin_.reserve(elems);
  for (int64_t position = 0; position < num_positions; ++position) {
    for (const double frequency : frequencies_) {
      const double angle = static_cast<double>(position) * frequency;
      cos_.push_back(static_cast<float>(magnitude * std::cos(angle)));
      sin_.push_back(static_cast<float>(magnitude * std::sin(angle)));
    }
  }
}

void RopeTable::check_position(int64_t position) const {
  ASYMKV_CHECK(position >= 0 && position < num_positions_, "position {} outside the RoPE table of {} rows", position,
               num_positions_);
}

const float* RopeTable::cos_row(int64_t position) const {
  check_position(position);
  return cos_.data() + position * num_pairs();
}

const float* RopeTable::sin_row(int64_t position) const {
  check_position(position);
  return sin_.data() + position * num_pairs();
}

void RopeTable::rotate(int64_t position, float* x) const {
  const float* cosine = cos_row(position);
  const float* sine = sin_row(position);
  const int64_t half = num_pairs();
  for (int64_t p = 0; p < half; ++p) {
    const float a = x[p];
    const float b = x[p + half];
    x[p] = a * cosine[p] - b * sine[p];
    x[p + half] = b * cosine[p] + a * sine[p];
  }
}

std::vector<double> rope_frequencies(double theta, int64_t head_dim) {
  std::vector<double> frequencies;
  for (int64_t p = 0; p < head_dim / 2; ++p) {
    frequencies.push_back(std::pow(theta, -2.0 * static_cast<double>(p) / static_cast<double>(head_dim)));
  }
  return frequencies;
}

}  // namespace asymkv
