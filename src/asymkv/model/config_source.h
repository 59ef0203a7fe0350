#pragma once

#include <string>
#include <string_view>

#include "asymkv/base/json.h"
#include "asymkv/model/config_checks.h"
#include "asymkv/model/family.h"

namespace asymkv {

// One config.json being read: the object and the path that errors name.
struct ConfigSource {
  const Json& json;
  std::string_view origin;

  bool has(const std::string& key) const { return json.contains(key) && !json.at(key).is_null(); }
  int64_t count(const std::string& key) const { return checked_count(require_int(json, key, origin), key, origin); }
  int64_t count_or(const std::string& key, int64_t fallback) const {
    return checked_count(int_or(json, key, fallback, origin), key, origin);
  }
};

// Windows and RoPE numbers of every layer, from layer_types or the family's rule. Needs num_layers and
// max_position_embeddings.
void read_hf_layers(const ConfigSource& source, const Family& family, ModelConfig& config);

// ropes, from rope_theta and rope_scaling or rope_parameters, and the query temperature, which stands among them.
// Needs head_dim and max_position_embeddings.
void read_hf_ropes(const ConfigSource& source, const Family& family, ModelConfig& config);

}  // namespace asymkv
