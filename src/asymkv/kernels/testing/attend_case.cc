#include "asymkv/kernels/testing/attend_case.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>
#include <utility>

#include "asymkv/base/error.h"
#include "asymkv/kernels/ref/ref_attention.h"

namespace asymkv::testing {
namespace {

constexpr int64_t kSparePages = 5;  // stay NaN
constexpr int64_t kGuardElems = 64;
// A signalling pattern no kernel produces.
const float kSentinel = std::bit_cast<float>(0x7f812345U);

bool is_sentinel(float x) {
  return std::bit_cast<uint32_t>(x) == std::bit_cast<uint32_t>(kSentinel);
}

int64_t max_positions(const AttendCase& shape) {
  int64_t most = 1;
  for (const SequenceShape& s : shape.sequences) most = std::max(most, s.stored + s.gap + s.queries + 1);
  return most;
}

// Ids leave the pool in a random order once they have all been taken and given back in one.
void shuffle_pool(PagePool& pool, uint64_t seed) {
  std::vector<PageId> ids;
  while (pool.num_free() > 0) ids.push_back(pool.allocate());
  for (size_t i = ids.size(); i > 1; --i) {
    seed = seed * 6364136223846793005ULL + 1442695040888963407ULL;
    std::swap(ids[i - 1], ids[(seed >> 33) % i]);
  }
  for (const PageId id : ids) pool.release(id);
}

}  // namespace

std::string AttendCase::to_string() const {
  std::string text = fmt::format(
      "{} KV heads x group {}, dims {}/{}, page {}, padding {}/{}/{}/{}, window {}, cap {}, sinks {}, bias {}, "
      "magnitude {}, outlier {}, seed {};",
      num_kv_heads, group, k_head_dim, v_head_dim, page_size, padding.k_row_bytes, padding.v_row_bytes,
      padding.k_page_bytes, padding.v_page_bytes, window, soft_cap, sinks, bias, rope_magnitude, outlier, seed);
  for (const SequenceShape& s : sequences) {
    const KvFormat& format = formats.at(s.format_idx);
    text += fmt::format(" [{} {} stored {} + {} queries{} gap {}]", format.id(), scale_kind_name(format.scale()),
                        s.stored, s.queries, s.fresh ? " fresh" : "", s.gap);
  }
  return text;
}

AttendData::AttendData(const AttendCase& shape)
    : shape_(shape),
      rope_(rope_frequencies(1e4, shape.k_head_dim), max_positions(shape), shape.rope_magnitude),
      random_state_(shape.seed * 0x9e3779b97f4a7c15ULL + 1) {
  const int64_t half = shape.k_head_dim / 2;
  bias_.assign(static_cast<size_t>(shape.num_kv_heads * shape.k_head_dim), 0.0F);
  for (size_t i = 0; i < bias_.size(); ++i) {
    const int64_t pair = static_cast<int64_t>(i) % half;
    bias_[i] = normal() * (4 * pair >= 3 * half ? shape.bias : 0.02F * shape.bias);
  }
  make_caches();
  num_rows_ = 1;
  for (const SequenceShape& sequence : shape.sequences) add_sequence(sequence);
  queries_.resize(static_cast<size_t>(num_rows_ * num_q_heads() * shape.k_head_dim));
  fill(queries_, 1.0F);
  if (!shape.sinks) return;
  sinks_.resize(static_cast<size_t>(num_q_heads()));
  fill(sinks_, 1.0F);
}

// Box-Muller over a 64-bit congruential generator: the same numbers with every standard library.
float AttendData::normal() {
  const auto uniform = [this] {
    random_state_ = random_state_ * 6364136223846793005ULL + 1442695040888963407ULL;
    return (static_cast<double>(random_state_ >> 33) + 0.5) * 0x1p-31;
  };
  const double radius = std::sqrt(-2.0 * std::log(uniform()));
  return static_cast<float>(radius * std::cos(6.283185307179586 * uniform()));
}

void AttendData::fill(std::vector<float>& data, float outlier) {
  for (size_t i = 0; i < data.size(); ++i) data[i] = normal() * (i % 16 == 5 ? outlier : 1.0F);
}

void AttendData::make_caches() {
  for (size_t f = 0; f < shape_.formats.size(); ++f) {
    const KvFormat& format = shape_.formats[f];
    const KvGeometry geometry{shape_.num_kv_heads, shape_.k_head_dim, shape_.v_head_dim, shape_.page_size};
    const KvLayout layout(geometry, format, shape_.padding);
    KvCacheConfig config;
    config.num_layers = 1;
    config.num_pages = kSparePages;
    for (const SequenceShape& s : shape_.sequences) {
      if (s.format_idx == f) config.num_pages += layout.pages_for(s.stored);
    }
    config.scale_source = std::string(scale_kind_name(format.scale()));
    if (format.scale() == ScaleKind::kFixed) config.fixed_scales = {shape_.fixed_scales};
    if (format.key.prebias) {
      KeySplitOptions options;
      options.rope_magnitude = shape_.rope_magnitude;
      config.transforms = {split_key_vector(bias_, rope_.frequencies(), shape_.num_kv_heads, options)};
    }
    caches_.push_back(std::make_unique<KvCache>(layout, config));
    shuffle_pool(caches_.back()->pool(), shape_.seed + f);
  }
}

void AttendData::add_sequence(const SequenceShape& sequence) {
  KvCache& cache = *caches_.at(sequence.format_idx);
  const int64_t first_query =
      sequence.fresh || sequence.gap > 0 ? sequence.stored + sequence.gap : sequence.stored - sequence.queries;
  const int64_t num_tokens = sequence.stored + (sequence.fresh ? sequence.queries : 0);
  const auto row_elems = [&](int64_t dim) { return static_cast<size_t>(num_tokens * shape_.num_kv_heads * dim); };
  std::vector<float> k(row_elems(shape_.k_head_dim));
  std::vector<float> v(row_elems(shape_.v_head_dim));
  fill(k, shape_.outlier);
  fill(v, shape_.outlier);
  std::vector<float> rounded_k(k.size());
  std::vector<float> rounded_v(v.size());
  std::vector<int32_t> positions(static_cast<size_t>(num_tokens));
  std::iota(positions.begin(), positions.end(), 0);
  for (size_t i = static_cast<size_t>(sequence.stored); i < positions.size(); ++i) {
    positions[i] += static_cast<int32_t>(sequence.gap);
  }
  auto pages = std::make_unique<SequencePages>(cache);
  std::vector<int64_t> slots = pages->append(sequence.stored);
  slots.resize(positions.size(), -1);
  const WriteTarget target{cache.layer(0), slots};
  WriteKvParams write;
  write.num_tokens = num_tokens;
  write.k = k.data();
  write.v = v.data();
  write.k_bias = bias_.data();
  write.positions = positions;
  write.rope = &rope_;
  write.geometry = cache.layout().geometry();
  write.targets = std::span(&target, 1);
  write.fresh_k = rounded_k.data();
  write.fresh_v = rounded_v.data();
  RefAttention().write_kv(write);

  AttendSequence attend;
  attend.query_row = num_rows_;
  attend.num_queries = sequence.queries;
  attend.query_pos = std::max<int64_t>(0, first_query);
  attend.cache = cache.layer(0);
  attend.pages = pages->pages();
  attend.stored_len = sequence.stored;
  const auto fresh_from = [&](const std::vector<float>& all, int64_t dim) {
    return std::vector<float>(all.begin() + sequence.stored * shape_.num_kv_heads * dim, all.end());
  };
  fresh_k_.push_back(fresh_from(rounded_k, shape_.k_head_dim));
  fresh_v_.push_back(fresh_from(rounded_v, shape_.v_head_dim));
  attend.num_fresh = sequence.fresh ? sequence.queries : 0;
  attend.fresh_k = fresh_k_.back().data();
  attend.fresh_v = fresh_v_.back().data();
  sequences_.push_back(attend);
  pages_.push_back(std::move(pages));
  used_row_.resize(static_cast<size_t>(num_rows_ + sequence.queries + 1));
  std::fill_n(used_row_.begin() + num_rows_, sequence.queries, true);
  num_rows_ += sequence.queries + 1;
}

AttendParams AttendData::params() {
  AttendParams params;
  params.num_q_heads = num_q_heads();
  params.num_kv_heads = shape_.num_kv_heads;
  params.k_head_dim = shape_.k_head_dim;
  params.v_head_dim = shape_.v_head_dim;
  params.softmax_scale = 1.0F / std::sqrt(static_cast<float>(shape_.k_head_dim));
  params.logit_soft_cap = shape_.soft_cap;
  params.window = shape_.window;
  params.sinks = shape_.sinks ? sinks_.data() : nullptr;
  params.q = queries_.data();
  params.rope = &rope_;
  params.sequences = sequences_;
  return params;
}

AttendOutput AttendData::run(const AttentionBackend& backend) {
  const int64_t head_rows = num_rows_ * num_q_heads();
  AttendOutput output;
  output.out.assign(static_cast<size_t>(head_rows * shape_.v_head_dim + kGuardElems), kSentinel);
  output.lse.assign(static_cast<size_t>(head_rows + kGuardElems), kSentinel);
  AttendParams call = params();
  call.out = output.out.data();
  call.lse = output.lse.data();
  backend.attend(call);
  const auto check_row = [&](int64_t row, std::vector<float>& data, int64_t row_elems) {
    const bool used = row < num_rows_ && used_row_[static_cast<size_t>(row)];
    const auto begin = data.begin() + row * row_elems;
    const auto end = row < num_rows_ ? begin + row_elems : data.end();
    if (used) {
      ASYMKV_CHECK(std::none_of(begin, end, is_sentinel), "row {} was not written", row);
    } else {
      ASYMKV_CHECK(std::all_of(begin, end, is_sentinel), "row {} belongs to no sequence but was written", row);
      std::fill(begin, end, 0.0F);
    }
  };
  for (int64_t row = 0; row <= num_rows_; ++row) {
    check_row(row, output.out, num_q_heads() * shape_.v_head_dim);
    check_row(row, output.lse, num_q_heads());
  }
  output.out.resize(static_cast<size_t>(head_rows * shape_.v_head_dim));
  output.lse.resize(static_cast<size_t>(head_rows));
  return output;
}

}  // namespace asymkv::testing
