#include "asymkv/kernels/cpu/model/linear.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "asymkv/kernels/cpu/model/cpu_model.h"
#include "asymkv/kernels/cpu/model/linear_kernels.h"
#include "asymkv/tensor/dtype.h"

namespace asymkv {
namespace {

constexpr GgmlType kWide[] = {GgmlType::kF32, GgmlType::kF16, GgmlType::kBF16};
constexpr GgmlType kQuantised[] = {GgmlType::kQ4_0, GgmlType::kQ4_1, GgmlType::kQ5_0,
                                   GgmlType::kQ8_0, GgmlType::kQ4_K, GgmlType::kQ6_K};

// Byte offsets of the half-precision scales of a block.
std::vector<size_t> half_offsets(GgmlType type) {
  switch (type) {
    case GgmlType::kQ4_1:
    case GgmlType::kQ4_K:
      return {0, 2};
    case GgmlType::kQ6_K:
      return {208};
    default:
      return {0};
  }
}

// Random blocks with scales of both signs; random values for the wide types.
void fill_random(GgmlType type, std::span<std::byte> bytes, unsigned seed) {
  std::mt19937 rng(seed);
  const GgmlTypeTraits& traits = ggml_type_traits(type);
  std::normal_distribution<float> normal;
  const auto block_bytes = static_cast<size_t>(traits.block_bytes);
  for (size_t b = 0; b < bytes.size(); b += block_bytes) {
    std::byte* block = bytes.data() + b;
    if (type == GgmlType::kF32) {
      const float value = normal(rng);
      std::memcpy(block, &value, sizeof(value));
      continue;
    }
    for (size_t i = 0; i < block_bytes; ++i) block[i] = static_cast<std::byte>(rng());
    for (const size_t offset : half_offsets(type)) {
      const float scale = normal(rng) * (traits.block_elems == 1 ? 1.0F : 0.02F);
      const uint16_t half = type == GgmlType::kBF16 ? f32_to_bf16(scale) : f32_to_f16(scale);
      std::memcpy(block + offset, &half, sizeof(half));
    }
  }
}

std::vector<float> random_floats(int64_t count, unsigned seed) {
  std::mt19937 rng(seed);
  std::normal_distribution<float> normal;
  std::vector<float> x(static_cast<size_t>(count));
  for (float& value : x) value = normal(rng);
  return x;
}

class LinearTypes : public testing::TestWithParam<GgmlType> {};
class QuantisedLinear : public testing::TestWithParam<GgmlType> {};

TEST_P(LinearTypes, WidensToTheDecodersValues) {
  constexpr int64_t kIn = 768;
  WeightMatrix w(kIn);
  fill_random(GetParam(), w.append(GetParam(), 5), 1);
  const cpu::LinearKernels kernels = cpu::linear_kernels(GetParam());
  ASSERT_NE(kernels.widen, nullptr);
  const WeightPart& part = w.parts()[0];
  std::vector<float> tile(5 * kIn);
  kernels.widen({reinterpret_cast<const uint8_t*>(part.data), part.row_bytes, 5, 0}, kIn, tile.data());
  std::vector<float> expected(kIn);
  for (int64_t row = 0; row < 5; ++row) {
    w.widen_row(row, expected);
    for (int64_t i = 0; i < kIn; ++i) {
      ASSERT_EQ(tile[static_cast<size_t>(row * kIn + i)], expected[static_cast<size_t>(i)]) << row << ", " << i;
    }
  }
}

// rows, outputs and depth that are no multiples of what the kernels take at once.
TEST_P(LinearTypes, MatchesDoubleSumForEveryNumberOfRows) {
  const auto backend = make_cpu_model_backend();
  constexpr int64_t kIn = 1280;
  constexpr int64_t kOut = 131;
  WeightMatrix w(kIn);
  fill_random(GetParam(), w.append(GetParam(), kOut), 2);
  const auto bias = random_floats(kOut, 3);
  std::vector<float> widened(kIn);
  for (const int64_t rows : {1, 2, 3, 4, 5, 7, 33}) {
    const auto x = random_floats(rows * kIn, 4);
    const auto before = random_floats(rows * kOut, 5);
    auto y = before;
    backend->linear({rows, x.data(), &w, bias.data(), y.data(), true});
    for (int64_t o = 0; o < kOut; ++o) {
      w.widen_row(o, widened);
      for (int64_t r = 0; r < rows; ++r) {
        const auto e = static_cast<size_t>(r * kOut + o);
        double sum = static_cast<double>(bias[static_cast<size_t>(o)]) + before[e];
        double magnitude = 1;
        for (int64_t i = 0; i < kIn; ++i) {
          const double product =
              static_cast<double>(x[static_cast<size_t>(r * kIn + i)]) * widened[static_cast<size_t>(i)];
          sum += product;
          magnitude += std::fabs(product);
        }
        ASSERT_NEAR(y[e], sum, 2e-6 * magnitude) << rows << " rows, row " << r << " column " << o;
      }
    }
  }
}

void expect_same_bits_in_every_batch(GgmlType type, int64_t in, Activations activations) {
  const auto backend = make_cpu_model_backend(activations);
  constexpr int64_t kOut = 70;
  constexpr int64_t kRows = 37;
  WeightMatrix w(in);
  fill_random(type, w.append(type, kOut), 6);
  const auto x = random_floats(kRows * in, 7);
  std::vector<float> together(kRows * kOut);
  backend->linear({kRows, x.data(), &w, nullptr, together.data(), false});
  for (const int64_t batch : {1, 2, 3, 4, 5, 6, 9, 20}) {
    std::vector<float> apart(kRows * kOut);
    for (int64_t r = 0; r < kRows; r += batch) {
      backend->linear({std::min(batch, kRows - r), x.data() + r * in, &w, nullptr, apart.data() + r * kOut, false});
    }
    ASSERT_EQ(std::memcmp(apart.data(), together.data(), apart.size() * sizeof(float)), 0) << "batches of " << batch;
  }
}

// 416: groups that are no multiple of four.
TEST_P(LinearTypes, GivesARowTheSameBitsInEveryBatch) {
  for (const Activations activations : {Activations::kF32, Activations::k16}) {
    for (const int64_t in : {2304, 416}) {
      if (in % ggml_type_traits(GetParam()).block_elems != 0) continue;
      expect_same_bits_in_every_batch(GetParam(), in, activations);
    }
  }
}

// Half a step of each group of 32 activations times its weights, and the FP32 rounding of both products.
double rounding_bound(std::span<const float> x, std::span<const float> w) {
  double bound = 0;
  for (size_t g = 0; g < x.size(); g += 32) {
    double largest = 0;
    double weights = 0;
    for (size_t i = g; i < g + 32; ++i) {
      largest = std::max(largest, std::fabs(static_cast<double>(x[i])));
      weights += std::fabs(static_cast<double>(w[i]));
    }
    bound += weights * largest * (0.5 / 32767 + 1e-5);
  }
  return bound;
}

// Against FP32 activations: the error of a product is that of 16-bit rounding, far below one of 8 bits.
TEST_P(LinearTypes, RoundedActivationsStayClose) {
  const auto exact = make_cpu_model_backend();
  const auto rounded = make_cpu_model_backend(Activations::k16);
  constexpr int64_t kIn = 1280;
  constexpr int64_t kOut = 67;
  WeightMatrix w(kIn);
  fill_random(GetParam(), w.append(GetParam(), kOut), 13);
  std::vector<float> widened(kIn);
  for (const int64_t rows : {1, 2, 3, 4, 6, 23}) {
    auto x = random_floats(rows * kIn, 14);
    std::fill_n(x.begin(), 32, 0.0F);  // a group without a largest value
    x[40] = 500.0F;                    // an outlier takes bits from its own group only
    std::vector<float> expected(static_cast<size_t>(rows * kOut));
    std::vector<float> y(expected.size());
    exact->linear({rows, x.data(), &w, nullptr, expected.data(), false});
    rounded->linear({rows, x.data(), &w, nullptr, y.data(), false});
    // Wide types have no codes to multiply: they stay with FP32 activations.
    EXPECT_EQ(y == expected, ggml_type_traits(GetParam()).block_elems == 1) << rows << " rows";
    for (int64_t o = 0; o < kOut; ++o) {
      w.widen_row(o, widened);
      for (int64_t r = 0; r < rows; ++r) {
        const auto e = static_cast<size_t>(r * kOut + o);
        const double bound = rounding_bound(std::span(x).subspan(static_cast<size_t>(r * kIn), kIn), widened);
        ASSERT_NEAR(y[e], expected[e], bound) << rows << " rows, row " << r << " column " << o;
      }
    }
  }
}

TEST(Linear, RoundsActivationsToTheNearestOf16Bits) {
  constexpr int64_t kDepth = 96;
  auto x = random_floats(kDepth, 20);
  std::fill_n(x.begin(), 32, 0.0F);
  x[40] = -700.0F;
  std::vector<int16_t> codes(kDepth);
  std::vector<float> scales(3);
  std::vector<float> sums(3);
  cpu::round_to_i16(x.data(), kDepth, codes.data(), scales.data(), sums.data());
  EXPECT_EQ(scales[0], 0.0F);
  EXPECT_EQ(codes[40], -32767);
  for (size_t g = 0; g < 3; ++g) {
    double sum = 0;
    for (size_t i = 32 * g; i < 32 * g + 32; ++i) {
      ASSERT_NEAR(scales[g] * static_cast<float>(codes[i]), x[i], 0.501 * scales[g]) << i;
      sum += static_cast<double>(scales[g]) * codes[i];
    }
    EXPECT_NEAR(sums[g], sum, 1e-7 * (1 + std::fabs(sum)));
  }
}

// What k16 multiplies: the activations that its rounding leaves.
std::vector<double> rounded_values(std::span<const float> x) {
  const size_t groups = x.size() / 32;
  std::vector<int16_t> codes(x.size());
  std::vector<float> scales(groups);
  std::vector<float> sums(groups);
  cpu::round_to_i16(x.data(), static_cast<int64_t>(x.size()), codes.data(), scales.data(), sums.data());
  std::vector<double> values(x.size());
  for (size_t i = 0; i < x.size(); ++i) values[i] = static_cast<double>(scales[i / 32]) * codes[i];
  return values;
}

void expect_exact_products(const WeightMatrix& w, std::span<const float> x, int64_t rows) {
  const auto backend = make_cpu_model_backend(Activations::k16);
  std::vector<float> y(static_cast<size_t>(rows * w.rows()));
  backend->linear({rows, x.data(), &w, nullptr, y.data(), false});
  const auto in = static_cast<size_t>(w.in());
  std::vector<float> widened(in);
  for (int64_t r = 0; r < rows; ++r) {
    const auto values = rounded_values(x.subspan(static_cast<size_t>(r) * in, in));
    for (int64_t o = 0; o < w.rows(); ++o) {
      w.widen_row(o, widened);
      double sum = 0;
      double magnitude = 1e-30;
      for (size_t i = 0; i < in; ++i) {
        sum += values[i] * widened[i];
        magnitude += std::fabs(values[i] * widened[i]);
      }
      ASSERT_NEAR(y[static_cast<size_t>(r * w.rows() + o)], sum, 1e-6 * magnitude) << "row " << r << " column " << o;
    }
  }
}

// A wrong code, scale or order shows: the bound is that of a few FP32 roundings, not of the activations' rounding.
TEST_P(QuantisedLinear, ProductsAreThoseOfTheRoundedActivations) {
  for (const int64_t in : {1280, 416}) {
    if (in % ggml_type_traits(GetParam()).block_elems != 0) continue;
    WeightMatrix w(in);
    fill_random(GetParam(), w.append(GetParam(), 37), 15);
    for (const int64_t rows : {1, 2, 3, 4, 5, 11}) expect_exact_products(w, random_floats(rows * in, 16), rows);
  }
}

// Every code at an end of its range and every activation at one: the largest sums that integers must hold.
TEST_P(QuantisedLinear, ProductsHoldTheLargestSums) {
  constexpr int64_t kIn = 512;
  for (const int fill : {0x00, 0x7f, 0x80, 0xff}) {
    WeightMatrix w(kIn);
    const std::span<std::byte> bytes = w.append(GetParam(), 5);
    fill_random(GetParam(), bytes, 17);
    const auto block_bytes = static_cast<size_t>(ggml_type_traits(GetParam()).block_bytes);
    const auto halves = half_offsets(GetParam());
    for (size_t i = 0; i < bytes.size(); ++i) {
      const size_t at = i % block_bytes;
      if (std::ranges::none_of(halves, [at](size_t half) { return at / 2 == half / 2; })) {
        bytes[i] = static_cast<std::byte>(fill);
      }
    }
    for (const int64_t rows : {1, 12}) {
      for (const float value : {1.0F, -1.0F}) {
        expect_exact_products(w, std::vector<float>(static_cast<size_t>(rows * kIn), value), rows);
      }
    }
  }
}

std::string type_name(const testing::TestParamInfo<GgmlType>& type) {
  return std::string(ggml_type_traits(type.param).name);
}
INSTANTIATE_TEST_SUITE_P(Wide, LinearTypes, testing::ValuesIn(kWide), type_name);
INSTANTIATE_TEST_SUITE_P(Quantised, LinearTypes, testing::ValuesIn(kQuantised), type_name);
INSTANTIATE_TEST_SUITE_P(Quantised, QuantisedLinear, testing::ValuesIn(kQuantised), type_name);

TEST(Linear, StacksPartsOfDifferentTypesAndOddDepths) {
  const auto backend = make_cpu_model_backend();
  WeightMatrix mixed(256);
  fill_random(GgmlType::kQ6_K, mixed.append(GgmlType::kQ6_K, 9), 8);
  fill_random(GgmlType::kQ8_0, mixed.append(GgmlType::kQ8_0, 2), 9);
  fill_random(GgmlType::kBF16, mixed.append(GgmlType::kBF16, 6), 10);
  WeightMatrix odd(77);
  fill_random(GgmlType::kF16, odd.append(GgmlType::kF16, 17), 11);
  for (const WeightMatrix* w : {&mixed, &odd}) {
    for (const int64_t rows : {1, 6}) {
      const auto x = random_floats(rows * w->in(), 12);
      std::vector<float> y(static_cast<size_t>(rows * w->rows()));
      backend->linear({rows, x.data(), w, nullptr, y.data(), false});
      std::vector<float> widened(static_cast<size_t>(w->in()));
      for (int64_t o = 0; o < w->rows(); ++o) {
        w->widen_row(o, widened);
        for (int64_t r = 0; r < rows; ++r) {
          double sum = 0;
          for (int64_t i = 0; i < w->in(); ++i) {
            sum += static_cast<double>(x[static_cast<size_t>(r * w->in() + i)]) * widened[static_cast<size_t>(i)];
          }
          ASSERT_NEAR(y[static_cast<size_t>(r * w->rows() + o)], sum, 1e-4 * (1 + std::fabs(sum))) << r << " " << o;
        }
      }
    }
  }
}

}  // namespace
}  // namespace asymkv
