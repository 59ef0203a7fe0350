// Models that are in the tree: tiny folders written by transformers, and the embedded pair.
#include <gtest/gtest.h>

#include <array>

#include "parity_checks.h"

namespace asymkv::parity {
namespace {

TEST(SmallParity, TinyQwen2GreedyEqualsTransformers) {
  const auto model = open_parity_model(golden_path("tiny-qwen2"));
  expect_greedy_equal(*model, "greedy-tiny-qwen2.json");
}

// The sharded folder holds the same weights in FP32.
TEST(SmallParity, ShardedTinyQwen2GreedyEqualsTransformers) {
  const auto model = open_parity_model(golden_path("tiny-qwen2-sharded"));
  expect_greedy_equal(*model, "greedy-tiny-qwen2.json");
}

TEST(SmallParity, TinyLlamaGreedyEqualsTransformers) {
  const auto model = open_parity_model(golden_path("tiny-llama"));
  expect_greedy_equal(*model, "greedy-tiny-llama.json");
}

TEST(SmallParity, HalfPrecisionTinyLlamaGreedyEqualsTransformers) {
  const auto model = open_parity_model(golden_path("tiny-llama-f16"));
  expect_greedy_equal(*model, "greedy-tiny-llama-f16.json");
}

// The greedy comparison can fail: another model's golden does not fit.
TEST(SmallParity, AnotherModelsTokensDiverge) {
  const auto model = open_parity_model(golden_path("tiny-llama"));
  const GreedyReport report = run_greedy(*model, read_json_file(golden_path("greedy-tiny-qwen2.json")));
  EXPECT_GT(report.divergences.size(), 15U);
  EXPECT_GT(report.largest_logit_error, 0.1);
}

class EmbeddedLosses : public testing::TestWithParam<std::string> {};

TEST_P(EmbeddedLosses, EqualTorchReadingStoredBytes) {
  const auto model = open_parity_model(source_path("models/" + GetParam()));
  expect_losses_equal(*model, "losses-" + GetParam() + ".json");
}

TEST_P(EmbeddedLosses, SilentSixteenBitReadsAreNoticed) {
  const auto model = open_parity_model(source_path("models/" + GetParam()));
  const std::array<std::string, 3> arms = {"AD", "SD", "JD"};
  expect_silent_16_bit_reads_noticed(*model, "losses-" + GetParam() + ".json", arms);
}

INSTANTIATE_TEST_SUITE_P(Pair, EmbeddedLosses, testing::Values("probe-robust", "probe-fragile"),
                         [](const auto& parameter) { return parameter.param.substr(6); });

}  // namespace
}  // namespace asymkv::parity
