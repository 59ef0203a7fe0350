#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "asymkv/kv/cache.h"
#include "asymkv/kv/rope.h"

namespace asymkv {

// Where a fused write goes: one layer of one cache, and the slot (page * page_size + place) of each token; -1 skips.
struct WriteTarget {
  KvLayerView cache;
  std::span<const int64_t> slots;
  SideCounters* k_counters = nullptr;  // added to, at finish() at the latest; may be null
  SideCounters* v_counters = nullptr;
};

// One pass after the QKV projection. For each token:
//   fresh_k = round_to(fresh_key_dtype,   RoPE(k + k_bias))        as attention reads it before it is stored
//   fresh_v = round_to(fresh_value_dtype, v)
// and for each target the stored row is encode(fresh_k), or with a removed vector
//   encode(round_to(native_dtype, RoPE(k + (k_bias - removed)))).
// All targets of one call must have the same fresh dtypes. Several targets: one prefill serves several formats.
struct WriteKvParams {
  int64_t num_tokens = 0;
  DType row_dtype = DType::kF32;              // of k, v, fresh_k and fresh_v: see AttendParams
  const float* k = nullptr;                   // [num_tokens, num_kv_heads, k_head_dim], before bias and RoPE
  const float* v = nullptr;                   // [num_tokens, num_kv_heads, v_head_dim], complete
  const float* k_bias = nullptr;              // [num_kv_heads, k_head_dim]; may be null
  std::span<const int32_t> positions;         // [num_tokens]
  const int32_t* placed_positions = nullptr;  // the same in the backend's memory; may be null
  const RopeTable* rope = nullptr;
  KvGeometry geometry;
  DType native_dtype = DType::kBF16;
  std::span<const WriteTarget> targets;
  float* fresh_k = nullptr;  // [num_tokens, num_kv_heads, k_head_dim]; may be null
  float* fresh_v = nullptr;  // [num_tokens, num_kv_heads, v_head_dim]; may be null
  uint64_t pass = 0;         // see AttendParams, as the next
  bool recorded = false;
};

// The part of a batch that belongs to one sequence. Its keys are the stored ones at positions [0, stored_len), read
// from pages, followed by num_fresh just-computed ones at positions [query_pos, query_pos + num_fresh); either may be
// empty. A key at position j is visible to a query at position p if j <= p and (window == 0 or p - j < window).
// Stored and fresh positions must not overlap. A query with no visible key (padding has neither) gets zeros (and LSE
// -inf, or the sink's logit).
struct AttendSequence {
  int64_t query_row = 0;    // first row of q and out
  int64_t num_queries = 0;  // consecutive positions
  int64_t query_pos = 0;    // position of the first query
  KvLayerView cache;        // layout may be null if stored_len is 0
  std::span<const PageId> pages;
  int64_t stored_len = 0;
  const float* fresh_k = nullptr;  // [num_fresh, num_kv_heads, k_head_dim]
  const float* fresh_v = nullptr;  // [num_fresh, num_kv_heads, v_head_dim]
  int64_t num_fresh = 0;
  // What the caller rounded these queries to before the call; nothing: they are native. For logs.
  std::optional<DType> query_dtype;
};

struct AttendParams {
  int64_t num_q_heads = 0;
  int64_t num_kv_heads = 0;  // group = num_q_heads / num_kv_heads, 1 to 16
  int64_t k_head_dim = 0;
  int64_t v_head_dim = 0;
  float softmax_scale = 0.0F;
  float logit_soft_cap = 0.0F;      // cap * tanh(score / cap), after the scale; 0: none
  int64_t window = 0;               // 0: none
  const float* sinks = nullptr;     // [num_q_heads] logits that take part in the softmax without a value; may be null
  const float* q = nullptr;         // [rows, num_q_heads, k_head_dim], after RoPE
  float* out = nullptr;             // [rows, num_q_heads, v_head_dim]
  float* lse = nullptr;             // [rows, num_q_heads] natural log of the softmax denominator; may be null
  const RopeTable* rope = nullptr;  // needed where a cache removed a vector
  DType fresh_dtype = DType::kF32;  // a type that holds every fresh row exactly; device families want a 16-bit one
  // Elements of q, out, fresh_k and fresh_v: FP32; or BF16 behind the same pointers, where the family takes rows as
  // 16-bit products leave them (then every fresh row is BF16, too).
  DType row_dtype = DType::kF32;
  std::span<const AttendSequence> sequences;
  // Calls of one number differ only as layers of one pass do: in rows, planes, scales, transforms, RoPE and window. A
  // family may plan such a pass once. Numbers are not used again; 0: a call that is like no other.
  uint64_t pass = 0;
  bool recorded = false;  // made within ModelBackend::record(): nothing is done before a replay
};

enum class Phase { kWrite, kDecode, kPrefill, kMixed };
std::string_view phase_name(Phase phase);  // "write", "decode", "prefill", "mixed"

// Answer to "can this family run it": yes with the kernel's name, or no with a sentence that reaches the user.
struct Support {
  bool ok = false;
  std::string kernel;
  std::string reason;
};

// One kernel family on one device. `float` pointers are memory of that device, as its ModelBackend allocates it; spans,
// tables and counters are host memory. Calls run in their order.
class AttentionBackend {
 public:
  virtual ~AttentionBackend() = default;
  virtual std::string_view name() const = 0;  // "ref", "cpu-avx2", ...
  virtual Support supports(const KvGeometry& geometry, const KvFormat& format, int64_t group, Phase phase) const = 0;
  // Where the caches it reads and writes must lie.
  virtual KvMemory cache_memory() const { return KvMemory::kHost; }
  // Throw Error{kUnsupported} with the reason of supports() for a combination it does not serve, Error{kInternal} for
  // params that contradict each other (a slot outside the plane, a page id outside the pool, overlapping positions).
  virtual void write_kv(const WriteKvParams& params) const = 0;
  virtual void attend(const AttendParams& params) const = 0;
  // What the calls of this pass number plan stays until forget_pass(), so that they may be recorded and replayed
  // (ModelBackend::record) with other tokens and sequences of the same rows. Each write target has room for its even
  // share of the tokens.
  virtual void keep_pass(uint64_t /*pass*/) const {}
  virtual void forget_pass(uint64_t /*pass*/) const {}
  // Puts these tokens (sequences) under the calls of a kept pass, as one layer makes them. False: those cannot serve
  // them, and the pass is to be forgotten.
  virtual bool replan(const WriteKvParams& /*params*/) const { return false; }
  virtual bool replan(const AttendParams& /*params*/) const { return false; }
  // A replay has done what params ask, once for each of `layers` layers: for counters.
  virtual void replayed(const WriteKvParams& /*params*/, int64_t /*layers*/) const {}
  virtual void replayed(const AttendParams& /*params*/, int64_t /*layers*/) const {}
  // Waits for all calls so far; counters are complete then. Their targets' counters must live until it returns.
  virtual void finish() const {}
};

}  // namespace asymkv
