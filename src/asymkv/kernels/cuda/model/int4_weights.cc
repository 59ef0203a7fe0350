#include "asymkv/kernels/cuda/model/int4_weights.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "asymkv/base/error.h"
#include "asymkv/base/parallel.h"
#include "asymkv/tensor/dtype.h"

namespace asymkv::cuda {
namespace {

constexpr int64_t kBlock = 32;       // weights of a Q5_0 block
constexpr int64_t kBlockBytes = 22;  // FP16 scale, 32 fifth bits, 16 bytes of two low nibbles

// Codes 0..31 of a block, whose values are scale * (code - 16).
struct Q5Block {
  uint16_t scale = 0;
  std::array<uint8_t, kBlock> codes = {};

  explicit Q5Block(const std::byte* from) {
    uint32_t fifth_bits = 0;
    std::array<uint8_t, kBlock / 2> low = {};
    std::memcpy(&scale, from, sizeof(scale));
    std::memcpy(&fifth_bits, from + sizeof(scale), sizeof(fifth_bits));
    std::memcpy(low.data(), from + sizeof(scale) + sizeof(fifth_bits), low.size());
    for (size_t i = 0; i < kBlock; ++i) {
      const unsigned nibble = i < kBlock / 2 ? low[i] & 0xFU : low[i - kBlock / 2] >> 4U;
      codes[i] = static_cast<uint8_t>(nibble | ((fifth_bits >> i) & 1U) << 4U);
    }
  }
};

const std::byte* row_of(const WeightMatrix& matrix, int64_t row) {
  for (const WeightPart& part : matrix.parts()) {
    if (row < part.first_row + part.num_rows) return part.row(row - part.first_row);
  }
  throw_error(ErrorCode::kInternal, "row {} of {}", row, matrix.rows());
}

// Where the code of (row, input) lies.
struct Place {
  int64_t word = 0;
  unsigned shift = 0;

  Place(int64_t row, int64_t input, int64_t in) {
    const int64_t in_tile = input % Int4Weights::kInTile, row_tile = row % 16;
    const int64_t lane = row_tile % 8 * 4 + in_tile % 32 / 8;
    const int64_t step = in_tile / 32 * 2 + in_tile % 8 / 4;
    const int64_t pair = in_tile % 4 / 2 * 2 + row_tile / 8;
    word = ((row / 16 * (in / Int4Weights::kInTile) + input / Int4Weights::kInTile) * 32 + lane) * 4 + step;
    shift = static_cast<unsigned>(4 * (pair + input % 2 * 4));
  }
};

// A row's codes by groups of `group`; false if one of them does not fit.
bool pack_row(const WeightMatrix& matrix, int64_t row, Int4Weights& packed) {
  const std::byte* from = row_of(matrix, row);
  const int64_t blocks = packed.group / kBlock;
  for (int64_t g = 0; g < packed.in / packed.group; ++g) {
    std::vector<Q5Block> parts;
    for (int64_t b = 0; b < blocks; ++b) parts.emplace_back(from + (g * blocks + b) * kBlockBytes);
    uint8_t least = 31, most = 0;
    for (const Q5Block& part : parts) {
      if (part.scale != parts.front().scale) return false;
      const auto [low, high] = std::ranges::minmax(part.codes);
      least = std::min(least, low);
      most = std::max(most, high);
    }
    if (most - least > 15) return false;
    packed.scales[static_cast<size_t>(g * packed.padded_rows() + row)] = {parts.front().scale,
                                                                          static_cast<int16_t>(least - 16)};
    for (int64_t i = 0; i < packed.group; ++i) {
      const Place place(row, g * packed.group + i, packed.in);
      const auto code =
          static_cast<uint32_t>(parts[static_cast<size_t>(i / kBlock)].codes[static_cast<size_t>(i % kBlock)] - least);
      packed.codes[static_cast<size_t>(place.word)] |= code << place.shift;
    }
  }
  return true;
}

bool pack_rows(const WeightMatrix& matrix, Int4Weights& packed) {
  const auto padded = static_cast<size_t>(packed.padded_rows());
  packed.codes.assign(padded * static_cast<size_t>(packed.in) / 8, 0);
  packed.scales.assign(padded * static_cast<size_t>(packed.in / packed.group), {});
  constexpr int64_t kTask = 16;  // rows that share words
  std::vector<char> fits(static_cast<size_t>((packed.rows + kTask - 1) / kTask), 1);
  parallel_for(std::ssize(fits), [&](int64_t task, int) {
    for (int64_t row = task * kTask; row < std::min(packed.rows, (task + 1) * kTask); ++row) {
      if (!pack_row(matrix, row, packed)) {
        fits[static_cast<size_t>(task)] = 0;
        return;
      }
    }
  });
  return std::ranges::all_of(fits, [](char fit) { return fit != 0; });
}

}  // namespace

int64_t Int4Weights::stored_bytes() const {
  return static_cast<int64_t>(codes.size() * sizeof(codes[0]) + scales.size() * sizeof(scales[0]));
}

float Int4Weights::value(int64_t row, int64_t input) const {
  const Place place(row, input, in);
  const auto code = static_cast<int>(codes[static_cast<size_t>(place.word)] >> place.shift & 0xFU);
  const Int4Scale& shared = scales[static_cast<size_t>(input / group * padded_rows() + row)];
  return f16_to_f32(shared.scale) * static_cast<float>(code + shared.offset);
}

std::optional<Int4Weights> pack_int4(const WeightMatrix& matrix) {
  const bool has_codes =
      std::ranges::all_of(matrix.parts(), [](const WeightPart& p) { return p.type == GgmlType::kQ5_0; });
  if (matrix.parts().empty() || !has_codes || matrix.in() % Int4Weights::kInTile != 0) return std::nullopt;
  Int4Weights packed;
  packed.rows = matrix.rows();
  packed.in = matrix.in();
  for (const int64_t group : {128, 64, 32}) {
    packed.group = group;
    if (packed.in % group == 0 && pack_rows(matrix, packed)) return packed;
  }
  return std::nullopt;
}

}  // namespace asymkv::cuda
