#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "asymkv/model/config.h"
#include "asymkv/model/gguf.h"
#include "asymkv/model/weights.h"

namespace asymkv {

// KV scales that a checkpoint carries (self_attn.k_scale / v_scale, or k_proj.k_scale / v_proj.v_scale), one per layer
// and side. An absent scale stays absent: it never becomes 1.0.
struct CheckpointScales {
  std::vector<std::optional<float>> k;  // num_layers
  std::vector<std::optional<float>> v;
  bool any() const;
};

// Last component of a model's path, also where it ends in a slash; of "." and "..", that of the folder they stand for.
// How tables, records and run folders call the model.
std::string model_name(const std::filesystem::path& path);

// An opened and checked model: every tensor its family needs is there with the right shape, and no unknown one is.
struct ModelFiles {
  std::filesystem::path path;
  std::string container;  // "safetensors", "gguf" or "random"
  ModelConfig config;
  std::unique_ptr<WeightSource> weights;
  std::shared_ptr<const GgufFile> gguf;  // null for safetensors; holds the tokenizer's metadata
  std::string config_sha256;             // of config.json, or of a GGUF file's header (metadata and tensor table)
  CheckpointScales checkpoint_scales;
  std::vector<std::string> ignored_tensors;  // tolerated by the explicit list of model_files.cc, not used
  std::optional<uint64_t> random_seed;       // of weights that were drawn, not read

  // SHA-256 over the bytes of the tensor file; of several shards, over their bytes one after another, sorted by file
  // name. Reads them whole on the first call (about a second per GB) and keeps the answer. Not thread-safe. Of drawn
  // weights: over the sentence that defines them.
  const std::string& weights_sha256() const;
  std::string name() const;  // model_name(path), and that the weights are drawn

 private:
  mutable std::string weights_sha256_;
};

// Opens a safetensors folder as published (config.json and model.safetensors, or model.safetensors.index.json with its
// shards) or one GGUF file. Throws Error{kBadInput} or Error{kUnsupported} with one sentence that names the file and
// the key, tensor or value at fault.
ModelFiles open_model(const std::filesystem::path& path);

// A model of the geometry of a config.json (the file, or the folder that holds it) with drawn weights
// (random_weights.h), and what its config.json says otherwise. Throws as open_model does, and Error{kUsage} where
// weights lie beside the file: they are never replaced by drawn ones.
ModelFiles open_random_model(const std::filesystem::path& path, uint64_t seed);

// Name and shape of every tensor that a model of this configuration must have, lm_head.weight only if untied.
struct RequiredTensor {
  std::string name;
  std::vector<int64_t> shape;
};
std::vector<RequiredTensor> required_tensors(const ModelConfig& config);

}  // namespace asymkv
