#include "asymkv/gate/probe.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>

#include "asymkv/base/error.h"
#include "asymkv/gate/random.h"

namespace asymkv {
namespace {

constexpr int64_t kQueries = 8, kKeys = 48, kQHeads = 4, kKvHeads = 2, kDim = 32;

// About normal, by twelve uniform numbers.
float normal(Random& random) {
  double sum = -6;
  for (int i = 0; i < 12; ++i) sum += static_cast<double>(random.below(1 << 20)) / (1 << 20);
  return static_cast<float>(sum);
}

struct Layer {
  std::vector<float> q, k, v, bias;
  ProbeLayerInput input() const { return {0, kQueries, kKeys, kQHeads, kKvHeads, kDim, q, k, v, bias}; }
};

using Element = std::function<float(Random&, int64_t position, int64_t channel)>;

Layer make_layer(const Element& key, const Element& value) {
  Random random(7);
  Layer layer;
  for (int64_t i = 0; i < kQueries * kQHeads * kDim; ++i) layer.q.push_back(normal(random));
  for (int64_t position = 0; position < kKeys; ++position) {
    for (int64_t i = 0; i < kKvHeads * kDim; ++i) {
      layer.k.push_back(key(random, position, i % kDim));
      layer.v.push_back(value(random, position, i % kDim));
    }
  }
  return layer;
}

float noise_only(Random& random, int64_t, int64_t) {
  return normal(random);
}
// A large constant of the first half of the channels, rotated by position as RoPE does.
float biased(Random& random, int64_t position, int64_t channel) {
  const double angle = 0.1 * static_cast<double>(position * (channel + 1));
  return normal(random) + (channel < kDim / 2 ? 300.0F * static_cast<float>(std::cos(angle)) : 0.0F);
}
// Exact in E4M3 under the row's scale: the largest element is 448, so the scale is 1.
float exact(Random& random, int64_t, int64_t channel) {
  return channel == 0 ? 448.0F : static_cast<float>(random.between(-16, 16));
}

TEST(Probe, SmallKeysAreRobust) {
  const LayerProbe layer = probe_layer(make_layer(noise_only, noise_only).input());
  EXPECT_GT(layer.logit_noise, 0.001);
  EXPECT_LT(layer.logit_noise, 0.1);
  EXPECT_GT(layer.k_snr_db, 25);
  EXPECT_LT(layer.v8_output_error, 0.05);
  EXPECT_EQ(judge_probe({layer}).verdict, Fragility::kRobust);
}

TEST(Probe, LargeKeyBiasIsFragileAndValuesAreNotBlamed) {
  const Layer inputs = make_layer(biased, noise_only);
  const LayerProbe layer = probe_layer(inputs.input());
  EXPECT_GT(layer.logit_noise, 0.5);
  EXPECT_GE(layer.logit_noise_max, layer.logit_noise);
  EXPECT_GE(layer.logit_change_max, layer.logit_noise);
  EXPECT_GT(layer.row_kl, 0);
  EXPECT_GT(layer.k8_output_error, 5 * layer.v8_output_error);
  EXPECT_GT(layer.k_max, 290);
  EXPECT_EQ(judge_probe({layer}).verdict, Fragility::kFragile);
  // The same input again gives the same numbers.
  EXPECT_EQ(probe_layer(inputs.input()).logit_noise, layer.logit_noise);
}

TEST(Probe, ExactlyStoredRowsHaveNoErrorAtAll) {
  const LayerProbe layer = probe_layer(make_layer(exact, exact).input());
  EXPECT_EQ(layer.logit_noise, 0);
  EXPECT_EQ(layer.logit_noise_max, 0);
  EXPECT_EQ(layer.logit_change_max, 0);
  EXPECT_EQ(layer.row_kl, 0);
  EXPECT_EQ(layer.k8_output_error, 0);
  EXPECT_EQ(layer.v8_output_error, 0);
  EXPECT_EQ(layer.k_snr_db, 200);
  EXPECT_EQ(layer.v_snr_db, 200);
  EXPECT_EQ(layer.k_flushed, 0);
}

TEST(Probe, FlushedElementsAreCounted) {
  // 448 sets the scale to 1; 0.0009 is below half of the smallest code, 2^-9.
  const auto tiny = [](Random&, int64_t, int64_t channel) { return channel == 0 ? 448.0F : 0.0009F; };
  const LayerProbe layer = probe_layer(make_layer(tiny, exact).input());
  EXPECT_NEAR(layer.k_flushed, 31.0 / 32.0, 1e-12);
}

TEST(Probe, AllZeroKeysAndValuesAreServed) {
  const auto zero = [](Random&, int64_t, int64_t) { return 0.0F; };
  const LayerProbe layer = probe_layer(make_layer(zero, zero).input());
  EXPECT_EQ(layer.logit_noise, 0);
  EXPECT_EQ(layer.k8_output_error, 0);
  EXPECT_EQ(layer.k_max, 0);
}

TEST(Probe, FollowsTheLayersWindowScaleAndSoftCap) {
  const Layer layer = make_layer(noise_only, noise_only);
  const LayerProbe plain = probe_layer(layer.input());
  ProbeLayerInput input = layer.input();
  input.window = kKeys;
  EXPECT_EQ(probe_layer(input).logit_noise, plain.logit_noise);
  input.window = 1;  // a query that sees its own key alone has nothing to weigh
  EXPECT_EQ(probe_layer(input).row_kl, 0);
  EXPECT_EQ(probe_layer(input).k8_output_error, 0);
  EXPECT_GT(probe_layer(input).v8_output_error, 0);
  input = layer.input();
  input.attention_scale = 0.5 / std::sqrt(static_cast<double>(kDim));
  EXPECT_NEAR(probe_layer(input).logit_noise, plain.logit_noise / 2, 1e-12);
  input = layer.input();
  input.soft_cap = 1e-3;
  EXPECT_LT(probe_layer(input).logit_change_max, 2.1e-3);
}

TEST(Probe, NonFiniteActivationsAndBadShapesAreRefused) {
  Layer layer = make_layer(noise_only, noise_only);
  layer.k[5] = std::numeric_limits<float>::quiet_NaN();
  try {
    probe_layer(layer.input());
    ADD_FAILURE() << "no error";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::kBadInput);
    EXPECT_NE(std::string(e.what()).find("layer 0: the keys"), std::string::npos) << e.what();
  }
  const Layer good = make_layer(noise_only, noise_only);
  ProbeLayerInput input = good.input();
  input.num_kv_heads = 0;
  EXPECT_THROW(probe_layer(input), Error);
  input = good.input();
  input.num_queries = kKeys + 1;
  EXPECT_THROW(probe_layer(input), Error);
  input = good.input();
  input.k = input.k.subspan(1);
  EXPECT_THROW(probe_layer(input), Error);
}

LayerProbe with_noise(int64_t layer_idx, double noise) {
  LayerProbe layer;
  layer.layer_idx = layer_idx;
  layer.logit_noise = noise;
  return layer;
}

TEST(Probe, ThresholdsDecideOnTheMeanAndLayersAreNamedWorstFirst) {
  EXPECT_EQ(judge_probe({with_noise(0, 0.15)}).verdict, Fragility::kRobust);
  EXPECT_EQ(judge_probe({with_noise(0, 0.1501)}).verdict, Fragility::kUndecided);
  EXPECT_EQ(judge_probe({with_noise(0, 0.4999)}).verdict, Fragility::kUndecided);
  EXPECT_EQ(judge_probe({with_noise(0, 0.5)}).verdict, Fragility::kFragile);
  const ProbeResult result = judge_probe({with_noise(0, 0.2), with_noise(1, 0.1), with_noise(2, 3.0)});
  EXPECT_EQ(result.verdict, Fragility::kFragile);
  EXPECT_DOUBLE_EQ(result.mean_logit_noise, 1.1);
  EXPECT_EQ(result.deciding_layers, (std::vector<int64_t>{2, 0}));
  EXPECT_THROW(judge_probe({}), Error);
}

TEST(Probe, OneLayerIsEnoughToBeFragile) {
  std::vector<LayerProbe> layers = {with_noise(0, 0.9999)};
  for (int64_t i = 1; i < 10; ++i) layers.push_back(with_noise(i, 0.05));
  EXPECT_EQ(judge_probe(layers).verdict, Fragility::kRobust);
  layers[0].logit_noise = 1.0;
  const ProbeResult result = judge_probe(layers);
  EXPECT_EQ(result.verdict, Fragility::kFragile);
  EXPECT_EQ(result.worst_logit_noise(), 1.0);
  // As files say that were written before the rule.
  EXPECT_EQ(judge_probe(layers, {0.15, 0.5, std::nullopt}).verdict, Fragility::kRobust);
}

TEST(Probe, MergeTakesMeansAndMaxima) {
  LayerProbe a = with_noise(3, 0.2), b = with_noise(3, 0.4);
  a.k_max = 5;
  b.k_max = 9;
  b.logit_noise_max = 0.9;
  const std::vector<LayerProbe> rows = {a, b};
  const LayerProbe merged = merge_layer_probes(rows);
  EXPECT_EQ(merged.layer_idx, 3);
  EXPECT_NEAR(merged.logit_noise, 0.3, 1e-15);
  EXPECT_EQ(merged.k_max, 9);
  EXPECT_EQ(merged.logit_noise_max, 0.9);
  EXPECT_THROW(merge_layer_probes(std::vector<LayerProbe>{a, with_noise(4, 0.1)}), Error);
  EXPECT_THROW(merge_layer_probes({}), Error);
}

TEST(Probe, JsonComesBackUnchanged) {
  const LayerProbe layer = probe_layer(make_layer(biased, noise_only).input());
  const Json json = probe_to_json(judge_probe({layer, with_noise(1, 0.25)}));
  EXPECT_EQ(probe_to_json(probe_from_json(json, "x")), json);
  Json earlier = json;
  earlier["thresholds"].erase("fragile_layer_noise");
  EXPECT_EQ(probe_to_json(probe_from_json(earlier, "x")), earlier);
  Json broken = json;
  broken["layers"][0].erase("row_kl");
  EXPECT_THROW(probe_from_json(broken, "x"), Error);
  broken = json;
  broken["verdict"] = "safe";
  EXPECT_THROW(probe_from_json(broken, "x"), Error);
}

}  // namespace
}  // namespace asymkv
