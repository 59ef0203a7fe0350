// Products with FP32 activations; compiled once per SIMD target. Every result is the sum over lanes of one vector that
// gathers x[k] * w[k] in order of k with fused multiply-adds, whichever kernel computes it: batches do not matter.
#if defined(ASYMKV_KERNELS_CPU_MODEL_LINEAR_F32_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ASYMKV_KERNELS_CPU_MODEL_LINEAR_F32_INL_H_
#undef ASYMKV_KERNELS_CPU_MODEL_LINEAR_F32_INL_H_
#else
#define ASYMKV_KERNELS_CPU_MODEL_LINEAR_F32_INL_H_
#endif

#include <cstdint>

#include "asymkv/kernels/cpu/model/linear_kernels.h"
#include "asymkv/kernels/cpu/model/weight_groups-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace asymkv::cpu {
namespace HWY_NAMESPACE {

constexpr int64_t kTileGroupOuts = 3;  // outputs and rows of the tile kernel: 12 accumulators, 3 weights, 1 activation

HWY_INLINE float sum_lanes(VecF32 v) {
  return hn::GetLane(hn::SumOfLanes(F32(), v));
}

HWY_INLINE void put(const LinearOutput& out, int64_t row, int64_t column, float value) {
  float* y = out.y + row * out.y_stride + column;
  if (out.accumulate) value += *y;
  if (out.bias != nullptr) value += out.bias[column];
  *y = value;
}

#if HWY_TARGET != HWY_SCALAR
// kOuts stored rows against kRows rows of activations: each weight is unpacked once.
template <typename Type, int64_t kRows, int64_t kOuts>
HWY_INLINE void multiply_stored(const StoredRows& w, int64_t first, const LinearInput& in, const LinearOutput& out) {
  VecF32 sums[static_cast<size_t>(kOuts)][static_cast<size_t>(kRows)];
#pragma GCC unroll 8
  for (int64_t o = 0; o < kOuts; ++o) {
#pragma GCC unroll 8
    for (int64_t r = 0; r < kRows; ++r) sums[o][r] = hn::Zero(F32());
  }
  const uint8_t* rows = w.data + first * w.row_bytes;
  const int64_t blocks = in.depth / (Type::kBlockGroups * kGroup);
  const float* x = in.x;
  for (int64_t b = 0; b < blocks; ++b) {
    for (int64_t g = 0; g < Type::kBlockGroups; ++g) {
#pragma GCC unroll 8
      for (int64_t o = 0; o < kOuts; ++o) {
        VecF32 weights[kGroupVecs];
        Type::widen(rows + o * w.row_bytes + b * Type::kBlockBytes, g, weights);
#pragma GCC unroll 8
        for (int64_t v = 0; v < kGroupVecs; ++v) {
#pragma GCC unroll 8
          for (int64_t r = 0; r < kRows; ++r) {
            sums[o][r] = hn::MulAdd(hn::LoadU(F32(), x + r * in.x_stride + v * kLanes), weights[v], sums[o][r]);
          }
        }
      }
      x += kGroup;
    }
  }
#pragma GCC unroll 8
  for (int64_t o = 0; o < kOuts; ++o) {
#pragma GCC unroll 8
    for (int64_t r = 0; r < kRows; ++r) put(out, r, w.first_column + first + o, sum_lanes(sums[o][r]));
  }
}

template <typename Type, int64_t kRows>
void multiply_stored_rows(const StoredRows& w, const LinearInput& in, const LinearOutput& out) {
  constexpr int64_t kOuts = kRows <= 2 ? 4 : 2;
  int64_t o = 0;
  for (; o + kOuts <= w.num_rows; o += kOuts) multiply_stored<Type, kRows, kOuts>(w, o, in, out);
  for (; o < w.num_rows; ++o) multiply_stored<Type, kRows, 1>(w, o, in, out);
}

// Widens stored rows into [num_rows][depth] floats.
template <typename Type>
void widen_rows(const StoredRows& w, int64_t depth, float* HWY_RESTRICT tile) {
  const int64_t blocks = depth / (Type::kBlockGroups * kGroup);
  for (int64_t o = 0; o < w.num_rows; ++o) {
    for (int64_t b = 0; b < blocks; ++b) {
      for (int64_t g = 0; g < Type::kBlockGroups; ++g) {
        VecF32 weights[kGroupVecs];
        Type::widen(w.data + o * w.row_bytes + b * Type::kBlockBytes, g, weights);
#pragma GCC unroll 8
        for (int64_t v = 0; v < kGroupVecs; ++v) hn::StoreU(weights[v], F32(), tile + v * kLanes);
        tile += kGroup;
      }
    }
  }
}

#endif

// kTileGroupOuts outputs of a widened tile for kRows rows of activations, over one depth step.
template <int64_t kRows>
struct TileSums {
  VecF32 sum[static_cast<size_t>(kRows)][kTileGroupOuts];

  HWY_INLINE void clear() {
#pragma GCC unroll 4
    for (int64_t r = 0; r < kRows; ++r) {
#pragma GCC unroll 3
      for (int64_t o = 0; o < kTileGroupOuts; ++o) sum[r][o] = hn::Zero(F32());
    }
  }
  HWY_INLINE void load(const float* HWY_RESTRICT sums) {
#pragma GCC unroll 4
    for (int64_t r = 0; r < kRows; ++r) {
#pragma GCC unroll 3
      for (int64_t o = 0; o < kTileGroupOuts; ++o) {
        sum[r][o] = hn::Load(F32(), sums + (r * kTileGroupOuts + o) * kLanes);
      }
    }
  }
  HWY_INLINE void store(float* HWY_RESTRICT sums) const {
#pragma GCC unroll 4
    for (int64_t r = 0; r < kRows; ++r) {
#pragma GCC unroll 3
      for (int64_t o = 0; o < kTileGroupOuts; ++o) {
        hn::Store(sum[r][o], F32(), sums + (r * kTileGroupOuts + o) * kLanes);
      }
    }
  }
  HWY_INLINE void add(const float* HWY_RESTRICT x, int64_t x_stride, const float* HWY_RESTRICT w, int64_t w_stride,
                      int64_t depth) {
    for (int64_t k = 0; k < depth; k += kLanes) {
      const VecF32 w0 = hn::LoadU(F32(), w + k);
      const VecF32 w1 = hn::LoadU(F32(), w + w_stride + k);
      const VecF32 w2 = hn::LoadU(F32(), w + 2 * w_stride + k);
#pragma GCC unroll 4
      for (int64_t r = 0; r < kRows; ++r) {
        const VecF32 a = hn::LoadU(F32(), x + r * x_stride + k);
        sum[r][0] = hn::MulAdd(a, w0, sum[r][0]);
        sum[r][1] = hn::MulAdd(a, w1, sum[r][1]);
        sum[r][2] = hn::MulAdd(a, w2, sum[r][2]);
      }
    }
  }
  // Outputs [0, outs) to columns from `column` on.
  HWY_INLINE void put_sums(const LinearOutput& out, int64_t column, int64_t outs) const {
#pragma GCC unroll 4
    for (int64_t r = 0; r < kRows; ++r) {
#pragma GCC unroll 3
      for (int64_t o = 0; o < kTileGroupOuts; ++o) {
        if (o < outs) put(out, r, column + o, sum_lanes(sum[r][o]));
      }
    }
  }
};

// kRows rows of activations against all outputs of a widened tile, whose rows are padded to whole groups. sums holds
// what earlier depth steps gathered.
template <int64_t kRows>
void multiply_tile_rows(const WidenedTile& tile, const DepthStep& step, const LinearInput& in, const LinearOutput& out,
                        float* sums) {
  for (int64_t o = 0; o < tile.num_rows; o += kTileGroupOuts, sums += kRows * kTileGroupOuts * kLanes) {
    TileSums<kRows> group;
    if (step.begin == 0) {
      group.clear();
    } else {
      group.load(sums);
    }
    group.add(in.x + step.begin, in.x_stride, tile.data + o * in.depth + step.begin, in.depth, step.end - step.begin);
    if (step.end < in.depth) {
      group.store(sums);
    } else {
      group.put_sums(out, tile.first_column + o, tile.num_rows - o);
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace asymkv::cpu
HWY_AFTER_NAMESPACE();
#endif
