#include "asymkv/engine/scales.h"

#include <algorithm>
#include <cfloat>
#include <cmath>

#include "asymkv/base/error.h"
#include "asymkv/base/hash.h"
#include "asymkv/engine/cache_setup.h"
#include "asymkv/kv/codec.h"

namespace asymkv {
namespace {

constexpr const char* kScalesSchema = "asymkv.scales/1";

// Of no layer whose keys or values are not finite can a scale be known. `side`: "keys", "values".
float max_abs(std::span<const float> elems, int64_t layer_idx, std::string_view side) {
  float largest = 0.0F;
  for (const float x : elems) {
    if (!std::isfinite(x)) {
      throw_bad_input("layer {}: the model gives {} that are not finite; check its weights", layer_idx, side);
    }
    largest = std::max(largest, std::fabs(x));
  }
  return largest;
}

// Collects the largest magnitudes of each layer's keys (with and without the removed vector) and values.
class RangeObserver final : public ForwardObserver {
 public:
  RangeObserver(const Decoder& decoder, std::vector<KeyTransform> transforms)
      : decoder_(decoder),
        transforms_(std::move(transforms)),
        ranges_(static_cast<size_t>(decoder.config().num_layers)) {}

  struct Range {
    float key = 0.0F;
    float key_prebias = 0.0F;
    float value = 0.0F;
  };
  const std::vector<Range>& ranges() const { return ranges_; }

  void on_layer(const LayerActivations& a) override {
    Range& range = ranges_[static_cast<size_t>(a.layer_idx)];
    range.key = std::max(range.key, max_abs(a.fresh_k, a.layer_idx, "keys"));
    range.value = std::max(range.value, max_abs(a.fresh_v, a.layer_idx, "values"));
    if (!transforms_.empty()) range.key_prebias = std::max(range.key_prebias, prebias_range(a));
  }

 private:
  float prebias_range(const LayerActivations& a) const {
    const KeyTransform& transform = transforms_[static_cast<size_t>(a.layer_idx)];
    const std::span<const float> bias = decoder_.k_bias(a.layer_idx);
    const auto head_dim = static_cast<size_t>(transform.head_dim);
    std::vector<float> head(head_dim);
    float largest = 0.0F;
    for (size_t token = 0; token < static_cast<size_t>(a.num_tokens); ++token) {
      for (size_t begin = 0; begin < bias.size(); begin += head_dim) {
        for (size_t i = 0; i < head_dim; ++i) {
          head[i] = a.k_raw[token * bias.size() + begin + i] + (bias[begin + i] - transform.removed[begin + i]);
        }
        decoder_.rope(a.layer_idx).rotate(a.positions[token], head.data());
        largest = std::max(largest, max_abs(head, a.layer_idx, "keys"));
      }
    }
    return largest;
  }

  const Decoder& decoder_;
  std::vector<KeyTransform> transforms_;
  std::vector<Range> ranges_;
};

float scale_of(float largest) {
  return std::max(largest / kE4M3Max, FLT_MIN);
}

float checked_scale(double stored, const std::string& origin, size_t layer, std::string_view side) {
  const auto scale = static_cast<float>(stored);
  if (!std::isfinite(scale) || scale <= 0.0F) {
    throw_bad_input("{}: layer {} {} scale is {}; scales must be finite and positive in 32 bits", origin, layer, side,
                    stored);
  }
  return scale;
}

std::optional<float> read_side(const Json& layer, const std::string& side, const std::string& origin, size_t idx) {
  if (!layer.contains(side)) return std::nullopt;
  const std::string where = fmt::format("{} layer {}", origin, idx);
  return checked_scale(require_number(layer, side, where), origin, idx, side);
}

}  // namespace

std::string scales_sha256(std::string_view source) {
  const size_t colon = source.find(':');
  return colon == std::string_view::npos ? std::string() : std::string(source.substr(colon + 1));
}

ScaleSet unit_scales(int64_t num_layers) {
  return {"unit", std::vector<LayerScaleSet>(static_cast<size_t>(num_layers), {1.0F, 1.0F, 1.0F}), {}};
}

ScaleSet checkpoint_scales(const ModelFiles& files) {
  if (!files.checkpoint_scales.any()) {
    throw_bad_input("{} carries no KV scales; use --scale dynamic, a scales file (asymkv calibrate), or ask for unit",
                    files.path.string());
  }
  ScaleSet scales;
  scales.source = "checkpoint";
  scales.origin = files.path.string();
  for (size_t i = 0; i < files.checkpoint_scales.k.size(); ++i) {
    LayerScaleSet layer;
    const auto& k = files.checkpoint_scales.k[i];
    const auto& v = files.checkpoint_scales.v[i];
    if (k) layer.key = checked_scale(*k, files.path.string(), i, "key");
    if (v) layer.value = checked_scale(*v, files.path.string(), i, "value");
    scales.layers.push_back(layer);
  }
  return scales;
}

ScaleSet calibrate_scales(LoadedModel& model, std::span<const std::vector<int32_t>> documents) {
  if (documents.empty()) throw_usage("calibration needs at least one document");
  std::vector<KeyTransform> transforms;
  if (has_removable_key_vector(model.decoder)) transforms = make_key_transforms(model.decoder);
  RangeObserver observer(model.decoder, std::move(transforms));
  for (const std::vector<int32_t>& tokens : documents) {
    ForwardChunk chunk;
    chunk.tokens = tokens;
    model.decoder.forward(std::span(&chunk, 1), model.config().native_dtype, &observer);
  }
  ScaleSet scales;
  for (const RangeObserver::Range& range : observer.ranges()) {
    LayerScaleSet layer{scale_of(range.key), std::nullopt, scale_of(range.value)};
    if (has_removable_key_vector(model.decoder)) layer.key_prebias = scale_of(range.key_prebias);
    scales.layers.push_back(layer);
  }
  scales.source = "calibrated:" + sha256_hex(canonical_json(scales_to_json(scales, "", "")));
  return scales;
}

Json scales_to_json(const ScaleSet& scales, const std::string& model_weights_sha256, const std::string& data_sha256) {
  Json layers = Json::array();
  for (const LayerScaleSet& layer : scales.layers) {
    Json row = Json::object();
    if (layer.key) row["key"] = static_cast<double>(*layer.key);
    if (layer.key_prebias) row["key_prebias"] = static_cast<double>(*layer.key_prebias);
    if (layer.value) row["value"] = static_cast<double>(*layer.value);
    layers.push_back(std::move(row));
  }
  return {{"schema", kScalesSchema},
          {"model_weights_sha256", model_weights_sha256},
          {"data_sha256", data_sha256},
          {"layers", std::move(layers)}};
}

ScaleSet scales_from_json(const Json& json, const std::string& origin, const ModelConfig& config,
                          const std::string& model_weights_sha256) {
  const std::string schema = require_string(json, "schema", origin);
  if (schema != kScalesSchema) throw_bad_input("{}: schema is \"{}\", expected \"{}\"", origin, schema, kScalesSchema);
  const std::string model = require_string(json, "model_weights_sha256", origin);
  if (model != model_weights_sha256) {
    throw_bad_input("{}: scales of another model (weights {}, this model's are {})", origin, model,
                    model_weights_sha256);
  }
  const Json& layers = require_field(json, "layers", origin);
  if (!layers.is_array() || static_cast<int64_t>(layers.size()) != config.num_layers) {
    throw_bad_input("{}: \"layers\" must be an array of {} layers", origin, config.num_layers);
  }
  ScaleSet scales;
  scales.origin = origin;
  for (size_t i = 0; i < layers.size(); ++i) {
    if (!layers[i].is_object()) throw_bad_input("{}: layer {} must be an object", origin, i);
    scales.layers.push_back({read_side(layers[i], "key", origin, i), read_side(layers[i], "key_prebias", origin, i),
                             read_side(layers[i], "value", origin, i)});
  }
  scales.source = "calibrated:" + sha256_hex(canonical_json(scales_to_json(scales, "", "")));
  return scales;
}

}  // namespace asymkv
