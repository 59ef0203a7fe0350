#include "asymkv/model/rope_config.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "asymkv/model/config.h"

namespace asymkv {
namespace {

// tests/parity/make_rope_golden.py: ROPE_INIT_FUNCTIONS of transformers, which compute in FP32.
TEST(RopeConfig, FrequenciesAndAttentionFactorsEqualTransformers) {
  const char* source = std::getenv("ASYMKV_SOURCE_DIR");
  const std::filesystem::path root = source == nullptr ? "." : source;
  const Json golden = read_json_file(root / "tests/golden/parity/rope-frequencies.json");
  ASSERT_EQ(golden["cases"].size(), 10U);
  for (const Json& row : golden["cases"]) {
    const std::string name = row["name"];
    const ModelConfig config = config_from_hf(row["config"], name, DType::kF32);
    const RopeConfig& rope = config.ropes.at(0);
    const std::vector<double> got = rope_inverse_frequencies(rope, config.head_dim, row["num_positions"]);
    ASSERT_EQ(got.size(), row["frequencies"].size()) << name;
    for (size_t p = 0; p < got.size(); ++p) {
      EXPECT_NEAR(got[p] / row["frequencies"][p].get<double>(), 1.0, 2e-6) << name << " pair " << p;
    }
    EXPECT_NEAR(rope.scaling.attention_factor, row["attention_factor"].get<double>(), 1e-12) << name;
  }
}

TEST(RopeConfig, OnlyLongRopeDependsOnTheLength) {
  RopeConfig rope;
  rope.scaling.original_max_position = 8;
  rope.scaling.pair_factors = {1.0F, 2.0F};
  rope.scaling.long_pair_factors = {4.0F, 8.0F};
  for (const RopeScalingKind kind : {RopeScalingKind::kNone, RopeScalingKind::kLinear, RopeScalingKind::kLlama3,
                                     RopeScalingKind::kYarn, RopeScalingKind::kFactors}) {
    rope.scaling.kind = kind;
    EXPECT_EQ(rope_inverse_frequencies(rope, 4, 8), rope_inverse_frequencies(rope, 4, 9)) << rope_scaling_name(kind);
  }
  rope.scaling.kind = RopeScalingKind::kLongRope;
  EXPECT_DOUBLE_EQ(rope_inverse_frequencies(rope, 4, 8)[1], 0.01 / 2);
  EXPECT_DOUBLE_EQ(rope_inverse_frequencies(rope, 4, 9)[1], 0.01 / 8);
}

}  // namespace
}  // namespace asymkv
