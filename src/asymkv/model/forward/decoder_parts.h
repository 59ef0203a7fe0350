#pragma once

// What decoder.cc, decoder_steps.cc and decoder_weights.cc share.

#include <cstdint>
#include <span>
#include <vector>

#include "asymkv/model/forward/decoder.h"

namespace asymkv {

// Matrices and vectors where the backend's operations read them.
struct Decoder::Weights {
  struct Layer {
    FloatArray input_norm;
    WeightMatrix qkv;   // [q | k | v rows, hidden]
    FloatArray q_bias;  // empty without bias
    FloatArray k_bias;
    std::vector<float> host_k_bias;
    FloatArray v_bias;
    WeightMatrix o;
    FloatArray o_bias;
    FloatArray q_norm;  // [head_dim]; empty without QK-norm
    FloatArray k_norm;
    FloatArray mlp_norm;
    FloatArray post_attention_norm;  // empty where the residual is added as computed
    FloatArray post_mlp_norm;
    WeightMatrix gate_up;  // [gate | up rows, hidden]
    WeightMatrix down;
  };
  WeightMatrix embedding;  // rows are read by the host
  std::vector<Layer> layers;
  FloatArray final_norm;
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
  std::vector<int32_t> tokens;     // of each row
  std::vector<int32_t> positions;  // of each row
  int64_t num_rows = 0;
  // A cache that gets rows of this pass, and the slot of each row; -1: none of its own.
  struct Write {
    KvCache* cache = nullptr;
    std::vector<int64_t> slots;
  };
  std::vector<Write> writes;
  // What one family attends to; the planes of `sequences` are those of the layer under way.
  struct Reads {
    const AttentionBackend* attention = nullptr;
    std::vector<AttendSequence> sequences;
    std::vector<KvCache*> caches;  // of each sequence; null: it reads nothing that is stored
  };
  std::vector<Reads> reads;
  uint64_t pass = 0;  // AttendParams::pass
  bool recorded = false;
  DType native_dtype = DType::kBF16;
  DType row_dtype = DType::kF32;  // of queries, keys, values and what attention makes of them
  bool wants_fresh = false;       // a chunk reads its own rows before they are stored, or an observer does
};

struct Decoder::Scratch {
  FloatArray positions;  // [rows] int32
  FloatArray x;          // residual stream [rows, hidden]
  FloatArray normed;     // [rows, hidden]
  FloatArray branch;     // [rows, hidden] of a branch that is normed before it is added; else empty
  FloatArray qkv;        // [rows, q + k + v] of Batch::row_dtype, as the next six
  FloatArray q;          // [rows, q]
  FloatArray k;          // [rows, k]
  FloatArray v;          // [rows, v]
  FloatArray fresh_k;    // [rows, k]
  FloatArray fresh_v;    // [rows, v]
  FloatArray attended;   // [rows, q]
  FloatArray gate_up;    // [up to mlp_rows(), 2 intermediate]
  FloatArray activated;  // [up to mlp_rows(), intermediate]
};

}  // namespace asymkv
