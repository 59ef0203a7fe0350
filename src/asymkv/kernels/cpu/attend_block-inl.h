// One block of query rows against a run of tiles, online softmax; compiled once per SIMD target.
#if defined(ASYMKV_KERNELS_CPU_ATTEND_BLOCK_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ASYMKV_KERNELS_CPU_ATTEND_BLOCK_INL_H_
#undef ASYMKV_KERNELS_CPU_ATTEND_BLOCK_INL_H_
#else
#define ASYMKV_KERNELS_CPU_ATTEND_BLOCK_INL_H_
#endif

#include <algorithm>
#include <cmath>
#include <limits>

#include "asymkv/kernels/cpu/attend_plan.h"
#include "asymkv/kernels/cpu/row_state-inl.h"
#include "asymkv/kernels/cpu/scratch.h"
#include "asymkv/kernels/cpu/tile_math-inl.h"
#include "asymkv/kernels/cpu/tile_source-inl.h"
#include "asymkv/ops/attention.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace asymkv::cpu {
namespace HWY_NAMESPACE {

static_assert(kTileKeys % kPanel == 0, "a tile is whole panels");
constexpr float kMinusInf = -std::numeric_limits<float>::infinity();

// Columns [begin, end) of a tile that a row sees.
struct Columns {
  int64_t begin;
  int64_t end;
};

class BlockAttention {
 public:
  BlockAttention(const AttendParams& params, const AttendTask& task, Scratch& scratch)
      : params_(params),
        task_(task),
        sequence_(params.sequences[static_cast<size_t>(task.sequence_idx)]),
        group_(params.num_q_heads / params.num_kv_heads),
        rows_((task.query_end - task.query_begin) * group_),
        v_padded_((params.v_head_dim + kPanel - 1) / kPanel * kPanel),
        source_(params, task, scratch) {
    queries_ = scratch.queries.reserve(rows_ * params.k_head_dim);
    outputs_ = scratch.outputs.reserve(rows_ * v_padded_);
    maxima_ = scratch.maxima.reserve(rows_);
    sums_ = scratch.sums.reserve(rows_ * kLanes);
    scores_ = scratch.scores.reserve(kStripRows * kTileKeys);
    std::fill_n(outputs_, rows_ * v_padded_, 0.0F);
    std::fill_n(maxima_, rows_, kMinusInf);
    std::fill_n(sums_, rows_ * kLanes, 0.0F);
    load_queries();
  }

  void run(float* partials) {
    const int64_t num_strips = (rows_ + kStripRows - 1) / kStripRows;
    for (int64_t t = task_.tile_begin; t < task_.tile_end; ++t) {
      const Tile tile = source_.load_tile(t);
      for (int64_t strip = 0; strip < num_strips; ++strip) {
        const int64_t row = rows_ * strip / num_strips;
        with_strip_rows(rows_ * (strip + 1) / num_strips - row,
                        [&]<int64_t kRows>() { attend_strip<kRows>(tile, row); });
      }
    }
    write_rows(params_, task_, {rows_, v_padded_, outputs_, maxima_, sums_}, partials);
  }

 private:
  int64_t row_pos(int64_t row) const { return sequence_.query_pos + task_.query_begin + row / group_; }

  void load_queries() {
    const float factor = query_factor(params_);
    for (int64_t r = 0; r < rows_; ++r) {
      const float* from = params_.q + head_row(params_, task_, r) * params_.k_head_dim;
      float* to = queries_ + r * params_.k_head_dim;
      for (int64_t c = 0; c < params_.k_head_dim; ++c) to[c] = from[c] * factor;
    }
  }

  Columns visible(const Tile& tile, int64_t row) const {
    const int64_t pos = row_pos(row);
    const int64_t end = std::min(tile.num_keys, pos - tile.first_pos + 1);
    const int64_t begin = params_.window == 0 ? 0 : std::max<int64_t>(0, pos - params_.window + 1 - tile.first_pos);
    return {begin, end};
  }

  template <int64_t kRows>
  HWY_INLINE void attend_strip(const Tile& tile, int64_t row) {
    const int64_t begin = visible(tile, row).begin;
    const int64_t end = visible(tile, row + kRows - 1).end;
    if (begin >= end) return;
    const Columns panels{begin / kPanel * kPanel, (end + kPanel - 1) / kPanel * kPanel};
    const float* queries = queries_ + row * params_.k_head_dim;
    for (int64_t c = panels.begin; c < panels.end; c += kPanel) {
      const float* keys = tile.keys + c * params_.k_head_dim;
      multiply<kRows, 2, false>({.a = queries,
                                 .a_row_stride = params_.k_head_dim,
                                 .b = keys,
                                 .depth = params_.k_head_dim,
                                 .c = scores_ + c,
                                 .c_stride = kTileKeys});
    }
    for (int64_t r = 0; r < kRows; ++r) {
      float* scores = scores_ + r * kTileKeys;
      if (params_.logit_soft_cap > 0.0F) cap_scores(scores, panels);
      const Columns seen = visible(tile, row + r);
      if (seen.begin > panels.begin || seen.end < panels.end) mask_scores(scores, panels, seen);
      weigh_scores(scores, panels, row + r);
    }
    float* outputs = outputs_ + row * v_padded_;
    if (!tile.values_finite) {
      for (int64_t r = 0; r < kRows; ++r) add_values_exactly(tile, row + r, scores_ + r * kTileKeys);
      return;
    }
    for (int64_t c = 0; c < v_padded_; c += kPanel) {
      const float* values = tile.values + c * kTileKeys + panels.begin * kPanel;
      multiply<kRows, 2, true>({.a = scores_ + panels.begin,
                                .a_row_stride = kTileKeys,
                                .b = values,
                                .depth = panels.end - panels.begin,
                                .c = outputs + c,
                                .c_stride = v_padded_});
    }
  }

  void cap_scores(float* scores, Columns panels) const {
    for (int64_t c = panels.begin; c < panels.end; c += kLanes) {
      store(capped(load(scores, c), params_.logit_soft_cap), scores, c);
    }
  }

  static void mask_scores(float* scores, Columns panels, Columns seen) {
    const VecF32 begin = broadcast(static_cast<float>(seen.begin));
    const VecF32 end = broadcast(static_cast<float>(seen.end));
    for (int64_t c = panels.begin; c < panels.end; c += kLanes) {
      const VecF32 column = hn::Iota(F32(), static_cast<float>(c));
      const auto inside = hn::And(hn::Ge(column, begin), hn::Lt(column, end));
      store(hn::IfThenElse(inside, load(scores, c), broadcast(kMinusInf)), scores, c);
    }
  }

  // Scores become weights relative to the row's new maximum, and so does what the row has gathered so far.
  HWY_INLINE void weigh_scores(float* HWY_RESTRICT scores, Columns panels, int64_t row) {
    VecF32 max = load(scores, panels.begin);
    for (int64_t c = panels.begin + kLanes; c < panels.end; c += kLanes) max = hn::Max(max, load(scores, c));
    const float old_max = maxima_[row];
    const float new_max = std::max(old_max, hn::GetLane(hn::MaxOfLanes(F32(), max)));
    const float base = new_max == kMinusInf ? 0.0F : new_max;  // nothing visible yet: weights are exp2(-inf) = 0
    const float alpha = new_max == old_max ? 1.0F : hn::GetLane(exp2_of(broadcast(old_max - base)));
    VecF32 sum = hn::Zero(F32());
    const VecF32 base_all = broadcast(base);
    for (int64_t c = panels.begin; c < panels.end; c += kLanes) {
      const VecF32 weight = exp2_of(hn::Sub(load(scores, c), base_all));
      sum = hn::Add(sum, weight);
      store(weight, scores, c);
    }
    float* sums = sums_ + row * kLanes;
    store(hn::MulAdd(load(sums, 0), broadcast(alpha), sum), sums, 0);
    maxima_[row] = new_max;
    if (alpha != 1.0F) scale_row(alpha, outputs_ + row * v_padded_, v_padded_);
  }

  // A value that is not finite must not reach the rows that do not see it (0 x NaN): only visible columns are touched.
  void add_values_exactly(const Tile& tile, int64_t row, const float* weights) {
    float* out = outputs_ + row * v_padded_;
    const Columns seen = visible(tile, row);
    for (int64_t c = 0; c < v_padded_; ++c) {
      const float* column = tile.values + c / kPanel * kTileKeys * kPanel + c % kPanel;
      float sum = out[c];
      for (int64_t j = seen.begin; j < seen.end; ++j) sum += weights[j] * column[j * kPanel];
      out[c] = sum;
    }
  }

  const AttendParams& params_;
  const AttendTask& task_;
  const AttendSequence& sequence_;
  int64_t group_;
  int64_t rows_;
  int64_t v_padded_;
  TileSource source_;
  float* queries_ = nullptr;
  float* outputs_ = nullptr;
  float* maxima_ = nullptr;
  float* sums_ = nullptr;
  float* scores_ = nullptr;
};

}  // namespace HWY_NAMESPACE
}  // namespace asymkv::cpu
HWY_AFTER_NAMESPACE();
#endif
