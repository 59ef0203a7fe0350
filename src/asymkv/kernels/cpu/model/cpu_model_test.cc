#include "asymkv/kernels/cpu/model/cpu_model.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numbers>
#include <random>
#include <vector>

namespace asymkv {
namespace {

std::vector<float> random_floats(size_t count, unsigned seed) {
  std::mt19937 rng(seed);
  std::normal_distribution<float> normal;
  std::vector<float> x(count);
  for (float& value : x) value = normal(rng);
  return x;
}

TEST(CpuModel, LinearMatchesDoubleSumWithBiasAndAccumulate) {
  const auto backend = make_cpu_model_backend();
  for (const int64_t rows : {1, 3, 17, 65}) {
    const int64_t in = 96;
    const int64_t out = 40;
    const auto x = random_floats(static_cast<size_t>(rows * in), 1);
    const auto w = random_floats(static_cast<size_t>(out * in), 2);
    const auto bias = random_floats(static_cast<size_t>(out), 3);
    const auto before = random_floats(static_cast<size_t>(rows * out), 4);
    auto y = before;
    const WeightMatrix matrix = WeightMatrix::from_f32(out, in, w);
    backend->linear({rows, x.data(), &matrix, bias.data(), y.data(), true});
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t o = 0; o < out; ++o) {
        double sum = static_cast<double>(bias[static_cast<size_t>(o)]) + before[static_cast<size_t>(r * out + o)];
        for (int64_t i = 0; i < in; ++i) {
          sum += static_cast<double>(x[static_cast<size_t>(r * in + i)]) * w[static_cast<size_t>(o * in + i)];
        }
        ASSERT_NEAR(y[static_cast<size_t>(r * out + o)], sum, 1e-4) << rows << " rows, row " << r << " column " << o;
      }
    }
  }
}

TEST(CpuModel, RmsNormMatchesDefinitionForOddSizes) {
  const auto backend = make_cpu_model_backend();
  for (const int64_t dim : {1, 7, 64, 257}) {
    const int64_t rows = 5;
    const auto x = random_floats(static_cast<size_t>(rows * dim), 5);
    const auto weight = random_floats(static_cast<size_t>(dim), 6);
    std::vector<float> y(x.size());
    backend->rms_norm({rows, dim, 1e-6F, x.data(), weight.data(), y.data()});
    for (int64_t r = 0; r < rows; ++r) {
      double sum = 0;
      for (int64_t i = 0; i < dim; ++i) sum += std::pow(static_cast<double>(x[static_cast<size_t>(r * dim + i)]), 2);
      for (int64_t i = 0; i < dim; ++i) {
        const auto e = static_cast<size_t>(r * dim + i);
        const double expected =
            x[e] / std::sqrt(sum / static_cast<double>(dim) + 1e-6) * weight[static_cast<size_t>(i)];
        ASSERT_NEAR(y[e], expected, 1e-5 * (1 + std::fabs(expected)));
      }
    }
  }
}

TEST(CpuModel, SiluMulStaysFiniteAndExactAtExtremes) {
  const auto backend = make_cpu_model_backend();
  std::vector<float> gate_up = random_floats(38, 7);
  gate_up[0] = -100.0F;
  gate_up[1] = 100.0F;
  gate_up[2] = -1e30F;
  gate_up[3] = -71000.0F;
  std::vector<float> y(19);
  backend->silu_mul(1, 19, gate_up.data(), y.data());
  for (size_t i = 0; i < 19; ++i) {
    const double g = gate_up[i];
    const double expected = g / (1 + std::exp(-g)) * gate_up[19 + i];
    ASSERT_NEAR(y[i], expected, 2e-6 * (1 + std::fabs(expected))) << "element " << i;
  }
}

TEST(CpuModel, GeluMulStaysFiniteAndExactAtExtremes) {
  const auto backend = make_cpu_model_backend();
  std::vector<float> gate_up = random_floats(38, 9);
  const float extremes[] = {-100.0F, 100.0F, -1e30F, 1e30F, 0.0F, -5.0F, 5.0F, -1e-20F};
  std::copy(std::begin(extremes), std::end(extremes), gate_up.begin());
  std::copy(std::begin(extremes), std::end(extremes), gate_up.begin() + 11);  // in the scalar tail, too
  std::vector<float> y(19);
  backend->gelu_mul(1, 19, gate_up.data(), y.data());
  for (size_t i = 0; i < 19; ++i) {
    const double g = gate_up[i];
    const double z = std::sqrt(2 / std::numbers::pi) * (g + 0.044715 * g * g * g);
    const double expected = g / 2 * (1 + std::tanh(z)) * gate_up[19 + i];
    ASSERT_NEAR(y[i], expected, 3e-6 * (1 + std::fabs(expected))) << "element " << i << " gate " << g;
  }
}

TEST(CpuModel, RotateMatchesRopeTable) {
  const auto backend = make_cpu_model_backend();
  const RopeTable rope(rope_frequencies(10000.0, 80), 300, 1.25);
  const std::vector<int32_t> positions = {0, 1, 17, 299};
  auto x = random_floats(4 * 3 * 80, 8);
  auto expected = x;
  const auto qkv = x;
  PrepareQkvParams params;
  params.split = {.rows = 4, .q_dim = 3 * 80, .qkv = qkv.data(), .q = x.data()};
  params.head_dim = 80;
  params.rope = &rope;
  params.positions = positions;
  backend->prepare_qkv(params);
  for (size_t r = 0; r < 4; ++r) {
    for (size_t h = 0; h < 3; ++h) rope.rotate(positions[r], expected.data() + (r * 3 + h) * 80);
  }
  for (size_t i = 0; i < x.size(); ++i) ASSERT_NEAR(x[i], expected[i], 1e-6);
}

TEST(CpuModel, SplitQkvAddsTheBiasesOfQueriesAndValues) {
  const auto backend = make_cpu_model_backend();
  const std::vector<float> qkv = {1, 2, 3, 4, 5, 6, 7, 8};  // two rows of q (2), k (1), v (1)
  const std::vector<float> q_bias = {10, 20}, v_bias = {30};
  std::vector<float> q(4), k(2), v(2);
  const RopeTable rope(rope_frequencies(10000.0, 2), 1, 1.0);
  const std::vector<int32_t> positions = {0, 0};  // where RoPE changes nothing
  PrepareQkvParams params;
  params.split = {2, 2, 1, qkv.data(), q_bias.data(), v_bias.data(), q.data(), k.data(), v.data()};
  params.head_dim = 2;
  params.rope = &rope;
  params.positions = positions;
  backend->prepare_qkv(params);
  EXPECT_EQ(q, (std::vector<float>{11, 22, 15, 26}));
  EXPECT_EQ(k, (std::vector<float>{3, 7}));
  EXPECT_EQ(v, (std::vector<float>{34, 38}));
  params.split.q_bias = params.split.v_bias = nullptr;
  backend->prepare_qkv(params);
  EXPECT_EQ(q, (std::vector<float>{1, 2, 5, 6}));
  EXPECT_EQ(v, (std::vector<float>{4, 8}));
}

TEST(CpuModel, AddScaleAndCap) {
  const auto backend = make_cpu_model_backend();
  std::vector<float> x = {1, 2, 3, 4};
  const std::vector<float> y = {1, 1, 0, -1}, factors = {2, 10};
  backend->add(4, y.data(), x.data());
  EXPECT_EQ(x, (std::vector<float>{2, 3, 3, 3}));
  backend->scale_rows(factors, 2, x.data());
  EXPECT_EQ(x, (std::vector<float>{4, 6, 30, 30}));
  backend->cap_softly(5.0F, 4, x.data());
  EXPECT_NEAR(x[0], 5 * std::tanh(0.8), 1e-6);
  EXPECT_NEAR(x[3], 5 * std::tanh(6.0), 1e-6);
}

TEST(CpuModel, FiniteArgmaxTakesTheFirstLargestAndRefusesNan) {
  const auto backend = make_cpu_model_backend();
  const float nan = std::nanf(""), inf = INFINITY;
  const std::vector<float> x = {-3, -1, -1, -2, 5, nan, 7, 1, 0, 2, -inf, 1};
  const auto best = backend->finite_argmax(3, 4, x.data());
  ASSERT_EQ(best.size(), 3U);
  EXPECT_EQ(best[0], 1);
  EXPECT_EQ(best[1], std::nullopt);
  EXPECT_EQ(best[2], std::nullopt);
}

TEST(CpuModel, DrawsTokensOfEachRowAndRefusesNan) {
  const auto backend = make_cpu_model_backend();
  const std::vector<float> x = {0, 1, 1, -1, 0, 0, std::nanf(""), 0, 3, 2, 1, 0};
  const std::vector<double> uniforms = {0.6, 0.5, 0.0};
  using Tokens = std::vector<std::optional<int32_t>>;
  EXPECT_EQ(backend->draw_tokens({.temperature = 1.0, .top_k = 2}, uniforms, 4, x.data()),
            (Tokens{2, std::nullopt, 0}));
  EXPECT_EQ(backend->draw_tokens({}, uniforms, 4, x.data()), (Tokens{1, std::nullopt, 0}));
}

TEST(CpuModel, TargetLossesAreThoseOfASoftmax) {
  const auto backend = make_cpu_model_backend();
  const std::vector<float> x = {1, 2, 3, 1000, 0, 0, 1, std::nanf(""), 0, 0, 0, -INFINITY};
  const std::vector<int32_t> targets = {1, 0, 0, 2};
  const std::vector<double> losses = backend->target_losses(targets, 3, x.data());
  ASSERT_EQ(losses.size(), 4U);
  EXPECT_NEAR(losses[0], std::log(std::exp(1.0) + std::exp(2.0) + std::exp(3.0)) - 2.0, 1e-12);
  EXPECT_NEAR(losses[1], 0.0, 1e-12);
  EXPECT_FALSE(std::isfinite(losses[2]));
  EXPECT_FALSE(std::isfinite(losses[3]));
}

TEST(ModelOps, PlacesValuesAndGivesNullForNone) {
  const auto backend = make_cpu_model_backend();
  const std::vector<float> values = {1, 2, 3};
  const FloatArray placed = place_values(*backend, values);
  std::vector<float> back(3);
  backend->download(placed.data(), back);
  EXPECT_EQ(back, values);
  EXPECT_EQ(placed.size(), 3);
  EXPECT_EQ(place_values(*backend, {}).data(), nullptr) << "an absent bias must not be added";
}

}  // namespace
}  // namespace asymkv
