#include "probe_runner.h"

#include <algorithm>

#include "asymkv/base/error.h"
#include "asymkv/base/progress.h"

namespace asymkv::app {
namespace {

constexpr int64_t kProbedQueries = 32;

class ProbeObserver final : public ForwardObserver {
 public:
  explicit ProbeObserver(const Decoder& decoder)
      : decoder_(decoder), rows_(static_cast<size_t>(decoder.config().num_layers)) {}

  void on_layer(const LayerActivations& a) override {
    const ModelConfig& config = decoder_.config();
    ProbeLayerInput input;
    input.layer_idx = a.layer_idx;
    input.num_keys = a.num_tokens;
    input.num_queries = std::min(kProbedQueries, a.num_tokens);
    input.num_q_heads = config.num_q_heads;
    input.num_kv_heads = config.num_kv_heads;
    input.head_dim = config.head_dim;
    input.q = a.q.last(static_cast<size_t>(input.num_queries * config.num_q_heads * config.head_dim));
    input.k = a.fresh_k;
    input.v = a.fresh_v;
    input.k_bias = decoder_.k_bias(a.layer_idx);
    input.attention_scale = config.attention_scale;
    input.soft_cap = config.attention_soft_cap;
    input.window = config.layers[static_cast<size_t>(a.layer_idx)].window;
    rows_[static_cast<size_t>(a.layer_idx)].push_back(probe_layer(input));
  }

  std::vector<LayerProbe> merged() const {
    std::vector<LayerProbe> layers;
    for (const std::vector<LayerProbe>& rows : rows_) layers.push_back(merge_layer_probes(rows));
    return layers;
  }

 private:
  const Decoder& decoder_;
  std::vector<std::vector<LayerProbe>> rows_;  // [layer][document]
};

}  // namespace

ProbeResult run_probe(LoadedModel& model, std::span<const std::vector<int32_t>> documents) {
  if (documents.empty()) throw_usage("the fragility probe needs at least one document");
  ProbeObserver observer(model.decoder);
  Progress progress("probe", "documents", static_cast<int64_t>(documents.size()));
  for (const std::vector<int32_t>& tokens : documents) {
    ForwardChunk chunk;
    chunk.tokens = tokens;
    model.decoder.forward(std::span(&chunk, 1), model.config().native_dtype, &observer);
    progress.advance();
  }
  return judge_probe(observer.merged());
}

}  // namespace asymkv::app
