#include "asymkv/kv/codec.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cfloat>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

namespace asymkv {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

// Value of an E4M3 code from the definition (OCP 8-bit floating point specification, table 1), in double.
double e4m3_value(int code) {
  const int exponent = (code >> 3) & 0xf;
  const int mantissa = code & 7;
  const double magnitude =
      exponent == 0 ? std::ldexp(mantissa / 8.0, -6) : std::ldexp(1.0 + mantissa / 8.0, exponent - 7);
  return (code & 0x80) != 0 ? -magnitude : magnitude;
}

// Nearest code by search over every magnitude; a tie goes to the code whose last mantissa bit is zero.
uint8_t nearest_e4m3(double x) {
  if (std::isnan(x)) return 0;
  const double magnitude = std::fabs(x);
  int best = 0;
  for (int code = 1; code < 0x7f; ++code) {
    const double distance = std::fabs(e4m3_value(code) - magnitude);
    const double best_distance = std::fabs(e4m3_value(best) - magnitude);
    if (distance < best_distance || (distance == best_distance && code % 2 == 0)) best = code;
  }
  if (std::isinf(magnitude)) best = 0x7e;
  return static_cast<uint8_t>(best | (std::signbit(x) ? 0x80 : 0));
}

uint8_t nearest_i8(double x) {
  if (std::isnan(x)) return 128;
  x = std::clamp(x, -1000.0, 1000.0);  // distances stay exact
  int best = -127;
  for (int level = -126; level <= 127; ++level) {
    const double distance = std::fabs(level - x);
    const double best_distance = std::fabs(best - x);
    if (distance < best_distance || (distance == best_distance && level % 2 == 0)) best = level;
  }
  return static_cast<uint8_t>(best + 128);
}

TEST(Codec, DecodesEveryE4M3Code) {
  for (int code = 0; code < 256; ++code) {
    const float decoded = decode_e4m3(static_cast<uint8_t>(code));
    if ((code & 0x7f) == 0x7f) {
      EXPECT_TRUE(std::isnan(decoded)) << code;
      continue;
    }
    EXPECT_EQ(static_cast<double>(decoded), e4m3_value(code)) << code;
    EXPECT_EQ(std::signbit(decoded), code >= 0x80) << code;
    EXPECT_EQ(encode_e4m3(decoded), code);
  }
  EXPECT_EQ(decode_e4m3(0x7e), kE4M3Max);
  EXPECT_EQ(decode_e4m3(0x01), 0x1p-9F);
}

TEST(Codec, DecodesEveryI8Code) {
  for (int code = 0; code < 256; ++code) {
    const float decoded = decode_i8(static_cast<uint8_t>(code));
    EXPECT_EQ(decoded, static_cast<float>(code - 128));
    EXPECT_EQ(encode_i8(decoded), code == 0 ? 1 : code);  // -128 is never written
  }
}

TEST(Codec, EncodesEveryHalfAndEveryBf16LikeANearestValueSearch) {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const auto word = static_cast<uint16_t>(bits);
    for (const float x : {f16_to_f32(word), bf16_to_f32(word)}) {
      ASSERT_EQ(encode_e4m3(x), nearest_e4m3(static_cast<double>(x))) << x;
      ASSERT_EQ(encode_i8(x), nearest_i8(static_cast<double>(x))) << x;
    }
  }
}

TEST(Codec, E4M3TiesGoToTheEvenCode) {
  for (int code = 0; code < 0x7e; ++code) {
    const auto middle = static_cast<float>((e4m3_value(code) + e4m3_value(code + 1)) / 2);
    EXPECT_EQ(encode_e4m3(middle), code % 2 == 0 ? code : code + 1) << middle;
    EXPECT_EQ(encode_e4m3(std::nextafter(middle, 0.0F)), code) << middle;
    EXPECT_EQ(encode_e4m3(std::nextafter(middle, kInf)), code + 1) << middle;
    EXPECT_EQ(encode_e4m3(-middle), (code % 2 == 0 ? code : code + 1) | 0x80) << middle;
  }
}

TEST(Codec, SaturatesAndNeverStoresNaN) {
  for (const float x : {448.0F, 463.9F, 464.0F, 480.0F, 1e9F, FLT_MAX, kInf}) {
    EXPECT_EQ(encode_e4m3(x), 0x7e) << x;
    EXPECT_EQ(encode_e4m3(-x), 0xfe) << x;
    EXPECT_EQ(encode_i8(x), 255) << x;
    EXPECT_EQ(encode_i8(-x), 1) << x;
  }
  for (const float x : {kNaN, -kNaN, std::bit_cast<float>(0x7f800001U)}) {
    EXPECT_EQ(encode_e4m3(x), 0);
    EXPECT_EQ(encode_i8(x), 128);
  }
  std::mt19937_64 random(1);
  for (int i = 0; i < 2'000'000; ++i) {
    const uint8_t code = encode_e4m3(std::bit_cast<float>(static_cast<uint32_t>(random())));
    ASSERT_NE(code & 0x7f, 0x7f);
  }
}

TEST(Codec, CountsSaturatedAndNonFiniteInputsApart) {
  const std::array<float, 9> row{1.0F, 463.0F, 464.0F, 465.0F, -1000.0F, kInf, -kInf, kNaN, 0.0F};
  std::array<std::byte, row.size()> out{};
  SideCounters counters;
  encode_row(DType::kE4M3, 1.0F, row, out.data(), counters);
  EXPECT_EQ(counters.elems, 9);
  EXPECT_EQ(counters.saturated, 2);
  EXPECT_EQ(counters.non_finite, 3);
  counters = {};
  encode_row(DType::kI8, 2.0F, row, out.data(), counters);  // 463/2 and more are past 127
  EXPECT_EQ(counters.saturated, 4);
  EXPECT_EQ(counters.non_finite, 3);
}

// A finite input whose quotient overflows is clipped: it is saturated, not a non-finite input.
TEST(Codec, OverflowOfTheScaledValueIsSaturation) {
  const std::array<float, 2> row{1e30F, -1e30F};
  std::array<std::byte, 2> out{};
  SideCounters counters;
  encode_row(DType::kE4M3, 1e-20F, row, out.data(), counters);
  EXPECT_EQ(counters.saturated, 2);
  EXPECT_EQ(counters.non_finite, 0);
  EXPECT_EQ(out[0], std::byte{0x7e});
  EXPECT_EQ(out[1], std::byte{0xfe});
}

TEST(Codec, EncodesTheQuotientRoundedToSinglePrecision) {
  std::mt19937 random(2);
  std::uniform_real_distribution<float> value(-600.0F, 600.0F);
  std::uniform_real_distribution<float> exponent(-8.0F, 8.0F);
  for (int i = 0; i < 20'000; ++i) {
    const float scale = std::exp2(exponent(random));
    const std::array<float, 1> row{value(random)};
    std::array<std::byte, 1> out{};
    SideCounters counters;
    // 53 bits hold enough of a quotient of two 24-bit numbers for the second rounding to be the correct one.
    const auto quotient = static_cast<float>(static_cast<double>(row[0]) / static_cast<double>(scale));
    encode_row(DType::kE4M3, scale, row, out.data(), counters);
    ASSERT_EQ(std::to_integer<uint8_t>(out[0]), nearest_e4m3(static_cast<double>(quotient)));
    encode_row(DType::kI8, scale, row, out.data(), counters);
    ASSERT_EQ(std::to_integer<uint8_t>(out[0]), nearest_i8(static_cast<double>(quotient)));
  }
}

TEST(Codec, DynamicScaleIsTheLargestFiniteMagnitudeOverTheLargestCode) {
  const std::array<float, 4> row{1.0F, -896.0F, kInf, kNaN};
  EXPECT_EQ(dynamic_scale(DType::kE4M3, row), 2.0F);
  EXPECT_EQ(dynamic_scale(DType::kI8, row), 896.0F / 127.0F);
  const std::array<float, 3> zeros{0.0F, -0.0F, 0.0F};
  EXPECT_EQ(dynamic_scale(DType::kE4M3, zeros), FLT_MIN);
  const std::array<float, 1> tiny{1e-44F};
  EXPECT_EQ(dynamic_scale(DType::kI8, tiny), FLT_MIN);
  const std::array<float, 2> huge{FLT_MAX, -FLT_MAX};
  EXPECT_TRUE(std::isfinite(dynamic_scale(DType::kE4M3, huge)));
  EXPECT_EQ(dynamic_scale(DType::kE4M3, {}), FLT_MIN);
}

// With its own dynamic scale no finite row saturates, and the error stays within half a step of its largest element.
TEST(Codec, DynamicRowsKeepTheirErrorBound) {
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  for (const DType dtype : {DType::kE4M3, DType::kI8}) {
    for (const float spread : {1e-30F, 1e-3F, 1.0F, 300.0F, 1e30F}) {
      std::vector<float> row(128);
      for (float& x : row) x = normal(random) * spread;
      const float scale = dynamic_scale(dtype, row);
      std::vector<std::byte> stored(row.size());
      std::vector<float> back(row.size());
      SideCounters counters;
      encode_row(dtype, scale, row, stored.data(), counters);
      decode_row(dtype, scale, stored.data(), back);
      EXPECT_EQ(counters.saturated + counters.non_finite, 0);
      const float half_step = dtype == DType::kI8 ? 0.5F * scale : 16.0F * scale;  // E4M3 steps by 32 below 448
      for (size_t i = 0; i < row.size(); ++i) {
        const float limit = dtype == DType::kI8 ? half_step : std::max(std::fabs(row[i]) / 16.0F, scale * 0x1p-10F);
        ASSERT_LE(std::fabs(row[i] - back[i]), limit * 1.0001F);
        ASSERT_LE(std::fabs(row[i] - back[i]), half_step * 1.0001F);
      }
    }
  }
}

TEST(Codec, WideRowsIgnoreTheScaleAndKeepTheirBits) {
  std::vector<float> halves;
  std::vector<float> brains;
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    halves.push_back(f16_to_f32(static_cast<uint16_t>(bits)));
    brains.push_back(bf16_to_f32(static_cast<uint16_t>(bits)));
  }
  const auto check = [](DType dtype, const std::vector<float>& row) {
    std::vector<std::byte> stored(row.size() * static_cast<size_t>(dtype_bytes(dtype)));
    std::vector<float> back(row.size());
    SideCounters counters;
    encode_row(dtype, 7.0F, row, stored.data(), counters);
    decode_row(dtype, 7.0F, stored.data(), back);
    int64_t non_finite = 0;
    for (size_t i = 0; i < row.size(); ++i) {
      non_finite += std::isfinite(row[i]) ? 0 : 1;
      if (std::isnan(row[i])) {
        ASSERT_TRUE(std::isnan(back[i]));
      } else {
        ASSERT_EQ(std::bit_cast<uint32_t>(row[i]), std::bit_cast<uint32_t>(back[i])) << row[i];
      }
    }
    EXPECT_EQ(counters.elems, 65536);
    EXPECT_EQ(counters.non_finite, non_finite);
    EXPECT_EQ(counters.saturated, 0);
  };
  check(DType::kF16, halves);
  check(DType::kBF16, brains);
  check(DType::kF32, halves);
  check(DType::kF32, brains);
}

TEST(Codec, RoundedRowsAreWhatStorageLeavesOfThem) {
  // The largest magnitude is 896, so the scale is 2 and the halves are rounded to 4 significant bits, ties to even.
  std::vector<float> row = {-896.0F, 2.0F, 6.6F, 34.0F, 38.0F, 0.0F, 1000.0F * 0.001F};
  round_row(DType::kE4M3, row);
  EXPECT_EQ(row, (std::vector<float>{-896.0F, 2.0F, 6.5F, 32.0F, 40.0F, 0.0F, 1.0F}));
  std::vector<float> small = {254.0F, 3.1F, -1.0F};  // INT8: scale 2, halves to even integers
  round_row(DType::kI8, small);
  EXPECT_EQ(small, (std::vector<float>{254.0F, 4.0F, 0.0F}));
  std::vector<float> wide = {1.00390625F, -3.0F};  // 1 + 2^-8 lies between two bf16 numbers: to even
  round_row(DType::kBF16, wide);
  EXPECT_EQ(wide, (std::vector<float>{1.0F, -3.0F}));
}

}  // namespace
}  // namespace asymkv
