#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "asymkv/base/json.h"

// Tiny models of both containers, built in memory: for tests and fuzzing seeds only.
namespace asymkv::testkit {

struct StoredTensor {
  std::string name;   // canonical
  std::string dtype;  // "F32", "F16" or "BF16"
  std::vector<int64_t> shape;
  std::string bytes;
};

// Little-endian bytes of a scalar.
template <typename T>
std::string raw(T value) {
  return {reinterpret_cast<const char*>(&value), sizeof(T)};
}

// Element i of a tiny model's tensor: a multiple of 1/16 below 8 that depends on name and i, exact in every float type
// and in Q8_0 with a scale of 1/16.
float tiny_value(const std::string& name, int64_t i);
std::vector<float> tiny_values(const std::string& name, int64_t count);
std::string encode(const std::vector<float>& values, const std::string& dtype);

// 2 layers, hidden 64, MLP 96, 4 query and 2 KV heads of 32 channels (so that head_dim is not hidden / heads),
// vocabulary 40.
Json tiny_config(const std::string& model_type, bool tied);
std::vector<StoredTensor> tiny_tensors(const Json& config, const std::string& dtype);

// A safetensors file: header JSON (any text) and data.
std::string safetensors_file(const std::string& header, const std::string& data);
std::string safetensors_file(const std::vector<StoredTensor>& tensors);

// A model folder before it is written; tests change it first.
struct FolderSpec {
  Json config;
  std::vector<StoredTensor> tensors;
  std::optional<std::string> config_text;                   // instead of `config`
  std::optional<Json> weight_map;                           // writes an index and every shard it names
  std::function<void(std::string&)> edit_weights;           // on the bytes of model.safetensors
  std::function<void(const std::filesystem::path&)> after;  // on the written folder
  void write(const std::filesystem::path& folder) const;
};
FolderSpec tiny_folder(const std::string& model_type = "qwen2", bool tied = true, const std::string& dtype = "BF16");

struct GgufKeyValue {
  std::string key;
  uint32_t type = 0;
  std::string payload;
};
struct GgufSpecTensor {
  std::string name;
  std::vector<int64_t> shape;  // outermost first; stored reversed
  uint32_t type = 0;
  std::string bytes;
  std::optional<uint64_t> offset;  // instead of the next aligned one
};
struct GgufSpec {
  uint32_t version = 3;
  std::vector<GgufKeyValue> values;
  std::vector<GgufSpecTensor> tensors;
  std::optional<uint64_t> num_tensors;  // instead of the true counts
  std::optional<uint64_t> num_values;
  std::function<void(std::string&)> edit;  // on the whole file's bytes

  void set_u32(const std::string& key, uint32_t value);
  void set_f32(const std::string& key, float value);
  void set_string(const std::string& key, const std::string& value);
  void set(const std::string& key, uint32_t type, const std::string& payload);
  void erase(const std::string& key);
  GgufSpecTensor& tensor(const std::string& name);
  void erase_tensor(const std::string& name);
  std::string file() const;
};
std::string gguf_string(const std::string& text);
// The tiny model as llama.cpp's converter writes it: matrices in ggml type `matrix_type` (0 F32, 1 F16, 8 Q8_0, 30
// BF16), vectors in F32, q and k interleaved for llama.
GgufSpec tiny_gguf(const std::string& model_type = "qwen2", bool tied = true, uint32_t matrix_type = 8);

void write_bytes(const std::filesystem::path& path, const std::string& bytes);
// A new empty folder below the test's temporary folder.
std::filesystem::path fresh_folder(const std::string& name);

}  // namespace asymkv::testkit
