// Operations of the model on a Hopper GPU against those of the CPU.

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <map>
#include <random>

#include "asymkv/engine/engine_testkit.h"
#include "asymkv/runtime/backends.h"
#include "asymkv/runtime/backends_testkit.h"
#include "asymkv/tensor/dtype.h"
#include "asymkv/tensor/q5_0_testkit.h"

namespace asymkv {
namespace {

const ModelBackend& backend_on(const std::string& device, Activations activations = Activations::kF32) {
  static std::map<std::pair<std::string, Activations>, Backends> backends;
  const auto [known, added] = backends.try_emplace({device, activations});
  if (added) known->second = select_backends(device, activations);
  return *known->second.model;
}

TEST(CudaModel, FiniteArgmaxTakesTheFirstLargestAndRefusesNan) {
  if (test::cannot_run_cuda()) GTEST_SKIP();
  constexpr int64_t kDim = 1000;
  std::vector<float> x(4 * kDim, -1.0F);
  x[777] = x[300] = 2.5F;       // the first of two
  x[2 * kDim + 999] = NAN;      // not finite
  x[3 * kDim + 5] = -INFINITY;  // nor this
  const ModelBackend& backend = backend_on("cuda");
  const auto best = backend.finite_argmax(4, kDim, place_values(backend, x).data());
  EXPECT_EQ(best, (std::vector<std::optional<int32_t>>{300, 0, std::nullopt, std::nullopt}));
}

TEST(CudaModel, TargetLossesAreTheCpus) {
  if (test::cannot_run_cuda()) GTEST_SKIP();
  constexpr int64_t kRows = 5, kDim = 1000;
  std::vector<float> x;
  for (int64_t i = 0; i < kRows * kDim; ++i) x.push_back(20.0F * std::sin(static_cast<float>(i) * 0.7F));
  x[3 * kDim + 999] = NAN;
  x[4 * kDim + 4] = -INFINITY;  // the target
  const std::vector<int32_t> targets = {0, 999, 500, 3, 4};
  std::map<std::string, std::vector<double>> losses;
  for (const char* device : {"cpu", "cuda"}) {
    const ModelBackend& backend = backend_on(device);
    losses[device] = backend.target_losses(targets, kDim, place_values(backend, x).data());
    ASSERT_EQ(losses[device].size(), targets.size());
  }
  for (size_t i = 0; i < 3; ++i) EXPECT_NEAR(losses["cuda"][i], losses["cpu"][i], 1e-6);
  for (size_t i = 3; i < 5; ++i) EXPECT_FALSE(std::isfinite(losses["cuda"][i]));
}

// Queries rounded to FP8 take the same values on both devices.
TEST(CudaModel, RoundsQueryRowsAsTheCpuDoes) {
  if (test::cannot_run_cuda()) GTEST_SKIP();
  constexpr int64_t kRows = 37, kDim = 64;
  std::vector<float> rows;
  for (int64_t i = 0; i < kRows * kDim; ++i) {
    rows.push_back(std::sin(static_cast<float>(i)) * std::exp(static_cast<float>(i % 23) - 12.0F));
  }
  std::fill_n(rows.begin(), kDim, 0.0F);
  std::map<std::string, std::vector<float>> rounded;
  for (const char* device : {"cpu", "cuda"}) {
    const ModelBackend& backend = backend_on(device);
    const FloatArray placed = place_values(backend, rows);
    backend.round_rows(DType::kE4M3, kRows, kDim, placed.data());
    rounded[device].resize(rows.size());
    backend.download(placed.data(), rounded[device]);
  }
  EXPECT_EQ(rounded["cuda"], rounded["cpu"]);
  EXPECT_NE(rounded["cpu"], rows);
}

// Of rows that the device does not keep for products.
void expect_cpus_rows(GgmlType type) {
  constexpr int64_t kRows = 3000, kDim = 8192;  // a table of 64 MiB holds 2,048 of them
  WeightMatrix matrix(kDim), placed(kDim);
  for (WeightMatrix* m : {&matrix, &placed}) {
    const std::span<std::byte> bytes = m->append(type, kRows);
    std::mt19937 random(5);
    for (size_t i = 0; i < bytes.size(); i += 2) {
      const auto half = static_cast<uint16_t>(random() & 0xBBFFU);  // finite, also as the upper half of 32 bits
      std::memcpy(&bytes[i], &half, 2);
    }
  }
  const ModelBackend& cuda = backend_on("cuda", Activations::k16);
  cuda.place_rows(placed);
  std::mt19937 random(6);
  for (const size_t count : std::initializer_list<size_t>{5U, 700U, 900U, 1100U, 3U, 6000U, 40U}) {
    std::vector<int32_t> rows(count);
    for (int32_t& row : rows) row = static_cast<int32_t>(random() % kRows);
    std::vector<float> expected(count * kDim), found(count * kDim);
    backend_on("cpu").embed(matrix, rows, 1.5F, expected.data());
    const FloatArray x = cuda.allocate(std::ssize(found));
    cuda.embed(placed, rows, 1.5F, x.data());
    cuda.download(x.data(), found);
    EXPECT_EQ(found, expected) << count;
  }
}

// FP16 rows lie on the device. Others are brought over when they are asked for; the table is filled and starts over,
// and a call of more rows than it holds is served too.
TEST(CudaModel, LooksUpTheCpusRows) {
  if (test::cannot_run_cuda()) GTEST_SKIP();
  expect_cpus_rows(GgmlType::kF16);
  expect_cpus_rows(GgmlType::kF32);
}

// The sums of weights are rounded in another order there: no number of these falls on a bound.
TEST(CudaModel, DrawsTheCpusTokens) {
  if (test::cannot_run_cuda()) GTEST_SKIP();
  constexpr int kRows = 24;
  const SamplingLaw laws[] = {{.temperature = 0.7},
                              {.temperature = 1.3, .top_p = 0.9},
                              {.temperature = 1.0, .top_k = 40},
                              {.temperature = 2.0, .top_p = 0.5, .top_k = 1000},
                              {.temperature = 1e-3},
                              {}};
  std::mt19937 random(3);
  for (const int64_t dim : {int64_t{5}, int64_t{1024}, int64_t{151936}}) {
    std::normal_distribution<float> normal(0.0F, 3.0F);
    std::uniform_real_distribution<double> uniform(0.0, 1.0);
    std::vector<float> x(static_cast<size_t>(kRows * dim));
    for (float& logit : x) logit = std::round(normal(random) * 64.0F) / 64.0F;  // many equals, and zeros of both signs
    x[static_cast<size_t>(dim + 3)] = NAN;
    x[static_cast<size_t>(2 * dim + 4)] = -INFINITY;
    std::vector<double> uniforms(kRows);
    for (double& number : uniforms) number = uniform(random);
    uniforms[5] = 0.0;
    for (const SamplingLaw& law : laws) {
      const auto on = [&](const char* device) {
        const ModelBackend& backend = backend_on(device);
        return backend.draw_tokens(law, uniforms, dim, place_values(backend, x).data());
      };
      EXPECT_EQ(on("cuda"), on("cpu")) << dim << " " << law.temperature << " " << law.top_p << " " << law.top_k;
    }
  }
}

// Few rows multiply codes as they are, many the matrix widened to BF16; activations are BF16 in both.
TEST(CudaModel, Int4ProductsAreTheCpus) {
  if (test::cannot_run_cuda()) GTEST_SKIP();
  const ModelBackend& cuda = backend_on("cuda", Activations::k16);
  const ModelBackend& cpu = backend_on("cpu");
  for (const auto& [out, in, group] : {std::array<int64_t, 3>{896, 4864, 128}, {72, 320, 64}, {1000, 1024, 32}}) {
    WeightMatrix matrix = test::draw_q5_groups(out, in, group, 15), placed = test::draw_q5_groups(out, in, group, 15);
    cuda.place(placed, false);
    EXPECT_EQ(placed.placed()->bytes(), (out + 31) / 32 * 32 * (in / 2 + in / group * 4));
    WeightMatrix on_cpu = test::draw_q5_groups(out, in, group, 15);
    cpu.place(on_cpu, true);
    for (const int64_t rows : {1, 8, 9, 16, 31, 32, 33, 128, 129, 200}) {
      std::mt19937 random(static_cast<unsigned>(rows));
      std::normal_distribution<float> normal;
      std::vector<float> x(static_cast<size_t>(rows * in)), y(static_cast<size_t>(rows * out), 0.5F);
      for (float& value : x) value = bf16_to_f32(f32_to_bf16(normal(random)));
      std::vector<float> expected = y;
      const auto run = [&](const ModelBackend& backend, const WeightMatrix& w, std::vector<float>& result) {
        const FloatArray from = place_values(backend, x), to = place_values(backend, result);
        backend.linear({.rows = rows, .x = from.data(), .w = &w, .y = to.data(), .accumulate = true});
        backend.download(to.data(), result);
      };
      run(cuda, placed, y);
      run(cpu, on_cpu, expected);
      EXPECT_LT(test::relative_distance(y, expected), rows <= 128 ? 2e-6 : 3e-3) << out << " " << in << " " << rows;
      // As an operand: in BF16, and without what y held.
      const FloatArray from = place_values(cuda, x), to = cuda.allocate(rows * out);
      cuda.linear({.rows = rows, .x = from.data(), .w = &placed, .y = to.data(), .y_is_operand = true});
      std::vector<float> held(static_cast<size_t>(rows * out / 2));  // all of `out` are even
      cuda.download(to.data(), held);
      std::vector<uint16_t> narrow(2 * held.size());
      std::memcpy(narrow.data(), held.data(), std::span(narrow).size_bytes());
      std::ranges::transform(narrow, y.begin(), bf16_to_f32);
      for (float& value : expected) value -= 0.5F;
      EXPECT_LT(test::relative_distance(y, expected), 3e-3) << out << " " << in << " " << rows << " in BF16";
    }
  }
}

}  // namespace
}  // namespace asymkv
