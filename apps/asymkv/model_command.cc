// asymkv model show: what a model is, as its files say it.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>

#include "asymkv/base/error.h"
#include "asymkv/base/progress.h"
#include "asymkv/model/model_files.h"
#include "command.h"

namespace asymkv::app {
namespace {

struct TypeTotal {
  int64_t tensors = 0;
  int64_t bytes = 0;
};

std::map<std::string, TypeTotal> totals_by_type(const WeightSource& weights) {
  std::map<std::string, TypeTotal> totals;
  for (const TensorInfo& tensor : weights.tensors()) {
    ++totals[tensor.stored_type].tensors;
    totals[tensor.stored_type].bytes += tensor.stored_bytes;
  }
  return totals;
}

// The key bias of one layer: a large one in slow RoPE pairs is what breaks 8-bit keys.
struct KeyBias {
  double max_abs = 0;
  double norm = 0;                     // L2 over all KV channels
  std::vector<double> pair_magnitude;  // per RoPE pair, the largest over the KV heads, slowest last
};

KeyBias key_bias(const ModelFiles& model, int64_t layer) {
  const std::vector<float> bias = model.weights->read_f32(fmt::format("model.layers.{}.self_attn.k_proj.bias", layer));
  const auto head_dim = static_cast<size_t>(model.config.head_dim);
  const size_t half = head_dim / 2;
  KeyBias result;
  result.pair_magnitude.resize(half);
  for (size_t i = 0; i < bias.size(); ++i) {
    const auto value = static_cast<double>(bias[i]);
    result.max_abs = std::max(result.max_abs, std::abs(value));
    result.norm += value * value;
    if (i % head_dim < half) {
      const double magnitude = std::hypot(value, static_cast<double>(bias[i + half]));
      result.pair_magnitude[i % head_dim] = std::max(result.pair_magnitude[i % head_dim], magnitude);
    }
  }
  result.norm = std::sqrt(result.norm);
  return result;
}

std::vector<KeyBias> key_biases(const ModelFiles& model) {
  std::vector<KeyBias> biases;
  if (!model.config.qkv_bias) return biases;
  for (int64_t layer = 0; layer < model.config.num_layers; ++layer) biases.push_back(key_bias(model, layer));
  return biases;
}

// Index of the layer with the largest |b|.
size_t largest_layer(const std::vector<KeyBias>& biases) {
  const auto it = std::ranges::max_element(biases, {}, &KeyBias::max_abs);
  return static_cast<size_t>(it - biases.begin());
}

Json rope_json(const RopeConfig& rope) {
  const RopeScaling& scaling = rope.scaling;
  Json json = {{"theta", rope.theta}, {"kind", rope_scaling_name(scaling.kind)}};
  const bool has_original = scaling.original_max_position != 0;
  if (scaling.kind == RopeScalingKind::kLinear || has_original) json["factor"] = scaling.factor;
  if (has_original) json["original_max_position"] = scaling.original_max_position;
  if (scaling.kind == RopeScalingKind::kLlama3) {
    json["low_freq_factor"] = scaling.low_freq_factor;
    json["high_freq_factor"] = scaling.high_freq_factor;
  }
  if (scaling.kind == RopeScalingKind::kYarn) {
    json["beta_fast"] = scaling.beta_fast;
    json["beta_slow"] = scaling.beta_slow;
  }
  if (scaling.attention_factor != 1.0) json["attention_factor"] = scaling.attention_factor;
  return json;
}

Json config_json(const ModelConfig& config) {
  Json ropes = Json::array();
  for (const RopeConfig& rope : config.ropes) ropes.push_back(rope_json(rope));
  Json windows = Json::array();
  for (const LayerConfig& layer : config.layers) windows.push_back(layer.window);
  return {{"model_type", config.model_type},
          {"hidden_size", config.hidden_size},
          {"intermediate_size", config.intermediate_size},
          {"num_layers", config.num_layers},
          {"num_q_heads", config.num_q_heads},
          {"num_kv_heads", config.num_kv_heads},
          {"head_dim", config.head_dim},
          {"vocab_size", config.vocab_size},
          {"max_position_embeddings", config.max_position_embeddings},
          {"ropes", ropes},
          {"windows", windows},
          {"activation", activation_name(config.activation)},
          {"attention_scale", config.attention_scale},
          {"attention_soft_cap", config.attention_soft_cap},
          {"final_soft_cap", config.final_soft_cap},
          {"qk_norm", config.qk_norm},
          {"post_norms", config.post_norms},
          {"rms_norm_eps", config.rms_norm_eps},
          {"tie_word_embeddings", config.tie_word_embeddings},
          {"qkv_bias", config.qkv_bias},
          {"o_bias", config.o_bias},
          {"native_dtype", dtype_name(config.native_dtype)},
          {"eos_token_ids", config.eos_token_ids},
          {"bos_token_id", config.bos_token_id ? Json(*config.bos_token_id) : Json()}};
}

Json scales_json(const CheckpointScales& scales) {
  if (!scales.any()) return nullptr;
  const auto side = [](const std::vector<std::optional<float>>& values) {
    Json list = Json::array();
    for (const std::optional<float>& value : values) list.push_back(value ? Json(*value) : Json());
    return list;
  };
  return {{"k", side(scales.k)}, {"v", side(scales.v)}};
}

Json model_json(const ModelFiles& model) {
  Json types = Json::object();
  int64_t bytes = 0;
  int64_t elems = 0;
  for (const auto& [type, total] : totals_by_type(*model.weights)) {
    types[type] = {{"tensors", total.tensors}, {"bytes", total.bytes}};
    bytes += total.bytes;
  }
  for (const TensorInfo& tensor : model.weights->tensors()) elems += tensor.num_elems();
  Json key_bias_rows = Json::array();
  const std::vector<KeyBias> biases = key_biases(model);
  for (size_t layer = 0; layer < biases.size(); ++layer) {
    key_bias_rows.push_back({{"layer", layer},
                             {"max_abs", biases[layer].max_abs},
                             {"norm", biases[layer].norm},
                             {"pair_magnitude", biases[layer].pair_magnitude}});
  }
  return {{"path", model.path.string()},
          {"container", model.container},
          {"config", config_json(model.config)},
          {"tensors", model.weights->tensors().size()},
          {"elements", elems},
          {"stored_bytes", bytes},
          {"stored_types", types},
          {"ignored_tensors", model.ignored_tensors},
          {"checkpoint_scales", scales_json(model.checkpoint_scales)},
          {"key_bias", key_bias_rows},
          {"weights_sha256", model.weights_sha256()},
          {"config_sha256", model.config_sha256}};
}

void print_geometry(const ModelFiles& model) {
  const ModelConfig& c = model.config;
  print_note("{}  ({}, {})\n", model.path.string(), c.model_type, model.container);
  print_note("  layers {}  hidden {}  MLP {}  heads {}/{} x {}  vocabulary {}\n", c.num_layers, c.hidden_size,
             c.intermediate_size, c.num_q_heads, c.num_kv_heads, c.head_dim, c.vocab_size);
  print_note("  context {}  rms eps {:.6g}\n", c.max_position_embeddings, c.rms_norm_eps);
  for (const RopeConfig& rope : c.ropes) {
    print_note("  rope theta {} ({})\n", rope.theta, rope_scaling_name(rope.scaling.kind));
  }
  if (const auto windowed = std::ranges::count_if(c.layers, [](const LayerConfig& l) { return l.window != 0; })) {
    const auto layer = std::ranges::find_if(c.layers, [](const LayerConfig& l) { return l.window != 0; });
    print_note("  {} of {} layers see a window of {} tokens\n", windowed, c.num_layers, layer->window);
  }
  print_note("  embeddings {}  QKV bias {}  O bias {}  native KV type {}\n", c.tie_word_embeddings ? "tied" : "untied",
             c.qkv_bias ? "yes" : "no", c.o_bias ? "yes" : "no", dtype_name(c.native_dtype));
  print_note("  end tokens [{}]  begin token {}\n", fmt::join(c.eos_token_ids, ", "),
             c.bos_token_id ? fmt::to_string(*c.bos_token_id) : "none");
}

void print_tensors(const ModelFiles& model) {
  print_note("\nstored type   tensors            bytes\n");
  for (const auto& [type, total] : totals_by_type(*model.weights)) {
    print_note("{:<12} {:>8} {:>16}\n", type, total.tensors, total.bytes);
  }
  for (const std::string& name : model.ignored_tensors) print_note("not used: {}\n", name);
  if (model.checkpoint_scales.any()) {
    print_note("the checkpoint carries KV scales; they are used only when asked for (--scale checkpoint)\n");
  }
}

void print_key_bias(const ModelFiles& model) {
  const std::vector<KeyBias> biases = key_biases(model);
  if (biases.empty()) {
    print_note("\nno key bias\n");
    return;
  }
  print_note("\nkey bias\nlayer   max |b|      norm\n");
  for (size_t layer = 0; layer < biases.size(); ++layer) {
    print_note("{:>5} {:>9.2f} {:>9.2f}\n", layer, biases[layer].max_abs, biases[layer].norm);
  }
  const size_t layer = largest_layer(biases);
  print_note("RoPE pair magnitudes of layer {}, slowest last: {:.0f}\n", layer,
             fmt::join(biases[layer].pair_magnitude, " "));
}

int show(const std::string& path, bool json) {
  const ModelFiles model = open_model(path);
  if (json) {
    print_json(model_json(model));
    return 0;
  }
  print_geometry(model);
  print_tensors(model);
  print_key_bias(model);
  print_note("\nweights sha256 {}\nconfig  sha256 {}\n", model.weights_sha256(), model.config_sha256);
  return 0;
}

}  // namespace

void add_model_command(CLI::App& root, Action& action) {
  CLI::App* command = root.add_subcommand("model", "look at a model's files");
  command->require_subcommand(1);
  command->footer("Example: asymkv model show models/probe-robust");
  CLI::App* show_command = command->add_subcommand("show", "geometry, stored types, key-bias sizes and hashes");
  show_command->footer("Example: asymkv model show models/probe-robust --json");
  struct Options {
    std::string model;
    bool json = false;
  };
  const auto options = std::make_shared<Options>();
  show_command->add_option("MODEL", options->model, "a safetensors folder or a .gguf file")->required();
  show_command->add_flag("--json", options->json, "one JSON object on stdout");
  show_command->callback([&action, options] { action = [options] { return show(options->model, options->json); }; });
}

}  // namespace asymkv::app
