#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "asymkv/base/json.h"

namespace asymkv {

// What one layer's attention saw on real activations: queries of the last num_queries positions, and all keys and
// values, rounded to the model's native type.
struct ProbeLayerInput {
  int64_t layer_idx = 0;
  int64_t num_queries = 0;
  int64_t num_keys = 0;  // query i stands at position num_keys - num_queries + i and sees keys up to its own
  int64_t num_q_heads = 0;
  int64_t num_kv_heads = 0;
  int64_t head_dim = 0;
  std::span<const float> q;       // [num_queries, num_q_heads, head_dim] after RoPE
  std::span<const float> k;       // [num_keys, num_kv_heads, head_dim] after bias and RoPE
  std::span<const float> v;       // [num_keys, num_kv_heads, head_dim]
  std::span<const float> k_bias;  // [num_kv_heads, head_dim]; may be empty
  double attention_scale = 0;     // of q . k; 0: 1 / sqrt(head_dim)
  double soft_cap = 0;            // cap * tanh(logit / cap); 0: none
  int64_t window = 0;             // a query sees the keys of this many positions, its own included; 0: all
};

// One layer, worst over heads where it says max, with E4M3 keys (values) under one dynamic scale per token and head and
// everything else native.
struct LayerProbe {
  int64_t layer_idx = 0;
  double k_bias_norm = 0;  // Euclidean norm over all heads (weights only)
  double k_max = 0;        // largest |key|
  double v_max = 0;        // largest |value|
  double k_flushed = 0;    // share of non-zero elements stored as zero
  double v_flushed = 0;
  double k_snr_db = 0;  // 10 log10(sum x^2 / sum (x - stored)^2); 0 error gives 200
  double v_snr_db = 0;
  double logit_noise = 0;       // rms over rows of the change of the logits, row mean removed; mean of heads
  double logit_noise_max = 0;   // the worst head's
  double logit_change_max = 0;  // largest |change| of one logit
  double row_kl = 0;            // mean KL divergence of the attention row with stored keys from the native one, nats
  double k8_output_error = 0;   // relative L2 error of the attention output, E4M3 keys alone
  double v8_output_error = 0;   // the same, E4M3 values alone
};

// Measures one layer. Pure; allocates a few rows. Throws Error{kInternal} if shapes and spans do not fit, and
// Error{kBadInput} naming the layer if an activation is NaN or infinite.
LayerProbe probe_layer(const ProbeLayerInput& input);
// Element-wise mean of several documents' rows for one layer (maxima are kept as maxima). Throws Error{kInternal} for
// no row or rows of several layers.
LayerProbe merge_layer_probes(std::span<const LayerProbe> rows);

enum class Fragility { kRobust, kUndecided, kFragile };
std::string_view fragility_name(Fragility value);  // "robust", "undecided", "fragile"

// Thresholds on logit_noise, scored in docs/probe.md. One layer is enough to break a model whose mean is small: in
// Qwen2.5-Coder-1.5B the first one has 4.5, the mean of all 28 is 0.32, and a fifth of the answers is lost.
struct ProbeThresholds {
  double robust_noise = 0.15;   // of the mean over layers, at most
  double fragile_noise = 0.50;  // of the mean over layers, at least
  // Of the worst layer, at least: the logits of a row change by 1 nat rms, its weights by a factor of e. Absent from
  // files that were written before the rule was known; the mean alone decides there.
  std::optional<double> fragile_layer_noise = 1.0;

  // From this noise on a layer's keys count as fragile in charts.
  double layer_limit() const { return fragile_layer_noise.value_or(fragile_noise); }
};

struct ProbeResult {
  Fragility verdict = Fragility::kUndecided;
  double mean_logit_noise = 0;
  double worst_logit_noise() const;      // of one layer
  std::vector<int64_t> deciding_layers;  // noise above the robust threshold, worst first
  std::vector<LayerProbe> layers;
  ProbeThresholds thresholds;
};

// Judges the layers. A probe never admits anything by itself.
ProbeResult judge_probe(std::vector<LayerProbe> layers, const ProbeThresholds& thresholds = {});
Json probe_to_json(const ProbeResult& result);
// Strict inverse: a missing, unknown or mistyped field is an Error{kBadInput} naming `origin` and the field.
ProbeResult probe_from_json(const Json& json, std::string_view origin);

}  // namespace asymkv
