#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <random>

#include "asymkv/tensor/weight_matrix.h"

namespace asymkv::test {

// A Q5_0 matrix as AWQ's weights are kept: each group of a row's inputs has a scale of its own and codes from some
// `least` to `least + spread`, both of which occur.
inline WeightMatrix draw_q5_groups(int64_t rows, int64_t in, int64_t group, unsigned spread) {
  WeightMatrix matrix(in);
  const std::span<std::byte> bytes = matrix.append(GgmlType::kQ5_0, rows);
  std::mt19937 random(7);
  for (int64_t r = 0; r < rows; ++r) {
    unsigned least = 0;
    uint16_t scale = 0;
    for (int64_t b = 0; b < in / 32; ++b) {
      if (b * 32 % group == 0) {
        least = static_cast<unsigned>(random() % (32 - spread));
        scale = static_cast<uint16_t>(0x2000 + random() % 0x1000);
      }
      uint32_t fifth = 0;
      std::array<uint8_t, 16> low = {};
      for (unsigned i = 0; i < 32; ++i) {
        const unsigned code = i == 0   ? least
                              : i == 1 ? least + spread
                                       : least + static_cast<unsigned>(random()) % (spread + 1);
        fifth |= (code >> 4U) << i;
        low[i % 16] = static_cast<uint8_t>(low[i % 16] | (code & 0xFU) << (i < 16 ? 0U : 4U));
      }
      std::byte* block = bytes.data() + (r * (in / 32) + b) * 22;
      std::memcpy(block, &scale, 2);
      std::memcpy(block + 2, &fifth, 4);
      std::memcpy(block + 6, low.data(), 16);
    }
  }
  return matrix;
}

}  // namespace asymkv::test
