#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "asymkv/kv/cache.h"
#include "asymkv/model/config.h"
#include "asymkv/model/weights.h"
#include "asymkv/ops/attention.h"
#include "asymkv/ops/model_ops.h"

namespace asymkv {

// Which keys and values of its own chunk a token attends to.
enum class OwnReads {
  kFresh,   // as just computed, before storage (optimised prefill)
  kStored,  // read back from the stored bytes (decode, and every read on the reference path)
};

// Consecutive tokens of one sequence in one forward pass. Their keys and values are appended to every target; earlier
// tokens are read from `context`, as its CacheUse says. Reads of fresh keys alone touch no cache: they are native, on
// the decoder's own attention kernels, whatever the targets. The formats of all targets of a pass must round
// just-computed keys, and values, to the same type (fresh_key_dtype).
struct ForwardChunk {
  std::span<const int32_t> tokens;
  int64_t start_pos = 0;                   // position of the first token; equal to num_tokens() of every target
  std::vector<SequencePages*> targets;     // may be empty: nothing is stored (then own reads must be fresh)
  const SequencePages* context = nullptr;  // one of the targets, or null if start_pos is 0 and own reads are fresh
  OwnReads own_reads = OwnReads::kFresh;
};

// Tokens that `sequence` gets next, and attend to what it holds: one target, which is the context too.
ForwardChunk append_chunk(SequencePages& sequence, std::span<const int32_t> tokens, OwnReads own_reads);

// What a layer's attention saw, for probes, calibration and dumps. Rows are the tokens of all chunks in order.
struct LayerActivations {
  int64_t layer_idx = 0;
  int64_t num_tokens = 0;
  std::span<const int32_t> positions;
  std::span<const float> q;        // [num_tokens, num_q_heads, head_dim] after RoPE
  std::span<const float> k_raw;    // [num_tokens, num_kv_heads, head_dim] after the key norm, before bias and RoPE
  std::span<const float> fresh_k;  // [num_tokens, num_kv_heads, head_dim] after bias, RoPE and rounding
  std::span<const float> fresh_v;  // [num_tokens, num_kv_heads, head_dim]
};

class ForwardObserver {
 public:
  virtual ~ForwardObserver() = default;
  virtual void on_layer(const LayerActivations& activations) = 0;
};

// Device kernels a decoder runs on; all outlive it.
struct Backends {
  std::shared_ptr<const AttentionBackend> attention;
  std::shared_ptr<const ModelBackend> model;
  // An independent family for caches that ask for it (CacheUse::control_kernels); null: there is none.
  std::shared_ptr<const AttentionBackend> control = nullptr;
};

// A pre-norm decoder that follows its ModelConfig layer by layer. Matrices lie where the model backend places them,
// activations are FP32 in its memory, or operands; hidden states and logits come back to the host. Thread-compatible:
// one forward at a time.
class Decoder {
 public:
  // Copies the weights as stored, and lets go of the source's pages. Throws what WeightSource throws.
  Decoder(const ModelConfig& config, const WeightSource& weights, Backends backends);
  ~Decoder();
  Decoder(Decoder&&) noexcept;

  const ModelConfig& config() const { return config_; }
  // The table that turns the queries and keys of one layer.
  const RopeTable& rope(int64_t layer_idx) const;
  const Backends& backends() const { return backends_; }
  // The family that writes this cache and attends to what it stores.
  const AttentionBackend& attention_of(const KvCache& cache) const;
  KvGeometry kv_geometry(int64_t page_size) const;
  // [num_kv_heads, head_dim] of one layer; empty if the family has no key bias.
  std::span<const float> k_bias(int64_t layer_idx) const;

  // Runs all chunks and returns the hidden states after the final norm, [total tokens, hidden_size]. Appends each
  // chunk's tokens to its targets. native_dtype: what keys and values are rounded to before storage or fresh reads
  // where the target's format does not say; the model's own unless a caller asks for f32.
  // Throws Error{kUsage} for positions beyond max_positions() or token ids outside the vocabulary,
  // Error{kResourceExhausted} if a pool is full (no target is changed then).
  std::vector<float> forward(std::span<const ForwardChunk> chunks, DType native_dtype,
                             ForwardObserver* observer = nullptr);

  // The same pass, of which only a part leaves the device. Of chunks that have a token each: the hidden states of each
  // one's last token, [chunks, hidden_size], and the first largest logit after it (none where a logit is not finite).
  std::vector<float> last_hidden(std::span<const ForwardChunk> chunks, DType native_dtype);
  std::vector<std::optional<int32_t>> greedy_step(std::span<const ForwardChunk> chunks, DType native_dtype);
  // The same with a token drawn by its chunk's uniform (ModelBackend::draw_tokens).
  std::vector<std::optional<int32_t>> drawn_step(std::span<const ForwardChunk> chunks, const SamplingLaw& law,
                                                 std::span<const double> uniforms, DType native_dtype);
  // Negative log-likelihood of each token's target in nats; not finite where a logit is not. Logits of a few rows at a
  // time, so that a large vocabulary needs little memory.
  std::vector<double> losses(std::span<const ForwardChunk> chunks, std::span<const int32_t> targets,
                             DType native_dtype);

  // [rows, vocab_size] of rows of hidden states.
  std::vector<float> logits(std::span<const float> hidden_rows) const;
  // The first largest logit of each row; nothing where a logit is not finite.
  std::vector<std::optional<int32_t>> greedy_tokens(std::span<const float> hidden_rows) const;

  // Bytes of the model backend's memory that a greedy step of `rows` tokens takes while it runs, with logits of
  // `logit_rows` of them; what attention needs beside its rows is not in it.
  int64_t pass_bytes(int64_t rows, int64_t logit_rows) const;

  // Bytes of the model backend's memory that matrices were placed in; zeros where they stay with the host. Those that
  // every token reads are all but an embedding that is not the output matrix, too.
  struct PlacedBytes {
    int64_t all = 0;
    int64_t of_every_token = 0;
  };
  PlacedBytes placed_bytes() const;
  // Bytes of the model backend's memory that recorded decode steps hold now: their arrays and recordings.
  int64_t step_bytes() const;

  int64_t max_positions() const { return ropes_.front().num_positions(); }
  // Makes the RoPE tables reach `num_positions` (at most max_position_embeddings). A longrope model turns keys by other
  // frequencies in a long context: the first call beyond its original length switches to them for good, and throws
  // Error{kUsage} if keys were already turned by the short ones. Call it with the whole length before the first token.
  void reserve_positions(int64_t num_positions);

 private:
  struct Weights;
  struct Batch;
  struct Scratch;
  struct Step;
  class Steps;
  void read_layer(const WeightSource& weights, int64_t layer_idx);
  static uint64_t new_pass();
  void reserve_for(std::span<const ForwardChunk> chunks);
  void check_chunk(const ForwardChunk& chunk) const;
  Batch make_batch(std::span<const ForwardChunk> chunks) const;
  static void append_rows(Batch& batch);
  static DType fresh_dtype(const Batch& batch);
  DType row_dtype(const Batch& batch, const ForwardObserver* observer) const;
  FloatArray run_layers(std::span<const ForwardChunk> chunks, DType native_dtype, ForwardObserver* observer);
  Scratch make_scratch(int64_t rows, DType row_dtype, const std::function<FloatArray(int64_t)>& take) const;
  void run_attention(int64_t layer_idx, Batch& batch, Scratch& scratch, ForwardObserver* observer) const;
  void project_qkv(int64_t layer_idx, const Batch& batch, Scratch& scratch) const;
  void scale_queries(const Batch& batch, Scratch& scratch) const;
  void write_all(const Batch& batch, int64_t layer_idx, Scratch& scratch) const;
  void write_family(const Batch& batch, int64_t layer_idx, const AttentionBackend& attention, Scratch& scratch) const;
  void attend_all(Batch& batch, int64_t layer_idx, Scratch& scratch) const;
  AttendSequence attend_sequence(const Batch& batch, size_t chunk_idx, Scratch& scratch) const;
  void list_reads(Batch& batch, Scratch& scratch) const;
  void round_queries(const AttendSequence& sequence, Scratch& scratch) const;
  const AttentionBackend& reader_of(const ForwardChunk& chunk) const;
  void observe(int64_t layer_idx, const Batch& batch, const Scratch& scratch, ForwardObserver& observer) const;
  void run_mlp(int64_t layer_idx, int64_t rows, Scratch& scratch) const;
  void add_normed(int64_t rows, const FloatArray& norm, Scratch& scratch) const;
  void norm_operand(int64_t begin, int64_t rows, const FloatArray& weight, Scratch& scratch) const;
  void normalise(int64_t rows, int64_t dim, const float* x, const FloatArray& weight, float* y) const;
  // The residual stream after a step of one token a sequence, recorded and replayed; row_of: rows of the chunks. Null:
  // this is no such step, or the backends record nothing.
  const FloatArray* run_step(std::span<const ForwardChunk> chunks, DType native_dtype, std::vector<int64_t>& row_of);
  Step& find_step(std::span<const ForwardChunk> chunks, DType native_dtype);
  bool is_step(std::span<const ForwardChunk> chunks) const;
  void lay_out_step(std::span<const ForwardChunk> chunks, Step& step) const;
  void list_step_reads(Step& step) const;
  template <typename Visit>
  bool for_each_call(Step& step, const Visit& visit) const;
  bool replan_step(Step& step) const;
  bool record_step(Step& step) const;
  void replay_step(Step& step) const;
  void start_batch(Batch& batch, Scratch& scratch) const;
  void run_all_layers(Batch& batch, Scratch& scratch, ForwardObserver* observer) const;
  WriteKvParams write_params(const Batch& batch, int64_t layer_idx, Scratch& scratch) const;
  AttendParams attend_params(const Batch& batch, int64_t layer_idx, Scratch& scratch) const;
  std::vector<WriteTarget> write_targets(const Batch& batch, int64_t layer_idx,
                                         const AttentionBackend& attention) const;
  static void show_layer(Batch& batch, int64_t layer_idx);
  FloatArray last_rows(std::span<const ForwardChunk> chunks, DType native_dtype);
  std::vector<float> to_host(const FloatArray& rows) const;
  FloatArray placed_logits(int64_t rows, const float* hidden) const;
  FloatArray placed_logits(std::span<const float> hidden_rows) const;
  int64_t position_limit(int64_t num_positions) const;

  ModelConfig config_;
  Backends backends_;
  std::vector<RopeTable> ropes_;  // as config_.ropes
  bool has_run_ = false;          // keys were turned
  std::unique_ptr<Weights> weights_;
  std::shared_ptr<Steps> steps_;  // made by the first one
};

}  // namespace asymkv
