// Any JSON as a config.json: the planner and the runtime read it or throw Error, and where both take a file they agree
// on what its layers keep.

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string_view>

#include "asymkv/base/error.h"
#include "asymkv/model/config.h"
#include "asymkv/planner/model_shape.h"

namespace {

using asymkv::LayerKind;

void require(bool condition) {
  if (!condition) std::abort();
}

template <typename Read>
auto attempt(const Read& read) -> std::optional<decltype(read())> {
  try {
    return read();
  } catch (const asymkv::Error& e) {
    require(e.code() == asymkv::ErrorCode::kBadInput || e.code() == asymkv::ErrorCode::kUnsupported);
    return std::nullopt;
  }
}

void check_shape(const asymkv::ModelShape& shape) {
  require(!shape.deciding_key.empty() && shape.reason.find(shape.deciding_key) != std::string::npos);
  require(!shape.groups.empty() || shape.verdict == asymkv::ShapeVerdict::kRefuse);
  for (const asymkv::LayerGroup& group : shape.groups) {
    const bool heads = group.kind == LayerKind::kFull || group.kind == LayerKind::kSliding;
    require(group.num_layers > 0 && heads == (group.num_kv_heads > 0) && heads == (group.k_head_dim > 0));
    require((group.kind == LayerKind::kSliding) == (group.window > 0));
    require((group.kind == LayerKind::kLinear) == (group.state_elems > 0));
    require((group.kind == LayerKind::kLatent) == (group.latent_dim > 0));
  }
}

// The planner reads a window that no sequence outgrows as none.
int64_t num_layers_of_window(const asymkv::ModelConfig& config, int64_t window) {
  int64_t num_layers = 0;
  for (const asymkv::LayerConfig& layer : config.layers) {
    const bool sliding = layer.window != 0 && layer.window < config.max_position_embeddings;
    num_layers += (sliding ? layer.window : 0) == window ? 1 : 0;
  }
  return num_layers;
}

void check_agreement(const asymkv::ModelShape& shape, const asymkv::ModelConfig& config) {
  int64_t num_layers = 0;
  for (const asymkv::LayerGroup& group : shape.groups) {
    require(group.num_kv_heads == config.num_kv_heads && group.k_head_dim == config.head_dim);
    require(group.num_layers == num_layers_of_window(config, group.window));
    num_layers += group.num_layers;
  }
  require(num_layers == config.num_layers && shape.native_dtype == config.native_dtype);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto json = attempt([&] { return asymkv::parse_json(text, "input"); });
  if (!json) return 0;
  const auto shape = attempt([&] { return asymkv::shape_from_config(*json, "input"); });
  const auto config = attempt([&] { return asymkv::config_from_hf(*json, "input"); });
  if (shape) check_shape(*shape);
  if (shape && config && !shape->groups.empty()) check_agreement(*shape, *config);
  return 0;
}
