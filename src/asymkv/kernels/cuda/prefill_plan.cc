#include "asymkv/kernels/cuda/prefill_plan.h"

#include <algorithm>

#include "asymkv/base/error.h"
#include "asymkv/kernels/cuda/decode_types.h"

namespace asymkv::cuda {
namespace {

void check(const PrefillBatch& batch) {
  if (batch.num_kv_heads <= 0 || batch.num_q_heads <= 0 || batch.num_q_heads % batch.num_kv_heads != 0) {
    throw_usage("{} query heads do not divide over {} KV heads", batch.num_q_heads, batch.num_kv_heads);
  }
  if (batch.head_dim <= 0) throw_usage("head dim {}", batch.head_dim);
  if (batch.page_size <= 0 || batch.page_size % kPageSize != 0) {
    throw_usage("pages of {} slots: a multiple of {} is needed", batch.page_size, kPageSize);
  }
  for (size_t i = 0; i < batch.requests.size(); ++i) {
    const PrefillRequest& r = batch.requests[i];
    if (r.cached_len < 0 || r.num_new < 0) {
      throw_usage("request {} has {} stored and {} new tokens", i, r.cached_len, r.num_new);
    }
    const int64_t pages = (int64_t{r.cached_len} + batch.page_size - 1) / batch.page_size;
    if (r.page_row < 0 || int64_t{r.page_row} + pages > static_cast<int64_t>(batch.page_table.size())) {
      throw_usage("request {} has {} pages from entry {} of a page table of {}", i, pages, r.page_row,
                  batch.page_table.size());
    }
  }
}

// The page of 16 slots that holds token `token` of a request.
int32_t small_page(const PrefillBatch& batch, const PrefillRequest& request, int32_t token) {
  const int32_t id = batch.page_table[static_cast<size_t>(request.page_row + token / batch.page_size)];
  return id * (batch.page_size / kPageSize) + token % batch.page_size / kPageSize;
}

// Fills rounds one after the other, whole pages at a time.
class Stager {
 public:
  Stager(const PrefillBatch& batch, int32_t capacity, PrefillPlan& plan)
      : batch_(batch), capacity_(capacity), plan_(plan) {}

  void add(int32_t request) {
    const PrefillRequest& r = batch_.requests[static_cast<size_t>(request)];
    for (int32_t token = 0; token < r.cached_len;) {
      if (plan_.rounds.empty() || capacity_ - used_ < kPageSize) {
        plan_.rounds.emplace_back();
        used_ = 0;
      }
      const int32_t count = std::min(r.cached_len - token, capacity_ - used_);
      plan_.accumulates = plan_.accumulates || count < r.cached_len;
      add_piece({request, token, count, used_, token == 0, token + count == r.cached_len}, r);
      token += count;
    }
  }

 private:
  void add_piece(const StagedPiece& piece, const PrefillRequest& request) {
    StagingRound& round = plan_.rounds.back();
    round.pieces.push_back(piece);
    for (int32_t offset = 0; offset < piece.count; offset += kPageSize) {
      const int32_t token = piece.token_begin + offset;
      round.pages.push_back({small_page(batch_, request, token), piece.staging_row + offset,
                             std::min(kPageSize, piece.count - offset), token});
    }
    used_ += (piece.count + kPageSize - 1) / kPageSize * kPageSize;
    round.num_rows = used_;
  }

  const PrefillBatch& batch_;
  int32_t capacity_;  // rows, a multiple of the page
  int32_t used_ = 0;  // rows of the open round
  PrefillPlan& plan_;
};

}  // namespace

int64_t staging_bytes_per_token(int32_t num_kv_heads, int32_t head_dim) {
  constexpr int64_t kKeyBytes = 2, kValueBytes = 2;
  return int64_t{num_kv_heads} * head_dim * (kKeyBytes + kValueBytes);
}

std::string PrefillPlan::describe() const {
  int64_t widened = 0;
  for (const StagingRound& round : rounds) {
    for (const StagedPiece& piece : round.pieces) widened += piece.count;
  }
  return fmt::format(
      "decode {}, fresh {}, of them staged {}: {} stored tokens in {} rounds of at most {} rows ({} bytes)",
      decode.size(), fresh.size(), staged.size(), widened, rounds.size(), staging_rows, staging_bytes);
}

PrefillPlan plan_prefill(const PrefillBatch& batch, const PrefillLimits& limits) {
  check(batch);
  const int64_t per_token = staging_bytes_per_token(batch.num_kv_heads, batch.head_dim);
  const int64_t capacity = limits.staging_bytes / per_token / kPageSize * kPageSize;
  if (capacity < kPageSize) {
    throw_usage("a staging buffer of {} bytes holds no page: {} tokens need {}", limits.staging_bytes, kPageSize,
                per_token * kPageSize);
  }
  PrefillPlan plan;
  Stager stager(batch, static_cast<int32_t>(std::min<int64_t>(capacity, int64_t{1} << 30)), plan);
  const int32_t group = batch.num_q_heads / batch.num_kv_heads;
  for (size_t i = 0; i < batch.requests.size(); ++i) {
    const PrefillRequest& r = batch.requests[i];
    const auto request = static_cast<int32_t>(i);
    plan.query_rows.push_back(plan.num_rows);
    plan.num_rows += r.num_new;
    if (r.num_new == 0) continue;
    if (int64_t{r.num_new} * group <= limits.max_decode_columns || r.num_new == 1) {
      plan.decode.push_back(request);
      continue;
    }
    plan.fresh.push_back(request);
    if (r.cached_len == 0) continue;
    plan.staged.push_back(request);
    stager.add(request);
  }
  for (const StagingRound& round : plan.rounds) plan.staging_rows = std::max(plan.staging_rows, round.num_rows);
  plan.staging_bytes = plan.staging_rows * per_token;
  return plan;
}

}  // namespace asymkv::cuda
