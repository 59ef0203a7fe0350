#include "plan_model.h"

#include <algorithm>
#include <fstream>

#include "asymkv/base/error.h"
#include "asymkv/model/model_files.h"

namespace asymkv::app {
namespace {

namespace fs = std::filesystem;

// A bias behind which keys are normalised moves with every key: it cannot be taken out.
bool has_removable_bias(const ModelConfig& config) {
  return config.qkv_bias && !config.qk_norm;
}

int64_t stored_bytes(const WeightSource& weights) {
  int64_t bytes = 0;
  for (const TensorInfo& tensor : weights.tensors()) bytes += tensor.stored_bytes;
  return bytes;
}

ModelShape shape_of_config(const ModelConfig& config) {
  ModelShape shape;
  shape.model_type = config.model_type;
  shape.native_dtype = config.native_dtype;
  shape.num_q_heads = config.num_q_heads;
  shape.max_positions = config.max_position_embeddings;
  shape.verdict = ShapeVerdict::kAccept;
  shape.deciding_key = "general.architecture";
  shape.reason = fmt::format("general.architecture: the runtime reads this file as {}", config.model_type);
  for (const bool windowed : {false, true}) {
    LayerGroup group{.kind = windowed ? LayerKind::kSliding : LayerKind::kFull,
                     .num_kv_heads = config.num_kv_heads,
                     .k_head_dim = config.head_dim,
                     .v_head_dim = config.head_dim};
    for (const LayerConfig& layer : config.layers) {
      if ((layer.window != 0) != windowed) continue;
      ++group.num_layers;
      group.window = std::max(group.window, layer.window);
    }
    if (group.num_layers > 0) shape.groups.push_back(group);
  }
  return shape;
}

void add_runtime_facts(PlannedModel& model, const ModelFiles& files) {
  model.has_key_bias = has_removable_bias(files.config);
  model.weight_bytes = stored_bytes(*files.weights);
}

std::optional<bool> key_bias_of(const Json& json, const std::string& origin) {
  try {
    return has_removable_bias(config_from_hf(json, origin));
  } catch (const Error&) {
    return std::nullopt;  // a family that only the planner knows
  }
}

// Whatever the file's name is: no GGUF begins with a brace.
bool holds_json(const fs::path& path) {
  std::ifstream file(path);
  char first = 0;
  return file >> first && first == '{';
}

bool has_weights(const fs::path& folder) {
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    if (entry.path().extension() == ".safetensors") return true;
  }
  return false;
}

PlannedModel read_config(const fs::path& path, const fs::path& config, const Json& json) {
  PlannedModel model;
  model.path = path.string();
  model.shape = shape_from_config(json, config.string());
  model.has_key_bias = key_bias_of(json, config.string());
  return model;
}

PlannedModel read_folder(const fs::path& folder) {
  const fs::path config = folder / "config.json";
  const Json json = read_json_file(config);
  PlannedModel model = read_config(folder, config, json);
  if (model.shape.verdict != ShapeVerdict::kAccept || !has_weights(folder)) return model;
  try {
    const ModelFiles files = open_model(folder);
    add_runtime_facts(model, files);
    // Where the configuration names no type, the tensors decide.
    model.shape.native_dtype = files.config.native_dtype;
    model.shape.native_dtype_assumed = false;
  } catch (const Error& e) {
    if (e.code() != ErrorCode::kUnsupported) throw;
    model.shape.verdict = ShapeVerdict::kAccountOnly;
    model.shape.reason = e.what();
  }
  return model;
}

}  // namespace

PlannedModel read_planned_model(const fs::path& path) {
  if (fs::is_directory(path)) return read_folder(path);
  if (path.extension() == ".json" || holds_json(path)) return read_config(path, path, read_json_file(path));
  const ModelFiles files = open_model(path);
  PlannedModel model;
  model.path = path.string();
  model.shape = shape_of_config(files.config);
  add_runtime_facts(model, files);
  return model;
}

}  // namespace asymkv::app
