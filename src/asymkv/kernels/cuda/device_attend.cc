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

int64_t q_elems(const AttendParams& params) {
  return params.num_q_heads * params.k_head_dim;
}

int64_t kv_elems(const AttendParams& params) {
  return params.num_kv_heads * params.k_head_dim;
}

// Row `row` of BF16 queries or results.
void* narrow_row(const float* rows, const AttendParams& params, int64_t row) {
  return const_cast<uint16_t*>(reinterpret_cast<const uint16_t*>(rows)) + row * q_elems(params);
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

bool are_consecutive(const std::vector<int32_t>& rows) {
  return std::ranges::adjacent_find(rows, [](int32_t a, int32_t b) { return b != a + 1; }) == rows.end();
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
  bool overlaps = false;      // may begin before the kernel before it has ended
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

DeviceAttend::Call DeviceAttend::make_call(const AttendParams& params, int64_t num_rows) {
  Call call{params};
  call.narrow = params.row_dtype != DType::kF32;
  call.single = std::ranges::all_of(params.sequences, [](const AttendSequence& s) {
    return s.num_queries == 0 || reads_stored(s) != reads_fresh(s);
  });
  call.direct = call.narrow && call.single && params.sinks == nullptr && params.lse == nullptr;
  if (call.direct) return call;
  if (call.narrow) call.own_out = stream_memory(num_rows * q_elems(params) * 4);
  if (params.lse == nullptr) call.own_lse = stream_memory(num_rows * params.num_q_heads * 4);
  call.out = call.narrow ? static_cast<float*>(call.own_out.get()) : params.out;
  call.lse = params.lse == nullptr ? static_cast<float*>(call.own_lse.get()) : params.lse;
  return call;
}

JoinParams DeviceAttend::join_params(const Call& call, const int32_t* rows, int64_t num_rows) {
  JoinParams join;
  join.rows = rows;
  join.num_rows = num_rows;
  join.num_q_heads = static_cast<int32_t>(call.params.num_q_heads);
  join.head_dim = static_cast<int32_t>(call.params.k_head_dim);
  join.out = call.out;
  join.lse = call.lse;
  join.first = call.single;
  return join;
}

void DeviceAttend::run(const AttendParams& params) {
  const std::span<const AttendSequence> sequences = params.sequences;
  std::vector<int32_t> rows;
  int64_t num_rows = 0;
  for (const AttendSequence& s : sequences) {
    add_rows(s, rows);
    num_rows = std::max(num_rows, s.query_row + s.num_queries);
  }
  if (rows.empty()) return;
  const Call call = make_call(params, num_rows);
  const auto all_rows = [&] { return join_params(call, tables_.of(rows), std::ssize(rows)); };
  if (!call.single) launch_clear(all_rows(), nullptr);
  std::vector<bool> done(sequences.size());
  for (size_t i = 0; i < sequences.size(); ++i) {
    if (done[i] || !reads_stored(sequences[i])) continue;
    std::vector<size_t> same;  // sequences in the same cache
    for (size_t j = i; j < sequences.size(); ++j) {
      if (!reads_stored(sequences[j]) || sequences[j].cache.tiled_blocks != sequences[i].cache.tiled_blocks) continue;
      same.push_back(j);
      done[j] = true;
    }
    attend_stored(call, same);
  }
  attend_fresh(call);
  if (params.sinks != nullptr) {
    JoinParams all = all_rows();
    all.first = false;
    all.part_lse = params.sinks;
    launch_join(all, nullptr);
  }
  if (call.own_out != nullptr) {
    ASYMKV_CHECK(std::ssize(rows) == num_rows, "{} of {} rows belong to a sequence", rows.size(), num_rows);
    launch_narrow({call.out, params.out, nullptr, num_rows, q_elems(params), true}, nullptr);
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

void DeviceAttend::attend_stored(const Call& call, const std::vector<size_t>& sequences) {
  const AttendParams& params = call.params;
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
  launch.overlaps =
      std::ranges::all_of(sequences, [&](size_t i) { return reads_older_keys_early(params.sequences[i]); });
  run(call, launch);
}

void DeviceAttend::attend_fresh(const Call& call) {
  const AttendParams& params = call.params;
  std::vector<FreshPiece> pieces;
  const DType dtype = params.fresh_dtype;
  Launch launch = make_launch(params, {params.num_kv_heads, params.k_head_dim, params.v_head_dim, kPageSize},
                              {{.dtype = dtype}, {.dtype = dtype}});
  int64_t most = 0;
  for (const AttendSequence& s : params.sequences) {
    if (!reads_fresh(s)) continue;
    if (is_prompt(params, s)) {
      attend_prompt(call, s);
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
  pack.rows_are_16bit = call.narrow;
  launch_pack(pack, nullptr);
  launch.blocks = pack.blocks;
  run(call, launch);
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

void DeviceAttend::attend_prompt(const Call& call, const AttendSequence& sequence) {
  const AttendParams& params = call.params;
  if (sdpa_ == nullptr) sdpa_ = std::make_unique<Sdpa>();
  const int64_t rows = sequence.num_fresh;
  std::vector<std::shared_ptr<void>> own;
  const auto make = [&](int64_t bytes) { return own.emplace_back(stream_memory(bytes)).get(); };
  PrefillArguments arguments;
  arguments.bf16 = params.fresh_dtype == DType::kBF16;
  arguments.softmax_scale = params.softmax_scale;
  const auto narrowed = [&](const float* from, int64_t elems) -> const void* {
    void* to = make(rows * elems * 2);
    launch_narrow({from, to, nullptr, rows, elems, arguments.bf16}, nullptr);
    return to;
  };
  if (call.narrow) {
    arguments.q = narrow_row(params.q, params, sequence.query_row);
    arguments.fresh_k = sequence.fresh_k;
    arguments.fresh_v = sequence.fresh_v;
  } else {
    arguments.q = narrowed(params.q + sequence.query_row * q_elems(params), q_elems(params));
    arguments.fresh_k = narrowed(sequence.fresh_k, kv_elems(params));
    arguments.fresh_v = narrowed(sequence.fresh_v, kv_elems(params));
  }
  arguments.out = call.direct ? narrow_row(params.out, params, sequence.query_row) : make(rows * q_elems(params) * 2);
  if (!call.direct) arguments.lse = static_cast<float*>(make(rows * params.num_q_heads * 4));
  prefill(params, rows).run(*sdpa_, arguments, nullptr);
  if (call.direct) return;
  std::vector<int32_t> out_rows;
  add_rows(sequence, out_rows);
  JoinParams join = join_params(call, tables_.of(out_rows), rows);
  join.part = arguments.out;
  join.part_lse = arguments.lse;
  join.part_bf16 = arguments.bf16;
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
    std::unique_ptr<DevicePlan> on_device;  // the oldest one's memory, once there are many
    if (plans_.size() >= kMaxPlans) {
      on_device = std::move(plans_.back().plan);
      plans_.pop_back();
    } else {
      on_device = std::make_unique<DevicePlan>();
    }
    on_device->reset(made, launch.table);
    known = plans_.insert(plans_.begin(), {config.code(), shape, launch.batch, launch.table, std::move(on_device)});
    known->batch.page_table = {};  // of the launch
  }
  plans_.splice(plans_.begin(), plans_, known);
  return *known->plan;
}

// Launches over BF16 rows read them and write results in place where the launch's rows follow each other.
void DeviceAttend::launch_attention(const Call& call, const Launch& launch, const DevicePlan& on_device,
                                    DecodeArguments arguments) {
  const AttendParams& params = call.params;
  const bool bf16 = arguments.q_is_bf16;
  const int32_t* rows = tables_.of(launch.rows);
  const auto num_rows = static_cast<int64_t>(launch.rows.size());
  const bool in_place = call.narrow && are_consecutive(launch.rows);
  std::shared_ptr<void> q, out, lse;
  if (in_place) {
    arguments.q = narrow_row(params.q, params, launch.rows.front());
  } else {
    q = stream_memory(num_rows * q_elems(params) * 2);
    arguments.q = q.get();
    if (call.narrow) {
      launch_move_rows({params.q, q.get(), rows, num_rows, q_elems(params)}, nullptr);
    } else {
      launch_narrow({params.q, q.get(), rows, num_rows, q_elems(params), bf16}, nullptr);
    }
  }
  if (call.direct && in_place) {
    arguments.out = narrow_row(params.out, params, launch.rows.front());
    return launch_decode(on_device, arguments, nullptr);
  }
  out = stream_memory(num_rows * q_elems(params) * 2);
  lse = stream_memory(num_rows * params.num_q_heads * 4);
  arguments.out = out.get();
  arguments.lse = static_cast<float*>(lse.get());
  launch_decode(on_device, arguments, nullptr);
  if (call.direct) return launch_move_rows({out.get(), params.out, rows, num_rows, q_elems(params), true}, nullptr);
  JoinParams join = join_params(call, rows, num_rows);
  join.part = out.get();
  join.part_lse = arguments.lse;
  join.part_bf16 = bf16;
  launch_join(join, nullptr);
}

void DeviceAttend::run(const Call& call, Launch& launch) {
  const AttendParams& params = call.params;
  launch.batch.page_table = launch.table;
  const DeviceKeyBias* bias = launch.transform == nullptr ? nullptr : &key_bias(*launch.transform, *params.rope);
  const DecodeChoice choice =
      choose_decode(launch.geometry, launch.format, launch.batch.group, std::ranges::max(launch.batch.num_queries),
                    bias != nullptr && bias->shape().fast_steps > 0);
  if (!choice.ok) throw_unsupported("{}", choice.reason);
  const DevicePlan& on_device = plan(launch, choice.config, bias);
  check_announced(launch.geometry, launch.format, launch.batch.group, on_device.host().config);
  DecodeArguments arguments;
  arguments.blocks = launch.blocks;
  arguments.scales = launch.scales;
  arguments.fixed_scales = launch.fixed_scales;
  arguments.bias = bias;
  arguments.q_is_bf16 = call.narrow || choice.config.key == DType::kBF16;
  arguments.softmax_scale = params.softmax_scale;
  arguments.logit_soft_cap = params.logit_soft_cap;
  arguments.overlap_previous = launch.overlaps;
  launch_attention(call, launch, on_device, arguments);
}

}  // namespace asymkv::cuda
