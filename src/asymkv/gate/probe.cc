#include "asymkv/gate/probe.h"

#include <algorithm>
#include <cmath>

#include "asymkv/base/error.h"
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

// Softmax in place; returns log of the denominator plus the maximum.
double softmax(std::vector<double>& row) {
  const double largest = *std::ranges::max_element(row);
  double sum = 0;
  for (double& x : row) sum += x = std::exp(x - largest);
  for (double& x : row) x /= sum;
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
    const int64_t visible = in_.num_keys - in_.num_queries + query + 1;
    const float* q = in_.q.data() + (query * in_.num_q_heads + q_head) * in_.head_dim;
    native_ = logits(q, keys_.native, visible);
    stored_ = logits(q, keys_.stored, visible);
    add_noise(sums);
    softmax(native_);
    const std::vector<double> stored_logits = stored_;
    const double stored_log = softmax(stored_);
    // KL(native || stored) = sum p (log p - log p'), with log p' from the stored logits themselves.
    for (size_t j = 0; j < native_.size(); ++j) {
      if (native_[j] > 0) sums.kl += native_[j] * (std::log(native_[j]) - (stored_logits[j] - stored_log));
    }
    add_outputs(sums);
  }

 private:
  std::vector<double> logits(const float* q, const std::vector<float>& keys, int64_t visible) const {
    std::vector<double> row(static_cast<size_t>(visible));
    const double scale = 1.0 / std::sqrt(static_cast<double>(in_.head_dim));
    for (size_t j = 0; j < row.size(); ++j) {
      double sum = 0;
      const float* k = keys.data() + j * static_cast<size_t>(in_.head_dim);
      for (int64_t i = 0; i < in_.head_dim; ++i) sum += static_cast<double>(q[i]) * k[i];
      row[j] = sum * scale;
    }
    return row;
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

  void add_outputs(HeadSums& sums) const {
    const auto dim = static_cast<size_t>(in_.head_dim);
    for (size_t i = 0; i < dim; ++i) {
      double native = 0;
      double k8 = 0;
      double v8 = 0;
      for (size_t j = 0; j < native_.size(); ++j) {
        native += native_[j] * values_.native[j * dim + i];
        k8 += stored_[j] * values_.native[j * dim + i];
        v8 += native_[j] * values_.stored[j * dim + i];
      }
      sums.output += native * native;
      sums.k8_error += (k8 - native) * (k8 - native);
      sums.v8_error += (v8 - native) * (v8 - native);
    }
  }

  const ProbeLayerInput& in_;
  const StoredSide& keys_;
  const StoredSide& values_;
  std::vector<double> native_;
  std::vector<double> stored_;
};

void check_shapes(const ProbeLayerInput& in) {
  const auto kv_elems = static_cast<size_t>(in.num_keys * in.num_kv_heads * in.head_dim);
  ASYMKV_CHECK(in.k.size() == kv_elems && in.v.size() == kv_elems, "keys {} and values {} for {} elements", in.k.size(),
               in.v.size(), kv_elems);
  ASYMKV_CHECK(in.q.size() == static_cast<size_t>(in.num_queries * in.num_q_heads * in.head_dim), "{} query elements",
               in.q.size());
  ASYMKV_CHECK(in.num_queries > 0 && in.num_queries <= in.num_keys && in.num_q_heads % in.num_kv_heads == 0,
               "{} queries, {} keys, {} and {} heads", in.num_queries, in.num_keys, in.num_q_heads, in.num_kv_heads);
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

ProbeResult judge_probe(std::vector<LayerProbe> layers, const ProbeThresholds& thresholds) {
  ASYMKV_CHECK(!layers.empty(), "no layers to judge");
  ProbeResult result;
  result.thresholds = thresholds;
  for (const LayerProbe& layer : layers)
    result.mean_logit_noise += layer.logit_noise / static_cast<double>(layers.size());
  result.verdict = Fragility::kUndecided;
  if (result.mean_logit_noise <= thresholds.robust_noise) result.verdict = Fragility::kRobust;
  if (result.mean_logit_noise >= thresholds.fragile_noise) result.verdict = Fragility::kFragile;
  std::vector<LayerProbe> sorted = layers;
  std::ranges::stable_sort(sorted, std::greater<>(), &LayerProbe::logit_noise);
  for (const LayerProbe& layer : sorted) {
    if (layer.logit_noise > thresholds.robust_noise) result.deciding_layers.push_back(layer.layer_idx);
  }
  result.layers = std::move(layers);
  return result;
}

Json probe_to_json(const ProbeResult& result) {
  Json layers = Json::array();
  for (const LayerProbe& layer : result.layers) {
    layers.push_back({{"layer", layer.layer_idx},
                      {"k_bias_norm", layer.k_bias_norm},
                      {"k_max", layer.k_max},
                      {"v_max", layer.v_max},
                      {"k_flushed", layer.k_flushed},
                      {"v_flushed", layer.v_flushed},
                      {"k_snr_db", layer.k_snr_db},
                      {"v_snr_db", layer.v_snr_db},
                      {"logit_noise", layer.logit_noise},
                      {"logit_noise_max", layer.logit_noise_max},
                      {"logit_change_max", layer.logit_change_max},
                      {"row_kl", layer.row_kl},
                      {"k8_output_error", layer.k8_output_error},
                      {"v8_output_error", layer.v8_output_error}});
  }
  return {{"verdict", fragility_name(result.verdict)},
          {"mean_logit_noise", result.mean_logit_noise},
          {"deciding_layers", result.deciding_layers},
          {"thresholds",
           {{"robust_noise", result.thresholds.robust_noise}, {"fragile_noise", result.thresholds.fragile_noise}}},
          {"layers", std::move(layers)}};
}

}  // namespace asymkv
