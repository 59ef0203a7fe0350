#include "asymkv/gate/probe.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <utility>

#include "asymkv/base/error.h"
#include "asymkv/base/json_fields.h"
#include "asymkv/base/parallel.h"
#include "asymkv/kv/codec.h"

namespace asymkv {
namespace {

constexpr double kNoErrorDb = 200.0;

double snr_db(double signal, double error) {
  return error > 0 ? 10.0 * std::log10(signal / error) : kNoErrorDb;
}

// One KV head's rows as native FP32 and as read back from E4M3.
struct StoredSide {
  std::vector<float> native;  // [num_keys, head_dim]
  std::vector<float> stored;
  double max = 0;
  double signal = 0;
  double error = 0;
  int64_t flushed = 0;
  int64_t nonzero = 0;
};

StoredSide store_head(const ProbeLayerInput& in, std::span<const float> rows, int64_t head) {
  StoredSide side;
  const auto dim = static_cast<size_t>(in.head_dim);
  side.native.resize(static_cast<size_t>(in.num_keys) * dim);
  side.stored.resize(side.native.size());
  std::vector<std::byte> bytes(dim);
  SideCounters counters;
  for (int64_t key = 0; key < in.num_keys; ++key) {
    const auto row = rows.subspan(static_cast<size_t>(key * in.num_kv_heads + head) * dim, dim);
    const float scale = dynamic_scale(DType::kE4M3, row);
    encode_row(DType::kE4M3, scale, row, bytes.data(), counters);
    const auto out = std::span(side.stored).subspan(static_cast<size_t>(key) * dim, dim);
    decode_row(DType::kE4M3, scale, bytes.data(), out);
    for (size_t i = 0; i < dim; ++i) {
      side.native[static_cast<size_t>(key) * dim + i] = row[i];
      const double x = row[i];
      const double delta = out[i] - x;
      side.max = std::max(side.max, std::fabs(x));
      side.signal += x * x;
      side.error += delta * delta;
      side.nonzero += x != 0 ? 1 : 0;
      side.flushed += x != 0 && out[i] == 0 ? 1 : 0;
    }
  }
  return side;
}

// Softmax of `logits` into `probabilities`; returns the log of the denominator, so that log p = logit - result.
double softmax(const std::vector<double>& logits, std::vector<double>& probabilities) {
  const double largest = *std::ranges::max_element(logits);
  probabilities.resize(logits.size());
  double sum = 0;
  for (size_t j = 0; j < logits.size(); ++j) sum += probabilities[j] = std::exp(logits[j] - largest);
  for (double& p : probabilities) p /= sum;
  return largest + std::log(sum);
}

// Sums over the rows of one query head.
struct HeadSums {
  double noise_squares = 0;
  int64_t logits = 0;
  double change_max = 0;
  double kl = 0;
  double output = 0;
  double k8_error = 0;
  double v8_error = 0;
};

class RowProbe {
 public:
  RowProbe(const ProbeLayerInput& in, const StoredSide& keys, const StoredSide& values)
      : in_(in), keys_(keys), values_(values) {}

  void add(int64_t query, int64_t q_head, HeadSums& sums) {
    const int64_t last = in_.num_keys - in_.num_queries + query;
    first_ = static_cast<size_t>(in_.window == 0 ? 0 : std::max<int64_t>(0, last + 1 - in_.window));
    const auto visible = static_cast<size_t>(last) + 1 - first_;
    const float* q = in_.q.data() + (query * in_.num_q_heads + q_head) * in_.head_dim;
    compute_logits(q, keys_.native, visible, native_);
    compute_logits(q, keys_.stored, visible, stored_);
    add_noise(sums);
    const double native_log = softmax(native_, native_p_);
    const double stored_log = softmax(stored_, stored_p_);
    // KL(native || stored) = sum p (log p - log p'), both logarithms from the logits: equal logits give exactly 0.
    double kl = 0;
    for (size_t j = 0; j < native_.size(); ++j) {
      kl += native_p_[j] * ((native_[j] - native_log) - (stored_[j] - stored_log));
    }
    sums.kl += std::max(kl, 0.0);
    add_outputs(sums);
  }

 private:
  void compute_logits(const float* q, const std::vector<float>& keys, size_t visible, std::vector<double>& row) const {
    row.resize(visible);
    const double scale =
        in_.attention_scale > 0 ? in_.attention_scale : 1.0 / std::sqrt(static_cast<double>(in_.head_dim));
    for (size_t j = 0; j < row.size(); ++j) {
      double sum = 0;
      const float* k = keys.data() + (first_ + j) * static_cast<size_t>(in_.head_dim);
      for (int64_t i = 0; i < in_.head_dim; ++i) sum += static_cast<double>(q[i]) * k[i];
      row[j] = in_.soft_cap > 0 ? in_.soft_cap * std::tanh(sum * scale / in_.soft_cap) : sum * scale;
    }
  }

  void add_noise(HeadSums& sums) const {
    double mean = 0;
    for (size_t j = 0; j < native_.size(); ++j) mean += stored_[j] - native_[j];
    mean /= static_cast<double>(native_.size());
    for (size_t j = 0; j < native_.size(); ++j) {
      const double change = stored_[j] - native_[j];
      sums.noise_squares += (change - mean) * (change - mean);
      sums.change_max = std::max(sums.change_max, std::fabs(change));
    }
    sums.logits += static_cast<int64_t>(native_.size());
  }

  void add_outputs(HeadSums& sums) {
    const auto dim = static_cast<size_t>(in_.head_dim);
    // [native, E4M3 keys alone, E4M3 values alone] of every channel.
    outputs_.assign(dim, {0.0, 0.0, 0.0});
    for (size_t j = 0; j < native_p_.size(); ++j) {
      const float* native_v = values_.native.data() + (first_ + j) * dim;
      const float* stored_v = values_.stored.data() + (first_ + j) * dim;
      for (size_t i = 0; i < dim; ++i) {
        outputs_[i][0] += native_p_[j] * native_v[i];
        outputs_[i][1] += stored_p_[j] * native_v[i];
        outputs_[i][2] += native_p_[j] * stored_v[i];
      }
    }
    for (const auto& [native, k8, v8] : outputs_) {
      sums.output += native * native;
      sums.k8_error += (k8 - native) * (k8 - native);
      sums.v8_error += (v8 - native) * (v8 - native);
    }
  }

  const ProbeLayerInput& in_;
  const StoredSide& keys_;
  const StoredSide& values_;
  size_t first_ = 0;            // oldest visible key
  std::vector<double> native_;  // logits of one row
  std::vector<double> stored_;
  std::vector<double> native_p_;  // their softmax
  std::vector<double> stored_p_;
  std::vector<std::array<double, 3>> outputs_;
};

void check_shapes(const ProbeLayerInput& in) {
  ASYMKV_CHECK(in.num_queries > 0 && in.num_queries <= in.num_keys && in.num_kv_heads > 0 && in.num_q_heads > 0 &&
                   in.num_q_heads % in.num_kv_heads == 0 && in.head_dim > 0,
               "{} queries, {} keys, {} and {} heads of {}", in.num_queries, in.num_keys, in.num_q_heads,
               in.num_kv_heads, in.head_dim);
  const auto kv_elems = static_cast<size_t>(in.num_keys * in.num_kv_heads * in.head_dim);
  ASYMKV_CHECK(in.k.size() == kv_elems && in.v.size() == kv_elems, "keys {} and values {} for {} elements", in.k.size(),
               in.v.size(), kv_elems);
  ASYMKV_CHECK(in.q.size() == static_cast<size_t>(in.num_queries * in.num_q_heads * in.head_dim), "{} query elements",
               in.q.size());
  ASYMKV_CHECK(in.k_bias.empty() || in.k_bias.size() == static_cast<size_t>(in.num_kv_heads * in.head_dim),
               "{} key bias elements", in.k_bias.size());
}

// A NaN would pass every comparison with a threshold and end as "undecided".
void check_finite(const ProbeLayerInput& in) {
  const std::pair<std::string_view, std::span<const float>> sides[] = {
      {"queries", in.q}, {"keys", in.k}, {"values", in.v}, {"key bias", in.k_bias}};
  for (const auto& [name, elems] : sides) {
    if (std::ranges::all_of(elems, [](float x) { return std::isfinite(x); })) continue;
    throw_bad_input("layer {}: the {} hold a NaN or an infinity, so its fragility cannot be probed", in.layer_idx,
                    name);
  }
}

struct LayerSums {
  StoredSide keys;  // sums over heads; rows unused
  StoredSide values;
  std::vector<HeadSums> heads;
};

void add_side(StoredSide& sum, const StoredSide& head) {
  sum.max = std::max(sum.max, head.max);
  sum.signal += head.signal;
  sum.error += head.error;
  sum.flushed += head.flushed;
  sum.nonzero += head.nonzero;
}

double share(int64_t part, int64_t whole) {
  return whole > 0 ? static_cast<double>(part) / static_cast<double>(whole) : 0.0;
}

LayerProbe finish_layer(const ProbeLayerInput& in, const LayerSums& sums) {
  LayerProbe probe;
  probe.layer_idx = in.layer_idx;
  for (const float b : in.k_bias) probe.k_bias_norm += static_cast<double>(b) * b;
  probe.k_bias_norm = std::sqrt(probe.k_bias_norm);
  probe.k_max = sums.keys.max;
  probe.v_max = sums.values.max;
  probe.k_flushed = share(sums.keys.flushed, sums.keys.nonzero);
  probe.v_flushed = share(sums.values.flushed, sums.values.nonzero);
  probe.k_snr_db = snr_db(sums.keys.signal, sums.keys.error);
  probe.v_snr_db = snr_db(sums.values.signal, sums.values.error);
  HeadSums total;
  const auto num_heads = static_cast<double>(sums.heads.size());
  for (const HeadSums& head : sums.heads) {
    const double noise = std::sqrt(head.noise_squares / static_cast<double>(head.logits));
    probe.logit_noise += noise / num_heads;
    probe.logit_noise_max = std::max(probe.logit_noise_max, noise);
    probe.logit_change_max = std::max(probe.logit_change_max, head.change_max);
    total.kl += head.kl;
    total.output += head.output;
    total.k8_error += head.k8_error;
    total.v8_error += head.v8_error;
  }
  probe.row_kl = total.kl / (num_heads * static_cast<double>(in.num_queries));
  probe.k8_output_error = total.output > 0 ? std::sqrt(total.k8_error / total.output) : 0.0;
  probe.v8_output_error = total.output > 0 ? std::sqrt(total.v8_error / total.output) : 0.0;
  return probe;
}

}  // namespace

LayerProbe probe_layer(const ProbeLayerInput& in) {
  check_shapes(in);
  check_finite(in);
  const int64_t group = in.num_q_heads / in.num_kv_heads;
  LayerSums sums;
  sums.heads.resize(static_cast<size_t>(in.num_q_heads));
  std::vector<StoredSide> keys(static_cast<size_t>(in.num_kv_heads));
  std::vector<StoredSide> values(static_cast<size_t>(in.num_kv_heads));
  parallel_for(in.num_kv_heads, [&](int64_t head, int) {
    keys[static_cast<size_t>(head)] = store_head(in, in.k, head);
    values[static_cast<size_t>(head)] = store_head(in, in.v, head);
  });
  parallel_for(in.num_q_heads, [&](int64_t q_head, int) {
    const auto kv_head = static_cast<size_t>(q_head / group);
    RowProbe rows(in, keys[kv_head], values[kv_head]);
    for (int64_t query = 0; query < in.num_queries; ++query)
      rows.add(query, q_head, sums.heads[static_cast<size_t>(q_head)]);
  });
  for (const StoredSide& head : keys) add_side(sums.keys, head);
  for (const StoredSide& head : values) add_side(sums.values, head);
  return finish_layer(in, sums);
}

LayerProbe merge_layer_probes(std::span<const LayerProbe> rows) {
  ASYMKV_CHECK(!rows.empty(), "no probe rows to merge");
  LayerProbe merged = rows[0];
  for (const LayerProbe& row : rows.subspan(1)) {
    ASYMKV_CHECK(row.layer_idx == merged.layer_idx, "rows of layers {} and {}", merged.layer_idx, row.layer_idx);
    merged.k_max = std::max(merged.k_max, row.k_max);
    merged.v_max = std::max(merged.v_max, row.v_max);
    merged.logit_noise_max = std::max(merged.logit_noise_max, row.logit_noise_max);
    merged.logit_change_max = std::max(merged.logit_change_max, row.logit_change_max);
  }
  for (double LayerProbe::*field :
       {&LayerProbe::k_flushed, &LayerProbe::v_flushed, &LayerProbe::k_snr_db, &LayerProbe::v_snr_db,
        &LayerProbe::logit_noise, &LayerProbe::row_kl, &LayerProbe::k8_output_error, &LayerProbe::v8_output_error}) {
    double sum = 0;
    for (const LayerProbe& row : rows) sum += row.*field;
    merged.*field = sum / static_cast<double>(rows.size());
  }
  return merged;
}

std::string_view fragility_name(Fragility value) {
  switch (value) {
    case Fragility::kRobust:
      return "robust";
    case Fragility::kUndecided:
      return "undecided";
    case Fragility::kFragile:
      return "fragile";
  }
  return "?";
}

double ProbeResult::worst_logit_noise() const {
  return std::ranges::max(layers, {}, &LayerProbe::logit_noise).logit_noise;
}

ProbeResult judge_probe(std::vector<LayerProbe> layers, const ProbeThresholds& thresholds) {
  ASYMKV_CHECK(!layers.empty(), "no layers to judge");
  ProbeResult result;
  result.thresholds = thresholds;
  for (const LayerProbe& layer : layers)
    result.mean_logit_noise += layer.logit_noise / static_cast<double>(layers.size());
  std::vector<LayerProbe> sorted = layers;
  std::ranges::stable_sort(sorted, std::greater<>(), &LayerProbe::logit_noise);
  for (const LayerProbe& layer : sorted) {
    if (layer.logit_noise > thresholds.robust_noise) result.deciding_layers.push_back(layer.layer_idx);
  }
  result.layers = std::move(layers);
  result.verdict = Fragility::kUndecided;
  if (result.mean_logit_noise <= thresholds.robust_noise) result.verdict = Fragility::kRobust;
  if (result.mean_logit_noise >= thresholds.fragile_noise) result.verdict = Fragility::kFragile;
  if (thresholds.fragile_layer_noise && result.worst_logit_noise() >= *thresholds.fragile_layer_noise) {
    result.verdict = Fragility::kFragile;
  }
  return result;
}

namespace {

struct ProbeField {
  std::string name;
  double LayerProbe::*member;
};

const std::vector<ProbeField>& probe_fields() {
  static const std::vector<ProbeField> fields = {{"k_bias_norm", &LayerProbe::k_bias_norm},
                                                 {"k_max", &LayerProbe::k_max},
                                                 {"v_max", &LayerProbe::v_max},
                                                 {"k_flushed", &LayerProbe::k_flushed},
                                                 {"v_flushed", &LayerProbe::v_flushed},
                                                 {"k_snr_db", &LayerProbe::k_snr_db},
                                                 {"v_snr_db", &LayerProbe::v_snr_db},
                                                 {"logit_noise", &LayerProbe::logit_noise},
                                                 {"logit_noise_max", &LayerProbe::logit_noise_max},
                                                 {"logit_change_max", &LayerProbe::logit_change_max},
                                                 {"row_kl", &LayerProbe::row_kl},
                                                 {"k8_output_error", &LayerProbe::k8_output_error},
                                                 {"v8_output_error", &LayerProbe::v8_output_error}};
  return fields;
}

Fragility fragility_from(JsonFields& fields) {
  const std::string name = fields.text("verdict");
  for (const Fragility value : {Fragility::kRobust, Fragility::kUndecided, Fragility::kFragile}) {
    if (fragility_name(value) == name) return value;
  }
  fields.fail("verdict", "must be robust, undecided or fragile");
}

Json thresholds_to_json(const ProbeThresholds& thresholds) {
  Json json = {{"robust_noise", thresholds.robust_noise}, {"fragile_noise", thresholds.fragile_noise}};
  if (thresholds.fragile_layer_noise) json["fragile_layer_noise"] = *thresholds.fragile_layer_noise;
  return json;
}

ProbeThresholds thresholds_from(JsonFields fields) {
  ProbeThresholds thresholds;
  thresholds.robust_noise = fields.number("robust_noise");
  thresholds.fragile_noise = fields.number("fragile_noise");
  thresholds.fragile_layer_noise.reset();
  if (fields.has("fragile_layer_noise")) thresholds.fragile_layer_noise = fields.number("fragile_layer_noise");
  fields.finish();
  return thresholds;
}

}  // namespace

Json probe_to_json(const ProbeResult& result) {
  Json layers = Json::array();
  for (const LayerProbe& layer : result.layers) {
    Json row = {{"layer", layer.layer_idx}};
    for (const ProbeField& field : probe_fields()) row[field.name] = layer.*field.member;
    layers.push_back(std::move(row));
  }
  return {{"verdict", fragility_name(result.verdict)},
          {"mean_logit_noise", result.mean_logit_noise},
          {"deciding_layers", result.deciding_layers},
          {"thresholds", thresholds_to_json(result.thresholds)},
          {"layers", std::move(layers)}};
}

ProbeResult probe_from_json(const Json& json, std::string_view origin) {
  JsonFields fields(json, std::string(origin), "probe.");
  ProbeResult result;
  result.verdict = fragility_from(fields);
  result.mean_logit_noise = fields.number("mean_logit_noise");
  result.thresholds = thresholds_from(fields.object("thresholds"));
  for (JsonFields& row : fields.objects("layers")) {
    LayerProbe layer;
    layer.layer_idx = row.integer("layer");
    for (const ProbeField& field : probe_fields()) layer.*field.member = row.number(field.name);
    row.finish();
    result.layers.push_back(layer);
  }
  if (result.layers.empty()) fields.fail("layers", "is empty");
  const Json& deciding = fields.raw("deciding_layers");
  if (!deciding.is_array()) fields.fail("deciding_layers", "must be a list of integers");
  for (const Json& layer : deciding) {
    if (!layer.is_number_integer()) fields.fail("deciding_layers", "must hold integers only");
    result.deciding_layers.push_back(layer.get<int64_t>());
  }
  fields.finish();
  return result;
}

}  // namespace asymkv
