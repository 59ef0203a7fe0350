#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "asymkv/base/json.h"
#include "asymkv/model/config.h"

// Checks that the config.json and the GGUF reader share. `origin` is the file, `key` the name the file gives the value.
namespace asymkv {

// The value if it lies in [1, 2^24]: larger ones are no model, and smaller keep every product of three inside int64.
int64_t checked_count(int64_t value, std::string_view key, std::string_view origin);

// Throws unless the value is finite and above zero.
void check_positive(double value, std::string_view key, std::string_view origin);

// The id if it lies in [0, vocab_size).
int32_t checked_token(int64_t id, int64_t vocab_size, std::string_view key, std::string_view origin);

struct GeometryKeys {
  std::string_view q_heads;
  std::string_view kv_heads;
  std::string_view head_dim;
};
// Query heads a multiple of KV heads, an even head_dim, head counts and widths within reason.
void check_geometry(const ModelConfig& config, const GeometryKeys& keys, std::string_view origin);

// Factors finite and positive, low < high and a slow beta below the fast one, original lengths present where the kind
// needs them.
void check_rope_scaling(const RopeScaling& scaling, std::string_view origin);

// "eos_token_id" of a config.json or generation_config.json: absent, one id or a list.
std::vector<int32_t> eos_ids_from_hf(const Json& json, int64_t vocab_size, std::string_view origin);

}  // namespace asymkv
