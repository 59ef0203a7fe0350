#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "asymkv/tensor/dtype.h"

namespace asymkv {

// The scalar definition of every stored element. Kernels must agree with it byte for byte.

inline constexpr float kE4M3Max = 448.0F;
inline constexpr float kI8Max = 127.0F;

// What a writer saw on one side. `saturated` counts finite inputs clipped to the largest code; `non_finite` counts NaN
// and infinities (stored as 0 and as the largest code of that sign: a stored 8-bit side never holds NaN).
struct SideCounters {
  int64_t elems = 0;
  int64_t saturated = 0;
  int64_t non_finite = 0;
  SideCounters& operator+=(const SideCounters& other);
};

// OCP E4M3 "fn": 1-4-3 bits, bias 7, no infinities, 0x7f/0xff NaN. Round to nearest even, saturating at +-448.
uint8_t encode_e4m3(float x);
float decode_e4m3(uint8_t code);

// Symmetric INT8, stored offset-binary: code = clamp(round_half_even(x), -127, 127) + 128. Code 0 decodes to -128 and
// is never written.
uint8_t encode_i8(float x);
inline float decode_i8(uint8_t code) {
  return static_cast<float>(static_cast<int>(code) - 128);
}

// Dynamic scale of one row: max |finite x| / 448 (E4M3) or / 127 (INT8), at least FLT_MIN so that division is safe.
float dynamic_scale(DType dtype, std::span<const float> row);

// Stores a row. 8-bit types store encode(x / scale) (one FP32 division per element); wide types ignore scale and round.
// out has row.size() * dtype_bytes(dtype) bytes.
void encode_row(DType dtype, float scale, std::span<const float> row, std::byte* out, SideCounters& counters);
// Reads a row back: decode(code) * scale for 8-bit types.
void decode_row(DType dtype, float scale, const std::byte* in, std::span<float> row);

// What is left of a row that is stored and read back: an 8-bit type uses the row's own dynamic_scale.
void round_row(DType dtype, std::span<float> row);

}  // namespace asymkv
