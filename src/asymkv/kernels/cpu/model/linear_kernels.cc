#include "asymkv/kernels/cpu/model/linear_kernels.h"

// As in kernels/cpu/simd_kernels.cc.
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_AVX3_DL | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "asymkv/kernels/cpu/model/linear_kernels.cc"
#include "hwy/foreach_target.h"  // first of the SIMD headers
//
#include "asymkv/kernels/cpu/model/linear_f32-inl.h"
#include "asymkv/kernels/cpu/model/linear_i16-inl.h"
#include "asymkv/kernels/cpu/model/linear_i16_tile-inl.h"
#include "asymkv/kernels/cpu/model/weight_groups-inl.h"
#include "asymkv/kernels/cpu/model/weight_scales-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace asymkv::cpu {
namespace HWY_NAMESPACE {

#if HWY_TARGET == HWY_SCALAR
LinearKernels linear_kernels_of(GgmlType) {
  return {};
}
#else
template <typename Type>
LinearKernels kernels_of() {
  LinearKernels kernels;
  kernels.multiply_stored[0] = &multiply_stored_rows<Type, 1>;
  kernels.multiply_stored[1] = &multiply_stored_rows<Type, 2>;
  kernels.multiply_stored[2] = &multiply_stored_rows<Type, 3>;
  kernels.multiply_stored[3] = &multiply_stored_rows<Type, 4>;
  kernels.widen = &widen_rows<Type>;
  return kernels;
}

template <typename Group, typename Scales>
LinearKernels kernels_of_group() {
  LinearKernels kernels = kernels_of<QuantisedF32<Group> >();
  kernels.multiply_i16[0] = &multiply_i16_rows<Group, Scales, 1>;
  kernels.multiply_i16[1] = &multiply_i16_rows<Group, Scales, 2>;
  kernels.multiply_i16[2] = &multiply_i16_rows<Group, Scales, 3>;
  kernels.multiply_i16[3] = &multiply_i16_rows<Group, Scales, 4>;
  kernels.tile_panel = kPanel;
  kernels.unpack_i16_tile = &unpack_i16_tile<Group, Scales>;
  kernels.multiply_i16_tile[0] = &multiply_i16_tile<kFactorsOf<Group>, 1>;
  kernels.multiply_i16_tile[1] = &multiply_i16_tile<kFactorsOf<Group>, 2>;
  kernels.multiply_i16_tile[2] = &multiply_i16_tile<kFactorsOf<Group>, 3>;
  kernels.multiply_i16_tile[3] = &multiply_i16_tile<kFactorsOf<Group>, 4>;
  return kernels;
}

LinearKernels linear_kernels_of(GgmlType type) {
  switch (type) {
    case GgmlType::kF32:
      return kernels_of<WideF32>();
    case GgmlType::kF16:
      return kernels_of<WideF16>();
    case GgmlType::kBF16:
      return kernels_of<WideBF16>();
    case GgmlType::kQ8_0:
      return kernels_of_group<Q80Group, LegacyScales>();
    case GgmlType::kQ4_0:
      return kernels_of_group<Q40Group, LegacyScales>();
    case GgmlType::kQ4_1:
      return kernels_of_group<Q41Group, LegacyOffsetScales>();
    case GgmlType::kQ5_0:
      return kernels_of_group<Q50Group, LegacyScales>();
    case GgmlType::kQ4_K:
      return kernels_of_group<Q4KGroup, K4Scales>();
    case GgmlType::kQ6_K:
      return kernels_of_group<Q6KGroup, K6Scales>();
    default:
      return {};
  }
}

#endif

TileKernels tile_kernels_of() {
  TileKernels kernels;
  kernels.lanes = kLanes;
  kernels.multiply[0] = &multiply_tile_rows<1>;
  kernels.multiply[1] = &multiply_tile_rows<2>;
  kernels.multiply[2] = &multiply_tile_rows<3>;
  kernels.multiply[3] = &multiply_tile_rows<4>;
  return kernels;
}

const char* target_name() {
#if HWY_TARGET == HWY_AVX3
  return "avx512";
#elif HWY_TARGET == HWY_AVX2
  return "avx2";
#elif HWY_TARGET == HWY_SSE4
  return "sse4";
#elif HWY_TARGET == HWY_NEON
  return "neon";
#else
  return "scalar";
#endif
}

}  // namespace HWY_NAMESPACE
}  // namespace asymkv::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace asymkv::cpu {

HWY_EXPORT(linear_kernels_of);
HWY_EXPORT(tile_kernels_of);
HWY_EXPORT(target_name);
HWY_EXPORT(round_to_i16);

const char* linear_target_name() {
  return HWY_DYNAMIC_DISPATCH(target_name)();
}

void round_to_i16(const float* x, int64_t depth, int16_t* codes, float* scales, float* sums) {
  HWY_DYNAMIC_DISPATCH(round_to_i16)(x, depth, codes, scales, sums);
}

LinearKernels linear_kernels(GgmlType type) {
  return HWY_DYNAMIC_DISPATCH(linear_kernels_of)(type);
}

TileKernels tile_kernels() {
  return HWY_DYNAMIC_DISPATCH(tile_kernels_of)();
}

}  // namespace asymkv::cpu
#endif
