// One query token, all heads of a group, against a run of tiles: decoding. Compiled once per SIMD target.
#if defined(ASYMKV_KERNELS_CPU_ATTEND_QUERY_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ASYMKV_KERNELS_CPU_ATTEND_QUERY_INL_H_
#undef ASYMKV_KERNELS_CPU_ATTEND_QUERY_INL_H_
#else
#define ASYMKV_KERNELS_CPU_ATTEND_QUERY_INL_H_
#endif

#include <algorithm>
#include <cstdint>
#include <limits>

#include "asymkv/kernels/cpu/attend_plan.h"
#include "asymkv/kernels/cpu/row_source-inl.h"
#include "asymkv/kernels/cpu/row_state-inl.h"
#include "asymkv/kernels/cpu/scratch.h"
#include "asymkv/kernels/cpu/tile_math-inl.h"
#include "asymkv/kv/limits.h"
#include "asymkv/ops/attention.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace asymkv::cpu {
namespace HWY_NAMESPACE {

// So few rows do not repay packing the keys into panels. Lanes are query heads here: scores are the product of key rows
// as they lie (broadcast one channel at a time) and the turned queries, the softmax needs nothing across lanes, and
// values are multiplied in rows as they lie. Every sum is gathered in the order of BlockAttention, so that a row gets
// the same bits from both.
class QueryAttention {
 public:
  QueryAttention(const AttendParams& params, const AttendTask& task, Scratch& scratch)
      : params_(params),
        task_(task),
        map_(tile_map(params.sequences[static_cast<size_t>(task.sequence_idx)])),
        pos_(params.sequences[static_cast<size_t>(task.sequence_idx)].query_pos + task.query_begin),
        heads_(params.num_q_heads / params.num_kv_heads),
        padded_((heads_ + kLanes - 1) / kLanes * kLanes),
        v_padded_((params.v_head_dim + kPanel - 1) / kPanel * kPanel),
        source_(params, task, scratch) {
    queries_ = zeros(scratch.queries, params.k_head_dim * padded_);
    outputs_ = zeros(scratch.outputs, heads_ * v_padded_);
    sums_ = zeros(scratch.sums, kLanes * padded_);
    maxima_ = scratch.maxima.reserve(padded_);
    std::fill_n(maxima_, padded_, -std::numeric_limits<float>::infinity());
    weights_ = scratch.scores.reserve(kTileKeys * padded_);
    key_rows_ = scratch.key_rows.reserve(kKeysAtOnce * params.k_head_dim);
    values_ = scratch.value_tile.reserve(kTileKeys * v_padded_);
    if (v_padded_ > params.v_head_dim) std::fill_n(values_, kTileKeys * v_padded_, 0.0F);
    load_queries();
  }

  void run(float* partials) {
    for (int64_t t = task_.tile_begin; t < task_.tile_end; ++t) attend_tile(t);
    // write_rows() wants the sums of a row side by side.
    HWY_ALIGN float sums[static_cast<size_t>(kMaxQueryGroup * kLanes)];
    for (int64_t r = 0; r < heads_; ++r) {
      for (int64_t lane = 0; lane < kLanes; ++lane) sums[r * kLanes + lane] = sums_[lane * padded_ + r];
    }
    write_rows(params_, task_, {heads_, v_padded_, outputs_, maxima_, sums}, partials);
  }

 private:
  static constexpr int64_t kKeysAtOnce = 8;  // accumulators that hide the latency of a multiply-add

  static float* zeros(FloatBuffer& buffer, int64_t count) {
    float* data = buffer.reserve(count);
    std::fill_n(data, count, 0.0F);
    return data;
  }

  void load_queries() {
    const float factor = query_factor(params_);
    for (int64_t r = 0; r < heads_; ++r) {
      const float* from = params_.q + head_row(params_, task_, r) * params_.k_head_dim;
      for (int64_t c = 0; c < params_.k_head_dim; ++c) queries_[c * padded_ + r] = from[c] * factor;
    }
  }

  void attend_tile(int64_t tile) {
    const int64_t first_pos = map_.first_pos(tile);
    const int64_t end = std::min(map_.num_keys(tile), pos_ - first_pos + 1);
    const int64_t begin = params_.window == 0 ? 0 : std::max<int64_t>(0, pos_ - params_.window + 1 - first_pos);
    if (begin >= end) return;
    const bool stored = map_.is_stored(tile);
    for (int64_t key = begin; key < end; key += kKeysAtOnce) {
      if (stored) source_.prefetch(first_pos + key + kTileKeys, kKeysAtOnce);
      score_keys(stored, first_pos, key, std::min(kKeysAtOnce, end - key));
    }
    for (int64_t head = 0; head < padded_; head += kLanes) weigh_scores(head, begin, end);
    source_.value_rows(stored, first_pos + begin, end - begin,
                       [to = values_, stride = v_padded_](int64_t j, int64_t c, VecNarrow v)
                           HWY_ATTR { hn::StoreU(v, Narrow(), to + j * stride + c); });
    add_values(begin, end);
  }

  // weights_[key][head] = scores of keys [key, key + count) of a tile.
  void score_keys(bool stored, int64_t first_pos, int64_t key, int64_t count) {
    const Rows keys = source_.key_rows(stored, first_pos + key, count, key_rows_);
    for (int64_t head = 0; head < padded_; head += kLanes) {
      Product product{.a = keys.data,
                      .a_row_stride = keys.stride,
                      .b = queries_ + head,
                      .b_stride = padded_,
                      .depth = params_.k_head_dim,
                      .c = weights_ + key * padded_ + head,
                      .c_stride = padded_};
      if (count == kKeysAtOnce) {
        multiply<kKeysAtOnce, 1, false>(product);
        continue;
      }
      for (int64_t j = 0; j < count; ++j) {
        multiply<1, 1, false>(product);
        product.a += keys.stride;
        product.c += padded_;
      }
    }
  }

  // Scores of kLanes heads become weights relative to their new maxima.
  void weigh_scores(int64_t head, int64_t begin, int64_t end) {
    float* weights = weights_ + head;
    const VecF32 old_max = load(maxima_, head);
    VecF32 max = old_max;
    for (int64_t j = begin; j < end; ++j) {
      if (params_.logit_soft_cap > 0.0F) {
        store(capped(load(weights, j * padded_), params_.logit_soft_cap), weights, j * padded_);
      }
      max = hn::Max(max, load(weights, j * padded_));
    }
    const VecF32 nothing = broadcast(-std::numeric_limits<float>::infinity());
    const VecF32 base = hn::IfThenZeroElse(hn::Eq(max, nothing), max);
    const VecF32 alpha = hn::IfThenElse(hn::Eq(max, old_max), broadcast(1.0F), exp2_of(hn::Sub(old_max, base)));
    for (int64_t lane = 0; lane < kLanes; ++lane) {
      VecF32 sum = hn::Zero(F32());
      for (int64_t j = (begin - lane + kLanes - 1) / kLanes * kLanes + lane; j < end; j += kLanes) {
        const VecF32 weight = exp2_of(hn::Sub(load(weights, j * padded_), base));
        sum = hn::Add(sum, weight);
        store(weight, weights, j * padded_);
      }
      float* sums = sums_ + lane * padded_ + head;
      store(hn::MulAdd(load(sums, 0), alpha, sum), sums, 0);
    }
    store(max, maxima_, head);
    if (hn::AllTrue(F32(), hn::Eq(alpha, broadcast(1.0F)))) return;
    HWY_ALIGN float alphas[static_cast<size_t>(kLanes)];
    store(alpha, alphas, 0);
    for (int64_t r = head; r < std::min(head + kLanes, heads_); ++r) {
      scale_row(alphas[r - head], outputs_ + r * v_padded_, v_padded_);
    }
  }

  void add_values(int64_t begin, int64_t end) {
    const int64_t num_strips = (heads_ + kStripRows - 1) / kStripRows;
    for (int64_t strip = 0; strip < num_strips; ++strip) {
      const int64_t head = heads_ * strip / num_strips;
      with_strip_rows(heads_ * (strip + 1) / num_strips - head,
                      [&]<int64_t kRows>() { add_values_of<kRows>(head, begin, end); });
    }
  }

  // Few rows take more vectors each, to have enough sums under way.
  template <int64_t kRows>
  void add_values_of(int64_t head, int64_t begin, int64_t end) {
    Product product{.a = weights_ + begin * padded_ + head,
                    .a_row_stride = 1,
                    .a_depth_stride = padded_,
                    .b = values_,
                    .b_stride = v_padded_,
                    .depth = end - begin,
                    .c = outputs_ + head * v_padded_,
                    .c_stride = v_padded_};
    const auto advance = [&]<int64_t kVecs>() {
      multiply<kRows, kVecs, true>(product);
      product.b += kVecs * kLanes;
      product.c += kVecs * kLanes;
    };
    int64_t left = v_padded_;
    if constexpr (kRows <= 3) {
      for (; left >= 2 * kPanel; left -= 2 * kPanel) advance.template operator()<4>();
    }
    for (; left > 0; left -= kPanel) advance.template operator()<2>();
  }

  const AttendParams& params_;
  const AttendTask& task_;
  TileMap map_;
  int64_t pos_;
  int64_t heads_;
  int64_t padded_;  // heads, in whole vectors
  int64_t v_padded_;
  RowSource source_;
  float* queries_ = nullptr;  // [k_head_dim][padded heads]
  float* outputs_ = nullptr;  // [heads][padded v_head_dim]
  float* maxima_ = nullptr;   // [padded heads]
  float* sums_ = nullptr;  // [kLanes][padded heads]: keys whose place in their tile, modulo kLanes, is the first index
  float* weights_ = nullptr;   // [kTileKeys][padded heads]
  float* key_rows_ = nullptr;  // [kKeysAtOnce][k_head_dim]
  float* values_ = nullptr;    // [kTileKeys][padded v_head_dim]
};

}  // namespace HWY_NAMESPACE
}  // namespace asymkv::cpu
HWY_AFTER_NAMESPACE();
#endif
