#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "asymkv/kv/cache.h"
#include "asymkv/ops/attention.h"

namespace asymkv::testing {

// One sequence of a case: stored keys at [0, stored), then `queries` consecutive queries. With fresh data they carry
// their own keys; without, the last query is the last stored token (decode after the write) unless `gap` moves it on.
struct SequenceShape {
  int64_t stored = 0;
  int64_t queries = 1;
  bool fresh = false;
  int64_t gap = 0;        // positions without keys between the stored ones and the first query
  size_t format_idx = 0;  // into AttendCase::formats
};

// Everything that defines one call of attend(); data follow from it and the seed.
struct AttendCase {
  int64_t num_kv_heads = 2;
  int64_t group = 7;
  int64_t k_head_dim = 64;
  int64_t v_head_dim = 64;
  int64_t page_size = 16;
  KvPadding padding;
  std::vector<KvFormat> formats = {KvFormat{}};
  std::vector<SequenceShape> sequences = {SequenceShape{}};
  int64_t window = 0;
  float soft_cap = 0.0F;
  bool sinks = false;
  float bias = 0.0F;  // magnitude of the key bias on the slowest quarter of the pairs
  double rope_magnitude = 1.0;
  float outlier = 1.0F;  // factor of one channel in sixteen of keys and values
  LayerScales fixed_scales{0.037F, 0.019F};
  uint32_t seed = 1;
  std::string to_string() const;
};

// Outputs of one run.
struct AttendOutput {
  std::vector<float> out;  // [rows, num_q_heads, v_head_dim]
  std::vector<float> lse;  // [rows, num_q_heads]
};

// The data of a case: caches whose pages come in shuffled order and whose unwritten slots are NaN, filled through
// write_kv of the oracle; query rows with one unused row before, between and after the sequences.
class AttendData {
 public:
  explicit AttendData(const AttendCase& shape);

  const AttendCase& shape() const { return shape_; }
  int64_t num_rows() const { return num_rows_; }
  int64_t num_q_heads() const { return shape_.num_kv_heads * shape_.group; }
  // Sequences may be changed by a test before a run.
  std::vector<AttendSequence>& sequences() { return sequences_; }
  std::vector<float>& queries() { return queries_; }
  std::vector<float>& fresh_values(size_t sequence_idx) { return fresh_v_[sequence_idx]; }
  AttendParams params();  // without outputs

  // Runs a backend into buffers full of sentinels. Throws Error{kInternal} if a row that belongs to no sequence, or a
  // guard after the end, was written.
  AttendOutput run(const AttentionBackend& backend);

 private:
  void make_caches();
  void add_sequence(const SequenceShape& sequence);
  void fill(std::vector<float>& data, float outlier);
  float normal();

  AttendCase shape_;
  RopeTable rope_;
  std::vector<float> bias_;
  std::vector<std::unique_ptr<KvCache>> caches_;
  std::vector<std::unique_ptr<SequencePages>> pages_;
  std::vector<std::vector<float>> fresh_k_;
  std::vector<std::vector<float>> fresh_v_;
  std::vector<float> queries_;
  std::vector<float> sinks_;
  std::vector<AttendSequence> sequences_;
  std::vector<bool> used_row_;
  int64_t num_rows_ = 0;
  uint64_t random_state_ = 0;
};

}  // namespace asymkv::testing
