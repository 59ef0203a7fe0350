// Gemma-3-270m from its GGUF file (windows, head norms, two RoPE bases), against transformers on the same file.
#include <gtest/gtest.h>

#include "parity_checks.h"

namespace asymkv::parity {
namespace {

TEST(Gemma3Parity, GreedyEqualsTransformers) {
  const auto path = fetched_model("gemma-3-270m-q4_k_m.gguf");
  if (!path) {
    GTEST_SKIP() << "the model file is absent; fetch it with scripts/fetch_model.py gemma-3-270m "
                    "(ASYMKV_TEST_SKIPPED_ENTIRELY)";
  }
  expect_greedy_equal(*open_parity_model(*path), "greedy-gemma-3-270m.json");
}

}  // namespace
}  // namespace asymkv::parity
