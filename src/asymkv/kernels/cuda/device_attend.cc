#include "asymkv/kernels/cuda/device_attend.h"

#include <algorithm>
#include <numeric>

#include "asymkv/base/error.h"
#include "asymkv/base/parallel.h"
#include "asymkv/kernels/cuda/cuda_support.h"
#include "asymkv/kv/tiled_layout.h"

namespace asymkv::cuda {
namespace {

constexpr size_t kMaxSparePlans = 64;
constexpr int64_t kSpareOfKept = 2;  // a chat of some hundred tokens grows to a thousand
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

// Row `row` of packed ones.
void* packed_row(const std::shared_ptr<void>& rows, const AttendParams& params, int64_t row) {
  return static_cast<uint16_t*>(rows.get()) + row * q_elems(params);
}

// Whether cuDNN's attention serves the fresh rows of this sequence.
bool is_prompt(const AttendParams& params, const AttendSequence& sequence) {
  static const bool has_sdpa = sdpa_refusal().empty();
  return has_sdpa && params.window == 0 && params.logit_soft_cap == 0.0F && params.fresh_dtype != DType::kF32 &&
         params.k_head_dim <= 128 && sequence.num_fresh >= kPromptTokens && sequence.num_fresh == sequence.num_queries;
}

AttendPass make_pass(const AttendParams& params) {
  return make_attend_pass(params, [&](const AttendSequence& sequence) { return is_prompt(params, sequence); });
}

// What a log says about a call is the name that supports() gives; it must be that of the launched instance.
void check_announced(const KvGeometry& geometry, const KvFormat& format, int64_t group, const DecodeConfig& launched) {
  const Support said = family_support(geometry, format, group, Phase::kMixed);
  const std::string name = family_kernel_name(Phase::kMixed, require_instance(launched).config);
  ASYMKV_CHECK(name == said.kernel, "launched {} where {} was announced", name, said.kernel);
}

}  // namespace

bool DeviceAttend::knows(const AttendParams& params) const {
  const auto serves = [&](const AttendPass& pass) { return pass.serves(params); };
  if (const auto kept = kept_.find(params.pass); kept != kept_.end()) return std::ranges::any_of(kept->second, serves);
  return std::ranges::any_of(passes_, serves);
}

AttendPass& DeviceAttend::pass_of(const AttendParams& params) {
  const auto kept = kept_.find(params.pass);
  std::list<AttendPass>& passes = kept == kept_.end() ? passes_ : kept->second;
  for (AttendPass& pass : passes) {
    if (pass.serves(params)) return pass;
  }
  if (&passes == &passes_ && (params.pass == 0 || (!passes_.empty() && passes_.front().number != params.pass))) {
    recycle(passes_);
  }
  AttendPass pass = make_pass(params);
  pass.kept = &passes != &passes_;
  for (AttendPart& part : pass.parts) {
    part.own_rows = stream_copy(std::as_bytes(std::span(part.rows)));
    part.device_rows = static_cast<const int32_t*>(part.own_rows.get());
  }
  return passes.emplace_back(std::move(pass));
}

// Rows stay where they are, plans where they have the room. A plan takes a tenth of a millisecond: all at once.
bool DeviceAttend::replan(const AttendParams& params) {
  const auto kept = kept_.find(params.pass);
  if (kept == kept_.end()) return false;
  const auto known = std::ranges::find(kept->second, params.window, &AttendPass::window);
  if (known == kept->second.end()) return false;
  AttendPass next = make_pass(params);
  if (!known->has_rows_of(next)) return false;
  struct Replacement {
    const AttendGroup* group;
    const BiasShape* shape;
    DevicePlan* on_device;
    DecodePlan made = {};
  };
  std::vector<Replacement> plans;
  for (size_t p = 0; p < next.parts.size(); ++p) {
    for (size_t g = 0; g < next.parts[p].groups.size(); ++g) {
      for (auto& [shape, plan] : known->parts[p].groups[g].plans) {
        plans.push_back({&next.parts[p].groups[g], &shape, plan.get()});
      }
    }
  }
  parallel_for(std::ssize(plans), [&](int64_t i, int) {
    Replacement& plan = plans[static_cast<size_t>(i)];
    plan.made = plan_group(*plan.group, *plan.shape);
  });
  const bool serves = std::ranges::all_of(
      plans, [](Replacement& plan) { return plan.on_device->replace(std::move(plan.made), plan.group->table); });
  if (!serves) return false;
  for (size_t p = 0; p < next.parts.size(); ++p) {
    for (size_t g = 0; g < next.parts[p].groups.size(); ++g) {
      next.parts[p].groups[g].plans = std::move(known->parts[p].groups[g].plans);
    }
    next.parts[p].own_rows = known->parts[p].own_rows;
    next.parts[p].device_rows = known->parts[p].device_rows;
  }
  next.kept = true;
  *known = std::move(next);
  return true;
}

void DeviceAttend::forget_pass(uint64_t pass) {
  const auto kept = kept_.find(pass);
  if (kept == kept_.end()) return;
  recycle(kept->second);
  kept_.erase(kept);
}

// Memory of plans is used again.
void DeviceAttend::recycle(std::list<AttendPass>& passes) {
  for (AttendPass& pass : passes) {
    for (AttendPart& part : pass.parts) {
      for (AttendGroup& group : part.groups) {
        for (auto& [shape, plan] : group.plans) {
          if (spare_plans_.size() < kMaxSparePlans) spare_plans_.push_back(std::move(plan));
        }
      }
    }
  }
  passes.clear();
}

DeviceAttend::Call DeviceAttend::make_call(const AttendParams& params, const AttendPass& pass) {
  Call call{params, pass};
  call.direct = pass.narrow && pass.single && params.sinks == nullptr && params.lse == nullptr;
  if (call.direct) return call;
  if (pass.narrow) call.own_out = stream_memory(pass.num_rows * q_elems(params) * 4);
  if (params.lse == nullptr) call.own_lse = stream_memory(pass.num_rows * params.num_q_heads * 4);
  call.out = pass.narrow ? static_cast<float*>(call.own_out.get()) : params.out;
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
  join.first = call.pass.single;
  return join;
}

void DeviceAttend::run(const AttendParams& params) {
  AttendPass& pass = pass_of(params);
  if (pass.rows.empty()) return;
  const Call call = make_call(params, pass);
  const auto all_rows = [&] { return join_params(call, tables_.of(pass.rows), std::ssize(pass.rows)); };
  if (!pass.single) launch_clear(all_rows(), current_stream());
  for (AttendPart& part : pass.parts) run_part(call, part);
  for (const size_t i : pass.prompts) attend_prompt(call, params.sequences[i]);
  if (params.sinks != nullptr) {
    JoinParams all = all_rows();
    all.first = false;
    all.part_lse = params.sinks;
    launch_join(all, current_stream());
  }
  if (call.own_out != nullptr) {
    ASYMKV_CHECK(std::ssize(pass.rows) == pass.num_rows, "{} of {} rows belong to a sequence", pass.rows.size(),
                 pass.num_rows);
    launch_narrow({call.out, params.out, nullptr, pass.num_rows, q_elems(params), true}, current_stream());
  }
  check_launches();
}

// Queries as the launches read them: BF16 rows where they lie if those of each launch follow each other.
DeviceAttend::PartRows DeviceAttend::read_queries(const Call& call, const AttendPart& part) {
  const AttendParams& params = call.params;
  PartRows rows;
  if (call.pass.narrow && part.each_in_place) return rows;
  const auto num_rows = static_cast<int64_t>(part.rows.size());
  rows.q = stream_memory(num_rows * q_elems(params) * 2);
  if (call.pass.narrow) {
    launch_move_rows({params.q, rows.q.get(), part.device_rows, num_rows, q_elems(params)}, current_stream());
    return rows;
  }
  const float* first = part.in_order ? params.q + part.rows.front() * q_elems(params) : params.q;
  const int32_t* from = part.in_order ? nullptr : part.device_rows;
  launch_narrow({first, rows.q.get(), from, num_rows, q_elems(params), part.bf16}, current_stream());
  return rows;
}

void DeviceAttend::run_part(const Call& call, AttendPart& part) {
  const AttendParams& params = call.params;
  const auto num_rows = static_cast<int64_t>(part.rows.size());
  PartRows rows = read_queries(call, part);
  if (!call.direct || rows.q != nullptr) {
    rows.out = stream_memory(num_rows * q_elems(params) * 2);
    rows.lse = stream_memory(num_rows * params.num_q_heads * 4);
  }
  side_by_side(std::ssize(part.groups),
               [&](int64_t g) { run_group(call, part.groups[static_cast<size_t>(g)], part.bf16, rows); });
  if (rows.out == nullptr) return;
  if (call.direct) {
    return launch_move_rows({rows.out.get(), params.out, part.device_rows, num_rows, q_elems(params), true},
                            current_stream());
  }
  JoinParams join = join_params(call, part.device_rows, num_rows);
  join.part = rows.out.get();
  join.part_lse = static_cast<const float*>(rows.lse.get());
  join.part_bf16 = part.bf16;
  launch_join(join, current_stream());
}

void DeviceAttend::run_group(const Call& call, AttendGroup& group, bool bf16, const PartRows& rows) {
  const AttendParams& params = call.params;
  const bool fresh = group.is_fresh;
  const KvLayerView view = fresh ? KvLayerView{} : params.sequences[group.sequences.front()].cache;
  const std::shared_ptr<void> packed = fresh ? pack_fresh(call, group) : nullptr;
  DecodeArguments arguments;
  arguments.blocks = fresh ? static_cast<const std::byte*>(packed.get()) : view.tiled_blocks;
  arguments.scales = view.tiled_scales;
  arguments.fixed_scales = tables_.of(std::vector<float>{view.fixed_scales.key, view.fixed_scales.value});
  if (view.transform != nullptr) arguments.bias = &key_bias(*view.transform, *params.rope);
  const int32_t first = group.rows.front();
  arguments.q = rows.q == nullptr ? narrow_row(params.q, params, first) : packed_row(rows.q, params, group.first_row);
  arguments.out =
      rows.out == nullptr ? narrow_row(params.out, params, first) : packed_row(rows.out, params, group.first_row);
  if (rows.lse != nullptr) {
    arguments.lse = static_cast<float*>(rows.lse.get()) + group.first_row * params.num_q_heads;
  }
  arguments.q_is_bf16 = bf16;
  arguments.softmax_scale = params.softmax_scale;
  arguments.logit_soft_cap = params.logit_soft_cap;
  arguments.overlap_previous = group.overlaps;
  launch_decode(plan(group, arguments.bias, call.pass.kept), arguments, current_stream());
}

// The fresh rows of the group in pages of 16-bit keys and values.
std::shared_ptr<void> DeviceAttend::pack_fresh(const Call& call, const AttendGroup& group) {
  const AttendParams& params = call.params;
  if (params.fresh_dtype == DType::kF32) {
    throw_unsupported("fresh keys and values of no 16-bit type: the CUDA kernels read 16-bit rows");
  }
  std::vector<FreshPiece> pieces;
  for (size_t i = 0; i < group.sequences.size(); ++i) {
    const AttendSequence& s = params.sequences[group.sequences[i]];
    pieces.push_back({s.fresh_k, s.fresh_v, static_cast<int32_t>(s.num_fresh), group.batch.page_rows[i]});
  }
  const TiledLayout tiled(group.geometry, group.format);
  std::shared_ptr<void> blocks = stream_memory(tiled.plane_bytes(static_cast<int64_t>(group.table.size())));
  PackParams pack;
  pack.pieces = tables_.of(pieces);
  pack.num_pieces = static_cast<int32_t>(pieces.size());
  pack.max_tokens = static_cast<int32_t>(group.most_tokens);
  pack.num_kv_heads = group.batch.num_kv_heads;
  pack.head_dim = static_cast<int32_t>(params.k_head_dim);
  pack.blocks = static_cast<std::byte*>(blocks.get());
  pack.bf16 = params.fresh_dtype == DType::kBF16;
  pack.rows_are_16bit = call.pass.narrow;
  launch_pack(pack, current_stream());
  return blocks;
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
    launch_narrow({from, to, nullptr, rows, elems, arguments.bf16}, current_stream());
    return to;
  };
  if (call.pass.narrow) {
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
  prefill(params, rows).run(*sdpa_, arguments, current_stream());
  if (call.direct) return;
  std::vector<int32_t> out_rows(static_cast<size_t>(rows));
  std::iota(out_rows.begin(), out_rows.end(), static_cast<int32_t>(sequence.query_row));
  JoinParams join = join_params(call, tables_.of(out_rows), rows);
  join.part = arguments.out;
  join.part_lse = arguments.lse;
  join.part_bf16 = arguments.bf16;
  launch_join(join, current_stream());
}

const DeviceKeyBias& DeviceAttend::key_bias(const KeyTransform& transform, const RopeTable& rope) {
  const double magnitude[] = {rope.magnitude()};
  ContentKey key;
  key.add(transform.removed).add(transform.pair_class).add(rope.frequencies()).add(magnitude);
  const auto& bias = biases_.get(key.take(), [&] {
    // RoPE multiplies what it turns (YaRN, LongRoPE): the removed vector comes back multiplied, too.
    KeyTransform turned = transform;
    for (float& x : turned.removed) x *= static_cast<float>(rope.magnitude());
    return std::make_shared<const DeviceKeyBias>(make_key_bias(turned, rope.frequencies()));
  });
  keep_for_recording(bias);
  return *bias;
}

DecodePlan DeviceAttend::plan_group(const AttendGroup& group, const BiasShape& shape) {
  const DecodeChoice choice = choose_decode(group.geometry, group.format, group.batch.group,
                                            std::ranges::max(group.batch.num_queries), shape.fast_steps > 0);
  if (!choice.ok) throw_unsupported("{}", choice.reason);
  return plan_decode(choice.config, group.batch, limits_of(choice.config), {}, shape);
}

const DeviceLimits& DeviceAttend::limits_of(const DecodeConfig& config) {
  const std::lock_guard lock(limits_mutex_);
  const auto known = limits_.find(config.code());
  return known != limits_.end() ? known->second : limits_.emplace(config.code(), query_limits(config)).first->second;
}

const DevicePlan& DeviceAttend::plan(AttendGroup& group, const DeviceKeyBias* bias, bool kept) {
  const BiasShape shape = bias == nullptr ? BiasShape{} : bias->shape();
  for (const auto& [known, plan] : group.plans) {
    if (known == shape) return *plan;
  }
  ASYMKV_CHECK(current_stream() == nullptr, "a plan of {} sequences within a recording", group.sequences.size());
  const DecodePlan made = plan_group(group, shape);
  check_announced(group.geometry, group.format, group.batch.group, made.config);
  std::unique_ptr<DevicePlan> plan;
  if (spare_plans_.empty()) {
    plan = std::make_unique<DevicePlan>();
  } else {
    plan = std::move(spare_plans_.back());
    spare_plans_.pop_back();
  }
  plan->reset(made, group.table, kept ? kSpareOfKept : 0);
  return *group.plans.emplace_back(shape, std::move(plan)).second;
}

}  // namespace asymkv::cuda
