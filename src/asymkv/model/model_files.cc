#include "asymkv/model/model_files.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <set>
#include <span>
#include <utility>

#include "asymkv/base/error.h"
#include "asymkv/base/file.h"
#include "asymkv/base/hash.h"
#include "asymkv/model/awq.h"
#include "asymkv/model/config_checks.h"
#include "asymkv/model/random_weights.h"

namespace asymkv {
namespace {

constexpr const char* kConfigFile = "config.json";
constexpr const char* kGenerationFile = "generation_config.json";
constexpr std::string_view kEmbedding = "model.embed_tokens.weight";
constexpr std::string_view kHead = "lm_head.weight";
constexpr size_t kMaxConfigBytes = 16 << 20;  // ours: a published config.json has a few KB

std::string shape_text(const std::vector<int64_t>& shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

std::string read_small_file(const std::filesystem::path& path) {
  const MappedFile file(path);
  if (file.bytes().size() > kMaxConfigBytes) {
    throw_bad_input("{} has {} bytes, more than the {} a configuration may have", path.string(), file.bytes().size(),
                    kMaxConfigBytes);
  }
  return {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()};
}

// "model.layers.12.REST" -> 12 and "REST"; -1 if the name has another form.
std::pair<int64_t, std::string_view> split_layer(std::string_view name) {
  constexpr std::string_view kPrefix = "model.layers.";
  if (!name.starts_with(kPrefix)) return {-1, {}};
  name.remove_prefix(kPrefix.size());
  int32_t layer = -1;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), layer);
  if (error != std::errc() || end == name.data() + name.size() || *end != '.') return {-1, {}};
  return {layer, name.substr(static_cast<size_t>(end - name.data()) + 1)};
}

enum class Side { kKey, kValue };

std::optional<Side> scale_side(std::string_view rest) {
  for (const std::string_view name : {"self_attn.k_scale", "self_attn.k_proj.k_scale", "self_attn.attn.k_scale"}) {
    if (rest == name) return Side::kKey;
  }
  for (const std::string_view name : {"self_attn.v_scale", "self_attn.v_proj.v_scale", "self_attn.attn.v_scale"}) {
    if (rest == name) return Side::kValue;
  }
  return std::nullopt;
}

// True if the tensor is a KV scale of the checkpoint; it is then stored.
bool take_scale(const TensorInfo& tensor, ModelFiles& model) {
  const auto [layer, rest] = split_layer(tensor.name);
  const std::optional<Side> side = scale_side(rest);
  if (!side || layer < 0 || layer >= model.config.num_layers) return false;
  const std::string_view side_name = *side == Side::kKey ? "key" : "value";
  if (tensor.num_elems() != 1) {
    throw_unsupported("{}: tensor \"{}\" holds {} scales; only one per layer and side is supported",
                      model.path.string(), tensor.name, tensor.num_elems());
  }
  const float scale = model.weights->read_f32(tensor.name).front();
  if (!std::isfinite(scale) || scale <= 0) {
    throw_bad_input("{}: the {} scale of layer {} is {}, expected a finite positive number", model.path.string(),
                    side_name, layer, scale);
  }
  CheckpointScales& scales = model.checkpoint_scales;
  auto& slot = (*side == Side::kKey ? scales.k : scales.v)[static_cast<size_t>(layer)];
  if (slot) throw_bad_input("{}: layer {} has two {} scales", model.path.string(), layer, side_name);
  slot = scale;
  return true;
}

// The explicit list of tensors that published models carry and that nothing needs.
bool is_ignorable(const TensorInfo& tensor, const ModelFiles& model) {
  // Old transformers saved the rotary table; it follows from the configuration.
  if (tensor.name == "model.rotary_emb.inv_freq") return true;
  if (split_layer(tensor.name).second == "self_attn.rotary_emb.inv_freq") return true;
  // A tied head saved a second time.
  return tensor.name == kHead && model.config.tie_word_embeddings &&
         tensor.shape == std::vector<int64_t>{model.config.vocab_size, model.config.hidden_size};
}

// The configuration must agree with what the shapes of AWQ matrices say.
void check_awq(const TensorInfo& tensor, const ModelFiles& model) {
  if (!tensor.stored_type.starts_with(kAwqStoredType)) return;
  const int64_t named = model.config.awq_group_size;
  if (named == 0) {
    throw_bad_input("{}: tensor \"{}\" is an AWQ matrix but the configuration has no quantization_config",
                    model.path.string(), tensor.name);
  }
  if (tensor.stored_type != awq_stored_type(named == -1 ? tensor.row_elems() : named)) {
    throw_bad_input("{}: tensor \"{}\" is {}, the configuration says group_size {}", model.path.string(), tensor.name,
                    tensor.stored_type, named);
  }
}

void check_tensors(ModelFiles& model) {
  const std::string origin = model.path.string();
  const auto num_layers = static_cast<size_t>(model.config.num_layers);
  model.checkpoint_scales = {.k = std::vector<std::optional<float>>(num_layers),
                             .v = std::vector<std::optional<float>>(num_layers)};
  std::set<std::string_view> required_names;
  const std::vector<RequiredTensor> required = required_tensors(model.config);
  for (const RequiredTensor& tensor : required) {
    if (!model.weights->contains(tensor.name)) throw_bad_input("{}: tensor \"{}\" is missing", origin, tensor.name);
    const TensorInfo& found = model.weights->info(tensor.name);
    if (found.shape != tensor.shape) {
      throw_bad_input("{}: tensor \"{}\" has shape {}, the configuration needs {}", origin, tensor.name,
                      shape_text(found.shape), shape_text(tensor.shape));
    }
    check_awq(found, model);
    required_names.insert(tensor.name);
  }
  for (const TensorInfo& tensor : model.weights->tensors()) {
    if (required_names.contains(tensor.name) || take_scale(tensor, model)) continue;
    if (!is_ignorable(tensor, model)) {
      throw_bad_input("{}: unknown tensor \"{}\" for model_type {}", origin, tensor.name, model.config.model_type);
    }
    model.ignored_tensors.push_back(tensor.name);
  }
}

std::optional<DType> stored_matrix_dtype(const WeightSource& weights) {
  if (!weights.contains(kEmbedding)) return std::nullopt;
  const std::string& type = weights.info(kEmbedding).stored_type;
  return type == "F32" ? DType::kF32 : type == "BF16" ? DType::kBF16 : DType::kF16;
}

// generation_config.json may name further end tokens, which transformers' generate obeys.
void add_generation_eos(const std::filesystem::path& path, ModelConfig& config) {
  std::error_code error;
  if (!std::filesystem::exists(path, error)) return;
  const Json json = parse_json(read_small_file(path), path.string());
  for (const int32_t id : eos_ids_from_hf(json, config.vocab_size, path.string())) {
    if (std::ranges::find(config.eos_token_ids, id) == config.eos_token_ids.end()) config.eos_token_ids.push_back(id);
  }
}

ModelFiles open_folder(const std::filesystem::path& path) {
  ModelFiles model;
  model.path = path;
  model.container = "safetensors";
  const std::filesystem::path config_path = path / kConfigFile;
  const std::string config_text = read_small_file(config_path);
  const Json config = parse_json(config_text, config_path.string());
  model.config_sha256 = sha256_hex(config_text);
  model.weights = open_safetensors_weights(path);
  model.config = config_from_hf(config, config_path.string(), stored_matrix_dtype(*model.weights));
  add_generation_eos(path / kGenerationFile, model.config);
  return model;
}

ModelFiles open_gguf(const std::filesystem::path& path) {
  ModelFiles model;
  model.path = path;
  model.container = "gguf";
  model.gguf = std::make_shared<GgufFile>(path);
  model.config = config_from_gguf(*model.gguf);
  model.config_sha256 = sha256_hex(model.gguf->header_bytes());
  model.weights = open_gguf_weights(model.gguf);
  return model;
}

void add_layer_tensors(const ModelConfig& config, int64_t layer, std::vector<RequiredTensor>& out) {
  const int64_t hidden = config.hidden_size;
  const int64_t q_channels = config.num_q_heads * config.head_dim;
  const int64_t kv_channels = config.num_kv_heads * config.head_dim;
  const std::string prefix = fmt::format("model.layers.{}.", layer);
  const auto add = [&](const char* name, std::vector<int64_t> shape) {
    out.push_back({prefix + name, std::move(shape)});
  };
  add("input_layernorm.weight", {hidden});
  add("post_attention_layernorm.weight", {hidden});
  if (config.post_norms) {
    add("pre_feedforward_layernorm.weight", {hidden});
    add("post_feedforward_layernorm.weight", {hidden});
  }
  if (config.fused_projections) {
    add("self_attn.qkv_proj.weight", {q_channels + 2 * kv_channels, hidden});
    add("mlp.gate_up_proj.weight", {2 * config.intermediate_size, hidden});
  } else {
    add("self_attn.q_proj.weight", {q_channels, hidden});
    add("self_attn.k_proj.weight", {kv_channels, hidden});
    add("self_attn.v_proj.weight", {kv_channels, hidden});
    add("mlp.gate_proj.weight", {config.intermediate_size, hidden});
    add("mlp.up_proj.weight", {config.intermediate_size, hidden});
  }
  add("self_attn.o_proj.weight", {hidden, q_channels});
  add("mlp.down_proj.weight", {hidden, config.intermediate_size});
  if (config.qkv_bias) {
    add("self_attn.q_proj.bias", {q_channels});
    add("self_attn.k_proj.bias", {kv_channels});
    add("self_attn.v_proj.bias", {kv_channels});
  }
  if (config.o_bias) add("self_attn.o_proj.bias", {hidden});
  if (config.qk_norm) {
    add("self_attn.q_norm.weight", {config.head_dim});
    add("self_attn.k_norm.weight", {config.head_dim});
  }
}

}  // namespace

bool CheckpointScales::any() const {
  const auto present = [](const std::optional<float>& scale) { return scale.has_value(); };
  return std::ranges::any_of(k, present) || std::ranges::any_of(v, present);
}

std::vector<RequiredTensor> required_tensors(const ModelConfig& config) {
  std::vector<RequiredTensor> tensors;
  tensors.push_back({std::string(kEmbedding), {config.vocab_size, config.hidden_size}});
  for (int64_t layer = 0; layer < config.num_layers; ++layer) add_layer_tensors(config, layer, tensors);
  tensors.push_back({"model.norm.weight", {config.hidden_size}});
  if (!config.tie_word_embeddings) tensors.push_back({std::string(kHead), {config.vocab_size, config.hidden_size}});
  return tensors;
}

std::string model_name(const std::filesystem::path& path) {
  const std::filesystem::path last = (path.filename().empty() ? path.parent_path() : path).filename();
  if (!last.empty() && last != "." && last != "..") return last.string();
  return std::filesystem::weakly_canonical(path).filename().string();
}

std::string ModelFiles::name() const {
  return random_seed ? fmt::format("{} (random weights, seed {})", model_name(path), *random_seed) : model_name(path);
}

const std::string& ModelFiles::weights_sha256() const {
  if (!weights_sha256_.empty()) return weights_sha256_;
  if (random_seed) {
    return weights_sha256_ =
               sha256_hex(fmt::format("asymkv random weights 1, seed {}, config {}", *random_seed, config_sha256));
  }
  Sha256 hash;
  constexpr size_t kStepBytes = 64 << 20;  // resident at a time
  for (const std::filesystem::path& file_path : weights->files()) {
    const MappedFile file(file_path);
    for (std::span<const std::byte> rest = file.bytes(); !rest.empty();) {
      const size_t step = std::min(rest.size(), kStepBytes);
      hash.update(rest.first(step));
      rest = rest.subspan(step);
      file.drop_resident_pages();
    }
  }
  weights_sha256_ = hash.hex_digest();
  return weights_sha256_;
}

ModelFiles open_model(const std::filesystem::path& path) {
  std::error_code error;  // the overloads without it throw what is not an Error
  if (!std::filesystem::exists(path, error)) {
    throw_bad_input("{} does not exist; give a model folder or a .gguf file", path.string());
  }
  ModelFiles model = std::filesystem::is_directory(path, error) ? open_folder(path) : open_gguf(path);
  check_tensors(model);
  return model;
}

ModelFiles open_random_model(const std::filesystem::path& path, uint64_t seed) {
  std::error_code error;  // the overloads without it throw what is not an Error
  const std::filesystem::path file = std::filesystem::is_directory(path, error) ? path / kConfigFile : path;
  if (!std::filesystem::exists(file, error)) {
    throw_bad_input("{} does not exist; give a config.json or its folder to draw weights for", file.string());
  }
  const std::filesystem::path folder = file.parent_path();
  const bool is_gguf = file.extension() == ".gguf";
  if (is_gguf || holds_safetensors(folder)) {
    throw_usage("{} has weights: random ones are drawn for a config.json alone", (is_gguf ? file : folder).string());
  }
  ModelFiles model;
  model.path = file.filename() == kConfigFile ? folder : file;
  model.container = "random";
  const std::string text = read_small_file(file);
  model.config_sha256 = sha256_hex(text);
  model.config = config_from_hf(parse_json(text, file.string()), file.string(), DType::kBF16);
  model.weights = make_random_weights(model.config, seed);
  model.random_seed = seed;
  check_tensors(model);
  return model;
}

}  // namespace asymkv
