#include "asymkv/kernels/ref/ref_attention.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "asymkv/base/error.h"
#include "asymkv/kernels/backends.h"
#include "asymkv/kernels/checks.h"
#include "asymkv/ops/softmax_state.h"

namespace asymkv {
namespace {

// round_to(dtype, RoPE(k + (k_bias - removed))) of one head; removed may be null. [k_head_dim]
std::vector<float> turned_key(const WriteKvParams& params, int64_t token, int64_t head, const float* removed,
                              DType dtype) {
  const int64_t dim = params.geometry.k_head_dim;
  std::vector<float> key(static_cast<size_t>(dim));
  const float* k = params.k + (token * params.geometry.num_kv_heads + head) * dim;
  for (int64_t i = 0; i < dim; ++i) {
    float constant = params.k_bias == nullptr ? 0.0F : params.k_bias[head * dim + i];
    if (removed != nullptr) constant -= removed[i];
    key[static_cast<size_t>(i)] = k[i] + constant;
  }
  params.rope->rotate(params.positions[static_cast<size_t>(token)], key.data());
  for (float& x : key) x = round_to(dtype, x);
  return key;
}

// Scale with which a side stores a row, written to the side's scale plane if it is dynamic.
float stored_scale(DType dtype, ScaleKind kind, float fixed, std::span<const float> row, float* place) {
  if (kind == ScaleKind::kNone) return 1.0F;
  if (kind == ScaleKind::kFixed) return fixed;
  *place = dynamic_scale(dtype, row);
  return *place;
}

struct RowPlace {
  int64_t page;
  int64_t head;
  int64_t slot;
};

void store_key(const WriteTarget& target, const RowPlace& at, std::span<const float> row) {
  const KvLayerView& cache = target.cache;
  const KeyFormat& format = cache.layout->format().key;
  const int64_t scale_idx = cache.layout->scale_index(at.page, at.head, at.slot);
  float* place = cache.k_scales == nullptr ? nullptr : cache.k_scales + scale_idx;
  const float scale = stored_scale(format.dtype, format.scale, cache.fixed_scales.key, row, place);
  SideCounters counters;
  encode_row(format.dtype, scale, row, cache.k_plane + cache.layout->k_row_offset_bytes(at.page, at.head, at.slot),
             counters);
  if (target.k_counters != nullptr) *target.k_counters += counters;
}

void store_value(const WriteTarget& target, const RowPlace& at, std::span<const float> row) {
  const KvLayerView& cache = target.cache;
  const ValueFormat& format = cache.layout->format().value;
  const int64_t scale_idx = cache.layout->scale_index(at.page, at.head, at.slot);
  float* place = cache.v_scales == nullptr ? nullptr : cache.v_scales + scale_idx;
  const float scale = stored_scale(format.dtype, format.scale, cache.fixed_scales.value, row, place);
  SideCounters counters;
  encode_row(format.dtype, scale, row, cache.v_plane + cache.layout->v_row_offset_bytes(at.page, at.head, at.slot),
             counters);
  if (target.v_counters != nullptr) *target.v_counters += counters;
}

void write_row(const WriteKvParams& params, int64_t token, int64_t head) {
  const KvGeometry& geometry = params.geometry;
  const int64_t row_idx = token * geometry.num_kv_heads + head;
  const std::vector<float> fresh_key = turned_key(params, token, head, nullptr, fresh_key_dtype_of(params));
  std::vector<float> fresh_value(params.v + row_idx * geometry.v_head_dim,
                                 params.v + (row_idx + 1) * geometry.v_head_dim);
  for (float& x : fresh_value) x = round_to(fresh_value_dtype_of(params), x);
  if (params.fresh_k != nullptr) std::ranges::copy(fresh_key, params.fresh_k + row_idx * geometry.k_head_dim);
  if (params.fresh_v != nullptr) std::ranges::copy(fresh_value, params.fresh_v + row_idx * geometry.v_head_dim);
  for (const WriteTarget& target : params.targets) {
    const int64_t slot = target.slots[static_cast<size_t>(token)];
    if (slot < 0) continue;
    const int64_t page_size = target.cache.layout->geometry().page_size;
    const RowPlace at{slot / page_size, head, slot % page_size};
    const KeyTransform* transform = target.cache.transform;
    store_key(target, at,
              transform == nullptr ? fresh_key
                                   : turned_key(params, token, head, transform->removed_of(head), params.native_dtype));
    store_value(target, at, fresh_value);
  }
}

// The key and the value of one position.
template <typename Real>
struct KeyValue {
  int64_t position = 0;
  std::vector<Real> key;
  std::vector<Real> value;
};

// R(position) x, exact angles, times the magnitude.
template <typename Real>
std::vector<Real> rotated(const RopeTable& rope, int64_t position, const float* x) {
  const auto half = static_cast<size_t>(rope.num_pairs());
  std::vector<Real> result(2 * half);
  for (size_t p = 0; p < half; ++p) {
    const double angle = static_cast<double>(position) * rope.frequencies()[p];
    const auto cosine = static_cast<Real>(rope.magnitude() * std::cos(angle));
    const auto sine = static_cast<Real>(rope.magnitude() * std::sin(angle));
    const auto a = static_cast<Real>(x[p]);
    const auto b = static_cast<Real>(x[p + half]);
    result[p] = a * cosine - b * sine;
    result[p + half] = b * cosine + a * sine;
  }
  return result;
}

// Codes without their scale, exactly.
template <typename Real>
std::vector<Real> decoded(DType dtype, const std::byte* row, int64_t elems) {
  std::vector<float> codes(static_cast<size_t>(elems));
  decode_row(dtype, 1.0F, row, codes);
  return {codes.begin(), codes.end()};
}

template <typename Real>
KeyValue<Real> stored_at(const AttendParams& params, const AttendSequence& sequence, int64_t head, int64_t position) {
  const KvLayerView& cache = sequence.cache;
  const KvLayout& layout = *cache.layout;
  const int64_t page_size = layout.geometry().page_size;
  const int64_t page = page_index(sequence.pages[static_cast<size_t>(position / page_size)]);
  const int64_t slot = position % page_size;
  const KvFormat& format = layout.format();
  const std::byte* key_row = cache.k_plane + layout.k_row_offset_bytes(page, head, slot);
  const std::byte* value_row = cache.v_plane + layout.v_row_offset_bytes(page, head, slot);
  KeyValue<Real> kv;
  kv.position = position;
  kv.key = decoded<Real>(format.key.dtype, key_row, params.k_head_dim);
  kv.value = decoded<Real>(format.value.dtype, value_row, params.v_head_dim);
  for (Real& x : kv.key) x *= static_cast<Real>(cache.k_scale(page, head, slot));
  for (Real& x : kv.value) x *= static_cast<Real>(cache.v_scale(page, head, slot));
  if (cache.transform == nullptr) return kv;
  const std::vector<Real> back = rotated<Real>(*params.rope, position, cache.transform->removed_of(head));
  for (size_t i = 0; i < back.size(); ++i) kv.key[i] += back[i];
  return kv;
}

template <typename Real>
KeyValue<Real> fresh_at(const AttendParams& params, const AttendSequence& sequence, int64_t head, int64_t position) {
  const int64_t row = (position - sequence.query_pos) * params.num_kv_heads + head;
  const float* key = sequence.fresh_k + row * params.k_head_dim;
  const float* value = sequence.fresh_v + row * params.v_head_dim;
  return {position, {key, key + params.k_head_dim}, {value, value + params.v_head_dim}};
}

template <typename Real>
Real logit_of(const AttendParams& params, const float* query, const std::vector<Real>& key) {
  Real score = 0;
  for (size_t i = 0; i < key.size(); ++i) score += static_cast<Real>(query[i]) * key[i];
  score *= static_cast<Real>(params.softmax_scale);
  const auto cap = static_cast<Real>(params.logit_soft_cap);
  return cap == 0 ? score : cap * std::tanh(score / cap);
}

// One query head of one query over all the keys it sees.
template <typename Real>
void attend_query(const AttendParams& params, int64_t head_row, int64_t query_pos,
                  const std::vector<KeyValue<Real>>& keys) {
  SoftmaxState<Real> state;
  state.out.assign(static_cast<size_t>(params.v_head_dim), Real(0));
  if (params.sinks != nullptr) {
    const std::vector<Real> no_value(state.out.size(), Real(0));
    state.add(static_cast<Real>(params.sinks[head_row % params.num_q_heads]), no_value.data());
  }
  const float* query = params.q + head_row * params.k_head_dim;
  for (const KeyValue<Real>& kv : keys) {
    const int64_t age = query_pos - kv.position;
    const bool visible = age >= 0 && (params.window == 0 || age < params.window);
    if (visible) state.add(logit_of(params, query, kv.key), kv.value.data());
  }
  float* out = params.out + head_row * params.v_head_dim;
  for (size_t i = 0; i < state.out.size(); ++i) {
    out[i] = state.empty() ? 0.0F : static_cast<float>(state.out[i] / state.sum);
  }
  if (params.lse != nullptr) params.lse[head_row] = static_cast<float>(state.max + std::log(state.sum));
}

template <typename Real>
void attend_sequence(const AttendParams& params, const AttendSequence& sequence, int64_t kv_head) {
  std::vector<KeyValue<Real>> keys;
  for (int64_t j = 0; j < sequence.stored_len; ++j) keys.push_back(stored_at<Real>(params, sequence, kv_head, j));
  for (int64_t j = sequence.query_pos; j < sequence.query_pos + sequence.num_fresh; ++j) {
    keys.push_back(fresh_at<Real>(params, sequence, kv_head, j));
  }
  const int64_t group = params.num_q_heads / params.num_kv_heads;
  for (int64_t i = 0; i < sequence.num_queries; ++i) {
    for (int64_t g = 0; g < group; ++g) {
      const int64_t head_row = (sequence.query_row + i) * params.num_q_heads + kv_head * group + g;
      attend_query<Real>(params, head_row, sequence.query_pos + i, keys);
    }
  }
}

}  // namespace

Support RefAttention::supports(const KvGeometry& geometry, const KvFormat& format, int64_t group, Phase phase) const {
  const std::string refusal = common_refusal(geometry, group);
  if (!refusal.empty()) return {false, "", refusal};
  return {true, fmt::format("{}/{}/{}", name(), phase_name(phase), format.id()), ""};
}

void RefAttention::write_kv(const WriteKvParams& params) const {
  check_write_params(params);
  require_write_support(*this, params);
  for (int64_t token = 0; token < params.num_tokens; ++token) {
    for (int64_t head = 0; head < params.geometry.num_kv_heads; ++head) write_row(params, token, head);
  }
}

void RefAttention::attend(const AttendParams& params) const {
  check_attend_params(params);
  require_attend_support(*this, params);
  for (const AttendSequence& sequence : params.sequences) {
    for (int64_t head = 0; head < params.num_kv_heads; ++head) {
      if (precision_ == Precision::kDouble) {
        attend_sequence<double>(params, sequence, head);
      } else {
        attend_sequence<float>(params, sequence, head);
      }
    }
  }
}

std::unique_ptr<AttentionBackend> make_ref_attention() {
  return std::make_unique<RefAttention>();
}

}  // namespace asymkv
