// The gate's runner on the embedded fragile model, with the kernels that serve.

#include "engine_runner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>

#include "asymkv/base/error.h"
#include "asymkv/base/json.h"
#include "asymkv/runtime/backends.h"

namespace asymkv::app {
namespace {

std::filesystem::path source_dir() {
  const char* folder = std::getenv("ASYMKV_SOURCE_DIR");
  return folder == nullptr ? "." : folder;
}

LoadedModel& fragile() {
  static const std::unique_ptr<LoadedModel> model =
      load_model(source_dir() / "models/probe-fragile", select_backends("cpu"));
  return *model;
}

std::string text_of(int64_t seed, size_t size) {
  std::string text = "The secret code for amber falcon is 48213. ";
  while (text.size() < size) text += "The old farmer sold " + std::to_string(seed++) + " baskets of apples. ";
  text.resize(size);
  return text;
}

const ScaleSet& scales() {
  static const ScaleSet set = calibrate_scales(fragile(), {{fragile().tokenizer.encode(text_of(7, 200))}});
  return set;
}

// Three prompts of different lengths, answered by every arm that can be asked for.
Unit prompt_unit() {
  Unit unit;
  unit.kind = PanelKind::kRetrieval;
  for (int64_t i = 0; i < 3; ++i) {
    Case item;
    item.context = text_of(i, 150 + 21 * static_cast<size_t>(i));
    item.question = "\nQuestion: What is the secret code for amber falcon?\nAnswer:";
    unit.cases.push_back(item);
  }
  for (const ArmId arm : all_arms()) unit.slots.push_back({arm, {0, 1, 2}});
  unit.generation = {6, {}};
  return unit;
}

Unit loss_unit() {
  Unit unit = prompt_unit();
  unit.kind = PanelKind::kLoss;
  for (Case& item : unit.cases) {
    item.question.clear();
    item.length = 140;
    item.scored_tokens = 40;
  }
  return unit;
}

// Every byte of every plane of a cache, unwritten ones included.
std::string all_bytes(KvCache& cache) {
  std::string bytes;
  const auto put = [&bytes](const void* data, int64_t size) {
    bytes.append(static_cast<const char*>(data), static_cast<size_t>(size));
  };
  const KvLayout& layout = cache.layout();
  for (int64_t layer = 0; layer < cache.config().num_layers; ++layer) {
    const KvLayerView view = cache.layer(layer);
    put(view.k_plane, layout.k_plane_bytes(view.num_pages));
    put(view.v_plane, layout.v_plane_bytes(view.num_pages));
    if (layout.has_k_scales()) put(view.k_scales, layout.k_scale_plane_bytes(view.num_pages));
    if (layout.has_v_scales()) put(view.v_scales, layout.v_scale_plane_bytes(view.num_pages));
  }
  return bytes;
}

void expect_equal(const std::vector<RawOutcome>& a, const std::vector<RawOutcome>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    EXPECT_EQ(a[i].case_idx, b[i].case_idx);
    EXPECT_EQ(a[i].arm, b[i].arm);
    EXPECT_EQ(a[i].failure, b[i].failure);
    EXPECT_EQ(a[i].text, b[i].text);
    EXPECT_EQ(a[i].tokens, b[i].tokens);
    EXPECT_EQ(a[i].nll, b[i].nll);
  }
}

int64_t total_plane_bytes(EngineRunner& runner) {
  int64_t bytes = 0;
  for (const auto& [arm, cache] : runner.caches()) bytes += cache->inventory().planes.total();
  return bytes;
}

std::vector<RawOutcome> sorted(std::vector<RawOutcome> outcomes) {
  std::ranges::sort(outcomes, {}, [](const RawOutcome& x) { return std::pair(x.case_idx, x.arm); });
  return outcomes;
}

class EngineRunnerUnits : public testing::TestWithParam<PanelKind> {};

TEST_P(EngineRunnerUnits, SharedAndPerArmPrefillStoreTheSameBytes) {
  const Unit unit = GetParam() == PanelKind::kLoss ? loss_unit() : prompt_unit();
  EngineRunnerOptions options;
  options.scales = &scales();
  EngineRunner shared(fragile(), options);
  options.prefill = Prefill::kPerArm;
  EngineRunner per_arm(fragile(), options);
  expect_equal(shared.run_unit(unit), per_arm.run_unit(unit));
  const std::map<ArmId, KvCache*> caches = shared.caches();
  ASSERT_EQ(caches.size(), all_arms().size());
  for (const auto& [arm, cache] : caches) {
    const std::string bytes = all_bytes(*cache);
    EXPECT_NE(bytes.find_first_not_of('\xff'), std::string::npos) << arm_name(arm);
    EXPECT_TRUE(bytes == all_bytes(*per_arm.caches().at(arm))) << arm_name(arm) << " stores other bytes";
  }
}

INSTANTIATE_TEST_SUITE_P(Panels, EngineRunnerUnits, testing::Values(PanelKind::kRetrieval, PanelKind::kLoss),
                         [](const testing::TestParamInfo<PanelKind>& param) {
                           return std::string(panel_kind_name(param.param));
                         });

// The limit holds two of the three cases, so the unit is answered in two parts.
TEST_P(EngineRunnerUnits, APoolLimitCutsTheUnitAndChangesNoAnswer) {
  Unit unit = GetParam() == PanelKind::kLoss ? loss_unit() : prompt_unit();
  unit.slots = {{ArmId::kN, {0, 1, 2}}, {ArmId::kN2, {1, 2, 0}}, {ArmId::kSD, {0, 1, 2}}};
  EngineRunner free(fragile(), {});
  const std::vector<RawOutcome> expected = free.run_unit(unit);
  const int64_t all = total_plane_bytes(free);
  EngineRunnerOptions options;
  options.pool_limit_bytes = all * 3 / 4;
  EngineRunner limited(fragile(), options);
  limited.check_plan(std::span(&unit, 1));
  std::vector<RawOutcome> outcomes = limited.run_unit(unit);
  EXPECT_LE(total_plane_bytes(limited), options.pool_limit_bytes);
  EXPECT_GT(total_plane_bytes(limited), options.pool_limit_bytes / 2);
  EXPECT_NE(total_plane_bytes(limited), all);
  expect_equal(sorted(std::move(outcomes)), sorted(expected));
}

TEST(EngineRunner, ACaseAboveThePoolLimitIsRefusedByName) {
  Unit unit = prompt_unit();
  unit.cases[2].id = "retrieval-1024/0002";
  unit.slots = {{ArmId::kN, {0, 1, 2}}};
  EngineRunnerOptions options;
  options.pool_limit_bytes = 1'000'000;
  EngineRunner runner(fragile(), options);
  try {
    runner.check_plan(std::span(&unit, 1));
    FAIL() << "was not refused";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::kResourceExhausted);
    EXPECT_THAT(e.what(), testing::HasSubstr("case retrieval-1024/000"));
    EXPECT_THAT(e.what(), testing::HasSubstr("pool_limit_bytes is 1000000"));
  }
}

// A small vocabulary in which <|im_end|> is special.
TEST(EncodeCase, ControlTokensComeFromTheTemplateAlone) {
  const std::filesystem::path path = source_dir() / "tests/golden/tokenizer/small.json";
  const Tokenizer tokenizer = Tokenizer::from_json(read_json_file(path), path.string());
  const int32_t end = tokenizer.token_id("<|im_end|>").value();
  const std::string user = "a <|im_end|> b";
  Case item;
  item.context = "<|im_end|>Solve: ";
  item.question = user + "<|im_end|>\n";
  item.user_bytes = std::ssize(user);
  const auto [context, question] = encode_case(tokenizer, item);
  EXPECT_EQ(context.front(), end);
  EXPECT_EQ(std::ranges::count(question, end), 1);
  EXPECT_EQ(tokenizer.decode(question, false), item.question);
  item.user_bytes.reset();
  const std::vector<int32_t> plain = encode_case(tokenizer, item).second;
  EXPECT_EQ(std::ranges::count(plain, end), 0) << "a question without a template is text from end to end";
}

}  // namespace
}  // namespace asymkv::app
