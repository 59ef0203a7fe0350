#include "asymkv/kernels/cuda/prefill_launch.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <limits>

#include "asymkv/device/cuda/cuda_error.h"

namespace asymkv::cuda {
namespace {

// Graphs are built for rounded lengths, so that steps of about the same size share them.
int64_t rounded_length(int64_t tokens) {
  const int64_t step = tokens <= 1024 ? 128 : 1024;
  return (tokens + step - 1) / step * step;
}

}  // namespace

// One request of one call.
struct DevicePrefill::Row {
  int32_t query_row = 0;
  int32_t num_queries = 0;
  int32_t key_row = 0;
  int32_t num_keys = 0;
  bool first = true;
  bool last = true;
};

DevicePrefill::DevicePrefill(const DecodeConfig& config, const PrefillBatch& batch, const PrefillPlan& plan)
    : config_(config), num_q_heads_(batch.num_q_heads), num_kv_heads_(batch.num_kv_heads) {
  const int64_t row_elems = int64_t{num_q_heads_} * config_.head_dim;
  if (std::max<int64_t>(plan.num_rows, plan.staging_rows) * row_elems > std::numeric_limits<int32_t>::max()) {
    throw_usage("{} new tokens of {} x {} in one step: cut the step", plan.num_rows, num_q_heads_, config_.head_dim);
  }
  std::vector<Row> rows;
  const auto request_of = [&](int32_t i) { return batch.requests[static_cast<size_t>(i)]; };
  for (const int32_t i : plan.fresh) {
    const int32_t row = plan.query_rows[static_cast<size_t>(i)];
    rows.push_back({row, request_of(i).num_new, row, request_of(i).num_new});
  }
  fresh_ = make_call(rows, true);
  for (const StagingRound& round : plan.rounds) {
    rows.clear();
    for (const StagedPiece& p : round.pieces) {
      rows.push_back({plan.query_rows[static_cast<size_t>(p.request)], request_of(p.request).num_new, p.staging_row,
                      p.count, p.first, p.last});
    }
    rounds_.push_back(make_call(rows, false));
    rounds_.back().pages = to_device(round.pages);
    rounds_.back().num_pages = static_cast<int32_t>(round.pages.size());
  }
  const int64_t staged_elems = int64_t{plan.staging_rows} * num_kv_heads_ * config_.head_dim;
  staged_k_ = DeviceBuffer(staged_elems * 2);
  staged_v_ = DeviceBuffer(staged_elems * 2);
  q_elems_ = plan.num_rows * row_elems;
  if (!rounds_.empty() && !stages_bf16(true)) staged_q_ = DeviceBuffer(q_elems_ * 2);
  if (!rounds_.empty()) part_ = DeviceBuffer(plan.num_rows * row_elems * 2);
  if (plan.accumulates) total_ = DeviceBuffer(plan.num_rows * row_elems * 4);
  stats_ = DeviceBuffer(stats_elems_ * 4);
  lse_ = DeviceBuffer(int64_t{plan.num_rows} * num_q_heads_ * 4);
}

DevicePrefill::Call DevicePrefill::make_call(const std::vector<Row>& rows, bool causal) {
  Call call;
  call.causal = causal;
  call.num_pieces = static_cast<int32_t>(rows.size());
  if (rows.empty()) return call;
  std::vector<int32_t> q_offsets, kv_offsets, q_lens, kv_lens;
  std::vector<MergePiece> pieces;
  for (const Row& row : rows) {
    q_offsets.push_back(row.query_row * num_q_heads_ * config_.head_dim);
    kv_offsets.push_back(row.key_row * num_kv_heads_ * config_.head_dim);
    q_lens.push_back(row.num_queries);
    kv_lens.push_back(row.num_keys);
    pieces.push_back({row.query_row, row.num_queries, row.first ? 1 : 0, row.last ? 1 : 0});
  }
  const Row& end = rows.back();
  q_offsets.push_back((end.query_row + end.num_queries) * num_q_heads_ * config_.head_dim);
  kv_offsets.push_back((end.key_row + end.num_keys) * num_kv_heads_ * config_.head_dim);
  call.max_q = std::ranges::max(q_lens);
  call.max_kv = std::ranges::max(kv_lens);
  std::vector<int32_t> ints;
  for (const auto* part : {&q_offsets, &kv_offsets, &q_lens, &kv_lens})
    ints.insert(ints.end(), part->begin(), part->end());
  call.ints = to_device(ints);
  call.pieces = to_device(pieces);
  stats_elems_ = std::max(stats_elems_, int64_t{call.num_pieces} * num_q_heads_ * rounded_length(call.max_q));
  return call;
}

void DevicePrefill::attend(Sdpa& sdpa, const Call& call, const PrefillArguments& a, bool staged,
                           StreamHandle stream) const {
  const SdpaShape shape{.batch = call.num_pieces,
                        .num_q_heads = num_q_heads_,
                        .num_kv_heads = num_kv_heads_,
                        .head_dim = config_.head_dim,
                        .max_q = rounded_length(call.max_q),
                        .max_kv = rounded_length(call.max_kv),
                        .causal = call.causal,
                        .bf16 = staged ? stages_bf16(a.bf16) : a.bf16,
                        .softmax_scale = a.softmax_scale};
  const auto* ints = call.ints.as<int32_t>();
  const int64_t batch = call.num_pieces;
  sdpa.run(shape,
           {.q = staged && stages_bf16(a.bf16) != a.bf16 ? staged_q_.data() : a.q,
            .k = staged ? staged_k_.data() : a.fresh_k,
            .v = staged ? staged_v_.data() : a.fresh_v,
            .out = staged ? static_cast<void*>(part_.data()) : a.out,
            .stats = stats_.as<float>(),
            .q_offsets = ints,
            .kv_offsets = ints + batch + 1,
            .q_lens = ints + 2 * (batch + 1),
            .kv_lens = ints + 2 * (batch + 1) + batch},
           stream);
}

MergeParams DevicePrefill::merge_params(const Call& call, const PrefillArguments& a) const {
  return {.pieces = call.pieces.as<MergePiece>(),
          .num_pieces = call.num_pieces,
          .max_queries = call.max_q,
          .num_q_heads = num_q_heads_,
          .head_dim = config_.head_dim,
          .part = part_.data(),
          .part_stats = stats_.as<float>(),
          .stats_stride = static_cast<int32_t>(rounded_length(call.max_q)),
          .out = a.out,
          .lse = a.lse != nullptr ? a.lse : lse_.as<float>(),
          .total = total_.as<float>(),
          .bf16 = a.bf16,
          .part_bf16 = stages_bf16(a.bf16)};
}

void DevicePrefill::run(Sdpa& sdpa, const PrefillArguments& a, StreamHandle stream) const {
  if (fresh_.num_pieces == 0) return;
  if (a.q == nullptr || a.fresh_k == nullptr || a.fresh_v == nullptr || a.out == nullptr) {
    throw_usage("prefill needs queries, fresh keys and values, and an output");
  }
  attend(sdpa, fresh_, a, false, stream);
  launch_take_stats(merge_params(fresh_, a), stream);
  if (!rounds_.empty() && stages_bf16(a.bf16) != a.bf16) launch_to_f16(a.q, staged_q_.data(), q_elems_, stream);
  for (const Call& round : rounds_) {
    WidenParams widen;
    widen.blocks = a.blocks;
    widen.scales = a.scales;
    widen.fixed_scales = a.fixed_scales;
    widen.removed = a.removed;
    widen.cosines = a.cosines;
    widen.sines = a.sines;
    widen.pages = round.pages.as<WidenPage>();
    widen.num_pages = round.num_pages;
    widen.num_kv_heads = num_kv_heads_;
    widen.k = staged_k_.data();
    widen.v = staged_v_.data();
    widen.to_bf16 = stages_bf16(a.bf16);
    launch_widen(config_, widen, stream);
    attend(sdpa, round, a, true, stream);
    launch_merge(merge_params(round, a), stream);
  }
  ASYMKV_CUDA(cudaGetLastError());
}

}  // namespace asymkv::cuda
