#include "asymkv/model/forward/decoder.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "asymkv/base/error.h"
#include "asymkv/model/forward/decoder_parts.h"

namespace asymkv {
namespace {

constexpr size_t kLossRows = 128;  // rows whose logits are held at once to score them

// Whether a chunk attends to what a cache holds: to earlier tokens, or to its own once they are stored.
bool reads_stored(const ForwardChunk& chunk) {
  return chunk.start_pos > 0 || chunk.own_reads == OwnReads::kStored;
}

// Where element `elem` of rows of a type lies.
float* at_elem(const FloatArray& rows, DType dtype, int64_t elem) {
  return reinterpret_cast<float*>(reinterpret_cast<std::byte*>(rows.data()) + elem * dtype_bytes(dtype));
}

}  // namespace

ForwardChunk append_chunk(SequencePages& sequence, std::span<const int32_t> tokens, OwnReads own_reads) {
  return {tokens, sequence.num_tokens(), {&sequence}, &sequence, own_reads};
}

KvGeometry Decoder::kv_geometry(int64_t page_size) const {
  return {config_.num_kv_heads, config_.head_dim, config_.head_dim, page_size};
}

std::span<const float> Decoder::k_bias(int64_t layer_idx) const {
  return weights_->layers.at(static_cast<size_t>(layer_idx)).host_k_bias;
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

// Whatever runs next may turn keys.
void Decoder::reserve_for(std::span<const ForwardChunk> chunks) {
  int64_t num_positions = 0;
  for (const ForwardChunk& chunk : chunks) {
    num_positions = std::max(num_positions, chunk.start_pos + std::ssize(chunk.tokens));
  }
  reserve_positions(num_positions);
  has_run_ = true;
}

void Decoder::check_chunk(const ForwardChunk& chunk) const {
  ASYMKV_CHECK(chunk.own_reads == OwnReads::kFresh || chunk.context != nullptr, "stored reads need a context");
  ASYMKV_CHECK(chunk.start_pos == 0 || chunk.context != nullptr, "a chunk at position {} has no context",
               chunk.start_pos);
  for (const SequencePages* target : chunk.targets) {
    ASYMKV_CHECK(target->num_tokens() == chunk.start_pos, "chunk starts at {} but its cache holds {} tokens",
                 chunk.start_pos, target->num_tokens());
  }
  for (const int32_t token : chunk.tokens) {
    if (token < 0 || token >= config_.vocab_size) {
      throw_usage("token id {} is outside the model's vocabulary of {}", token, config_.vocab_size);
    }
  }
}

Decoder::Batch Decoder::make_batch(std::span<const ForwardChunk> chunks) const {
  Batch batch;
  batch.chunks = chunks;
  for (const ForwardChunk& chunk : chunks) {
    check_chunk(chunk);
    const auto count = static_cast<int64_t>(chunk.tokens.size());
    batch.rows.push_back({batch.num_rows, count});
    for (int64_t i = 0; i < count; ++i) batch.positions.push_back(static_cast<int32_t>(chunk.start_pos + i));
    batch.num_rows += count;
    batch.tokens.insert(batch.tokens.end(), chunk.tokens.begin(), chunk.tokens.end());
  }
  append_rows(batch);
  return batch;
}

// Pools are charged last and all or nothing: what was appended before a full pool is taken back. A cache that several
// chunks go to is written once for all of them.
void Decoder::append_rows(Batch& batch) {
  std::vector<std::pair<SequencePages*, int64_t>> appended;
  try {
    for (size_t c = 0; c < batch.chunks.size(); ++c) {
      const int64_t begin = batch.rows[c].begin;
      const int64_t count = batch.rows[c].count;
      for (SequencePages* target : batch.chunks[c].targets) {
        const std::vector<int64_t> slots = target->append(count);
        appended.emplace_back(target, batch.chunks[c].start_pos);
        const auto first = static_cast<size_t>(begin);
        auto write = std::ranges::find_if(batch.writes, [&](const Batch::Write& w) {
          return w.cache == &target->cache() && (count == 0 || w.slots[first] < 0);
        });
        if (write == batch.writes.end()) {
          const std::vector<int64_t> no_slots(static_cast<size_t>(batch.num_rows), -1);
          write = batch.writes.insert(write, {&target->cache(), no_slots});
        }
        std::ranges::copy(slots, write->slots.begin() + begin);
      }
    }
  } catch (...) {
    for (const auto& [target, tokens] : appended) target->truncate(tokens);
    throw;
  }
}

// The type of every fresh row of the batch, if its formats agree.
DType Decoder::fresh_dtype(const Batch& batch) {
  DType dtype = batch.native_dtype;
  for (size_t i = 0; i < batch.writes.size(); ++i) {
    const KvFormat& format = batch.writes[i].cache->layout().format();
    const DType key = fresh_key_dtype(format, batch.native_dtype);
    if (key != fresh_value_dtype(format, batch.native_dtype) || (i > 0 && key != dtype)) return DType::kF32;
    dtype = key;
  }
  return dtype;
}

// Operands all the way from one product to the next, where nothing on the way wants FP32: a change of the queries, a
// second family of kernels, an observer, or a fresh row of another type.
DType Decoder::row_dtype(const Batch& batch, const ForwardObserver* observer) const {
  const DType operand = backends_.model->operand_dtype();
  const bool changes_queries =
      config_.query_temperature != 0.0 || std::ranges::any_of(batch.chunks, [](const ForwardChunk& chunk) {
        return chunk.context != nullptr && chunk.context->cache().config().use.query_dtype;
      });
  const bool keeps = observer == nullptr && backends_.control == nullptr && !changes_queries &&
                     batch.native_dtype == operand && fresh_dtype(batch) == operand;
  return keeps ? operand : DType::kF32;
}

const AttentionBackend& Decoder::attention_of(const KvCache& cache) const {
  if (!cache.config().use.control_kernels) return *backends_.attention;
  ASYMKV_CHECK(backends_.control != nullptr, "a cache of the control kernels without such a family");
  return *backends_.control;
}

const AttentionBackend& Decoder::reader_of(const ForwardChunk& chunk) const {
  return reads_stored(chunk) ? attention_of(chunk.context->cache()) : *backends_.attention;
}

// Without the planes of a layer.
AttendSequence Decoder::attend_sequence(const Batch& batch, size_t chunk_idx, Scratch& scratch) const {
  const int64_t k_dim = config_.num_kv_heads * config_.head_dim;
  const ForwardChunk& chunk = batch.chunks[chunk_idx];
  const bool fresh = chunk.own_reads == OwnReads::kFresh;
  AttendSequence sequence;
  sequence.query_row = batch.rows[chunk_idx].begin;
  sequence.num_queries = batch.rows[chunk_idx].count;
  sequence.query_pos = chunk.start_pos;
  sequence.stored_len = chunk.start_pos + (fresh ? 0 : batch.rows[chunk_idx].count);
  if (reads_stored(chunk)) {
    sequence.pages = chunk.context->pages();
    sequence.query_dtype = chunk.context->cache().config().use.query_dtype;
  }
  if (fresh) {
    sequence.fresh_k = at_elem(scratch.fresh_k, batch.row_dtype, sequence.query_row * k_dim);
    sequence.fresh_v = at_elem(scratch.fresh_v, batch.row_dtype, sequence.query_row * k_dim);
    sequence.num_fresh = sequence.num_queries;
  }
  return sequence;
}

// The same for all layers but for planes.
void Decoder::list_reads(Batch& batch, Scratch& scratch) const {
  for (const AttentionBackend* attention : {backends_.attention.get(), backends_.control.get()}) {
    Batch::Reads reads{attention, {}, {}};
    for (size_t c = 0; c < batch.chunks.size(); ++c) {
      const ForwardChunk& chunk = batch.chunks[c];
      if (&reader_of(chunk) != attention) continue;
      reads.sequences.push_back(attend_sequence(batch, c, scratch));
      reads.caches.push_back(reads_stored(chunk) ? &chunk.context->cache() : nullptr);
    }
    if (!reads.sequences.empty()) batch.reads.push_back(std::move(reads));
  }
}

// The queries of a sequence whose cache asks for it, in place: rows belong to one chunk.
void Decoder::round_queries(const AttendSequence& sequence, Scratch& scratch) const {
  if (!sequence.query_dtype) return;
  const int64_t first_row = sequence.query_row * config_.num_q_heads;
  backends_.model->round_rows(*sequence.query_dtype, sequence.num_queries * config_.num_q_heads, config_.head_dim,
                              scratch.q.data() + first_row * config_.head_dim);
}

AttendParams Decoder::attend_params(const Batch& batch, int64_t layer_idx, Scratch& scratch) const {
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
  params.fresh_dtype = fresh_dtype(batch);
  params.row_dtype = batch.row_dtype;
  params.pass = batch.pass;
  params.recorded = batch.recorded;
  return params;
}

// The planes of a layer, for sequences that read them.
void Decoder::show_layer(Batch& batch, int64_t layer_idx) {
  for (Batch::Reads& reads : batch.reads) {
    for (size_t i = 0; i < reads.sequences.size(); ++i) {
      if (reads.caches[i] == nullptr) continue;
      // Sequences of one cache mostly stand together.
      const bool again = i > 0 && reads.caches[i] == reads.caches[i - 1];
      reads.sequences[i].cache = again ? reads.sequences[i - 1].cache : reads.caches[i]->layer(layer_idx);
    }
  }
}

void Decoder::attend_all(Batch& batch, int64_t layer_idx, Scratch& scratch) const {
  AttendParams params = attend_params(batch, layer_idx, scratch);
  show_layer(batch, layer_idx);
  for (Batch::Reads& reads : batch.reads) {
    for (const AttendSequence& sequence : reads.sequences) round_queries(sequence, scratch);
    params.sequences = reads.sequences;
    reads.attention->attend(params);
  }
}

// Of the caches that one family serves.
std::vector<WriteTarget> Decoder::write_targets(const Batch& batch, int64_t layer_idx,
                                                const AttentionBackend& attention) const {
  std::vector<WriteTarget> targets;
  for (const Batch::Write& write : batch.writes) {
    KvCache& cache = *write.cache;
    if (&attention_of(cache) != &attention) continue;
    targets.push_back(
        {cache.layer(layer_idx), write.slots, &cache.k_counters(layer_idx), &cache.v_counters(layer_idx)});
  }
  return targets;
}

// Without targets and fresh rows.
WriteKvParams Decoder::write_params(const Batch& batch, int64_t layer_idx, Scratch& scratch) const {
  WriteKvParams params;
  params.num_tokens = batch.num_rows;
  params.row_dtype = batch.row_dtype;
  params.k = scratch.k.data();
  params.v = scratch.v.data();
  params.k_bias = weights_->layers[static_cast<size_t>(layer_idx)].k_bias.data();
  params.positions = batch.positions;
  params.placed_positions = reinterpret_cast<const int32_t*>(scratch.positions.data());
  params.rope = &rope(layer_idx);
  params.native_dtype = batch.native_dtype;
  params.pass = batch.pass;
  params.recorded = batch.recorded;
  return params;
}

// The rows of the caches that one family serves, and fresh rows where that family is going to read some.
void Decoder::write_family(const Batch& batch, int64_t layer_idx, const AttentionBackend& attention,
                           Scratch& scratch) const {
  const std::vector<WriteTarget> targets = write_targets(batch, layer_idx, attention);
  const bool reads = batch.wants_fresh && std::ranges::any_of(batch.chunks, [&](const ForwardChunk& chunk) {
                       return &reader_of(chunk) == &attention;
                     });
  if (targets.empty() && !reads) return;
  WriteKvParams params = write_params(batch, layer_idx, scratch);
  params.geometry = kv_geometry(targets.empty() ? 1 : targets[0].cache.layout->geometry().page_size);
  params.targets = targets;
  params.fresh_k = reads ? scratch.fresh_k.data() : nullptr;
  params.fresh_v = reads ? scratch.fresh_v.data() : nullptr;
  attention.write_kv(params);
}

void Decoder::write_all(const Batch& batch, int64_t layer_idx, Scratch& scratch) const {
  write_family(batch, layer_idx, *backends_.attention, scratch);
  if (backends_.control != nullptr) write_family(batch, layer_idx, *backends_.control, scratch);
}

void Decoder::normalise(int64_t rows, int64_t dim, const float* x, const FloatArray& weight, float* y) const {
  backends_.model->rms_norm({rows, dim, static_cast<float>(config_.rms_norm_eps), x, weight.data(), y});
}

// Rows [begin, begin + rows) of the residual stream, normed for a product to read.
void Decoder::norm_operand(int64_t begin, int64_t rows, const FloatArray& weight, Scratch& scratch) const {
  const float* x = scratch.x.data() + begin * config_.hidden_size;
  backends_.model->rms_norm({rows, config_.hidden_size, static_cast<float>(config_.rms_norm_eps), x, weight.data(),
                             scratch.normed.data(), true});
}

// x += norm(branch), where the output of a branch has a norm of its own.
void Decoder::add_normed(int64_t rows, const FloatArray& norm, Scratch& scratch) const {
  normalise(rows, config_.hidden_size, scratch.branch.data(), norm, scratch.branch.data());
  backends_.model->add(scratch.x.size(), scratch.branch.data(), scratch.x.data());
}

// Queries after RoPE, keys before bias and RoPE, normed where the family norms heads; complete values.
void Decoder::project_qkv(int64_t layer_idx, const Batch& batch, Scratch& scratch) const {
  const Weights::Layer& w = weights_->layers[static_cast<size_t>(layer_idx)];
  const int64_t rows = batch.num_rows;
  norm_operand(0, rows, w.input_norm, scratch);
  backends_.model->linear({.rows = rows,
                           .x = scratch.normed.data(),
                           .w = &w.qkv,
                           .y = scratch.qkv.data(),
                           .x_is_operand = true,
                           .y_is_operand = batch.row_dtype == backends_.model->operand_dtype()});
  PrepareQkvParams params;
  params.split = {rows,
                  config_.num_q_heads * config_.head_dim,
                  config_.num_kv_heads * config_.head_dim,
                  scratch.qkv.data(),
                  w.q_bias.data(),
                  w.v_bias.data(),
                  scratch.q.data(),
                  scratch.k.data(),
                  scratch.v.data()};
  params.head_dim = config_.head_dim;
  params.eps = static_cast<float>(config_.rms_norm_eps);
  params.q_norm = w.q_norm.data();
  params.k_norm = w.k_norm.data();
  params.rope = &rope(layer_idx);
  params.positions = batch.positions;
  params.placed_positions = reinterpret_cast<const int32_t*>(scratch.positions.data());
  params.row_dtype = batch.row_dtype;
  backends_.model->prepare_qkv(params);
}

// Queries grow with their position where the model asks for it (ModelConfig::query_temperature).
void Decoder::scale_queries(const Batch& batch, Scratch& scratch) const {
  if (config_.query_temperature == 0.0) return;
  std::vector<float> factors;
  for (const int32_t position : batch.positions) {
    const int64_t turns = position / config_.query_temperature_length;
    factors.push_back(static_cast<float>(1.0 + config_.query_temperature * std::log(1.0 + static_cast<double>(turns))));
  }
  backends_.model->scale_rows(factors, config_.num_q_heads * config_.head_dim, scratch.q.data());
}

void Decoder::observe(int64_t layer_idx, const Batch& batch, const Scratch& scratch, ForwardObserver& observer) const {
  const std::vector<float> q = to_host(scratch.q), k = to_host(scratch.k);
  const std::vector<float> fresh_k = to_host(scratch.fresh_k), fresh_v = to_host(scratch.fresh_v);
  observer.on_layer({layer_idx, batch.num_rows, batch.positions, q, k, fresh_k, fresh_v});
}

void Decoder::run_attention(int64_t layer_idx, Batch& batch, Scratch& scratch, ForwardObserver* observer) const {
  const Weights::Layer& w = weights_->layers[static_cast<size_t>(layer_idx)];
  const int64_t rows = batch.num_rows;
  project_qkv(layer_idx, batch, scratch);
  scale_queries(batch, scratch);
  write_all(batch, layer_idx, scratch);
  if (observer != nullptr) observe(layer_idx, batch, scratch, *observer);
  attend_all(batch, layer_idx, scratch);
  const bool post = !w.post_attention_norm.empty();
  backends_.model->linear({.rows = rows,
                           .x = scratch.attended.data(),
                           .w = &w.o,
                           .bias = w.o_bias.data(),
                           .y = post ? scratch.branch.data() : scratch.x.data(),
                           .accumulate = !post,
                           .x_is_operand = batch.row_dtype == backends_.model->operand_dtype()});
  if (post) add_normed(rows, w.post_attention_norm, scratch);
}

void Decoder::run_mlp(int64_t layer_idx, int64_t rows, Scratch& scratch) const {
  const Weights::Layer& w = weights_->layers[static_cast<size_t>(layer_idx)];
  const ModelBackend& math = *backends_.model;
  const int64_t inner = config_.intermediate_size;
  const bool post = !w.post_mlp_norm.empty();
  float* out = post ? scratch.branch.data() : scratch.x.data();
  const int64_t step = math.mlp_rows();
  for (int64_t begin = 0; begin < rows; begin += step) {
    const int64_t count = std::min(step, rows - begin);
    norm_operand(begin, count, w.mlp_norm, scratch);
    math.linear({count, scratch.normed.data(), &w.gate_up, nullptr, scratch.gate_up.data(), false, true, true});
    if (config_.activation == Activation::kSilu) {
      math.silu_mul(count, inner, scratch.gate_up.data(), scratch.activated.data());
    } else {
      math.gelu_mul(count, inner, scratch.gate_up.data(), scratch.activated.data());
    }
    math.linear({count, scratch.activated.data(), &w.down, nullptr, out + begin * config_.hidden_size, !post, true});
  }
  if (post) add_normed(rows, w.post_mlp_norm, scratch);
}

// Every array through take(), which is given its elements as floats.
Decoder::Scratch Decoder::make_scratch(int64_t rows, DType row_dtype,
                                       const std::function<FloatArray(int64_t)>& take) const {
  const int64_t q_dim = config_.num_q_heads * config_.head_dim;
  const int64_t k_dim = config_.num_kv_heads * config_.head_dim;
  const int64_t mlp_rows = std::min(rows, backends_.model->mlp_rows());
  const auto take_of = [&](DType dtype, int64_t elems) {
    const int64_t a_float = dtype_bytes(DType::kF32) / dtype_bytes(dtype);
    return take((elems + a_float - 1) / a_float);
  };
  const auto operand = [&](int64_t elems) { return take_of(backends_.model->operand_dtype(), elems); };
  Scratch scratch;
  scratch.positions = take(rows);
  scratch.x = take(rows * config_.hidden_size);
  scratch.normed = operand(rows * config_.hidden_size);
  if (config_.post_norms) scratch.branch = take(rows * config_.hidden_size);
  scratch.qkv = take_of(row_dtype, rows * (q_dim + k_dim + k_dim));
  scratch.q = take_of(row_dtype, rows * q_dim);
  for (FloatArray* side : {&scratch.k, &scratch.v, &scratch.fresh_k, &scratch.fresh_v}) {
    *side = take_of(row_dtype, rows * k_dim);
  }
  scratch.attended = take_of(row_dtype, rows * q_dim);
  scratch.gate_up = operand(mlp_rows * (config_.intermediate_size + config_.intermediate_size));
  scratch.activated = operand(mlp_rows * config_.intermediate_size);
  return scratch;
}

int64_t Decoder::pass_bytes(int64_t rows, int64_t logit_rows) const {
  const DType operand = backends_.model->operand_dtype();
  const bool keeps = config_.native_dtype == operand && config_.query_temperature == 0.0;  // as row_dtype()
  int64_t floats = 0;
  make_scratch(rows, keeps ? operand : DType::kF32, [&](int64_t elems) {
    floats += elems;
    return FloatArray();
  });
  // Rows of the last norm and logits; and FP32 rows once more as a product reads them, of one product at a time.
  floats += logit_rows * (config_.hidden_size + config_.vocab_size);
  const int64_t attended = keeps ? 0 : rows * config_.num_q_heads * config_.head_dim;
  const int64_t narrowed = std::max(attended, logit_rows * config_.hidden_size);
  return floats * dtype_bytes(DType::kF32) + (operand == DType::kF32 ? 0 : narrowed * dtype_bytes(operand));
}

// The residual stream after the last layer.
FloatArray Decoder::run_layers(std::span<const ForwardChunk> chunks, DType native_dtype, ForwardObserver* observer) {
  reserve_for(chunks);
  Batch batch = make_batch(chunks);
  batch.native_dtype = native_dtype;
  batch.wants_fresh = observer != nullptr || std::ranges::any_of(chunks, [](const ForwardChunk& chunk) {
                        return chunk.own_reads == OwnReads::kFresh;
                      });
  batch.row_dtype = row_dtype(batch, observer);
  Scratch scratch =
      make_scratch(batch.num_rows, batch.row_dtype, [&](int64_t floats) { return backends_.model->allocate(floats); });
  batch.pass = new_pass();
  list_reads(batch, scratch);
  start_batch(batch, scratch);
  run_all_layers(batch, scratch, observer);
  return scratch.x;
}

// Embedded tokens, and positions where the backends read them.
void Decoder::start_batch(Batch& batch, Scratch& scratch) const {
  static_assert(sizeof(int32_t) == sizeof(float));
  backends_.model->upload(std::span(reinterpret_cast<const float*>(batch.positions.data()), batch.positions.size()),
                          scratch.positions.data());
  backends_.model->embed(weights_->embedding, batch.tokens, static_cast<float>(config_.embedding_scale),
                         scratch.x.data());
}

void Decoder::run_all_layers(Batch& batch, Scratch& scratch, ForwardObserver* observer) const {
  for (int64_t layer = 0; layer < config_.num_layers; ++layer) {
    run_attention(layer, batch, scratch, observer);
    run_mlp(layer, batch.num_rows, scratch);
  }
}

std::vector<float> Decoder::to_host(const FloatArray& rows) const {
  std::vector<float> host(static_cast<size_t>(rows.size()));
  backends_.model->download(rows.data(), host);
  return host;
}

std::vector<float> Decoder::forward(std::span<const ForwardChunk> chunks, DType native_dtype,
                                    ForwardObserver* observer) {
  const FloatArray x = run_layers(chunks, native_dtype, observer);
  normalise(x.size() / config_.hidden_size, config_.hidden_size, x.data(), weights_->final_norm, x.data());
  std::vector<float> hidden = to_host(x);
  backends_.attention->finish();
  return hidden;
}

// The hidden states after each chunk's last token.
FloatArray Decoder::last_rows(std::span<const ForwardChunk> chunks, DType native_dtype) {
  std::vector<int64_t> row_of;  // of each chunk's last token
  FloatArray own;
  const FloatArray* x = run_step(chunks, native_dtype, row_of);
  if (x == nullptr) {
    own = run_layers(chunks, native_dtype, nullptr);
    x = &own;
    int64_t end = 0;
    for (const ForwardChunk& chunk : chunks) row_of.push_back((end += std::ssize(chunk.tokens)) - 1);
  }
  const int64_t dim = config_.hidden_size;
  FloatArray last = backends_.model->allocate(std::ssize(chunks) * dim);
  for (size_t begin = 0; begin < row_of.size();) {  // rows that follow each other at once
    size_t end = begin + 1;
    while (end < row_of.size() && row_of[end] == row_of[end - 1] + 1) ++end;
    normalise(static_cast<int64_t>(end - begin), dim, x->data() + row_of[begin] * dim, weights_->final_norm,
              last.data() + static_cast<int64_t>(begin) * dim);
    begin = end;
  }
  return last;
}

std::vector<float> Decoder::last_hidden(std::span<const ForwardChunk> chunks, DType native_dtype) {
  std::vector<float> hidden = to_host(last_rows(chunks, native_dtype));
  backends_.attention->finish();
  return hidden;
}

std::vector<std::optional<int32_t>> Decoder::greedy_step(std::span<const ForwardChunk> chunks, DType native_dtype) {
  return drawn_step(chunks, {}, std::vector<double>(chunks.size()), native_dtype);
}

std::vector<std::optional<int32_t>> Decoder::drawn_step(std::span<const ForwardChunk> chunks, const SamplingLaw& law,
                                                        std::span<const double> uniforms, DType native_dtype) {
  ASYMKV_CHECK(chunks.size() == uniforms.size(), "{} numbers for {} chunks", uniforms.size(), chunks.size());
  const FloatArray last = last_rows(chunks, native_dtype);
  const FloatArray logits = placed_logits(std::ssize(chunks), last.data());
  auto tokens = backends_.model->draw_tokens(law, uniforms, config_.vocab_size, logits.data());
  backends_.attention->finish();
  return tokens;
}

std::vector<double> Decoder::losses(std::span<const ForwardChunk> chunks, std::span<const int32_t> targets,
                                    DType native_dtype) {
  const int64_t dim = config_.hidden_size;
  const FloatArray x = run_layers(chunks, native_dtype, nullptr);
  ASYMKV_CHECK(x.size() == std::ssize(targets) * dim, "{} targets of {} rows", targets.size(), x.size() / dim);
  normalise(std::ssize(targets), dim, x.data(), weights_->final_norm, x.data());
  std::vector<double> losses;
  for (size_t begin = 0; begin < targets.size(); begin += kLossRows) {
    const size_t count = std::min(kLossRows, targets.size() - begin);
    const FloatArray logits = placed_logits(static_cast<int64_t>(count), x.data() + static_cast<int64_t>(begin) * dim);
    const std::vector<double> part =
        backends_.model->target_losses(targets.subspan(begin, count), config_.vocab_size, logits.data());
    losses.insert(losses.end(), part.begin(), part.end());
  }
  backends_.attention->finish();
  return losses;
}

FloatArray Decoder::placed_logits(int64_t rows, const float* hidden) const {
  const ModelBackend& backend = *backends_.model;
  FloatArray logits = backend.allocate(rows * config_.vocab_size);
  backend.linear({rows, hidden, &weights_->output_matrix(), nullptr, logits.data(), false});
  if (config_.final_soft_cap != 0.0) {
    backend.cap_softly(static_cast<float>(config_.final_soft_cap), logits.size(), logits.data());
  }
  return logits;
}

FloatArray Decoder::placed_logits(std::span<const float> hidden_rows) const {
  const int64_t rows = std::ssize(hidden_rows) / config_.hidden_size;
  ASYMKV_CHECK(rows * config_.hidden_size == std::ssize(hidden_rows), "{} floats are no rows of {}", hidden_rows.size(),
               config_.hidden_size);
  const FloatArray hidden = place_values(*backends_.model, hidden_rows);
  return placed_logits(rows, hidden.data());
}

std::vector<float> Decoder::logits(std::span<const float> hidden_rows) const {
  return to_host(placed_logits(hidden_rows));
}

std::vector<std::optional<int32_t>> Decoder::greedy_tokens(std::span<const float> hidden_rows) const {
  const FloatArray logits = placed_logits(hidden_rows);
  return backends_.model->finite_argmax(logits.size() / config_.vocab_size, config_.vocab_size, logits.data());
}

}  // namespace asymkv
