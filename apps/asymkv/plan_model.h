#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "asymkv/planner/model_shape.h"

namespace asymkv::app {

// A model as `plan` sees it: what its layers store, and what only a model that the runtime reads can tell.
struct PlannedModel {
  std::string path;
  ModelShape shape;
  std::optional<bool> has_key_bias;     // that a pre-bias format could take out; nothing: not known
  std::optional<int64_t> weight_bytes;  // as the files store them; nothing for a config.json alone
};

// A config.json (or any .json), a model folder or a .gguf file. A folder whose configuration is known and whose
// tensors the runtime refuses is accounted for only, with the runtime's sentence. Throws what shape_from_config,
// open_model and read_json_file throw.
PlannedModel read_planned_model(const std::filesystem::path& path);

}  // namespace asymkv::app
