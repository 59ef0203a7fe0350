#include <algorithm>
#include <utility>

#include "asymkv/base/error.h"
#include "asymkv/model/forward/decoder_parts.h"

namespace asymkv {
namespace {

constexpr int64_t kInitialPositions = 1024;

// Matrices of the same row length stacked into one as they are stored, so that one product serves them all.
WeightMatrix read_matrix(const WeightSource& source, const std::vector<std::string>& names) {
  WeightMatrix stacked(source.info(names.front()).row_elems());
  for (const std::string& name : names) source.append_stored(name, stacked);
  source.drop_resident_pages();
  return stacked;
}

std::vector<float> read_optional(const WeightSource& source, const std::string& name) {
  return source.contains(name) ? source.read_f32(name) : std::vector<float>();
}

// The matrices that make up [q | k | v] and [gate | up]: one where the file stores them fused.
std::vector<std::string> qkv_names(const ModelConfig& config, const std::string& attention) {
  if (config.fused_projections) return {attention + "qkv_proj.weight"};
  return {attention + "q_proj.weight", attention + "k_proj.weight", attention + "v_proj.weight"};
}

std::vector<std::string> gate_up_names(const ModelConfig& config, const std::string& layer) {
  if (config.fused_projections) return {layer + "mlp.gate_up_proj.weight"};
  return {layer + "mlp.gate_proj.weight", layer + "mlp.up_proj.weight"};
}

std::vector<float> read_norm(const WeightSource& source, const std::string& name, const ModelConfig& config) {
  std::vector<float> weight = source.read_f32(name);
  for (float& w : weight) w += static_cast<float>(config.norm_weight_offset);
  return weight;
}

}  // namespace

Decoder::Decoder(const ModelConfig& config, const WeightSource& weights, Backends backends)
    : config_(config), backends_(std::move(backends)), weights_(std::make_unique<Weights>()) {
  ropes_.resize(config.ropes.size());
  reserve_positions(std::min(kInitialPositions, position_limit(1)));
  const ModelBackend& backend = *backends_.model;
  weights_->embedding = read_matrix(weights, {"model.embed_tokens.weight"});
  weights_->final_norm = place_values(backend, read_norm(weights, "model.norm.weight", config));
  if (config.tie_word_embeddings) {
    backend.place(weights_->embedding, true);
  } else {
    backend.place_rows(weights_->embedding);
    weights_->lm_head = read_matrix(weights, {"lm_head.weight"});
    backend.place(weights_->lm_head, false);
  }
  for (int64_t i = 0; i < config.num_layers; ++i) read_layer(weights, i);
}

void Decoder::read_layer(const WeightSource& weights, int64_t layer_idx) {
  const ModelBackend& backend = *backends_.model;
  const std::string layer = fmt::format("model.layers.{}.", layer_idx);
  const std::string attention = layer + "self_attn.";
  const auto matrix = [&](const std::vector<std::string>& names) {
    WeightMatrix read = read_matrix(weights, names);
    backend.place(read, false);
    return read;
  };
  const auto norm = [&](const std::string& name) { return place_values(backend, read_norm(weights, name, config_)); };
  const auto bias = [&](const std::string& name) { return place_values(backend, read_optional(weights, name)); };
  Weights::Layer w;
  w.input_norm = norm(layer + "input_layernorm.weight");
  w.qkv = matrix(qkv_names(config_, attention));
  w.q_bias = bias(attention + "q_proj.bias");
  w.host_k_bias = read_optional(weights, attention + "k_proj.bias");
  w.k_bias = place_values(backend, w.host_k_bias);
  w.v_bias = bias(attention + "v_proj.bias");
  w.o = matrix({attention + "o_proj.weight"});
  w.o_bias = bias(attention + "o_proj.bias");
  if (config_.qk_norm) {
    w.q_norm = norm(attention + "q_norm.weight");
    w.k_norm = norm(attention + "k_norm.weight");
  }
  FloatArray after_attention = norm(layer + "post_attention_layernorm.weight");
  if (config_.post_norms) {
    w.post_attention_norm = std::move(after_attention);
    w.mlp_norm = norm(layer + "pre_feedforward_layernorm.weight");
    w.post_mlp_norm = norm(layer + "post_feedforward_layernorm.weight");
  } else {
    w.mlp_norm = std::move(after_attention);
  }
  w.gate_up = matrix(gate_up_names(config_, layer));
  w.down = matrix({layer + "mlp.down_proj.weight"});
  weights_->layers.push_back(std::move(w));
}

Decoder::PlacedBytes Decoder::placed_bytes() const {
  std::vector<const WeightMatrix*> read = {&weights_->output_matrix()};
  for (const Weights::Layer& w : weights_->layers) read.insert(read.end(), {&w.qkv, &w.o, &w.gate_up, &w.down});
  PlacedBytes placed;
  for (const WeightMatrix* matrix : read) {
    if (matrix->placed() == nullptr) continue;
    placed.of_every_token += matrix->placed()->product_bytes();
    placed.all += matrix->placed()->bytes();
  }
  const PlacedWeights* looked_up = weights_->lm_head.empty() ? nullptr : weights_->embedding.placed();
  if (looked_up != nullptr) placed.all += looked_up->bytes();
  return placed;
}

}  // namespace asymkv
