#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <string_view>

namespace asymkv {

// Exact element types. There is deliberately no "fp8": E4M3 here is the OCP "fn" form (no infinities, max 448).
enum class DType : uint8_t { kF32, kF16, kBF16, kE4M3, kI8 };

constexpr int64_t dtype_bytes(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return 4;
    case DType::kF16:
    case DType::kBF16:
      return 2;
    case DType::kE4M3:
    case DType::kI8:
      return 1;
  }
  return 0;
}

// "f32", "f16", "bf16", "e4m3", "i8".
std::string_view dtype_name(DType dtype);
// Throws Error{kUsage} that lists the known names.
DType parse_dtype(std::string_view name);

// Round to nearest even; NaN stays NaN (quiet); overflow goes to infinity (IEEE).
inline uint16_t f32_to_bf16(float x) {
  const auto u = std::bit_cast<uint32_t>(x);
  if ((u & 0x7fffffffU) > 0x7f800000U) return static_cast<uint16_t>((u >> 16) | 0x40U);
  return static_cast<uint16_t>((u + 0x7fffU + ((u >> 16) & 1U)) >> 16);
}
inline float bf16_to_f32(uint16_t h) {
  return std::bit_cast<float>(static_cast<uint32_t>(h) << 16);
}

// IEEE binary16, round to nearest even, subnormals kept, overflow to infinity.
uint16_t f32_to_f16(float x);
float f16_to_f32(uint16_t h);

// x rounded to `dtype` (kF32, kF16 or kBF16) and widened back.
float round_to(DType dtype, float x);

}  // namespace asymkv
