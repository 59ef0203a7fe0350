#include "asymkv/tensor/dtype.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "asymkv/base/error.h"

namespace asymkv {
namespace {

TEST(DType, NamesRoundTrip) {
  for (const DType d : {DType::kF32, DType::kF16, DType::kBF16, DType::kE4M3, DType::kI8}) {
    EXPECT_EQ(parse_dtype(dtype_name(d)), d);
  }
  EXPECT_THROW(parse_dtype("fp8"), Error);
}

TEST(DType, EveryHalfRoundTripsThroughFloat) {
  for (uint32_t h = 0; h < 65536; ++h) {
    const float x = f16_to_f32(static_cast<uint16_t>(h));
    if (std::isnan(x)) {
      EXPECT_TRUE(std::isnan(f16_to_f32(f32_to_f16(x))));
    } else {
      ASSERT_EQ(f32_to_f16(x), h) << x;
    }
    const float y = bf16_to_f32(static_cast<uint16_t>(h));
    if (!std::isnan(y)) {
      ASSERT_EQ(f32_to_bf16(y), h) << y;
    }
  }
}

// Between two neighbouring halves the midpoint goes to the even one, and a hair past it to the nearer one.
TEST(DType, HalfRoundsToNearestEvenAtEveryMidpoint) {
  for (uint32_t h = 0; h < 0x7bff; ++h) {
    const double low = f16_to_f32(static_cast<uint16_t>(h));
    const double high = f16_to_f32(static_cast<uint16_t>(h + 1));
    const auto middle = static_cast<float>((low + high) / 2);
    ASSERT_EQ(f32_to_f16(middle), (h & 1U) ? h + 1 : h);
    ASSERT_EQ(f32_to_f16(std::nextafter(middle, 1e9F)), h + 1);
    ASSERT_EQ(f32_to_f16(std::nextafter(middle, -1.0F)), h);
  }
  EXPECT_EQ(f32_to_f16(65519.996F), 0x7bff);
  EXPECT_EQ(f32_to_f16(65520.0F), 0x7c00);
  EXPECT_EQ(f32_to_bf16(std::numeric_limits<float>::max()), 0x7f80);
}

}  // namespace
}  // namespace asymkv
