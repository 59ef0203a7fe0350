#include "asymkv/base/error.h"
#include "asymkv/model/config_source.h"

namespace asymkv {
namespace {

// The window of the layers that have one, or 0 where none has.
int64_t read_window(const ConfigSource& source, const Family& family) {
  if (family.window_rule == WindowRule::kNone) return 0;
  if (family.window_rule == WindowRule::kFromLayer) {
    return bool_or(source.json, "use_sliding_window", false, source.origin) ? source.count("sliding_window") : 0;
  }
  if (family.window_rule == WindowRule::kPattern) return source.count("sliding_window");
  // transformers gives mistral a window of 4,096 where the key is absent, and none where it is null.
  if (family.model_type == "mistral" && !source.json.contains("sliding_window")) {
    throw_bad_input("{}: sliding_window is missing; set it to null or to the number of tokens", source.origin);
  }
  return source.has("sliding_window") ? source.count("sliding_window") : 0;
}

// Which layers have the window by the family's own rule.
std::vector<bool> ruled_windows(const ConfigSource& source, const Family& family, int64_t num_layers, int64_t window) {
  std::vector<bool> windowed(static_cast<size_t>(num_layers), false);
  if (window == 0) return windowed;
  int64_t first = 0;
  int64_t pattern = 0;
  if (family.window_rule == WindowRule::kFromLayer) {
    first = int_or(source.json, "max_window_layers", -1, source.origin);
    if (first < 0) {
      throw_bad_input("{}: max_window_layers is missing or negative, and layer_types is absent", source.origin);
    }
  }
  if (family.window_rule == WindowRule::kPattern) {
    pattern = source.has("_sliding_window_pattern") ? source.count("_sliding_window_pattern")
                                                    : source.count_or("sliding_window_pattern", family.window_pattern);
  }
  for (int64_t i = 0; i < num_layers; ++i) {
    windowed[static_cast<size_t>(i)] = i >= first && (pattern == 0 || (i + 1) % pattern != 0);
  }
  return windowed;
}

std::vector<bool> listed_windows(const ConfigSource& source, int64_t num_layers, int64_t window) {
  const Json& types = source.json.at("layer_types");
  if (!types.is_array() || static_cast<int64_t>(types.size()) != num_layers) {
    throw_bad_input("{}: layer_types must be an array of {} strings, one per layer", source.origin, num_layers);
  }
  std::vector<bool> windowed;
  for (const Json& entry : types) {
    const std::string type = entry.is_string() ? entry.get<std::string>() : entry.dump();
    if (type != "full_attention" && type != "sliding_attention") {
      throw_unsupported("{}: layer_types holds {}; known: \"full_attention\", \"sliding_attention\"", source.origin,
                        entry.dump());
    }
    windowed.push_back(type == "sliding_attention");
    if (windowed.back() && window == 0) {
      throw_unsupported("{}: layer_types holds {} but the model has no window in use", source.origin, entry.dump());
    }
  }
  return windowed;
}

}  // namespace

void read_hf_layers(const ConfigSource& source, const Family& family, ModelConfig& config) {
  const int64_t window = read_window(source, family);
  const bool listed = source.has("layer_types");
  const std::vector<bool> windowed = listed ? listed_windows(source, config.num_layers, window)
                                            : ruled_windows(source, family, config.num_layers, window);
  for (const bool has_window : windowed) {
    if (listed && family.window_rule == WindowRule::kAllLayers && window != 0 && !has_window) {
      throw_unsupported("{}: layer_types mixes layers, which transformers ignores for {}; use one kind", source.origin,
                        family.model_type);
    }
    config.layers.push_back({has_window ? window : 0, has_window && family.local_rope ? 1 : 0});
  }
}

}  // namespace asymkv
