#pragma once

#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "asymkv/engine/loaded_model.h"

namespace asymkv {

// Fixed scales of one layer. A side that the source does not know stays absent: it never becomes 1.0 by itself.
struct LayerScaleSet {
  std::optional<float> key;
  std::optional<float> key_prebias;  // for keys with the constant vector taken out
  std::optional<float> value;
};

// Fixed scales of a model and where they come from.
struct ScaleSet {
  std::string source;  // "unit", "checkpoint", "calibrated:SHA256" (hash of the scales file's canonical JSON)
  std::vector<LayerScaleSet> layers;
  std::string origin;  // the file or folder they were read from, for errors; empty if none
};

// The hash in a source, empty where it has none.
std::string scales_sha256(std::string_view source);

ScaleSet unit_scales(int64_t num_layers);
// The scales a checkpoint carries. Throws Error{kBadInput} if it carries none, or a non-finite or non-positive one.
ScaleSet checkpoint_scales(const ModelFiles& files);

// Largest magnitudes / 448 of E4M3 over a native forward pass of each document (token ids), per layer and side, for
// keys with and without the model's key bias. Throws Error{kUsage} if there is no document.
ScaleSet calibrate_scales(LoadedModel& model, std::span<const std::vector<int32_t>> documents);

// Scales files: {"schema": "asymkv.scales/1", "model_weights_sha256", "data_sha256", "layers": [{"key", "key_prebias",
// "value"}]}. Reading throws Error{kBadInput} naming file, layer and side for a scale that is no number, not finite or
// not positive, and for another model's file.
Json scales_to_json(const ScaleSet& scales, const std::string& model_weights_sha256, const std::string& data_sha256);
ScaleSet scales_from_json(const Json& json, const std::string& origin, const ModelConfig& config,
                          const std::string& model_weights_sha256);

}  // namespace asymkv
