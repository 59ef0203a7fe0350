#include "asymkv/tensor/dtype.h"

#include "asymkv/base/error.h"

namespace asymkv {

std::string_view dtype_name(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return "f32";
    case DType::kF16:
      return "f16";
    case DType::kBF16:
      return "bf16";
    case DType::kE4M3:
      return "e4m3";
    case DType::kI8:
      return "i8";
  }
  return "?";
}

DType parse_dtype(std::string_view name) {
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16, DType::kE4M3, DType::kI8}) {
    if (name == dtype_name(dtype)) return dtype;
  }
  throw_usage("unknown element type \"{}\"; known: f32, f16, bf16, e4m3, i8", name);
}

uint16_t f32_to_f16(float x) {
  const auto u = std::bit_cast<uint32_t>(x);
  const auto sign = static_cast<uint16_t>((u >> 16) & 0x8000U);
  const uint32_t magnitude = u & 0x7fffffffU;
  if (magnitude > 0x7f800000U) return static_cast<uint16_t>(sign | 0x7e00U | ((magnitude >> 13) & 0x3ffU));
  if (magnitude >= 0x477ff000U) return static_cast<uint16_t>(sign | 0x7c00U);  // rounds to 65536 or more
  if (magnitude < 0x38800000U) {                                               // subnormal half: units of 2^-24
    // Adding 0.5 leaves the rounded value in the low mantissa bits: the ulp of [0.5, 1) is 2^-24.
    const float shifted = std::bit_cast<float>(magnitude) + 0.5F;
    return static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(shifted) - 0x3f000000U));
  }
  const uint32_t rounded = magnitude + 0xfffU + ((magnitude >> 13) & 1U);
  return static_cast<uint16_t>(sign | ((rounded - 0x38000000U) >> 13));
}

float f16_to_f32(uint16_t h) {
  const uint32_t sign = static_cast<uint32_t>(h & 0x8000U) << 16;
  const uint32_t exponent = (h >> 10) & 0x1fU;
  const uint32_t mantissa = h & 0x3ffU;
  if (exponent == 0x1fU) return std::bit_cast<float>(sign | 0x7f800000U | (mantissa << 13));
  if (exponent == 0) {
    const float value = static_cast<float>(mantissa) * 0x1p-24F;
    return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(value));
  }
  return std::bit_cast<float>(sign | ((exponent + 112U) << 23) | (mantissa << 13));
}

float round_to(DType dtype, float x) {
  switch (dtype) {
    case DType::kF32:
      return x;
    case DType::kF16:
      return f16_to_f32(f32_to_f16(x));
    case DType::kBF16:
      return bf16_to_f32(f32_to_bf16(x));
    default:
      throw_error(ErrorCode::kInternal, "round_to cannot round to {}: it needs a scale", dtype_name(dtype));
  }
}

}  // namespace asymkv
