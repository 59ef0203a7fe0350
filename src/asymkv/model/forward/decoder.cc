#include "asymkv/model/forward/decoder.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <utility>

#include "asymkv/base/error.h"

namespace asymkv {
namespace {

constexpr int64_t kInitialPositions = 1024;
constexpr int64_t kMlpRows = 512;  // rows that pass an MLP together: bounds its working memory

// Matrices of the same row length stacked into one as they are stored, so that one product serves them all.
WeightMatrix read_matrix(const WeightSource& source, const std::vector<std::string>& names) {
  WeightMatrix stacked(source.info(names.front()).row_elems());
  for (const std::string& name : names) source.append_stored(name, stacked);
  source.drop_resident_pages();
  return stacked;
}

std::vector<float> read_optional(const WeightSource& source, const std::string& name) {
  return source.contains(name) ? source.read_f32(name) : std::vector<float>();
}

// The matrices that make up [q | k | v] and [gate | up]: one where the file stores them fused.
std::vector<std::string> qkv_names(const ModelConfig& config, const std::string& attention) {
  if (config.fused_projections) return {attention + "qkv_proj.weight"};
  return {attention + "q_proj.weight", attention + "k_proj.weight", attention + "v_proj.weight"};
}

std::vector<std::string> gate_up_names(const ModelConfig& config, const std::string& layer) {
  if (config.fused_projections) return {layer + "mlp.gate_up_proj.weight"};
  return {layer + "mlp.gate_proj.weight", layer + "mlp.up_proj.weight"};
}

std::vector<float> read_norm(const WeightSource& source, const std::string& name, const ModelConfig& config) {
  std::vector<float> weight = source.read_f32(name);
  for (float& w : weight) w += static_cast<float>(config.norm_weight_offset);
  return weight;
}

// Whether a chunk attends to what a cache holds: to earlier tokens, or to its own once they are stored.
bool reads_stored(const ForwardChunk& chunk) {
  return chunk.start_pos > 0 || chunk.own_reads == OwnReads::kStored;
}

void cap_softly(double cap, std::span<float> values) {
  const auto limit = static_cast<float>(cap);
  for (float& value : values) value = limit * std::tanh(value / limit);
}

}  // namespace

ForwardChunk append_chunk(SequencePages& sequence, std::span<const int32_t> tokens, OwnReads own_reads) {
  return {tokens, sequence.num_tokens(), {&sequence}, &sequence, own_reads};
}

struct Decoder::Weights {
  struct Layer {
    std::vector<float> input_norm;
    WeightMatrix qkv;           // [q | k | v rows, hidden]
    std::vector<float> q_bias;  // empty without bias
    std::vector<float> k_bias;
    std::vector<float> v_bias;
    WeightMatrix o;
    std::vector<float> o_bias;
    std::vector<float> q_norm;  // [head_dim]; empty without QK-norm
    std::vector<float> k_norm;
    std::vector<float> mlp_norm;
    std::vector<float> post_attention_norm;  // empty where the residual is added as computed
    std::vector<float> post_mlp_norm;
    WeightMatrix gate_up;  // [gate | up rows, hidden]
    WeightMatrix down;
  };
  WeightMatrix embedding;
  std::vector<Layer> layers;
  std::vector<float> final_norm;
  WeightMatrix lm_head;  // empty if tied

  const WeightMatrix& output_matrix() const { return lm_head.empty() ? embedding : lm_head; }
};

// A forward pass laid out in rows.
struct Decoder::Batch {
  struct Row {
    int64_t begin = 0;
    int64_t count = 0;
  };
  std::span<const ForwardChunk> chunks;
  std::vector<Row> rows;           // of each chunk
  std::vector<int32_t> positions;  // of each row
  int64_t num_rows = 0;
  std::vector<std::vector<std::vector<int64_t>>> slots;  // [chunk][target][token]
  DType native_dtype = DType::kBF16;
};

struct Decoder::Scratch {
  std::vector<float> x;          // residual stream [rows, hidden]
  std::vector<float> normed;     // [rows, hidden]
  std::vector<float> branch;     // [rows, hidden] of a branch that is normed before it is added; else empty
  std::vector<float> qkv;        // [rows, q + k + v]
  std::vector<float> q;          // [rows, q]
  std::vector<float> k;          // [rows, k]
  std::vector<float> v;          // [rows, v]
  std::vector<float> fresh_k;    // [rows, k]
  std::vector<float> fresh_v;    // [rows, v]
  std::vector<float> attended;   // [rows, q]
  std::vector<float> gate_up;    // [up to kMlpRows, 2 intermediate]
  std::vector<float> activated;  // [up to kMlpRows, intermediate]
};

Decoder::Decoder(const ModelConfig& config, const WeightSource& weights, Backends backends)
    : config_(config), backends_(std::move(backends)), weights_(std::make_unique<Weights>()) {
  ropes_.resize(config.ropes.size());
  reserve_positions(std::min(kInitialPositions, position_limit(1)));
  weights_->embedding = read_matrix(weights, {"model.embed_tokens.weight"});
  weights_->final_norm = read_norm(weights, "model.norm.weight", config);
  if (!config.tie_word_embeddings) weights_->lm_head = read_matrix(weights, {"lm_head.weight"});
  for (int64_t i = 0; i < config.num_layers; ++i) {
    const std::string layer = fmt::format("model.layers.{}.", i);
    const std::string attention = layer + "self_attn.";
    Weights::Layer w;
    w.input_norm = read_norm(weights, layer + "input_layernorm.weight", config);
    w.qkv = read_matrix(weights, qkv_names(config, attention));
    w.q_bias = read_optional(weights, attention + "q_proj.bias");
    w.k_bias = read_optional(weights, attention + "k_proj.bias");
    w.v_bias = read_optional(weights, attention + "v_proj.bias");
    w.o = read_matrix(weights, {attention + "o_proj.weight"});
    w.o_bias = read_optional(weights, attention + "o_proj.bias");
    if (config.qk_norm) {
      w.q_norm = read_norm(weights, attention + "q_norm.weight", config);
      w.k_norm = read_norm(weights, attention + "k_norm.weight", config);
    }
    std::vector<float> after_attention = read_norm(weights, layer + "post_attention_layernorm.weight", config);
    if (config.post_norms) {
      w.post_attention_norm = std::move(after_attention);
      w.mlp_norm = read_norm(weights, layer + "pre_feedforward_layernorm.weight", config);
      w.post_mlp_norm = read_norm(weights, layer + "post_feedforward_layernorm.weight", config);
    } else {
      w.mlp_norm = std::move(after_attention);
    }
    w.gate_up = read_matrix(weights, gate_up_names(config, layer));
    w.down = read_matrix(weights, {layer + "mlp.down_proj.weight"});
    weights_->layers.push_back(std::move(w));
  }
}

Decoder::~Decoder() = default;
Decoder::Decoder(Decoder&&) noexcept = default;

KvGeometry Decoder::kv_geometry(int64_t page_size) const {
  return {config_.num_kv_heads, config_.head_dim, config_.head_dim, page_size};
}

std::span<const float> Decoder::k_bias(int64_t layer_idx) const {
  return weights_->layers.at(static_cast<size_t>(layer_idx)).k_bias;
}

const RopeTable& Decoder::rope(int64_t layer_idx) const {
  return ropes_.at(static_cast<size_t>(config_.layers.at(static_cast<size_t>(layer_idx)).rope_idx));
}

// Up to where the frequencies that serve num_positions stay the same.
int64_t Decoder::position_limit(int64_t num_positions) const {
  int64_t limit = config_.max_position_embeddings;
  for (const RopeConfig& rope : config_.ropes) {
    const bool switches = rope.scaling.kind == RopeScalingKind::kLongRope;
    if (switches && num_positions <= rope.scaling.original_max_position) {
      limit = std::min(limit, rope.scaling.original_max_position);
    }
  }
  return limit;
}

void Decoder::reserve_positions(int64_t num_positions) {
  if (num_positions > config_.max_position_embeddings) {
    throw_usage("{} tokens are more than the model's {} positions", num_positions, config_.max_position_embeddings);
  }
  if (num_positions <= max_positions()) return;
  const int64_t short_limit = position_limit(std::max<int64_t>(1, max_positions()));
  if (has_run_ && num_positions > short_limit) {
    throw_usage(
        "{} tokens are more than the {} that the model's short RoPE factors serve, and keys were already turned "
        "by them; reserve the whole length before the first token",
        num_positions, short_limit);
  }
  const int64_t grown = std::min(position_limit(num_positions), std::max(num_positions, 2 * max_positions()));
  for (size_t i = 0; i < ropes_.size(); ++i) {
    const RopeConfig& rope = config_.ropes[i];
    ropes_[i] =
        RopeTable(rope_inverse_frequencies(rope, config_.head_dim, grown), grown, rope.scaling.attention_factor);
  }
}

Decoder::Batch Decoder::make_batch(std::span<const ForwardChunk> chunks) const {
  Batch batch;
  batch.chunks = chunks;
  for (const ForwardChunk& chunk : chunks) {
    const auto count = static_cast<int64_t>(chunk.tokens.size());
    ASYMKV_CHECK(chunk.own_reads == OwnReads::kFresh || chunk.context != nullptr, "stored reads need a context");
    ASYMKV_CHECK(chunk.start_pos == 0 || chunk.context != nullptr, "a chunk at position {} has no context",
                 chunk.start_pos);
    for (const SequencePages* target : chunk.targets) {
      ASYMKV_CHECK(target->num_tokens() == chunk.start_pos, "chunk starts at {} but its cache holds {} tokens",
                   chunk.start_pos, target->num_tokens());
    }
    batch.rows.push_back({batch.num_rows, count});
    for (int64_t i = 0; i < count; ++i) batch.positions.push_back(static_cast<int32_t>(chunk.start_pos + i));
    batch.num_rows += count;
    for (const int32_t token : chunk.tokens) {
      if (token < 0 || token >= config_.vocab_size) {
        throw_usage("token id {} is outside the model's vocabulary of {}", token, config_.vocab_size);
      }
    }
  }
  // Pools are charged last and all or nothing: what was appended before a full pool is taken back.
  std::vector<std::pair<SequencePages*, int64_t>> appended;
  try {
    for (const ForwardChunk& chunk : chunks) {
      auto& slots = batch.slots.emplace_back();
      for (SequencePages* target : chunk.targets) {
        slots.push_back(target->append(static_cast<int64_t>(chunk.tokens.size())));
        appended.emplace_back(target, chunk.start_pos);
      }
    }
  } catch (...) {
    for (const auto& [target, tokens] : appended) target->truncate(tokens);
    throw;
  }
  return batch;
}

const AttentionBackend& Decoder::attention_of(const KvCache& cache) const {
  if (!cache.config().use.control_kernels) return *backends_.attention;
  ASYMKV_CHECK(backends_.control != nullptr, "a cache of the control kernels without such a family");
  return *backends_.control;
}

const AttentionBackend& Decoder::reader_of(const ForwardChunk& chunk) const {
  return reads_stored(chunk) ? attention_of(chunk.context->cache()) : *backends_.attention;
}

// Rounds the queries of a chunk whose cache asks for it: rows belong to one chunk, so it is done in place.
AttendSequence Decoder::attend_sequence(const Batch& batch, size_t chunk_idx, int64_t layer_idx,
                                        Scratch& scratch) const {
  const int64_t k_dim = config_.num_kv_heads * config_.head_dim;
  const ForwardChunk& chunk = batch.chunks[chunk_idx];
  const bool fresh = chunk.own_reads == OwnReads::kFresh;
  AttendSequence sequence;
  sequence.query_row = batch.rows[chunk_idx].begin;
  sequence.num_queries = batch.rows[chunk_idx].count;
  sequence.query_pos = chunk.start_pos;
  sequence.stored_len = chunk.start_pos + (fresh ? 0 : batch.rows[chunk_idx].count);
  if (reads_stored(chunk)) {
    sequence.cache = chunk.context->cache().layer(layer_idx);
    sequence.pages = chunk.context->pages();
    sequence.query_dtype = chunk.context->cache().config().use.query_dtype;
  }
  if (fresh) {
    sequence.fresh_k = scratch.fresh_k.data() + sequence.query_row * k_dim;
    sequence.fresh_v = scratch.fresh_v.data() + sequence.query_row * k_dim;
    sequence.num_fresh = sequence.num_queries;
  }
  if (sequence.query_dtype) {
    for (int64_t r = 0; r < sequence.num_queries * config_.num_q_heads; ++r) {
      const int64_t at = (sequence.query_row * config_.num_q_heads + r) * config_.head_dim;
      round_row(*sequence.query_dtype,
                std::span(scratch.q).subspan(static_cast<size_t>(at), static_cast<size_t>(config_.head_dim)));
    }
  }
  return sequence;
}

void Decoder::attend_all(const Batch& batch, int64_t layer_idx, Scratch& scratch) const {
  AttendParams params;
  params.num_q_heads = config_.num_q_heads;
  params.num_kv_heads = config_.num_kv_heads;
  params.k_head_dim = config_.head_dim;
  params.v_head_dim = config_.head_dim;
  params.softmax_scale = static_cast<float>(config_.attention_scale);
  params.logit_soft_cap = static_cast<float>(config_.attention_soft_cap);
  params.window = config_.layers[static_cast<size_t>(layer_idx)].window;
  params.q = scratch.q.data();
  params.out = scratch.attended.data();
  params.rope = &rope(layer_idx);
  for (const AttentionBackend* attention : {backends_.attention.get(), backends_.control.get()}) {
    std::vector<AttendSequence> sequences;
    for (size_t c = 0; c < batch.chunks.size(); ++c) {
      if (&reader_of(batch.chunks[c]) != attention) continue;
      sequences.push_back(attend_sequence(batch, c, layer_idx, scratch));
    }
    params.sequences = sequences;
    if (!sequences.empty()) attention->attend(params);
  }
}

// The targets of a chunk that one family serves, and the chunk's fresh rows where that family is going to read them.
void Decoder::write_chunk(const Batch& batch, size_t chunk_idx, int64_t layer_idx, const AttentionBackend& attention,
                          Scratch& scratch) const {
  const std::vector<float>& k_bias = weights_->layers[static_cast<size_t>(layer_idx)].k_bias;
  const int64_t k_dim = config_.num_kv_heads * config_.head_dim;
  const ForwardChunk& chunk = batch.chunks[chunk_idx];
  std::vector<WriteTarget> writes;
  for (size_t t = 0; t < chunk.targets.size(); ++t) {
    KvCache& cache = chunk.targets[t]->cache();
    if (&attention_of(cache) != &attention) continue;
    writes.push_back({cache.layer(layer_idx), batch.slots[chunk_idx][t], &cache.k_counters(layer_idx),
                      &cache.v_counters(layer_idx)});
  }
  const bool reads = &reader_of(chunk) == &attention;
  if (writes.empty() && !reads) return;
  const int64_t begin = batch.rows[chunk_idx].begin;
  WriteKvParams write;
  write.num_tokens = batch.rows[chunk_idx].count;
  write.k = scratch.k.data() + begin * k_dim;
  write.v = scratch.v.data() + begin * k_dim;
  write.k_bias = k_bias.empty() ? nullptr : k_bias.data();
  write.positions =
      std::span(batch.positions).subspan(static_cast<size_t>(begin), static_cast<size_t>(write.num_tokens));
  write.rope = &rope(layer_idx);
  write.geometry = kv_geometry(chunk.targets.empty() ? 1 : chunk.targets[0]->cache().layout().geometry().page_size);
  write.native_dtype = batch.native_dtype;
  write.targets = writes;
  write.fresh_k = reads ? scratch.fresh_k.data() + begin * k_dim : nullptr;
  write.fresh_v = reads ? scratch.fresh_v.data() + begin * k_dim : nullptr;
  attention.write_kv(write);
}

void Decoder::write_all(const Batch& batch, int64_t layer_idx, Scratch& scratch) const {
  for (size_t c = 0; c < batch.chunks.size(); ++c) {
    write_chunk(batch, c, layer_idx, *backends_.attention, scratch);
    if (backends_.control != nullptr) write_chunk(batch, c, layer_idx, *backends_.control, scratch);
  }
}

namespace {

// Rows of [q | k | v] into three matrices, adding the query and value biases.
void split_qkv(std::span<const float> qkv, int64_t rows, int64_t q_dim, int64_t k_dim, std::array<float*, 3> out) {
  for (int64_t r = 0; r < rows; ++r) {
    const float* row = qkv.data() + r * (q_dim + 2 * k_dim);
    std::memcpy(out[0] + r * q_dim, row, static_cast<size_t>(q_dim) * sizeof(float));
    std::memcpy(out[1] + r * k_dim, row + q_dim, static_cast<size_t>(k_dim) * sizeof(float));
    std::memcpy(out[2] + r * k_dim, row + q_dim + k_dim, static_cast<size_t>(k_dim) * sizeof(float));
  }
}

void add_bias(std::span<const float> bias, int64_t rows, float* x) {
  const auto dim = static_cast<int64_t>(bias.size());
  for (int64_t r = 0; r < rows && dim > 0; ++r) {
    for (int64_t i = 0; i < dim; ++i) x[r * dim + i] += bias[static_cast<size_t>(i)];
  }
}

}  // namespace

void Decoder::normalise(int64_t rows, int64_t dim, const float* x, std::span<const float> weight, float* y) const {
  backends_.model->rms_norm({rows, dim, static_cast<float>(config_.rms_norm_eps), x, weight.data(), y});
}

// x += norm(branch), where the output of a branch has a norm of its own.
void Decoder::add_normed(int64_t rows, std::span<const float> norm, Scratch& scratch) const {
  normalise(rows, config_.hidden_size, scratch.branch.data(), norm, scratch.branch.data());
  for (size_t i = 0; i < scratch.x.size(); ++i) scratch.x[i] += scratch.branch[i];
}

// Queries before RoPE and keys before bias and RoPE, normed where the family norms heads; complete values.
void Decoder::project_qkv(int64_t layer_idx, const Batch& batch, Scratch& scratch) const {
  const Weights::Layer& w = weights_->layers[static_cast<size_t>(layer_idx)];
  const int64_t rows = batch.num_rows;
  const int64_t q_dim = config_.num_q_heads * config_.head_dim;
  const int64_t k_dim = config_.num_kv_heads * config_.head_dim;
  normalise(rows, config_.hidden_size, scratch.x.data(), w.input_norm, scratch.normed.data());
  backends_.model->linear({rows, scratch.normed.data(), &w.qkv, nullptr, scratch.qkv.data(), false});
  split_qkv(scratch.qkv, rows, q_dim, k_dim, {scratch.q.data(), scratch.k.data(), scratch.v.data()});
  add_bias(w.q_bias, rows, scratch.q.data());
  add_bias(w.v_bias, rows, scratch.v.data());
  if (!config_.qk_norm) return;
  normalise(rows * config_.num_q_heads, config_.head_dim, scratch.q.data(), w.q_norm, scratch.q.data());
  normalise(rows * config_.num_kv_heads, config_.head_dim, scratch.k.data(), w.k_norm, scratch.k.data());
}

// Queries grow with their position where the model asks for it (ModelConfig::query_temperature).
void Decoder::scale_queries(const Batch& batch, Scratch& scratch) const {
  if (config_.query_temperature == 0.0) return;
  const int64_t q_dim = config_.num_q_heads * config_.head_dim;
  for (int64_t r = 0; r < batch.num_rows; ++r) {
    const int64_t turns = batch.positions[static_cast<size_t>(r)] / config_.query_temperature_length;
    const auto factor =
        static_cast<float>(1.0 + config_.query_temperature * std::log(1.0 + static_cast<double>(turns)));
    for (int64_t i = 0; i < q_dim; ++i) scratch.q[static_cast<size_t>(r * q_dim + i)] *= factor;
  }
}

void Decoder::run_attention(int64_t layer_idx, const Batch& batch, Scratch& scratch, ForwardObserver* observer) const {
  const Weights::Layer& w = weights_->layers[static_cast<size_t>(layer_idx)];
  const int64_t rows = batch.num_rows;
  project_qkv(layer_idx, batch, scratch);
  backends_.model->rotate(rope(layer_idx), batch.positions, config_.num_q_heads, scratch.q.data());
  scale_queries(batch, scratch);
  write_all(batch, layer_idx, scratch);
  if (observer != nullptr) {
    observer->on_layer({layer_idx, rows, batch.positions, scratch.q, scratch.k, scratch.fresh_k, scratch.fresh_v});
  }
  attend_all(batch, layer_idx, scratch);
  const bool post = !w.post_attention_norm.empty();
  backends_.model->linear({rows, scratch.attended.data(), &w.o, w.o_bias.empty() ? nullptr : w.o_bias.data(),
                           post ? scratch.branch.data() : scratch.x.data(), !post});
  if (post) add_normed(rows, w.post_attention_norm, scratch);
}

void Decoder::run_mlp(int64_t layer_idx, int64_t rows, Scratch& scratch) const {
  const Weights::Layer& w = weights_->layers[static_cast<size_t>(layer_idx)];
  const ModelBackend& math = *backends_.model;
  const int64_t inner = config_.intermediate_size;
  normalise(rows, config_.hidden_size, scratch.x.data(), w.mlp_norm, scratch.normed.data());
  const bool post = !w.post_mlp_norm.empty();
  float* out = post ? scratch.branch.data() : scratch.x.data();
  for (int64_t begin = 0; begin < rows; begin += kMlpRows) {
    const int64_t count = std::min(kMlpRows, rows - begin);
    const int64_t offset = begin * config_.hidden_size;
    math.linear({count, scratch.normed.data() + offset, &w.gate_up, nullptr, scratch.gate_up.data(), false});
    if (config_.activation == Activation::kSilu) {
      math.silu_mul(count, inner, scratch.gate_up.data(), scratch.activated.data());
    } else {
      math.gelu_mul(count, inner, scratch.gate_up.data(), scratch.activated.data());
    }
    math.linear({count, scratch.activated.data(), &w.down, nullptr, out + offset, !post});
  }
  if (post) add_normed(rows, w.post_mlp_norm, scratch);
}

Decoder::Scratch Decoder::make_scratch(const Batch& batch) const {
  const auto rows = static_cast<size_t>(batch.num_rows);
  const auto hidden = static_cast<size_t>(config_.hidden_size);
  const auto q_dim = static_cast<size_t>(config_.num_q_heads * config_.head_dim);
  const auto k_dim = static_cast<size_t>(config_.num_kv_heads * config_.head_dim);
  const auto intermediate = static_cast<size_t>(config_.intermediate_size);
  Scratch scratch;
  scratch.x.resize(rows * hidden);
  size_t row = 0;
  for (const ForwardChunk& chunk : batch.chunks) {
    for (const int32_t token : chunk.tokens) {
      weights_->embedding.widen_row(token, std::span(scratch.x).subspan(row * hidden, hidden));
      ++row;
    }
  }
  if (config_.embedding_scale != 1.0) {
    for (float& value : scratch.x) value *= static_cast<float>(config_.embedding_scale);
  }
  scratch.normed.resize(rows * hidden);
  if (config_.post_norms) scratch.branch.resize(rows * hidden);
  scratch.qkv.resize(rows * (q_dim + k_dim + k_dim));
  scratch.q.resize(rows * q_dim);
  for (std::vector<float>* side : {&scratch.k, &scratch.v, &scratch.fresh_k, &scratch.fresh_v}) {
    side->resize(rows * k_dim);
  }
  scratch.attended.resize(rows * q_dim);
  const auto mlp_rows = std::min(rows, static_cast<size_t>(kMlpRows));
  scratch.gate_up.resize(mlp_rows * (intermediate + intermediate));
  scratch.activated.resize(mlp_rows * intermediate);
  return scratch;
}

std::vector<float> Decoder::forward(std::span<const ForwardChunk> chunks, DType native_dtype,
                                    ForwardObserver* observer) {
  int64_t last_position = 0;
  for (const ForwardChunk& chunk : chunks) {
    last_position = std::max(last_position, chunk.start_pos + static_cast<int64_t>(chunk.tokens.size()));
  }
  reserve_positions(last_position);
  has_run_ = true;
  Batch batch = make_batch(chunks);
  batch.native_dtype = native_dtype;
  Scratch scratch = make_scratch(batch);
  for (int64_t layer = 0; layer < config_.num_layers; ++layer) {
    run_attention(layer, batch, scratch, observer);
    run_mlp(layer, batch.num_rows, scratch);
  }
  normalise(batch.num_rows, config_.hidden_size, scratch.x.data(), weights_->final_norm, scratch.x.data());
  return std::move(scratch.x);
}

std::vector<float> Decoder::logits(std::span<const float> hidden_rows) const {
  const int64_t rows = static_cast<int64_t>(hidden_rows.size()) / config_.hidden_size;
  ASYMKV_CHECK(rows * config_.hidden_size == static_cast<int64_t>(hidden_rows.size()), "{} floats are no rows of {}",
               hidden_rows.size(), config_.hidden_size);
  std::vector<float> logits(static_cast<size_t>(rows * config_.vocab_size));
  backends_.model->linear({rows, hidden_rows.data(), &weights_->output_matrix(), nullptr, logits.data(), false});
  if (config_.final_soft_cap != 0.0) cap_softly(config_.final_soft_cap, logits);
  return logits;
}

}  // namespace asymkv
