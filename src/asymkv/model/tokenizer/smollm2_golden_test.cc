#include <gtest/gtest.h>

#include "asymkv/model/tokenizer/golden_check.h"

namespace asymkv {
namespace {

TEST(Smollm2Golden, IdsAndTextsAreTheReferences) {
  const auto path = find_test_model("SmolLM2-135M-Instruct.Q4_1.gguf");
  if (path.empty()) {
    GTEST_SKIP() << "SKIPPED: the model is not there, get it with scripts/fetch_model.py smollm2-135m"
                 << " (ASYMKV_TEST_SKIPPED_ENTIRELY)";
  }
  const Tokenizer tokenizer = load_tokenizer(path);
  EXPECT_EQ(tokenizer.vocab_size(), 49152);
  EXPECT_EQ(tokenizer.bos_id(), 1);
  EXPECT_EQ(tokenizer.eos_ids(), std::vector<int32_t>{2});
  expect_golden(tokenizer, read_golden("smollm2_golden.json"), golden_strings());
}

}  // namespace
}  // namespace asymkv
