#include "asymkv/kernels/cuda/decode_plan.h"

#include <algorithm>
#include <array>
#include <numeric>

#include "asymkv/base/error.h"

namespace asymkv::cuda {
namespace {

// What a segment costs beside its pages: set-up, merge and the tail after its last page, as the bytes an SM reads in
// that time (about 3 us). Pre-bias adds the coefficients of its windows. Measured on ragged batches: 48 KB cost K8/V8
// 7 % over 96 KB, 16-bit formats 0.6 to 2 %.
constexpr int64_t kSegmentCostBytes = 96 * 1024;
constexpr int64_t kPrebiasCostBytes = 48 * 1024;
// A cut that would leave less than this at either end of a head moves to the end.
constexpr int64_t kSmallestFragmentPages = 8;
// Up to here 64 CTAs read as fast as 128: an SM can draw about twice its share of the bandwidth.
constexpr int64_t kClusterBytesPerCta = 512 * 1024;
constexpr int32_t kWellFilledCtas = 100;

// Bytes that an SM keeps on their way: enough for the latency of memory at full rate.
constexpr int32_t kBytesInFlight = 152 * 1024;

struct HeadPages {
  int32_t sequence;
  int32_t kv_head;
  int64_t pages;
};

int64_t pages_of(int32_t seq_len) {
  return (static_cast<int64_t>(seq_len) + kPageSize - 1) / kPageSize;
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

// Largest cluster for which all heads run at once; 1 where clusters do not pay.
int32_t choose_cluster(const DecodeConfig& config, const DeviceLimits& device, int64_t num_heads, int64_t pages) {
  for (const int32_t size : {16, 8, 4, 2}) {
    const int64_t ctas = num_heads * size;
    if (num_heads > max_clusters(device, size) || pages < 2 * size) continue;
    const int64_t bytes_per_cta = pages * config.block_bytes() / size;
    const bool short_work = ctas >= device.num_sms / 3 && bytes_per_cta <= kClusterBytesPerCta;
    if (ctas >= kWellFilledCtas || short_work) return size;
  }
  return 1;
}

// Warps and stages: enough bytes in flight, as many warps as the arithmetic of 8-bit formats wants, few where the work
// of a CTA is short.
LaunchShape choose_shape(const DecodeConfig& config, int32_t group, const LaunchShape& wanted, int32_t cluster_size,
                         bool short_work, int32_t bias_chunks) {
  LaunchShape shape = wanted;
  shape.cluster_size = cluster_size;
  auto fits = [&](int32_t warps, int32_t stages) {
    return place_shared(config, warps, stages, group, cluster_size, bias_chunks).total <= kMaxSharedBytes;
  };
  if (shape.warps == 0) {
    const bool native = config.k_bytes() + config.v_bytes() == 4;
    shape.warps = std::min(config.max_warps(), short_work || native ? 8 : 16);
    while (shape.warps > kMergeStep && !fits(shape.warps, 2)) shape.warps -= 4;
  }
  if (shape.stages == 0) {
    const int32_t per_stage = shape.warps * config.stage_bytes();
    const bool native = config.k_bytes() + config.v_bytes() == 4;
    shape.stages = std::clamp((kBytesInFlight + per_stage / 2) / per_stage + (native ? 1 : 0), 2, 4);
    while (shape.stages > 2 && !fits(shape.warps, shape.stages)) --shape.stages;
  }
  const bool warps_fit = shape.warps % kMergeStep == 0 && shape.warps > 0 && shape.warps <= config.max_warps();
  if (!warps_fit || shape.stages < 1 || shape.stages > 32 || !fits(shape.warps, shape.stages)) {
    throw_usage("{} with {} warps and {} stages does not fit an SM: 2 to {} warps, at least one stage, {} bytes",
                config.name(), shape.warps, shape.stages, config.max_warps(), kMaxSharedBytes);
  }
  return shape;
}

// Builds segments CTA by CTA.
class Splitter {
 public:
  Splitter(DecodePlan& plan, const DecodeBatch& batch, std::vector<HeadPages> heads)
      : plan_(plan), batch_(batch), heads_(std::move(heads)) {}

  const std::vector<HeadPages>& heads() const { return heads_; }
  void start_cta() { cta_begin_.push_back(static_cast<int32_t>(plan_.segments.size())); }

  void add(size_t head, int64_t begin, int64_t end) {
    const int64_t longest = plan_.config.prebias ? kMaxSegmentPages : std::max<int64_t>(end - begin, 1);
    do {
      const int64_t stop = std::min(end, begin + longest);
      const HeadPages& h = heads_[head];
      const auto sequence = static_cast<size_t>(h.sequence);
      plan_.segments.push_back({h.sequence, h.kv_head, static_cast<int32_t>(begin), static_cast<int32_t>(stop), 0, 1,
                                batch_.seq_lens[sequence], batch_.page_rows[sequence]});
      begin = stop;
    } while (begin < end);
  }

  // Numbers the parts of each head, then writes the records.
  void finish() {
    plan_.num_ctas = static_cast<int32_t>(cta_begin_.size());
    cta_begin_.push_back(static_cast<int32_t>(plan_.segments.size()));
    number_partials();
    for (int32_t cta = 0; cta < plan_.num_ctas; ++cta) {
      for (int32_t warp = 0; warp < plan_.shape.warps; ++warp) plan_.records.push_back(record(cta, warp));
    }
  }

 private:
  void number_partials() {
    for (size_t i = 0; i < plan_.segments.size();) {
      size_t end = i + 1;
      while (end < plan_.segments.size() && plan_.segments[end].sequence == plan_.segments[i].sequence &&
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
      record.page_ids[i] = batch_.page_table[static_cast<size_t>(record.first.page_row + begin + i)];
    return record;
  }

  DecodePlan& plan_;
  const DecodeBatch& batch_;
  std::vector<HeadPages> heads_;
  std::vector<int32_t> cta_begin_;
};

void split_equally(Splitter& splitter, int64_t splits) {
  for (size_t head = 0; head < splitter.heads().size(); ++head) {
    const int64_t pages = splitter.heads()[head].pages;
    for (int64_t i = 0; i < splits; ++i) {
      splitter.start_cta();
      splitter.add(head, pages * i / splits, pages * (i + 1) / splits);
    }
  }
}

void split_whole_heads(Splitter& splitter, size_t heads_per_cta) {
  for (size_t head = 0; head < splitter.heads().size(); ++head) {
    if (head % heads_per_cta == 0) splitter.start_cta();
    splitter.add(head, 0, splitter.heads()[head].pages);
  }
}

// Pages of all heads in one line, each head led by its cost, cut into num_ctas equal pieces.
void split_flat(Splitter& splitter, int64_t num_ctas, int64_t segment_cost) {
  const auto& heads = splitter.heads();
  std::vector<int64_t> start{0};
  for (const HeadPages& head : heads) start.push_back(start.back() + head.pages + segment_cost);
  auto cut = [&](size_t head, int64_t place) {
    int64_t page = place - start[head] - segment_cost;
    if (page < kSmallestFragmentPages) page = 0;
    if (page > heads[head].pages - kSmallestFragmentPages) page = heads[head].pages;
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
      const int64_t end = to >= start[head + 1] ? heads[head].pages : cut(head, to);
      const bool owns_empty_head = heads[head].pages == 0 && from <= start[head];
      if (end > begin || owns_empty_head) splitter.add(head, begin, end);
    }
  }
}

void check_batch(const DecodeConfig& config, const DecodeBatch& batch) {
  if (batch.group < 1 || batch.group > config.columns()) {
    throw_usage("{} serves groups of 1 to {} query heads, asked for {}", config.name(), config.columns(), batch.group);
  }
  if (batch.num_kv_heads < 1) throw_usage("a decode batch needs KV heads, found {}", batch.num_kv_heads);
  if (batch.page_rows.size() != batch.seq_lens.size()) {
    throw_usage("a decode batch of {} sequences has {} page rows", batch.seq_lens.size(), batch.page_rows.size());
  }
  for (size_t i = 0; i < batch.seq_lens.size(); ++i) {
    const int32_t len = batch.seq_lens[i];
    if (len < 0) throw_usage("sequence {} has length {}", i, len);
    const int64_t row_end = batch.page_rows[i] + pages_of(len);
    if (batch.page_rows[i] < 0 || row_end > static_cast<int64_t>(batch.page_table.size())) {
      throw_usage("pages {} to {} of sequence {} lie outside a page table of {} ids", batch.page_rows[i], row_end, i,
                  batch.page_table.size());
    }
  }
}

std::vector<HeadPages> list_heads(const DecodeBatch& batch) {
  std::vector<HeadPages> heads;
  for (size_t sequence = 0; sequence < batch.seq_lens.size(); ++sequence) {
    for (int32_t head = 0; head < batch.num_kv_heads; ++head)
      heads.push_back({static_cast<int32_t>(sequence), head, pages_of(batch.seq_lens[sequence])});
  }
  return heads;
}

bool all_equal(const std::vector<HeadPages>& heads) {
  return !heads.empty() && heads.front().pages > 0 &&
         std::ranges::all_of(heads, [&](const HeadPages& h) { return h.pages == heads.front().pages; });
}

// Heads per CTA for which whole heads fill the device, else 0.
int64_t whole_heads_per_cta(int64_t num_heads, int64_t num_sms) {
  const int64_t per_cta = (num_heads + num_sms - 1) / num_sms;
  const bool fills = num_heads % per_cta == 0 && num_heads / per_cta * 20 >= num_sms * 19;
  return fills ? per_cta : 0;
}

void split(DecodePlan& plan, const DecodeBatch& batch, const DeviceLimits& device, std::vector<HeadPages> heads) {
  Splitter splitter(plan, batch, std::move(heads));
  const auto num_heads = static_cast<int64_t>(splitter.heads().size());
  const bool equal = all_equal(splitter.heads());
  plan.rule = SplitRule::kAligned;
  if (plan.shape.cluster_size > 1) {
    plan.rule = SplitRule::kCluster;
    split_equally(splitter, plan.shape.cluster_size);
  } else if (equal && num_heads <= device.num_sms) {
    const int64_t pages = splitter.heads().front().pages;
    split_equally(splitter, std::clamp<int64_t>(device.num_sms / num_heads, 1, (pages + 3) / 4));
  } else if (equal && whole_heads_per_cta(num_heads, device.num_sms) > 0) {
    split_whole_heads(splitter, static_cast<size_t>(whole_heads_per_cta(num_heads, device.num_sms)));
  } else {
    plan.rule = SplitRule::kFlat;
    const int64_t cost_bytes = kSegmentCostBytes + (plan.config.prebias ? kPrebiasCostBytes : 0);
    split_flat(splitter, device.num_sms, cost_bytes / plan.config.block_bytes());
  }
  splitter.finish();
}

}  // namespace

std::string_view split_rule_name(SplitRule rule) {
  constexpr std::array<std::string_view, 3> kNames = {"cluster", "aligned", "flat"};
  return kNames[static_cast<size_t>(rule)];
}

DecodePlan plan_decode(const DecodeConfig& config, const DecodeBatch& batch, const DeviceLimits& device,
                       const LaunchShape& wanted, int32_t bias_chunks) {
  check_batch(config, batch);
  std::vector<HeadPages> heads = list_heads(batch);
  DecodePlan plan;
  plan.config = config;
  plan.group = batch.group;
  plan.num_kv_heads = batch.num_kv_heads;
  plan.num_sequences = static_cast<int32_t>(batch.seq_lens.size());
  plan.bias_chunks = bias_chunks;
  const auto num_heads = static_cast<int64_t>(heads.size());
  int64_t total = 0;
  for (const HeadPages& head : heads) total += head.pages;
  const int64_t longest = heads.empty() ? 0 : heads.front().pages;
  int32_t cluster = 1;
  const bool one_segment = !config.prebias || longest <= kMaxSegmentPages;
  if (all_equal(heads) && one_segment)
    cluster = wanted.cluster_size > 0 ? wanted.cluster_size : choose_cluster(config, device, num_heads, longest);
  const bool short_work = total * config.block_bytes() / device.num_sms < kClusterBytesPerCta;
  plan.shape = choose_shape(config, batch.group, wanted, cluster, short_work, bias_chunks);
  plan.shared = place_shared(config, plan.shape.warps, plan.shape.stages, batch.group, cluster, bias_chunks);
  split(plan, batch, device, std::move(heads));
  return plan;
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
  return fmt::format("decode_{}_{}_d{}_c{}{}{}{}", dtype_name(key), dtype_name(value), head_dim, column_tiles,
                     k_dynamic ? "_kd" : "", v_dynamic ? "_vd" : "", prebias ? "_pb" : "");
}

namespace {

DecodeShared place_with_slots(const DecodeConfig& config, const LaunchShape& shape, int32_t group, int32_t bias_chunks,
                              int32_t merge_slots) {
  constexpr int32_t kFloat = 4;
  constexpr int32_t kFloat2 = 8;
  constexpr int32_t kShares = 3;      // of the last arriver's thread groups: all but the first
  constexpr int32_t kShareElems = 6;  // max, sum and four channels
  DecodeShared at;
  int32_t next = 0;
  auto place = [&](int32_t bytes) {
    const int32_t here = next;
    next = (next + bytes + 127) / 128 * 128;
    return here;
  };
  const bool peers = shape.cluster_size > 1;
  const int32_t pairs = 32 * bias_chunks;
  const int32_t merge_elems =
      std::max(merge_slots * group * (config.head_dim + 4), kShares * kShareElems * group * config.head_dim / 4);
  at.ring = place(shape.warps * shape.stages * config.stage_bytes());
  at.barriers = place(shape.warps * shape.stages * 8);
  at.merge_state = place(merge_slots * config.columns() * kFloat2);
  at.merge_out = place(merge_elems * kFloat);
  at.peer_state = place(peers ? shape.cluster_size * group * kFloat2 : 0);
  at.peer_out = place(peers ? group * config.head_dim * kFloat : 0);
  at.bias_coeffs = place(config.prebias ? kBiasTerms * kMaxWindows * config.columns() * kFloat : 0);
  at.bias_products = place(config.prebias ? group * pairs * kFloat2 : 0);
  at.bias_turns = place(config.prebias ? kMaxWindows * pairs * kFloat2 : 0);
  at.bias_half_step = place(config.prebias ? pairs * kFloat : 0);
  at.flag = place(16);
  at.merge_slots = merge_slots;
  at.total = next;
  return at;
}

}  // namespace

DecodeShared place_shared(const DecodeConfig& config, int32_t warps, int32_t stages, int32_t group,
                          int32_t cluster_size, int32_t bias_chunks) {
  const LaunchShape shape{warps, stages, cluster_size};
  DecodeShared at;
  for (int32_t slots = warps; slots >= kMergeStep; slots -= kMergeStep) {
    at = place_with_slots(config, shape, group, bias_chunks, slots);
    if (at.total <= kMaxSharedBytes) break;
  }
  return at;
}

}  // namespace asymkv::cuda
