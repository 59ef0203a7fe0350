#include <gtest/gtest.h>

#include "asymkv/model/tokenizer/golden_check.h"

namespace asymkv {
namespace {

TEST(Qwen2Golden, IdsAndTextsAreTheReferences) {
  const auto path = find_test_model("qwen2.5-coder-0.5b-instruct-q4_k_m.gguf");
  if (path.empty()) {
    GTEST_SKIP() << "SKIPPED: the model is not there, get it with scripts/fetch_model.py qwen2.5-coder-0.5b"
                 << " (ASYMKV_TEST_SKIPPED_ENTIRELY)";
  }
  const Tokenizer tokenizer = load_tokenizer(path);
  EXPECT_EQ(tokenizer.vocab_size(), 151665);
  EXPECT_EQ(tokenizer.bos_id(), 151643);
  EXPECT_EQ(tokenizer.eos_ids(), std::vector<int32_t>{151645});
  expect_golden(tokenizer, read_golden("qwen2_golden.json"), golden_strings());
}

}  // namespace
}  // namespace asymkv
