// Qwen2.5-Coder-0.5B-Instruct from its GGUF file, against transformers on the same file.
#include <gtest/gtest.h>

#include "parity_checks.h"

namespace asymkv::parity {
namespace {

TEST(Qwen2Parity, GreedyEqualsTransformers) {
  const auto path = fetched_model("qwen2.5-coder-0.5b-instruct-q4_k_m.gguf");
  if (!path) {
    GTEST_SKIP() << "the model file is absent; fetch it with scripts/fetch_model.py qwen2.5-coder-0.5b "
                    "(ASYMKV_TEST_SKIPPED_ENTIRELY)";
  }
  expect_greedy_equal(*open_parity_model(*path), "greedy-qwen2.5-coder-0.5b.json");
}

}  // namespace
}  // namespace asymkv::parity
