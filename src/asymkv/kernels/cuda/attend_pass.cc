#include "asymkv/kernels/cuda/attend_pass.h"

#include <algorithm>

#include "asymkv/base/error.h"
#include "asymkv/kernels/cuda/cuda_support.h"

namespace asymkv::cuda {
namespace {

// Padding, which has a cache and no keys, too.
bool reads_stored(const AttendSequence& sequence) {
  const bool pads = sequence.num_fresh == 0 && sequence.cache.tiled_blocks != nullptr;
  return sequence.num_queries > 0 && (sequence.stored_len > 0 || pads);
}

bool reads_fresh(const AttendSequence& sequence) {
  return sequence.num_fresh > 0 && sequence.num_queries > 0;
}

bool same_shape(const AttendSequence& a, const AttendSequence& b) {
  return a.query_row == b.query_row && a.num_queries == b.num_queries && a.query_pos == b.query_pos &&
         a.stored_len == b.stored_len && a.num_fresh == b.num_fresh && a.cache.layout == b.cache.layout &&
         a.pages.data() == b.pages.data() && a.pages.size() == b.pages.size();
}

bool are_consecutive(const std::vector<int32_t>& rows) {
  return std::ranges::adjacent_find(rows, [](int32_t a, int32_t b) { return b != a + 1; }) == rows.end();
}

void add_rows(const AttendSequence& sequence, std::vector<int32_t>& rows) {
  for (int64_t i = 0; i < sequence.num_queries; ++i) rows.push_back(static_cast<int32_t>(sequence.query_row + i));
}

AttendGroup start_group(const AttendParams& params, const KvGeometry& geometry, const KvFormat& format) {
  AttendGroup group;
  group.geometry = geometry;
  group.format = format;
  group.batch.num_kv_heads = static_cast<int32_t>(params.num_kv_heads);
  group.batch.group = static_cast<int32_t>(params.num_q_heads / params.num_kv_heads);
  group.batch.window = static_cast<int32_t>(params.window);
  group.batch.page_size = static_cast<int32_t>(geometry.page_size);
  return group;
}

// Before the ids of the sequence's pages are added to the table.
void add_sequence(AttendGroup& group, size_t idx, const AttendSequence& sequence, int64_t num_keys, int64_t query_pos) {
  group.sequences.push_back(idx);
  group.batch.seq_lens.push_back(static_cast<int32_t>(num_keys));
  group.batch.page_rows.push_back(static_cast<int32_t>(group.table.size()));
  group.batch.num_queries.push_back(static_cast<int32_t>(sequence.num_queries));
  group.batch.query_pos.push_back(static_cast<int32_t>(query_pos));
  group.most_tokens = std::max(group.most_tokens, num_keys);
  add_rows(sequence, group.rows);
}

// One group a cache, in the order in which caches occur.
std::vector<AttendGroup> stored_groups(const AttendParams& params) {
  std::vector<AttendGroup> groups;
  std::vector<const std::byte*> planes;
  for (size_t i = 0; i < params.sequences.size(); ++i) {
    const AttendSequence& s = params.sequences[i];
    if (!reads_stored(s)) continue;
    const KvLayout& layout = *s.cache.layout;
    auto at = static_cast<size_t>(std::ranges::find(planes, s.cache.tiled_blocks) - planes.begin());
    if (at == planes.size()) {
      planes.push_back(s.cache.tiled_blocks);
      groups.push_back(start_group(params, layout.geometry(), layout.format()));
      groups.back().overlaps = true;
    }
    AttendGroup& group = groups[at];
    add_sequence(group, i, s, s.stored_len, s.query_pos);
    for (const PageId page : s.pages.first(static_cast<size_t>(layout.pages_for(s.stored_len)))) {
      group.table.push_back(static_cast<int32_t>(page_index(page)));
    }
    group.overlaps = group.overlaps && reads_older_keys_early(s);
  }
  return groups;
}

// Positions count from the first fresh key; pages one after the other.
AttendGroup fresh_group(const AttendParams& params, const std::function<bool(const AttendSequence&)>& takes_prompt,
                        std::vector<size_t>& prompts) {
  const DType dtype = params.fresh_dtype;
  AttendGroup group = start_group(params, {params.num_kv_heads, params.k_head_dim, params.v_head_dim, kPageSize},
                                  {{.dtype = dtype}, {.dtype = dtype}});
  group.is_fresh = true;
  for (size_t i = 0; i < params.sequences.size(); ++i) {
    const AttendSequence& s = params.sequences[i];
    if (!reads_fresh(s)) continue;
    if (takes_prompt(s)) {
      prompts.push_back(i);
      continue;
    }
    add_sequence(group, i, s, s.num_fresh, 0);
    for (int64_t t = 0; t < s.num_fresh; t += kPageSize) {
      group.table.push_back(static_cast<int32_t>(group.table.size()));
    }
  }
  return group;
}

AttendPart& part_of(AttendPass& pass, bool bf16, bool fresh) {
  const auto known = std::ranges::find_if(
      pass.parts, [&](const AttendPart& part) { return part.bf16 == bf16 && part.fresh == fresh; });
  if (known != pass.parts.end()) return *known;
  AttendPart& part = pass.parts.emplace_back();
  part.bf16 = bf16;
  part.fresh = fresh;
  return part;
}

// is_step: of the pass.
void finish(AttendPart& part, bool is_step) {
  for (AttendGroup& group : part.groups) {
    group.first_row = std::ssize(part.rows);
    part.rows.insert(part.rows.end(), group.rows.begin(), group.rows.end());
    // Steps, which are recorded, run side by side; called, they are planned alike, so that a replay gives the same
    // bits.
    group.batch.side_by_side = part.groups.size() > 1 && is_step;
    group.overlaps = group.overlaps && !group.batch.side_by_side;
    group.batch.overlaps = group.overlaps;
    group.batch.page_table = group.table;
  }
  part.each_in_place = std::ranges::all_of(part.groups, &AttendGroup::is_consecutive);
  part.in_order = are_consecutive(part.rows);
}

}  // namespace

bool AttendGroup::is_consecutive() const {
  return are_consecutive(rows);
}

bool AttendPass::serves(const AttendParams& params) const {
  if (params.pass == 0 || params.pass != number || params.window != window) return false;
  ASYMKV_CHECK(
      std::ranges::equal(params.sequences, sequences, same_shape) && narrow == (params.row_dtype != DType::kF32),
      "two attention calls of pass {} with other sequences or rows", number);
  return true;
}

bool AttendPass::has_rows_of(const AttendPass& other) const {
  const auto same_group = [](const AttendGroup& a, const AttendGroup& b) {
    return a.rows == b.rows && a.format == b.format && a.overlaps == b.overlaps && a.is_fresh == b.is_fresh;
  };
  const auto same_part = [&](const AttendPart& a, const AttendPart& b) {
    return a.bf16 == b.bf16 && a.fresh == b.fresh && a.rows == b.rows &&
           std::ranges::equal(a.groups, b.groups, same_group);
  };
  return narrow == other.narrow && single == other.single && num_rows == other.num_rows && rows == other.rows &&
         prompts == other.prompts && std::ranges::equal(parts, other.parts, same_part);
}

AttendPass make_attend_pass(const AttendParams& params,
                            const std::function<bool(const AttendSequence&)>& takes_prompt) {
  AttendPass pass;
  pass.number = params.pass;
  pass.window = params.window;
  pass.sequences.assign(params.sequences.begin(), params.sequences.end());
  pass.narrow = params.row_dtype != DType::kF32;
  pass.single = std::ranges::all_of(params.sequences, [](const AttendSequence& s) {
    return s.num_queries == 0 || reads_stored(s) != reads_fresh(s);
  });
  for (const AttendSequence& s : params.sequences) {
    add_rows(s, pass.rows);
    pass.num_rows = std::max(pass.num_rows, s.query_row + s.num_queries);
  }
  for (AttendGroup& group : stored_groups(params)) {
    // 8-bit keys take either type of queries, BF16 keys only theirs.
    const bool bf16 = pass.narrow || group.format.key.dtype == DType::kBF16;
    part_of(pass, bf16, false).groups.push_back(std::move(group));
  }
  AttendGroup fresh = fresh_group(params, takes_prompt, pass.prompts);
  if (!fresh.sequences.empty()) {
    part_of(pass, params.fresh_dtype == DType::kBF16, true).groups.push_back(std::move(fresh));
  }
  const bool is_step =
      std::ranges::all_of(params.sequences, [](const AttendSequence& s) { return s.num_queries <= 1; });
  for (AttendPart& part : pass.parts) finish(part, is_step);
  return pass;
}

}  // namespace asymkv::cuda
