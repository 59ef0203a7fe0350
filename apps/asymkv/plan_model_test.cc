#include "plan_model.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <set>

#include "asymkv/engine/cache_setup.h"
#include "asymkv/model/forward/decoder.h"
#include "asymkv/model/model_files.h"
#include "asymkv/runtime/backends.h"

namespace asymkv::app {
namespace {

namespace fs = std::filesystem;

// The planner judges by the configuration, the engine by the weights: of every family they must say the same.
TEST(PlanModel, KeyBiasIsWhatTheEngineCouldTakeOut) {
  std::set<std::string> families;
  std::set<bool> answers;
  for (const fs::directory_entry& entry :
       fs::directory_iterator(fs::path(std::getenv("ASYMKV_SOURCE_DIR")) / "tests" / "golden" / "parity")) {
    if (!fs::exists(entry.path() / "model.safetensors") && !fs::exists(entry.path() / "model.safetensors.index.json")) {
      continue;
    }
    SCOPED_TRACE(entry.path().filename().string());
    const PlannedModel planned = read_planned_model(entry.path());
    const ModelFiles files = open_model(entry.path());
    const Decoder decoder(files.config, *files.weights, select_backends("ref"));
    ASSERT_TRUE(planned.has_key_bias.has_value());
    EXPECT_EQ(*planned.has_key_bias, has_removable_key_vector(decoder));
    families.insert(files.config.model_type);
    answers.insert(*planned.has_key_bias);
  }
  EXPECT_EQ(families, (std::set<std::string>{"gemma2", "gemma3_text", "llama", "ministral3", "mistral", "phi3", "qwen2",
                                             "qwen3"}));
  EXPECT_EQ(answers, (std::set<bool>{false, true}));
}

}  // namespace
}  // namespace asymkv::app
