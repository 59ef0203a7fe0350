#include "asymkv/kernels/cuda/model/int4_weights.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <functional>

#include "asymkv/base/error.h"
#include "asymkv/base/parallel.h"
#include "asymkv/tensor/dtype.h"
#include "asymkv/tensor/ggml_quants.h"

namespace asymkv::cuda {
namespace {

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

// A group of a row, of up to 128 inputs.
struct Group {
  Int4Scale shared;
  std::array<uint8_t, 128> codes = {};  // from 0 on

  // False: it needs more than one scale or 16 codes.
  bool read(const std::byte* from, int64_t group) {
    uint8_t least = 31, most = 0;
    for (int64_t b = 0; b < group / Q5Block::kElems; ++b) {
      const Q5Block block = Q5Block::read(from + b * Q5Block::kBytes);
      if (b > 0 && block.scale != shared.scale) return false;
      shared.scale = block.scale;
      const auto [low, high] = std::ranges::minmax(block.codes);
      least = std::min(least, low);
      most = std::max(most, high);
      std::ranges::copy(block.codes, codes.begin() + b * Q5Block::kElems);
    }
    if (most - least > 15) return false;
    shared.offset = static_cast<int16_t>(least - 16);
    for (uint8_t& code : codes) code = static_cast<uint8_t>(code - least);
    return true;
  }
};

// Calls visit(row, group index, group) for all of them, 16 rows a task since those share words; false, and it may end
// early, if a group does not fit.
bool for_each_group(const WeightMatrix& matrix, int64_t group,
                    const std::function<void(int64_t, int64_t, const Group&)>& visit) {
  constexpr int64_t kTask = 16;
  std::atomic<bool> fits = true;
  parallel_for((matrix.rows() + kTask - 1) / kTask, [&](int64_t task, int) {
    Group read;
    for (int64_t row = task * kTask; row < std::min(matrix.rows(), (task + 1) * kTask); ++row) {
      const std::byte* from = row_of(matrix, row);
      for (int64_t g = 0; g < matrix.in() / group && fits; ++g) {
        if (read.read(from + g * group / Q5Block::kElems * Q5Block::kBytes, group)) {
          visit(row, g, read);
        } else {
          fits = false;
        }
      }
    }
  });
  return fits;
}

void pack_codes(int64_t row, int64_t group_idx, const Group& group, Int4Weights& packed) {
  packed.scales[static_cast<size_t>(group_idx * packed.padded_rows() + row)] = group.shared;
  for (int64_t i = 0; i < packed.group; ++i) {
    const Place place(row, group_idx * packed.group + i, packed.in);
    packed.codes[static_cast<size_t>(place.word)] |= uint32_t{group.codes[static_cast<size_t>(i)]} << place.shift;
  }
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
  const auto look = [](int64_t, int64_t, const Group&) {};
  for (const int64_t group : {128, 64, 32}) {
    if (packed.in % group != 0 || !for_each_group(matrix, group, look)) continue;
    packed.group = group;
    packed.codes.assign(static_cast<size_t>(packed.padded_rows() * packed.in / 8), 0);
    packed.scales.assign(static_cast<size_t>(packed.in / group * packed.padded_rows()), {});
    for_each_group(matrix, group, [&](int64_t row, int64_t g, const Group& read) { pack_codes(row, g, read, packed); });
    return packed;
  }
  return std::nullopt;
}

}  // namespace asymkv::cuda
