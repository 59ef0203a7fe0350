#pragma once

#include <cstdint>
#include <random>

#include "asymkv/tensor/ggml_quants.h"
#include "asymkv/tensor/weight_matrix.h"

namespace asymkv::test {

// A Q5_0 matrix as AWQ's weights are kept: each group of a row's inputs has a scale of its own and codes from some
// `least` to `least + spread`, both of which occur.
inline WeightMatrix draw_q5_groups(int64_t rows, int64_t in, int64_t group, unsigned spread) {
  WeightMatrix matrix(in);
  const std::span<std::byte> bytes = matrix.append(GgmlType::kQ5_0, rows);
  std::mt19937 random(7);
  std::byte* to = bytes.data();
  for (int64_t r = 0; r < rows; ++r) {
    unsigned least = 0;
    Q5Block block;
    for (int64_t b = 0; b < in / Q5Block::kElems; ++b, to += Q5Block::kBytes) {
      if (b * Q5Block::kElems % group == 0) {
        least = static_cast<unsigned>(random() % (32 - spread));
        block.scale = static_cast<uint16_t>(0x2000 + random() % 0x1000);
      }
      for (uint8_t& code : block.codes) code = static_cast<uint8_t>(least + random() % (spread + 1));
      block.codes[0] = static_cast<uint8_t>(least);
      block.codes[1] = static_cast<uint8_t>(least + spread);
      block.write(to);
    }
  }
  return matrix;
}

}  // namespace asymkv::test
