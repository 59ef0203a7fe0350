#include "asymkv/kernels/cuda/device_attend.h"

#include <algorithm>

#include "asymkv/base/error.h"
#include "asymkv/kernels/cuda/cuda_support.h"
#include "asymkv/kernels/cuda/row_kernels.h"
#include "asymkv/kv/tiled_layout.h"

namespace asymkv::cuda {
namespace {

constexpr size_t kMaxPlans = 64;
// Fresh tokens of a sequence from which cuDNN's attention takes it: fewer are not worth a graph of their own length.
constexpr int64_t kPromptTokens = 256;

JoinParams join_params(const AttendParams& params, const int32_t* rows, int64_t num_rows, float* lse) {
  JoinParams join;
  join.rows = rows;
  join.num_rows = num_rows;
  join.num_q_heads = static_cast<int32_t>(params.num_q_heads);
  join.head_dim = static_cast<int32_t>(params.k_head_dim);
  join.out = params.out;
  join.lse = lse;
  return join;
}

bool reads_stored(const AttendSequence& sequence) {
  return sequence.stored_len > 0 && sequence.num_queries > 0;
}

bool reads_fresh(const AttendSequence& sequence) {
  return sequence.num_fresh > 0 && sequence.num_queries > 0;
}

// Whether cuDNN's attention serves the fresh rows of this sequence.
bool is_prompt(const AttendParams& params, const AttendSequence& sequence) {
  static const bool has_sdpa = sdpa_refusal().empty();
  return has_sdpa && params.window == 0 && params.logit_soft_cap == 0.0F && params.fresh_dtype != DType::kF32 &&
         params.k_head_dim <= 128 && sequence.num_fresh >= kPromptTokens && sequence.num_fresh == sequence.num_queries;
}

void add_rows(const AttendSequence& sequence, std::vector<int32_t>& rows) {
  for (int64_t i = 0; i < sequence.num_queries; ++i) rows.push_back(static_cast<int32_t>(sequence.query_row + i));
}

// Page tables aside.
bool same_batch(const DecodeBatch& a, const DecodeBatch& b) {
  return a.num_kv_heads == b.num_kv_heads && a.group == b.group && a.window == b.window && a.page_size == b.page_size &&
         a.seq_lens == b.seq_lens && a.num_queries == b.num_queries && a.query_pos == b.query_pos &&
         a.page_rows == b.page_rows;
}

// What a log says about a call is the name that supports() gives; it must be that of the launched instance.
void check_announced(const KvGeometry& geometry, const KvFormat& format, int64_t group, const DecodeConfig& launched) {
  const Support said = family_support(geometry, format, group, Phase::kMixed);
  const std::string name = family_kernel_name(Phase::kMixed, require_instance(launched).config);
  ASYMKV_CHECK(name == said.kernel, "launched {} where {} was announced", name, said.kernel);
}

}  // namespace

// The sequences of one launch of the decode kernel, in one plane of pages.
struct DeviceAttend::Launch {
  KvGeometry geometry;
  KvFormat format;
  const std::byte* blocks = nullptr;
  const std::byte* scales = nullptr;
  const float* fixed_scales = nullptr;
  const KeyTransform* transform = nullptr;
  std::vector<int32_t> rows;  // of q and out, of each query
  std::vector<int32_t> table;
  DecodeBatch batch;

  void add(const AttendSequence& sequence, int64_t num_keys, int64_t query_pos) {
    batch.seq_lens.push_back(static_cast<int32_t>(num_keys));
    batch.page_rows.push_back(static_cast<int32_t>(table.size()));
    batch.num_queries.push_back(static_cast<int32_t>(sequence.num_queries));
    batch.query_pos.push_back(static_cast<int32_t>(query_pos));
    add_rows(sequence, rows);
  }
};

void DeviceAttend::run(const AttendParams& params) {
  const std::span<const AttendSequence> sequences = params.sequences;
  std::vector<int32_t> rows;
  int64_t num_rows = 0;
  for (const AttendSequence& s : sequences) {
    add_rows(s, rows);
    num_rows = std::max(num_rows, s.query_row + s.num_queries);
  }
  if (rows.empty()) return;
  const std::shared_ptr<void> own_lse =
      params.lse == nullptr ? stream_memory(num_rows * params.num_q_heads * 4) : nullptr;
  float* lse = params.lse == nullptr ? static_cast<float*>(own_lse.get()) : params.lse;
  JoinParams all = join_params(params, tables_.of(rows), static_cast<int64_t>(rows.size()), lse);
  single_parts_ = std::ranges::all_of(
      sequences, [](const AttendSequence& s) { return s.num_queries == 0 || reads_stored(s) != reads_fresh(s); });
  if (!single_parts_) launch_clear(all, nullptr);
  std::vector<bool> done(sequences.size());
  for (size_t i = 0; i < sequences.size(); ++i) {
    if (done[i] || !reads_stored(sequences[i])) continue;
    std::vector<size_t> same;  // sequences in the same cache
    for (size_t j = i; j < sequences.size(); ++j) {
      if (!reads_stored(sequences[j]) || sequences[j].cache.tiled_blocks != sequences[i].cache.tiled_blocks) continue;
      same.push_back(j);
      done[j] = true;
    }
    attend_stored(params, same, lse);
  }
  attend_fresh(params, lse);
  if (params.sinks != nullptr) {
    all.part_lse = params.sinks;
    launch_join(all, nullptr);
  }
  check_launches();
}

DeviceAttend::Launch DeviceAttend::make_launch(const AttendParams& params, const KvGeometry& geometry,
                                               const KvFormat& format) const {
  Launch launch;
  launch.geometry = geometry;
  launch.format = format;
  launch.batch.num_kv_heads = static_cast<int32_t>(params.num_kv_heads);
  launch.batch.group = static_cast<int32_t>(params.num_q_heads / params.num_kv_heads);
  launch.batch.window = static_cast<int32_t>(params.window);
  launch.batch.page_size = static_cast<int32_t>(geometry.page_size);
  return launch;
}

void DeviceAttend::attend_stored(const AttendParams& params, const std::vector<size_t>& sequences, float* lse) {
  const KvLayerView& view = params.sequences[sequences.front()].cache;
  Launch launch = make_launch(params, view.layout->geometry(), view.layout->format());
  for (const size_t i : sequences) {
    const AttendSequence& s = params.sequences[i];
    launch.add(s, s.stored_len, s.query_pos);
    for (const PageId page : s.pages.first(static_cast<size_t>(view.layout->pages_for(s.stored_len)))) {
      launch.table.push_back(static_cast<int32_t>(page_index(page)));
    }
  }
  launch.blocks = view.tiled_blocks;
  launch.scales = view.tiled_scales;
  launch.fixed_scales = tables_.of(std::vector<float>{view.fixed_scales.key, view.fixed_scales.value});
  launch.transform = view.transform;
  run(params, launch, lse);
}

void DeviceAttend::attend_fresh(const AttendParams& params, float* lse) {
  std::vector<FreshPiece> pieces;
  const DType dtype = params.fresh_dtype;
  Launch launch = make_launch(params, {params.num_kv_heads, params.k_head_dim, params.v_head_dim, kPageSize},
                              {{.dtype = dtype}, {.dtype = dtype}});
  int64_t most = 0;
  for (const AttendSequence& s : params.sequences) {
    if (!reads_fresh(s)) continue;
    if (is_prompt(params, s)) {
      attend_prompt(params, s, lse);
      continue;
    }
    launch.add(s, s.num_fresh, 0);  // positions count from the first fresh key
    const auto first_page = static_cast<int32_t>(launch.table.size());
    pieces.push_back({s.fresh_k, s.fresh_v, static_cast<int32_t>(s.num_fresh), first_page});
    for (int64_t t = 0; t < s.num_fresh; t += kPageSize) {
      launch.table.push_back(static_cast<int32_t>(launch.table.size()));
    }
    most = std::max(most, s.num_fresh);
  }
  if (pieces.empty()) return;
  if (dtype == DType::kF32) {
    throw_unsupported("fresh keys and values of no 16-bit type: the CUDA kernels read 16-bit rows");
  }
  const TiledLayout tiled(launch.geometry, launch.format);
  const std::shared_ptr<void> blocks = stream_memory(tiled.plane_bytes(static_cast<int64_t>(launch.table.size())));
  PackParams pack;
  pack.pieces = tables_.of(pieces);
  pack.num_pieces = static_cast<int32_t>(pieces.size());
  pack.max_tokens = static_cast<int32_t>(most);
  pack.num_kv_heads = launch.batch.num_kv_heads;
  pack.head_dim = static_cast<int32_t>(params.k_head_dim);
  pack.blocks = static_cast<std::byte*>(blocks.get());
  pack.bf16 = dtype == DType::kBF16;
  launch_pack(pack, nullptr);
  launch.blocks = pack.blocks;
  run(params, launch, lse);
}

const DevicePrefill& DeviceAttend::prefill(const AttendParams& params, int64_t num_tokens) {
  const int64_t shape[] = {num_tokens, params.num_q_heads, params.num_kv_heads, params.k_head_dim,
                           static_cast<int64_t>(params.fresh_dtype)};
  return *prefills_.get(ContentKey().add(shape).take(), [&] {
    PrefillBatch batch;
    batch.requests = {{.num_new = static_cast<int32_t>(num_tokens)}};
    batch.num_q_heads = static_cast<int32_t>(params.num_q_heads);
    batch.num_kv_heads = static_cast<int32_t>(params.num_kv_heads);
    batch.head_dim = static_cast<int32_t>(params.k_head_dim);
    PrefillLimits all_fresh;
    all_fresh.max_decode_columns = 0;
    DecodeConfig config;
    config.key = config.value = params.fresh_dtype;
    config.head_dim = batch.head_dim;
    return std::make_unique<DevicePrefill>(config, batch, plan_prefill(batch, all_fresh));
  });
}

void DeviceAttend::attend_prompt(const AttendParams& params, const AttendSequence& sequence, float* lse) {
  if (sdpa_ == nullptr) sdpa_ = std::make_unique<Sdpa>();
  const int64_t rows = sequence.num_fresh;
  const int64_t q_elems = params.num_q_heads * params.k_head_dim, kv_elems = params.num_kv_heads * params.k_head_dim;
  const std::shared_ptr<void> q = stream_memory(rows * q_elems * 2), out = stream_memory(rows * q_elems * 2);
  const std::shared_ptr<void> k = stream_memory(rows * kv_elems * 2), v = stream_memory(rows * kv_elems * 2);
  const std::shared_ptr<void> part_lse = stream_memory(rows * params.num_q_heads * 4);
  const bool bf16 = params.fresh_dtype == DType::kBF16;
  launch_narrow({params.q + sequence.query_row * q_elems, q.get(), nullptr, rows, q_elems, bf16}, nullptr);
  launch_narrow({sequence.fresh_k, k.get(), nullptr, rows, kv_elems, bf16}, nullptr);
  launch_narrow({sequence.fresh_v, v.get(), nullptr, rows, kv_elems, bf16}, nullptr);
  PrefillArguments arguments;
  arguments.q = q.get();
  arguments.fresh_k = k.get();
  arguments.fresh_v = v.get();
  arguments.out = out.get();
  arguments.lse = static_cast<float*>(part_lse.get());
  arguments.bf16 = bf16;
  arguments.softmax_scale = params.softmax_scale;
  prefill(params, rows).run(*sdpa_, arguments, nullptr);
  std::vector<int32_t> out_rows;
  add_rows(sequence, out_rows);
  JoinParams join = join_params(params, tables_.of(out_rows), rows, lse);
  join.part = out.get();
  join.part_lse = arguments.lse;
  join.part_bf16 = bf16;
  join.first = single_parts_;
  launch_join(join, nullptr);
}

const DeviceKeyBias& DeviceAttend::key_bias(const KeyTransform& transform, const RopeTable& rope) {
  const double magnitude[] = {rope.magnitude()};
  ContentKey key;
  key.add(transform.removed).add(transform.pair_class).add(rope.frequencies()).add(magnitude);
  return *biases_.get(key.take(), [&] {
    // RoPE multiplies what it turns (YaRN, LongRoPE): the removed vector comes back multiplied, too.
    KeyTransform turned = transform;
    for (float& x : turned.removed) x *= static_cast<float>(rope.magnitude());
    return std::make_unique<DeviceKeyBias>(make_key_bias(turned, rope.frequencies()));
  });
}

const DevicePlan& DeviceAttend::plan(const Launch& launch, const DecodeConfig& config, const DeviceKeyBias* bias) {
  const BiasShape shape = bias == nullptr ? BiasShape{} : bias->shape();
  auto known = std::ranges::find_if(plans_, [&](const KnownPlan& p) {
    return p.config == config.code() && p.bias == shape && same_batch(p.batch, launch.batch) && p.table == launch.table;
  });
  if (known == plans_.end()) {
    if (!limits_.contains(config.code())) limits_[config.code()] = query_limits(config);
    const DecodePlan made = plan_decode(config, launch.batch, limits_.at(config.code()), {}, shape);
    if (plans_.size() >= kMaxPlans) plans_.pop_back();
    known = plans_.insert(plans_.begin(), {config.code(), shape, launch.batch, launch.table,
                                           std::make_unique<DevicePlan>(made, launch.table)});
    known->batch.page_table = {};  // of the launch
  }
  plans_.splice(plans_.begin(), plans_, known);
  return *known->plan;
}

void DeviceAttend::run(const AttendParams& params, Launch& launch, float* lse) {
  launch.batch.page_table = launch.table;
  const DeviceKeyBias* bias = launch.transform == nullptr ? nullptr : &key_bias(*launch.transform, *params.rope);
  const DecodeChoice choice =
      choose_decode(launch.geometry, launch.format, launch.batch.group, std::ranges::max(launch.batch.num_queries),
                    bias != nullptr && bias->shape().fast_steps > 0);
  if (!choice.ok) throw_unsupported("{}", choice.reason);
  const DevicePlan& on_device = plan(launch, choice.config, bias);
  check_announced(launch.geometry, launch.format, launch.batch.group, on_device.host().config);
  const bool bf16 = choice.config.key == DType::kBF16;
  const int32_t* rows = tables_.of(launch.rows);
  const auto num_rows = static_cast<int64_t>(launch.rows.size());
  const int64_t row_elems = params.num_q_heads * params.k_head_dim;
  const std::shared_ptr<void> q = stream_memory(num_rows * row_elems * 2);
  const std::shared_ptr<void> out = stream_memory(num_rows * row_elems * 2);
  const std::shared_ptr<void> part_lse = stream_memory(num_rows * params.num_q_heads * 4);
  launch_narrow({params.q, q.get(), rows, num_rows, row_elems, bf16}, nullptr);
  DecodeArguments arguments;
  arguments.blocks = launch.blocks;
  arguments.scales = launch.scales;
  arguments.fixed_scales = launch.fixed_scales;
  arguments.q = q.get();
  arguments.out = out.get();
  arguments.lse = static_cast<float*>(part_lse.get());
  arguments.bias = bias;
  arguments.q_is_bf16 = bf16;
  arguments.softmax_scale = params.softmax_scale;
  arguments.logit_soft_cap = params.logit_soft_cap;
  launch_decode(on_device, arguments, nullptr);
  JoinParams join = join_params(params, rows, num_rows, lse);
  join.part = out.get();
  join.part_lse = arguments.lse;
  join.part_bf16 = bf16;
  join.first = single_parts_;
  launch_join(join, nullptr);
}

}  // namespace asymkv::cuda
