// SmolLM2-135M-Instruct from its GGUF file, against transformers on the same file.
#include <gtest/gtest.h>

#include "parity_checks.h"

namespace asymkv::parity {
namespace {

constexpr const char* kFile = "SmolLM2-135M-Instruct.Q4_1.gguf";
constexpr const char* kAbsent =
    "the model file is absent; fetch it with scripts/fetch_model.py smollm2-135m (ASYMKV_TEST_SKIPPED_ENTIRELY)";

TEST(SmolLm2Parity, GreedyEqualsTransformers) {
  const auto path = fetched_model(kFile);
  if (!path) GTEST_SKIP() << kAbsent;
  expect_greedy_equal(*open_parity_model(*path), "greedy-smollm2-135m.json");
}

TEST(SmolLm2Parity, LossesEqualTorchReadingStoredBytes) {
  const auto path = fetched_model(kFile);
  if (!path) GTEST_SKIP() << kAbsent;
  expect_losses_equal(*open_parity_model(*path), "losses-smollm2-135m.json");
}

}  // namespace
}  // namespace asymkv::parity
