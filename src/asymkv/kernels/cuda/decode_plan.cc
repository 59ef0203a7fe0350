#include "asymkv/kernels/cuda/decode_plan.h"

#include <algorithm>
#include <array>
#include <bit>
#include <limits>
#include <numeric>
#include <optional>

#include "asymkv/base/error.h"

namespace asymkv::cuda {
namespace {

// What a segment costs beside its pages: set-up, merge and the tail after its last page, as the bytes an SM reads in
// that time (about 5 us). Pre-bias adds the coefficients of its windows. Measured on ragged batches, K8/V8: 96 KB cost
// 5 % over 160 to 208 KB, 24 KB (with the merge left to one warp) 20 %.
constexpr int64_t kSegmentCostBytes = 192 * 1024;
constexpr int64_t kPrebiasCostBytes = 48 * 1024;
// A cut that would leave less than this at either end of a head moves to the end.
constexpr int64_t kSmallestFragmentPages = 8;
// Up to here 64 CTAs read as fast as 128: an SM can draw about twice its share of the bandwidth.
constexpr int64_t kClusterBytesPerCta = 512 * 1024;
constexpr int32_t kWellFilledCtas = 100;
constexpr int64_t kShortBytesPerCta = 160 * 1024;
// Short work beside that of other batches: CTAs of which an SM holds several, so that one reads while another merges.
constexpr LaunchShape kBesideOthers{.warps = 4, .stages = 2, .cluster_size = 1, .ctas_per_sm = 1};
// Batch 1, 8,192 keys, in clusters (us): two stages 12.1, 10.3, 9.2 (native, K16/V8, K8/V8), three 12.4, 10.4, 9.2;
// pre-bias wants three. With 16 warps instead of 8, K8/V8 at 32/8 8.9, at 28/4 slower. Batch 8 in clusters of two: 8
// warps and two stages read 1 % faster than 8 to 16 and three, but for pre-bias.
constexpr int64_t kShortBytesInCluster = 256 * 1024;
constexpr int64_t kManyWarpsInCluster = 96 * 1024;
constexpr int64_t kFewWarpsInPair = 2560 * 1024;

// Bytes that an SM keeps on their way: enough for the latency of memory at full rate.
constexpr int32_t kBytesInFlight = 152 * 1024;

// One (query tile, KV head): the segment that would hold all of its pages.
struct TileHead {
  Segment whole;
  int64_t pages() const { return whole.page_end - whole.page_begin; }
};

int64_t pages_of(int32_t seq_len) {
  return (static_cast<int64_t>(seq_len) + kPageSize - 1) / kPageSize;
}
int32_t queries_of(const DecodeBatch& batch, size_t sequence) {
  return batch.num_queries.empty() ? 1 : batch.num_queries[sequence];
}
int32_t query_pos_of(const DecodeBatch& batch, size_t sequence) {
  return batch.query_pos.empty() ? std::max(batch.seq_lens[sequence] - queries_of(batch, sequence), 0)
                                 : batch.query_pos[sequence];
}
int32_t tokens_per_tile(const DecodeConfig& config, int32_t group) {
  return config.columns() / group;
}

int32_t max_clusters(const DeviceLimits& device, int32_t size) {
  switch (size) {
    case 2:
      return device.clusters_of_2;
    case 4:
      return device.clusters_of_4;
    case 8:
      return device.clusters_of_8;
    default:
      return device.clusters_of_16;
  }
}

// The CTAs of a cluster share the output of a head in equal slices of channel pairs.
bool divides_columns(const DecodeConfig& config, int32_t columns, int32_t cluster_size) {
  return columns * (config.head_dim / 2) % cluster_size == 0;
}

// Largest cluster for which all heads run at once; 1 where clusters do not pay.
int32_t choose_cluster(const DecodePlan& plan, const DeviceLimits& device, int64_t num_heads, int64_t pages) {
  const DecodeConfig& config = plan.config;
  for (const int32_t size : {16, 8, 4, 2}) {
    const int64_t ctas = num_heads * size;
    if (num_heads > max_clusters(device, size) || pages < 2 * size) continue;
    if (!divides_columns(config, plan.columns, size)) continue;
    const int64_t bytes_per_cta = pages * config.block_bytes() / size;
    const bool short_work = ctas >= device.num_sms / 3 && bytes_per_cta <= kClusterBytesPerCta;
    if (ctas >= kWellFilledCtas || short_work) return size;
  }
  return 1;
}

// Warps and stages: enough bytes in flight, as many warps as the arithmetic of 8-bit formats wants, few where the work
// of a CTA is short.
LaunchShape choose_shape(const DecodeConfig& config, SharedNeeds needs, const LaunchShape& wanted, int64_t bytes_per_sm,
                         bool overlaps) {
  LaunchShape shape = wanted;
  shape.cluster_size = needs.cluster_size;
  const bool short_work = bytes_per_sm < kClusterBytesPerCta;
  // Short work without clusters: filling more stages holds the first pages up (K8/V8 at batch 1).
  int32_t most_stages = 4;
  if (needs.cluster_size == 1 && short_work && overlaps) most_stages = 3;
  if (needs.cluster_size == 1 && bytes_per_sm < kShortBytesPerCta && !overlaps) most_stages = 2;
  if (needs.cluster_size > 1 && bytes_per_sm < kShortBytesInCluster) most_stages = config.prebias ? 3 : 2;
  const bool few = needs.cluster_size == 2 && bytes_per_sm < kFewWarpsInPair && !config.prebias;
  if (few) most_stages = 2;
  auto fits = [&](int32_t warps, int32_t stages) {
    needs.warps = warps;
    needs.stages = stages;
    return place_shared(config, needs).total <= needs.max_bytes;
  };
  if (shape.warps == 0) {
    const bool native = config.k_bytes() + config.v_bytes() == 4, narrow = config.k_bytes() + config.v_bytes() == 2;
    const bool many = narrow && needs.cluster_size > 1 && bytes_per_sm >= kManyWarpsInCluster;
    shape.warps = std::min(config.max_warps(), (short_work && !many) || few || native ? 8 : 16);
    while (shape.warps > kMergeStep && !fits(shape.warps, 2)) shape.warps -= 4;
  }
  if (shape.stages == 0) {
    const int32_t per_stage = shape.warps * config.stage_bytes();
    const bool native = config.k_bytes() + config.v_bytes() == 4;
    shape.stages = std::clamp((kBytesInFlight + per_stage / 2) / per_stage + (native ? 1 : 0), 2, 4);
    shape.stages = std::min(shape.stages, most_stages);
    while (shape.stages > 2 && !fits(shape.warps, shape.stages)) --shape.stages;
  }
  const bool warps_fit = shape.warps % kMergeStep == 0 && shape.warps > 0 && shape.warps <= config.max_warps();
  if (!warps_fit || shape.stages < 1 || shape.stages > 32 || !fits(shape.warps, shape.stages)) {
    throw_usage("{} with {} warps and {} stages does not fit an SM: 2 to {} warps, at least one stage, {} bytes",
                config.name(), shape.warps, shape.stages, config.max_warps(), kMaxSharedBytes);
  }
  return shape;
}

// Flat splits of narrow formats: two CTAs of 8 warps on an SM, one of which reads while the other ends a segment
// (ragged K8/V8 0.88 -> 0.90 of read, 28/4 0.80 -> 0.84). Nothing where they do not fit or have little to do.
std::optional<LaunchShape> choose_pair(const DecodeConfig& config, SharedNeeds needs, int64_t bytes_per_sm) {
  constexpr int32_t kWarps = 8;
  // An instance for 16 warps has registers for two CTAs of 8.
  if (config.max_warps() < 2 * kWarps || bytes_per_sm < kClusterBytesPerCta) return {};
  const int32_t per_stage = 2 * kWarps * config.stage_bytes();
  needs.max_bytes = kMaxSharedBytesOfTwo;
  needs.warps = kWarps;
  needs.stages = std::clamp((kBytesInFlight + per_stage / 2) / per_stage, 2, 4);
  while (needs.stages > 2 && place_shared(config, needs).total > needs.max_bytes) --needs.stages;
  if (place_shared(config, needs).total > needs.max_bytes) return {};
  return LaunchShape{kWarps, needs.stages, 1, 2};
}

// Shape and shared memory of a plan.
void set_shape(DecodePlan& plan, SharedNeeds needs, const LaunchShape& shape) {
  plan.shape = shape;
  needs.warps = shape.warps;
  needs.stages = shape.stages;
  if (shape.ctas_per_sm == 2) needs.max_bytes = kMaxSharedBytesOfTwo;
  plan.shared = place_shared(plan.config, needs);
}

// Builds segments CTA by CTA.
class Splitter {
 public:
  Splitter(DecodePlan& plan, const DecodeBatch& batch, std::vector<TileHead> heads)
      : plan_(plan), batch_(batch), heads_(std::move(heads)) {}

  const std::vector<TileHead>& heads() const { return heads_; }
  void start_cta() { cta_begin_.push_back(static_cast<int32_t>(plan_.segments.size())); }

  // Pages begin to end - 1 of a head, counted from its first.
  void add(size_t head, int64_t begin, int64_t end) {
    Segment part = heads_[head].whole;
    part.page_end = part.page_begin + static_cast<int32_t>(end);
    part.page_begin += static_cast<int32_t>(begin);
    plan_.segments.push_back(part);
  }

  // Numbers the parts of each head, then writes the records.
  void finish() {
    plan_.num_ctas = static_cast<int32_t>(cta_begin_.size());
    cta_begin_.push_back(static_cast<int32_t>(plan_.segments.size()));
    number_partials();
    plan_.records.reserve(static_cast<size_t>(plan_.num_ctas) * static_cast<size_t>(plan_.shape.warps));
    for (int32_t cta = 0; cta < plan_.num_ctas; ++cta) {
      for (int32_t warp = 0; warp < plan_.shape.warps; ++warp) plan_.records.push_back(record(cta, warp));
    }
  }

 private:
  void number_partials() {
    for (size_t i = 0; i < plan_.segments.size();) {
      size_t end = i + 1;
      while (end < plan_.segments.size() && plan_.segments[end].query_row == plan_.segments[i].query_row &&
             plan_.segments[end].kv_head == plan_.segments[i].kv_head)
        ++end;
      for (size_t k = i; k < end; ++k) {
        plan_.segments[k].first_partial = static_cast<int32_t>(i);
        plan_.segments[k].num_partials = static_cast<int32_t>(end - i);
      }
      i = end;
    }
  }

  WarpRecord record(int32_t cta, int32_t warp) const {
    WarpRecord record;
    record.segment_begin = cta_begin_[static_cast<size_t>(cta)];
    record.segment_end = cta_begin_[static_cast<size_t>(cta) + 1];
    if (record.segment_begin == record.segment_end) return record;
    record.first = plan_.segments[static_cast<size_t>(record.segment_begin)];
    const int32_t pages = record.first.page_end - record.first.page_begin;
    const int32_t begin = record.first.page_begin + pages * warp / plan_.shape.warps;
    const int32_t end = record.first.page_begin + pages * (warp + 1) / plan_.shape.warps;
    record.page_begin = begin;
    record.page_end = end;
    for (int32_t i = 0; i < kRecordPages && begin + i < end; ++i)
      record.page_ids[i] =
          batch_.page_table[static_cast<size_t>(record.first.page_row + ((begin + i) >> plan_.page_shift))];
    return record;
  }

  DecodePlan& plan_;
  const DecodeBatch& batch_;
  std::vector<TileHead> heads_;
  std::vector<int32_t> cta_begin_;
};

void split_equally(Splitter& splitter, int64_t splits) {
  for (size_t head = 0; head < splitter.heads().size(); ++head) {
    const int64_t pages = splitter.heads()[head].pages();
    for (int64_t i = 0; i < splits; ++i) {
      splitter.start_cta();
      splitter.add(head, pages * i / splits, pages * (i + 1) / splits);
    }
  }
}

void split_whole_heads(Splitter& splitter, size_t heads_per_cta) {
  for (size_t head = 0; head < splitter.heads().size(); ++head) {
    if (head % heads_per_cta == 0) splitter.start_cta();
    splitter.add(head, 0, splitter.heads()[head].pages());
  }
}

// Pages of all heads in one line, each head led by its cost, cut into num_ctas equal pieces.
void split_flat(Splitter& splitter, int64_t num_ctas, int64_t segment_cost) {
  const auto& heads = splitter.heads();
  std::vector<int64_t> start{0};
  for (const TileHead& head : heads) start.push_back(start.back() + head.pages() + segment_cost);
  auto cut = [&](size_t head, int64_t place) {
    int64_t page = place - start[head] - segment_cost;
    if (page < kSmallestFragmentPages) page = 0;
    if (page > heads[head].pages() - kSmallestFragmentPages) page = heads[head].pages();
    return std::max<int64_t>(page, 0);
  };
  size_t first = 0;
  for (int64_t cta = 0; cta < num_ctas; ++cta) {
    const int64_t from = start.back() * cta / num_ctas;
    const int64_t to = start.back() * (cta + 1) / num_ctas;
    splitter.start_cta();
    while (first < heads.size() && start[first + 1] <= from) ++first;
    for (size_t head = first; head < heads.size() && start[head] < to; ++head) {
      const int64_t begin = from <= start[head] ? 0 : cut(head, from);
      const int64_t end = to >= start[head + 1] ? heads[head].pages() : cut(head, to);
      const bool owns_empty_head = heads[head].pages() == 0 && from <= start[head];
      if (end > begin || owns_empty_head) splitter.add(head, begin, end);
    }
  }
}

void check_sizes(const DecodeConfig& config, int32_t num_kv_heads, int32_t group, int32_t page_size) {
  if (group < 1 || group > config.columns()) {
    throw_usage("{} serves groups of 1 to {} query heads, asked for {}", config.name(), config.columns(), group);
  }
  if (num_kv_heads < 1 || num_kv_heads > INT16_MAX) {
    throw_usage("a decode batch needs 1 to {} KV heads, found {}", INT16_MAX, num_kv_heads);
  }
  if (page_size < kPageSize || page_size % kPageSize != 0 ||
      !std::has_single_bit(static_cast<uint32_t>(page_size / kPageSize))) {
    throw_usage("pages of {} slots: the kernel reads {} times a power of two", page_size, kPageSize);
  }
}

void check_sequence(const DecodeBatch& batch, size_t i) {
  const int32_t len = batch.seq_lens[i];
  if (len < 0) throw_usage("sequence {} has length {}", i, len);
  if (queries_of(batch, i) < 1) throw_usage("sequence {} has {} query tokens", i, queries_of(batch, i));
  if (query_pos_of(batch, i) < 0) throw_usage("sequence {} has a query at position {}", i, query_pos_of(batch, i));
  const int64_t ids = (int64_t{len} + batch.page_size - 1) / batch.page_size;
  const int64_t row_end = batch.page_rows[i] + ids;
  if (batch.page_rows[i] < 0 || row_end > static_cast<int64_t>(batch.page_table.size())) {
    throw_usage("pages {} to {} of sequence {} lie outside a page table of {} ids", batch.page_rows[i], row_end, i,
                batch.page_table.size());
  }
}

void check_batch(const DecodeConfig& config, const DecodeBatch& batch) {
  check_sizes(config, batch.num_kv_heads, batch.group, batch.page_size);
  if (batch.window < 0) throw_usage("a window of {} keys", batch.window);
  const size_t count = batch.seq_lens.size();
  if (batch.page_rows.size() != count) {
    throw_usage("a decode batch of {} sequences has {} page rows", count, batch.page_rows.size());
  }
  if (!batch.num_queries.empty() && batch.num_queries.size() != count) {
    throw_usage("a decode batch of {} sequences has {} query counts", count, batch.num_queries.size());
  }
  if (!batch.query_pos.empty() && batch.query_pos.size() != count) {
    throw_usage("a decode batch of {} sequences has {} query positions", count, batch.query_pos.size());
  }
  for (size_t i = 0; i < count; ++i) check_sequence(batch, i);
}

// The part of a sequence that `num_queries` of its tokens from `first_query` on attend to.
Segment whole_segment(const DecodeBatch& batch, size_t sequence, int32_t first_query, int32_t num_queries) {
  Segment s;
  s.sequence = static_cast<int32_t>(sequence);
  s.num_queries = static_cast<int16_t>(num_queries);
  s.page_row = batch.page_rows[sequence];
  s.query_pos = query_pos_of(batch, sequence) + first_query;
  const int32_t last_pos = s.query_pos + num_queries - 1;
  s.seq_len = std::min(batch.seq_lens[sequence], last_pos + 1);
  const int32_t first_key = batch.window > 0 ? std::max(s.query_pos - batch.window + 1, 0) : 0;
  s.page_end = static_cast<int32_t>(pages_of(s.seq_len));
  s.page_begin = std::min(first_key / kPageSize, s.page_end);
  const int32_t last_begin = batch.window > 0 ? std::max(last_pos - batch.window + 1, 0) : 0;
  s.full_begin = (last_begin + kPageSize - 1) / kPageSize;
  s.full_end = std::max(std::min(s.query_pos + 1, s.seq_len) / kPageSize, s.full_begin);
  return s;
}

std::vector<TileHead> list_heads(const DecodeConfig& config, const DecodeBatch& batch) {
  const int32_t per_tile = tokens_per_tile(config, batch.group);
  std::vector<TileHead> heads;
  int32_t row = 0;
  for (size_t sequence = 0; sequence < batch.seq_lens.size(); ++sequence) {
    const int32_t count = queries_of(batch, sequence);
    for (int32_t first = 0; first < count; first += per_tile) {
      Segment whole = whole_segment(batch, sequence, first, std::min(per_tile, count - first));
      whole.query_row = row + first;
      for (int32_t head = 0; head < batch.num_kv_heads; ++head) {
        whole.kv_head = static_cast<int16_t>(head);
        heads.push_back({whole});
      }
    }
    row += count;
  }
  return heads;
}

bool all_equal(const std::vector<TileHead>& heads) {
  return !heads.empty() && heads.front().pages() > 0 &&
         std::ranges::all_of(heads, [&](const TileHead& h) { return h.pages() == heads.front().pages(); });
}

// Heads per CTA for which whole heads fill the device, else 0.
int64_t whole_heads_per_cta(int64_t num_heads, int64_t num_sms) {
  const int64_t per_cta = (num_heads + num_sms - 1) / num_sms;
  const bool fills = num_heads % per_cta == 0 && num_heads / per_cta * 20 >= num_sms * 19;
  return fills ? per_cta : 0;
}

// Equal heads that fill the device without a CTA that crosses a head.
bool can_align(const std::vector<TileHead>& heads, const DeviceLimits& device) {
  const auto num_heads = static_cast<int64_t>(heads.size());
  return all_equal(heads) && (num_heads <= device.num_sms || whole_heads_per_cta(num_heads, device.num_sms) > 0);
}

// flat_only: the grid is the device's, whatever the batch.
void split_into(DecodePlan& plan, Splitter& splitter, const DeviceLimits& device, bool flat_only) {
  const auto num_heads = static_cast<int64_t>(splitter.heads().size());
  const bool aligned = !flat_only && can_align(splitter.heads(), device);
  plan.rule = SplitRule::kAligned;
  if (plan.shape.cluster_size > 1) {
    plan.rule = SplitRule::kCluster;
    split_equally(splitter, plan.shape.cluster_size);
  } else if (aligned && num_heads <= device.num_sms) {
    const int64_t pages = splitter.heads().front().pages();
    split_equally(splitter, std::clamp<int64_t>(device.num_sms / num_heads, 1, (pages + 3) / 4));
  } else if (aligned) {
    split_whole_heads(splitter, static_cast<size_t>(whole_heads_per_cta(num_heads, device.num_sms)));
  } else {
    plan.rule = SplitRule::kFlat;
    const int64_t cost_bytes = kSegmentCostBytes + (plan.config.prebias ? kPrebiasCostBytes : 0);
    split_flat(splitter, int64_t{device.num_sms} * plan.shape.ctas_per_sm, cost_bytes / plan.config.block_bytes());
  }
  splitter.finish();
}

void set_batch(DecodePlan& plan, const DecodeBatch& batch) {
  plan.group = batch.group;
  plan.num_kv_heads = batch.num_kv_heads;
  plan.num_sequences = static_cast<int32_t>(batch.seq_lens.size());
  plan.window = batch.window;
  plan.page_shift = std::countr_zero(static_cast<uint32_t>(batch.page_size / kPageSize));
}

int32_t largest_columns(const std::vector<TileHead>& heads, int32_t group) {
  int32_t tokens = 1;
  for (const TileHead& head : heads) tokens = std::max<int32_t>(tokens, head.whole.num_queries);
  return tokens * group;
}

}  // namespace

std::string_view split_rule_name(SplitRule rule) {
  constexpr std::array<std::string_view, 3> kNames = {"cluster", "aligned", "flat"};
  return kNames[static_cast<size_t>(rule)];
}

DecodePlan plan_decode(const DecodeConfig& config, const DecodeBatch& batch, const DeviceLimits& device,
                       const LaunchShape& asked, const BiasShape& bias) {
  check_batch(config, batch);
  std::vector<TileHead> heads = list_heads(config, batch);
  DecodePlan plan;
  plan.config = config;
  set_batch(plan, batch);
  plan.columns = largest_columns(heads, batch.group);
  plan.bias = bias;
  int64_t total = 0;
  int64_t longest = 0;
  for (const TileHead& head : heads) {
    total += head.pages();
    longest = std::max(longest, head.pages());
  }
  const int64_t bytes_per_sm = total * config.block_bytes() / device.num_sms;
  const bool is_short = bytes_per_sm < kClusterBytesPerCta;
  const LaunchShape wanted = batch.side_by_side && is_short && asked == LaunchShape{} ? kBesideOthers : asked;
  int32_t cluster = 1;
  if (all_equal(heads)) {
    cluster = wanted.cluster_size > 0 ? wanted.cluster_size
                                      : choose_cluster(plan, device, static_cast<int64_t>(heads.size()), longest);
  }
  if (!divides_columns(config, plan.columns, cluster)) {
    throw_usage("a cluster of {} CTAs cannot share {} columns of {} channels", cluster, plan.columns, config.head_dim);
  }
  SharedNeeds needs{0, 0, cluster, plan.columns, bias, batch.num_kv_heads};
  std::optional<LaunchShape> pair;
  if (cluster == 1 && wanted == LaunchShape{} && !can_align(heads, device))
    pair = choose_pair(config, needs, bytes_per_sm);
  set_shape(plan, needs, pair ? *pair : choose_shape(config, needs, wanted, bytes_per_sm, batch.overlaps));
  Splitter splitter(plan, batch, std::move(heads));
  split_into(plan, splitter, device, false);
  return plan;
}

DecodePlan plan_range(const DecodeConfig& config, const PlanRange& range, const DeviceLimits& device,
                      const BiasShape& bias) {
  check_sizes(config, range.num_kv_heads, range.group, range.page_size);
  if (range.max_sequences < 1 || range.max_seq_len < 1 || range.max_queries < 1 || range.max_page_ids < 1) {
    throw_usage("a plan range needs sequences, keys, query tokens and page ids, found {}, {}, {}, {}",
                range.max_sequences, range.max_seq_len, range.max_queries, range.max_page_ids);
  }
  DecodePlan plan;
  plan.config = config;
  plan.group = range.group;
  plan.num_kv_heads = range.num_kv_heads;
  plan.page_shift = std::countr_zero(static_cast<uint32_t>(range.page_size / kPageSize));
  plan.columns = std::min(range.max_queries, tokens_per_tile(config, range.group)) * range.group;
  plan.bias = bias;
  SharedNeeds needs{0, 0, 1, plan.columns, bias, range.num_kv_heads};
  constexpr int64_t kMuch = std::numeric_limits<int64_t>::max();
  const std::optional<LaunchShape> pair = choose_pair(config, needs, kMuch);
  set_shape(plan, needs, pair ? *pair : choose_shape(config, needs, {}, kMuch, false));
  const DecodeBatch nothing;
  Splitter splitter(plan, nothing, {});
  for (int32_t cta = 0; cta < device.num_sms * plan.shape.ctas_per_sm; ++cta) splitter.start_cta();
  splitter.finish();
  return plan;
}

DecodePlan plan_in_range(const DecodePlan& range_plan, const PlanRange& range, const DecodeBatch& batch,
                         const DeviceLimits& device) {
  check_batch(range_plan.config, batch);
  if (batch.group != range.group || batch.num_kv_heads != range.num_kv_heads || batch.page_size != range.page_size) {
    throw_usage("a batch of {} KV heads, groups of {} and pages of {} is not of the range ({}, {}, {})",
                batch.num_kv_heads, batch.group, batch.page_size, range.num_kv_heads, range.group, range.page_size);
  }
  const auto count = static_cast<int64_t>(batch.seq_lens.size());
  const auto ids = static_cast<int64_t>(batch.page_table.size());
  if (count > range.max_sequences || ids > range.max_page_ids) {
    throw_usage("{} sequences with {} page ids: the range has {} and {}", count, ids, range.max_sequences,
                range.max_page_ids);
  }
  for (size_t i = 0; i < batch.seq_lens.size(); ++i) {
    if (batch.seq_lens[i] > range.max_seq_len || queries_of(batch, i) > range.max_queries) {
      throw_usage("sequence {} has {} keys and {} query tokens: the range has {} and {}", i, batch.seq_lens[i],
                  queries_of(batch, i), range.max_seq_len, range.max_queries);
    }
  }
  DecodePlan plan = range_plan;
  plan.records.clear();
  set_batch(plan, batch);
  Splitter splitter(plan, batch, list_heads(plan.config, batch));
  split_into(plan, splitter, device, true);
  return plan;
}

int64_t max_segments(const PlanRange& range, const DecodeConfig& config, const DeviceLimits& device) {
  const int64_t per_tile = tokens_per_tile(config, range.group);
  const int64_t tiles = (range.max_queries + per_tile - 1) / per_tile;
  return range.max_sequences * tiles * range.num_kv_heads + int64_t{2} * device.num_sms;
}

int64_t DecodePlan::bytes_read() const {
  int64_t pages = 0;
  for (const Segment& s : segments) pages += s.page_end - s.page_begin;
  return pages * (config.block_bytes() + config.scale_bytes());
}

std::string DecodePlan::describe() const {
  std::vector<int64_t> load;
  for (int32_t cta = 0; cta < num_ctas; ++cta) {
    const WarpRecord& record = records[static_cast<size_t>(cta) * static_cast<size_t>(shape.warps)];
    int64_t pages = 0;
    for (int32_t s = record.segment_begin; s < record.segment_end; ++s)
      pages += segments[static_cast<size_t>(s)].page_end - segments[static_cast<size_t>(s)].page_begin;
    load.push_back(pages);
  }
  const auto [least, most] = std::ranges::minmax(load.empty() ? std::vector<int64_t>{0} : load);
  return fmt::format("{}: {} split, {} CTAs of {} warps x {} stages, clusters of {}, {} segments, {} to {} pages a CTA",
                     config.name(), split_rule_name(rule), num_ctas, shape.warps, shape.stages, shape.cluster_size,
                     segments.size(), least, most);
}

// --- declared in decode_types.h

std::string DecodeConfig::name() const {
  return fmt::format("decode_{}_{}_d{}_c{}{}{}{}{}", dtype_name(key), dtype_name(value), head_dim, column_tiles,
                     k_dynamic ? "_kd" : "", v_dynamic ? "_vd" : "", prebias ? "_pb" : "", fast_bias ? "_fb" : "");
}

namespace {

DecodeShared place_with_slots(const DecodeConfig& config, const SharedNeeds& needs, int32_t merge_slots) {
  constexpr int32_t kFloat = 4;
  constexpr int32_t kFloat2 = 8;
  constexpr int32_t kShares = 3;      // of the last arriver's thread groups: all but the first
  constexpr int32_t kShareElems = 6;  // max, sum and four channels
  DecodeShared at;
  int32_t next = 0;
  auto place = [&](bool wanted, int32_t bytes) {
    const int32_t here = next;
    if (wanted) next = (next + bytes + 127) / 128 * 128;
    return here;
  };
  const bool peers = needs.cluster_size > 1;
  const int32_t columns = needs.columns;
  const int32_t fast = kBiasStepPairs * needs.bias.fast_steps;
  const int32_t merge_elems =
      std::max(merge_slots * columns * (config.head_dim + 4), kShares * kShareElems * columns * config.head_dim / 4);
  at.ring = place(true, needs.warps * needs.stages * config.stage_bytes());
  at.barriers = place(true, needs.warps * needs.stages * 8);
  at.merge_state = place(true, merge_slots * config.columns() * kFloat2);
  at.merge_out = place(true, merge_elems * kFloat);
  at.peer_state = place(peers, needs.cluster_size * columns * kFloat2);
  at.peer_out = place(peers, columns * config.head_dim * kFloat);
  at.peer_barrier = place(peers, 8);
  at.bias_pairs = place(config.prebias, needs.num_kv_heads * needs.bias.slow_pairs() * int32_t{sizeof(BiasPair)});
  at.bias_freqs = place(config.prebias, needs.bias.slow_pairs() * int32_t{sizeof(BiasFrequency)});
  at.fast_products = place(config.fast_bias, columns * fast * kFloat2);
  at.fast_freqs = place(config.fast_bias, fast * kFloat2);
  at.bias_table = place(config.prebias, needs.bias.table_bytes());
  at.bias_barrier = place(config.prebias, 8);
  at.late = place(true, 16);
  at.merge_slots = merge_slots;
  at.total = next;
  return at;
}

}  // namespace

DecodeShared place_shared(const DecodeConfig& config, const SharedNeeds& needs) {
  DecodeShared at;
  for (int32_t slots = needs.warps; slots >= kMergeStep; slots -= kMergeStep) {
    at = place_with_slots(config, needs, slots);
    if (at.total <= needs.max_bytes) break;
  }
  return at;
}

}  // namespace asymkv::cuda
