// A published model from its GGUF file against transformers on the same file: one program a model (CMakeLists.txt).
#include <gtest/gtest.h>

#include <string>

#include "parity_checks.h"

namespace asymkv::parity {
namespace {

TEST(PublishedParity, GreedyEqualsTransformers) {
  const std::string model = ASYMKV_PARITY_MODEL;
  const auto path = fetched_model(ASYMKV_PARITY_FILE);
  if (!path) {
    GTEST_SKIP() << "the model file is absent; fetch it with scripts/fetch_model.py " << model
                 << " (ASYMKV_TEST_SKIPPED_ENTIRELY)";
  }
  expect_greedy_equal(*open_parity_model(*path), "greedy-" + model + ".json");
}

}  // namespace
}  // namespace asymkv::parity
