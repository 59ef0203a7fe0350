#include "asymkv/kv/codec.h"

#include <algorithm>
#include <bit>
#include <cfloat>
#include <cmath>
#include <cstring>
#include <vector>

#include "asymkv/base/error.h"

namespace asymkv {
namespace {

// Largest magnitude that still rounds to 448: the next code would be 480, the midpoint 464 ties to even (448).
constexpr float kE4M3SaturationEdge = 464.0F;

// A finite input whose quotient overflows is clipped, so it counts as saturated.
void count(float input, float scaled, float edge, SideCounters& counters) {
  if (!std::isfinite(input)) {
    ++counters.non_finite;
  } else if (std::fabs(scaled) > edge) {
    ++counters.saturated;
  }
}

template <typename Word, typename Convert>
void encode_wide(std::span<const float> row, std::byte* out, SideCounters& counters, Convert convert) {
  for (size_t i = 0; i < row.size(); ++i) {
    if (!std::isfinite(row[i])) ++counters.non_finite;
    const Word word = convert(row[i]);
    std::memcpy(out + i * sizeof(Word), &word, sizeof(Word));
  }
}

template <typename Word, typename Convert>
void decode_wide(const std::byte* in, std::span<float> row, Convert convert) {
  for (size_t i = 0; i < row.size(); ++i) {
    Word word;
    std::memcpy(&word, in + i * sizeof(Word), sizeof(Word));
    row[i] = convert(word);
  }
}

}  // namespace

SideCounters& SideCounters::operator+=(const SideCounters& other) {
  elems += other.elems;
  saturated += other.saturated;
  non_finite += other.non_finite;
  return *this;
}

uint8_t encode_e4m3(float x) {
  if (std::isnan(x)) return 0;
  const auto sign = static_cast<uint8_t>(std::signbit(x) ? 0x80 : 0x00);
  const float magnitude = std::min(std::fabs(x), kE4M3Max);
  const auto bits = std::bit_cast<uint32_t>(magnitude);
  if (magnitude < 0x1p-6F) {  // subnormal: units of 2^-9; adding 2^14 leaves the rounded unit count in the mantissa
    const auto units = std::bit_cast<uint32_t>(magnitude + 0x1p14F) - std::bit_cast<uint32_t>(0x1p14F);
    return static_cast<uint8_t>(sign | units);
  }
  const uint32_t rounded = bits + 0x7ffffU + ((bits >> 20) & 1U);
  return static_cast<uint8_t>(sign | ((rounded - (120U << 23)) >> 20));  // exponent bias 127 -> 7
}

float decode_e4m3(uint8_t code) {
  const uint32_t sign = static_cast<uint32_t>(code & 0x80U) << 24;
  const uint32_t magnitude = code & 0x7fU;
  if (magnitude == 0x7fU) return std::bit_cast<float>(sign | 0x7fc00000U);
  if (magnitude < 8)
    return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(static_cast<float>(magnitude) * 0x1p-9F));
  return std::bit_cast<float>(sign | ((magnitude << 20) + (120U << 23)));
}

uint8_t encode_i8(float x) {
  if (std::isnan(x)) return 128;
  const float rounded = std::nearbyint(std::clamp(x, -kI8Max, kI8Max));
  return static_cast<uint8_t>(static_cast<int>(rounded) + 128);
}

float dynamic_scale(DType dtype, std::span<const float> row) {
  float amax = 0.0F;
  for (const float x : row) {
    if (std::isfinite(x)) amax = std::max(amax, std::fabs(x));
  }
  const float largest = dtype == DType::kI8 ? kI8Max : kE4M3Max;
  return std::max(amax / largest, FLT_MIN);
}

void encode_row(DType dtype, float scale, std::span<const float> row, std::byte* out, SideCounters& counters) {
  counters.elems += static_cast<int64_t>(row.size());
  switch (dtype) {
    case DType::kF32:
      return encode_wide<float>(row, out, counters, [](float x) { return x; });
    case DType::kF16:
      return encode_wide<uint16_t>(row, out, counters, f32_to_f16);
    case DType::kBF16:
      return encode_wide<uint16_t>(row, out, counters, f32_to_bf16);
    case DType::kE4M3:
    case DType::kI8:
      break;
  }
  const bool is_e4m3 = dtype == DType::kE4M3;
  const float edge = is_e4m3 ? kE4M3SaturationEdge : kI8Max + 0.5F;
  for (size_t i = 0; i < row.size(); ++i) {
    const float scaled = row[i] / scale;
    count(row[i], scaled, edge, counters);
    out[i] = static_cast<std::byte>(is_e4m3 ? encode_e4m3(scaled) : encode_i8(scaled));
  }
}

void decode_row(DType dtype, float scale, const std::byte* in, std::span<float> row) {
  switch (dtype) {
    case DType::kF32:
      return decode_wide<float>(in, row, [](float x) { return x; });
    case DType::kF16:
      return decode_wide<uint16_t>(in, row, f16_to_f32);
    case DType::kBF16:
      return decode_wide<uint16_t>(in, row, bf16_to_f32);
    case DType::kE4M3:
      for (size_t i = 0; i < row.size(); ++i) row[i] = decode_e4m3(std::to_integer<uint8_t>(in[i])) * scale;
      return;
    case DType::kI8:
      for (size_t i = 0; i < row.size(); ++i) row[i] = decode_i8(std::to_integer<uint8_t>(in[i])) * scale;
      return;
  }
}

void round_row(DType dtype, std::span<float> row) {
  const float scale = dtype_bytes(dtype) == 1 ? dynamic_scale(dtype, row) : 1.0F;
  std::vector<std::byte> stored(row.size() * static_cast<size_t>(dtype_bytes(dtype)));
  SideCounters ignored;
  encode_row(dtype, scale, row, stored.data(), ignored);
  decode_row(dtype, scale, stored.data(), row);
}

}  // namespace asymkv
