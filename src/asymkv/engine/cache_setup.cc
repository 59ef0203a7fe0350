#include "asymkv/engine/cache_setup.h"

#include "asymkv/base/error.h"

namespace asymkv {
namespace {

float required_scale(const std::optional<float>& scale, size_t layer, std::string_view side, const ScaleSet& set) {
  if (scale.has_value()) return *scale;
  throw_usage("fixed scales from {} have none for layer {} {}; calibrate the model or use --scale dynamic",
              set.origin.empty() ? set.source : set.origin, layer, side);
}

// Scales of the sides that need them; a 16-bit side ignores what the set says about it.
std::vector<LayerScales> select_scales(const CacheRequest& request) {
  const KvFormat& format = request.format;
  const bool k_fixed = format.key.scale == ScaleKind::kFixed;
  const bool v_fixed = format.value.scale == ScaleKind::kFixed;
  if (!k_fixed && !v_fixed) return {};
  if (request.scales == nullptr) {
    throw_usage("KV format {} with fixed scales needs a scale source: a scales file, checkpoint or unit", format.id());
  }
  std::vector<LayerScales> selected;
  for (size_t i = 0; i < request.scales->layers.size(); ++i) {
    const LayerScaleSet& layer = request.scales->layers[i];
    LayerScales scales;
    if (k_fixed) {
      scales.key = required_scale(format.key.prebias ? layer.key_prebias : layer.key, i,
                                  format.key.prebias ? "keys without bias" : "keys", *request.scales);
    }
    if (v_fixed) scales.value = required_scale(layer.value, i, "values", *request.scales);
    selected.push_back(scales);
  }
  return selected;
}

void check_supported(const Decoder& decoder, const KvGeometry& geometry, const CacheRequest& request) {
  const Backends& backends = decoder.backends();
  if (request.use.control_kernels && backends.control == nullptr) {
    throw_unsupported("{} has no second attention family beside it to control it with", backends.attention->name());
  }
  const AttentionBackend& attention = request.use.control_kernels ? *backends.control : *backends.attention;
  const int64_t group = decoder.config().num_q_heads / decoder.config().num_kv_heads;
  for (const Phase phase : {Phase::kWrite, Phase::kPrefill, Phase::kDecode}) {
    const Support support = attention.supports(geometry, request.format, group, phase);
    if (!support.ok) {
      throw_unsupported("KV format {} on {}, {}: {}", request.format.id(), attention.name(), phase_name(phase),
                        support.reason);
    }
  }
}

}  // namespace

bool has_removable_key_vector(const Decoder& decoder) {
  return !decoder.k_bias(0).empty();
}

std::vector<KeyTransform> make_key_transforms(const Decoder& decoder) {
  std::vector<KeyTransform> transforms;
  for (int64_t layer = 0; layer < decoder.config().num_layers; ++layer) {
    const RopeTable& rope = decoder.rope(layer);
    KeySplitOptions options;
    options.rope_magnitude = rope.magnitude();
    transforms.push_back(
        split_key_vector(decoder.k_bias(layer), rope.frequencies(), decoder.config().num_kv_heads, options));
  }
  return transforms;
}

std::unique_ptr<KvCache> make_cache(const Decoder& decoder, const CacheRequest& request) {
  const KvFormat& format = request.format;
  if (format.key.prebias && !has_removable_key_vector(decoder)) {
    throw_unsupported("KV format {}: model_type \"{}\" has no key bias to take out; use {}/{} instead", format.id(),
                      decoder.config().model_type, dtype_name(format.key.dtype), format.value.id());
  }
  const KvGeometry geometry = decoder.kv_geometry(request.page_size);
  const KvLayout layout(geometry, format);
  check_supported(decoder, geometry, request);
  KvCacheConfig config;
  config.num_layers = decoder.config().num_layers;
  config.num_pages = request.num_pages;
  config.memory = decoder.backends().attention->cache_memory();
  config.fixed_scales = select_scales(request);
  config.use = request.use;
  if (format.scale() == ScaleKind::kDynamic) config.scale_source = "dynamic";
  if (format.scale() == ScaleKind::kFixed) config.scale_source = request.scales->source;
  if (format.key.prebias) config.transforms = make_key_transforms(decoder);
  return std::make_unique<KvCache>(layout, std::move(config));
}

}  // namespace asymkv
