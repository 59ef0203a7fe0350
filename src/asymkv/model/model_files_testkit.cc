#include "asymkv/model/model_files_testkit.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <map>

#include "asymkv/base/error.h"
#include "asymkv/model/config.h"
#include "asymkv/model/model_files.h"
#include "asymkv/tensor/dtype.h"

namespace asymkv::testkit {
namespace {

constexpr uint32_t kU32 = 4;
constexpr uint32_t kF32 = 6;
constexpr uint32_t kString = 8;
constexpr uint32_t kQ8_0 = 8;
constexpr size_t kAlignment = 32;

std::string q8_0_blocks(const std::vector<float>& values) {
  std::string out;
  for (size_t block = 0; block < values.size(); block += 32) {
    out += raw(f32_to_f16(0.0625F));
    for (size_t i = 0; i < 32; ++i) out += static_cast<char>(static_cast<int8_t>(values[block + i] * 16.0F));
  }
  return out;
}

std::string replace_all(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  return at == std::string::npos ? text : text.replace(at, from.size(), to);
}

std::string gguf_name(std::string name) {
  const std::pair<const char*, const char*> kRules[] = {{"model.layers.", "blk."},
                                                        {"post_attention_layernorm", "ffn_norm"},
                                                        {"input_layernorm", "attn_norm"},
                                                        {"self_attn.q_proj", "attn_q"},
                                                        {"self_attn.k_proj", "attn_k"},
                                                        {"self_attn.v_proj", "attn_v"},
                                                        {"self_attn.o_proj", "attn_output"},
                                                        {"mlp.gate_proj", "ffn_gate"},
                                                        {"mlp.up_proj", "ffn_up"},
                                                        {"mlp.down_proj", "ffn_down"},
                                                        {"model.embed_tokens", "token_embd"},
                                                        {"model.norm", "output_norm"},
                                                        {"lm_head", "output"}};
  for (const auto& [from, to] : kRules) name = replace_all(name, from, to);
  return name;
}

// What convert_hf_to_gguf.py does to q and k of llama: reshape(heads, 2, head_dim / 2, in).swapaxes(1, 2).
std::vector<float> interleave(const std::vector<float>& in, size_t rows, size_t head_dim) {
  const size_t row_elems = in.size() / rows;
  std::vector<float> out;
  for (size_t head = 0; head < rows / head_dim; ++head) {
    for (size_t i = 0; i < head_dim / 2; ++i) {
      for (size_t half = 0; half < 2; ++half) {
        const size_t row = head * head_dim + half * head_dim / 2 + i;
        for (size_t c = 0; c < row_elems; ++c) out.push_back(in[row * row_elems + c]);
      }
    }
  }
  return out;
}

void set_tiny_metadata(GgufSpec& spec, const ModelConfig& config) {
  const std::string arch = config.model_type + ".";
  spec.set_string("general.architecture", config.model_type);
  spec.set_u32(arch + "embedding_length", static_cast<uint32_t>(config.hidden_size));
  spec.set_u32(arch + "feed_forward_length", static_cast<uint32_t>(config.intermediate_size));
  spec.set_u32(arch + "block_count", static_cast<uint32_t>(config.num_layers));
  spec.set_u32(arch + "attention.head_count", static_cast<uint32_t>(config.num_q_heads));
  spec.set_u32(arch + "attention.head_count_kv", static_cast<uint32_t>(config.num_kv_heads));
  spec.set_u32(arch + "attention.key_length", static_cast<uint32_t>(config.head_dim));
  spec.set_u32(arch + "context_length", static_cast<uint32_t>(config.max_position_embeddings));
  spec.set_f32(arch + "rope.freq_base", static_cast<float>(config.ropes.at(0).theta));
  spec.set_f32(arch + "attention.layer_norm_rms_epsilon", static_cast<float>(config.rms_norm_eps));
  spec.set_u32("tokenizer.ggml.bos_token_id", 38);
  spec.set_u32("tokenizer.ggml.eos_token_id", 39);
}

std::string encode_ggml(const std::vector<float>& values, uint32_t type) {
  if (type == kQ8_0) return q8_0_blocks(values);
  return encode(values, type == 0 ? "F32" : type == 1 ? "F16" : "BF16");
}

}  // namespace

float tiny_value(const std::string& name, int64_t i) {
  uint32_t hash = 2166136261U;  // FNV-1a
  for (const char c : name) hash = (hash ^ static_cast<uint8_t>(c)) * 16777619U;
  hash = (hash ^ static_cast<uint32_t>(i)) * 2654435761U;
  return (static_cast<float>((hash >> 16) % 255U) - 127.0F) / 16.0F;
}

std::vector<float> tiny_values(const std::string& name, int64_t count) {
  std::vector<float> values;
  for (int64_t i = 0; i < count; ++i) values.push_back(tiny_value(name, i));
  return values;
}

std::string encode(const std::vector<float>& values, const std::string& dtype) {
  std::string out;
  for (const float value : values) {
    if (dtype == "F32") out += raw(value);
    if (dtype == "F16") out += raw(f32_to_f16(value));
    if (dtype == "BF16") out += raw(f32_to_bf16(value));
  }
  return out;
}

Json tiny_config(const std::string& model_type, bool tied) {
  Json config = {{"model_type", model_type}, {"hidden_size", 64},
                 {"intermediate_size", 96},  {"num_hidden_layers", 2},
                 {"num_attention_heads", 4}, {"num_key_value_heads", 2},
                 {"head_dim", 32},           {"vocab_size", 40},
                 {"rope_theta", 10000.0},    {"max_position_embeddings", 128},
                 {"rms_norm_eps", 1e-6},     {"hidden_act", "silu"},
                 {"bos_token_id", 38},       {"eos_token_id", 39},
                 {"torch_dtype", "bfloat16"}};
  config["tie_word_embeddings"] = tied;
  return config;
}

std::vector<StoredTensor> tiny_tensors(const Json& config, const std::string& dtype) {
  std::vector<StoredTensor> tensors;
  for (const RequiredTensor& required : required_tensors(config_from_hf(config, "tiny"))) {
    int64_t count = 1;
    for (const int64_t size : required.shape) count *= size;
    tensors.push_back({required.name, dtype, required.shape, encode(tiny_values(required.name, count), dtype)});
  }
  return tensors;
}

std::string safetensors_file(const std::string& header, const std::string& data) {
  return raw(static_cast<uint64_t>(header.size())) + header + data;
}

std::string safetensors_file(const std::vector<StoredTensor>& tensors) {
  Json header = {{"__metadata__", {{"format", "pt"}}}};
  std::string data;
  for (const StoredTensor& tensor : tensors) {
    const size_t begin = data.size();
    data += tensor.bytes;
    header[tensor.name] = {{"dtype", tensor.dtype}, {"shape", tensor.shape}, {"data_offsets", {begin, data.size()}}};
  }
  return safetensors_file(header.dump(), data);
}

void FolderSpec::write(const std::filesystem::path& folder) const {
  write_bytes(folder / "config.json", config_text.value_or(config.dump()));
  if (weight_map) {
    write_bytes(folder / "model.safetensors.index.json", Json{{"weight_map", *weight_map}}.dump());
    std::map<std::string, std::vector<StoredTensor>> shards;
    for (const StoredTensor& tensor : tensors) {
      shards[weight_map->value(tensor.name, "model-00001-of-00002.safetensors")].push_back(tensor);
    }
    for (const auto& [name, members] : shards) write_bytes(folder / name, safetensors_file(members));
  } else {
    std::string bytes = safetensors_file(tensors);
    if (edit_weights) edit_weights(bytes);
    write_bytes(folder / "model.safetensors", bytes);
  }
  if (after) after(folder);
}

FolderSpec tiny_folder(const std::string& model_type, bool tied, const std::string& dtype) {
  FolderSpec spec;
  spec.config = tiny_config(model_type, tied);
  spec.config["torch_dtype"] = dtype == "F32" ? "float32" : dtype == "F16" ? "float16" : "bfloat16";
  spec.tensors = tiny_tensors(spec.config, dtype);
  return spec;
}

std::string gguf_string(const std::string& text) {
  return raw(static_cast<uint64_t>(text.size())) + text;
}

void GgufSpec::set(const std::string& key, uint32_t type, const std::string& payload) {
  erase(key);
  values.push_back({key, type, payload});
}

void GgufSpec::set_u32(const std::string& key, uint32_t value) {
  set(key, kU32, raw(value));
}

void GgufSpec::set_f32(const std::string& key, float value) {
  set(key, kF32, raw(value));
}

void GgufSpec::set_string(const std::string& key, const std::string& value) {
  set(key, kString, gguf_string(value));
}

void GgufSpec::erase(const std::string& key) {
  std::erase_if(values, [&key](const GgufKeyValue& value) { return value.key == key; });
}

GgufSpecTensor& GgufSpec::tensor(const std::string& name) {
  const auto it = std::ranges::find(tensors, name, &GgufSpecTensor::name);
  ASYMKV_CHECK(it != tensors.end(), "no tensor {}", name);
  return *it;
}

void GgufSpec::erase_tensor(const std::string& name) {
  std::erase_if(tensors, [&name](const GgufSpecTensor& tensor) { return tensor.name == name; });
}

std::string GgufSpec::file() const {
  std::string out =
      "GGUF" + raw(version) + raw(num_tensors.value_or(tensors.size())) + raw(num_values.value_or(values.size()));
  for (const GgufKeyValue& value : values) out += gguf_string(value.key) + raw(value.type) + value.payload;
  std::string data;
  for (const GgufSpecTensor& tensor : tensors) {
    data.resize((data.size() + kAlignment - 1) / kAlignment * kAlignment);
    out += gguf_string(tensor.name) + raw(static_cast<uint32_t>(tensor.shape.size()));
    for (size_t i = tensor.shape.size(); i-- > 0;) out += raw(static_cast<uint64_t>(tensor.shape[i]));
    out += raw(tensor.type) + raw(tensor.offset.value_or(data.size()));
    data += tensor.bytes;
  }
  out.resize((out.size() + kAlignment - 1) / kAlignment * kAlignment);
  out += data;
  if (edit) edit(out);
  return out;
}

GgufSpec tiny_gguf(const std::string& model_type, bool tied, uint32_t matrix_type) {
  const ModelConfig config = config_from_hf(tiny_config(model_type, tied), "tiny");
  GgufSpec spec;
  set_tiny_metadata(spec, config);
  for (const RequiredTensor& required : required_tensors(config)) {
    int64_t count = 1;
    for (const int64_t size : required.shape) count *= size;
    std::vector<float> values = tiny_values(required.name, count);
    const std::string name = gguf_name(required.name);
    const bool q_or_k = name.find("attn_q.") != std::string::npos || name.find("attn_k.") != std::string::npos;
    if (q_or_k && model_type == "llama") {
      values = interleave(values, static_cast<size_t>(required.shape.front()), static_cast<size_t>(config.head_dim));
    }
    const uint32_t type = required.shape.size() == 1 ? 0 : matrix_type;
    spec.tensors.push_back({name, required.shape, type, encode_ggml(values, type), std::nullopt});
  }
  return spec;
}

void write_bytes(const std::filesystem::path& path, const std::string& bytes) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  file.close();
  ASYMKV_CHECK(file.good(), "cannot write {}", path.string());
}

std::filesystem::path fresh_folder(const std::string& name) {
  const auto folder = std::filesystem::temp_directory_path() / fmt::format("asymkv_model_{}", ::getpid()) / name;
  std::filesystem::remove_all(folder);
  std::filesystem::create_directories(folder);
  return folder;
}

}  // namespace asymkv::testkit
