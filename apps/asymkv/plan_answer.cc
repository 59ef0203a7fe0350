#include "plan_answer.h"

#include <fmt/format.h>

#include "asymkv/base/error.h"
#include "asymkv/base/progress.h"
#include "asymkv/planner/capacity_rows.h"
#include "byte_size.h"

namespace asymkv::app {
namespace {

// What --kv asks of a model that the planner can account for: bias removal needs a bias.
void judge_format(const PlanInputs& inputs, PlanAnswer& answer) {
  answer.verdict = inputs.model.shape.verdict;
  answer.reason = inputs.model.shape.reason;
  if (inputs.draft && answer.verdict == ShapeVerdict::kAccept && inputs.draft->shape.verdict != ShapeVerdict::kAccept) {
    answer.verdict = inputs.draft->shape.verdict;
    answer.reason = fmt::format("the draft {}: {}", inputs.draft->path, inputs.draft->shape.reason);
  }
  if (!answer.format.key.prebias) return;
  const std::string id = answer.format.id();
  if (!inputs.model.has_key_bias) {
    answer.reason += fmt::format("; whether its keys have a bias that {} could take out is not known", id);
  } else if (!*inputs.model.has_key_bias) {
    answer.verdict = ShapeVerdict::kAccountOnly;
    answer.reason =
        fmt::format("{} has no key bias to take out: {} is accounted for, but not served; use {}/{} instead",
                    inputs.model.path, id, dtype_name(answer.format.key.dtype), answer.format.value.id());
  }
}

std::string layout_id(const PlanOptions& options) {
  return memory_of(options) == KvMemory::kDevice ? "tiled-1" : "plain-1";
}

Json times_of(const PlanOptions& options, const PlanInputs& inputs, const CachePlan& cache) {
  if (options.rows.empty()) return "unmeasured";
  const Json bench = read_json_file(options.rows);
  Json rows = Json::array();
  for (const CacheGroup& group : cache.groups) {
    const RowsKey key{group, inputs.model.shape.num_q_heads / options.tensor_parallel, layout_id(options),
                      options.device_name};
    for (Json& row : measured_rows(bench, options.rows, key)) rows.push_back(std::move(row));
  }
  if (rows.empty()) return "unmeasured";
  return rows;
}

// Of one sequence where --tokens asks for it, of one token otherwise.
double saved_pct(const PlanOptions& options, const PlanAnswer& answer) {
  const auto bytes = [&](const CachePlan& plan) {
    if (options.tokens > 0) return static_cast<double>(plan.sequence(options.tokens).total());
    const int64_t token = plan.bytes_per_token();
    return static_cast<double>(token > 0 ? token : plan.fixed_bytes_per_sequence());
  };
  const double native = bytes(answer.native);
  return native > 0 ? 100.0 * (native - bytes(answer.cache)) / native : 0.0;
}

Json page_json(const PageBytes& page) {
  return {{"k_payload", page.k_payload},
          {"v_payload", page.v_payload},
          {"k_scales", page.k_scales},
          {"v_scales", page.v_scales},
          {"padding", page.padding}};
}

Json pool_json(const PoolPlan& pool) {
  return {{"budget_bytes", pool.budget_bytes},
          {"reserve_bytes", pool.reserve_bytes},
          {"pages", pool.num_pages},
          {"slots", pool.num_slots},
          {"planes", page_json(pool.planes)},
          {"fixed_scales_bytes", pool.fixed_scales},
          {"window_bytes", pool.window},
          {"state_bytes", pool.state},
          {"pool_bytes", pool.pool_bytes()},
          {"unused_bytes", pool.unused},
          {"concurrent_sequences", pool.num_concurrent},
          {"partial_last_pages_bytes", pool.partial_last_pages}};
}

Json groups_json(const CachePlan& cache) {
  Json groups = Json::array();
  for (const CacheGroup& group : cache.groups) {
    const KvGeometry& geometry = group.layout.geometry();
    groups.push_back({{"kind", layer_kind_name(group.kind)},
                      {"layers", group.num_layers},
                      {"kv_heads", geometry.num_kv_heads},
                      {"replicas", group.replicas},
                      {"k_head_dim", geometry.k_head_dim},
                      {"v_head_dim", geometry.v_head_dim},
                      {"window", group.window},
                      {"window_pages", group.window_pages},
                      {"page", page_json(group.page)}});
  }
  return groups;
}

Json model_json(const PlannedModel& model) {
  return {{"path", model.path},
          {"model_type", model.shape.model_type},
          {"native_dtype", dtype_name(model.shape.native_dtype)},
          {"native_dtype_assumed", model.shape.native_dtype_assumed},
          {"max_positions", model.shape.max_positions},
          {"deciding_key", model.shape.deciding_key},
          {"key_bias", model.has_key_bias ? Json(*model.has_key_bias) : Json()},
          {"weight_bytes", model.weight_bytes ? Json(*model.weight_bytes) : Json()}};
}

Json device_json(const PlanOptions& options, const MemoryTerms& terms) {
  if (options.device_memory.empty()) return nullptr;
  return {{"memory_bytes", parse_byte_size(options.device_memory, "--device-memory")},
          {"weights", terms.weights},
          {"activations", terms.activations},
          {"staging", terms.staging},
          {"workspace", terms.workspace},
          {"graph_capture", terms.graph_capture},
          {"other", terms.other}};
}

void add_sequence_json(const PlanOptions& options, const PlanAnswer& answer, Json& json) {
  if (!answer.capacity.sequence) return;
  const SequenceBytes& sequence = *answer.capacity.sequence;
  json["sequence_bytes"] = sequence.total();
  json["native_sequence_bytes"] = answer.native.sequence(options.tokens).total();
  json["sequence"] = page_json(sequence.slots);
  json["sequence"]["tokens"] = options.tokens;
  json["sequence"]["partial_last_page"] = sequence.partial_last_page;
  json["sequence"]["window"] = sequence.window;
  json["sequence"]["state"] = sequence.state;
  json["sequence"]["shared_prefix_pages"] = answer.capacity.shared_pages;
}

}  // namespace

PlanAnswer make_plan_answer(const PlanOptions& options, const PlanInputs& inputs) {
  PlanAnswer answer;
  answer.cache = plan_of(options, inputs, options.kv, scale_of(options));
  answer.native = plan_of(options, inputs, "native", ScaleKind::kDynamic);
  answer.format = parse_kv_format(options.kv, inputs.model.shape.native_dtype, scale_of(options));
  answer.capacity = plan_capacity(answer.cache, inputs.request);
  answer.time = times_of(options, inputs, answer.cache);
  judge_format(inputs, answer);
  return answer;
}

Json plan_json(const PlanOptions& options, const PlanInputs& inputs, const PlanAnswer& answer) {
  const CapacityAnswer& capacity = answer.capacity;
  Json json = {{"model", model_json(inputs.model)},
               {"kv",
                {{"key", answer.format.key.id()},
                 {"value", answer.format.value.id()},
                 {"scale", scale_kind_name(answer.format.scale())}}},
               {"layout", layout_id(options)},
               {"page_size", options.page_size},
               {"tensor_parallel", options.tensor_parallel},
               {"windows", options.windows},
               {"verdict", shape_verdict_name(answer.verdict)},
               {"reason", answer.reason},
               {"pages", capacity.pool.num_pages},
               {"slots", capacity.pool.num_slots},
               {"bytes_per_page", page_json(answer.cache.growing_page())},
               {"bytes_per_token", answer.cache.bytes_per_token()},
               {"native_bytes_per_token", answer.native.bytes_per_token()},
               {"fixed_bytes_per_sequence", answer.cache.fixed_bytes_per_sequence()},
               {"budget_bytes", capacity.pool.budget_bytes},
               {"reserve_bytes", capacity.pool.reserve_bytes},
               {"pool_bytes", capacity.pool.pool_bytes()},
               {"pool", pool_json(capacity.pool)},
               {"groups", groups_json(answer.cache)},
               {"device", device_json(options, inputs.terms)},
               {"draft", inputs.draft ? model_json(*inputs.draft) : Json()},
               {"offload", {{"pages", capacity.offload_pages}, {"slots", capacity.offload_slots}}},
               {"prefill_pool", capacity.prefill_pool ? pool_json(*capacity.prefill_pool) : Json()},
               {"transfer_bytes_per_sequence", capacity.transfer_bytes},
               {"saved_pct_vs_native", saved_pct(options, answer)},
               {"time", answer.time}};
  add_sequence_json(options, answer, json);
  return json;
}

Json refused_plan_json(const PlanOptions& options, const PlanInputs& inputs) {
  const ModelShape& shape = inputs.model.shape;
  Json json = {{"model", model_json(inputs.model)},
               {"verdict", shape_verdict_name(shape.verdict)},
               {"reason", shape.reason},
               {"native_bytes_per_token", shape.groups.empty() ? Json() : Json(native_bytes_per_token(shape))},
               {"time", "unmeasured"}};
  if (options.tokens > 0 && !shape.groups.empty()) {
    json["native_sequence_bytes"] = native_bytes_per_token(shape) * options.tokens;
  }
  return json;
}

namespace {

void print_bytes(std::string_view name, int64_t bytes) {
  if (bytes != 0) print_note("  {:<24}{:>18}  {:>12.4f} GiB\n", name, bytes, static_cast<double>(bytes) / (1 << 30));
}

void print_device(const PlanOptions& options, const MemoryTerms& terms) {
  if (options.device_memory.empty()) return;
  print_note("device memory\n");
  print_bytes("weights", terms.weights);
  print_bytes("activations", terms.activations);
  print_bytes("staging", terms.staging);
  print_bytes("workspace", terms.workspace);
  print_bytes("graph capture", terms.graph_capture);
  print_bytes("other", terms.other);
}

void print_pool(std::string_view name, const PoolPlan& pool, int64_t page_bytes) {
  print_note("{}: {} pages, {} slots\n", name, pool.num_pages, pool.num_slots);
  if (pool.num_pages == 0 && page_bytes > 0) {
    print_note("  no page fits: one takes {} bytes; a size without a unit is in bytes\n", page_bytes);
  }
  print_bytes("budget", pool.budget_bytes);
  print_bytes("reserve", pool.reserve_bytes);
  print_bytes("payload K", pool.planes.k_payload);
  print_bytes("payload V", pool.planes.v_payload);
  print_bytes("scales K", pool.planes.k_scales);
  print_bytes("scales V", pool.planes.v_scales);
  print_bytes("fixed scales", pool.fixed_scales);
  print_bytes("padding", pool.planes.padding);
  print_bytes("windows", pool.window);
  print_bytes("recurrent state", pool.state);
  print_bytes("unused", pool.unused);
}

void print_sequences(const PlanOptions& options, int64_t max_positions, const PlanAnswer& answer) {
  const CapacityAnswer& capacity = answer.capacity;
  if (!capacity.sequence) return;
  print_note("one sequence of {} tokens: {}; native: {}\n", options.tokens, gib_text(capacity.sequence->total()),
             gib_text(answer.native.sequence(options.tokens).total()));
  print_bytes("partial last page", capacity.sequence->partial_last_page);
  print_bytes("windows", capacity.sequence->window);
  print_bytes("recurrent state", capacity.sequence->state);
  print_note("  {} such sequences fit at once\n", capacity.pool.num_concurrent);
  if (max_positions > 0 && options.tokens > max_positions) {
    print_note("  longer than the model's {} positions\n", max_positions);
  }
  if (capacity.shared_pages > 0) print_note("  of which {} pages are held once\n", capacity.shared_pages);
  if (capacity.prefill_pool) {
    print_note("  {} fit into the prefill pool; each moves {} bytes to the decode pool\n",
               capacity.prefill_pool->num_concurrent, capacity.transfer_bytes);
  }
}

void print_layers(const PlanOptions& options, const PlanAnswer& answer) {
  for (const CacheGroup& group : answer.cache.groups) {
    const KvGeometry& geometry = group.layout.geometry();
    print_note("  {} {} layers x {} KV heads x {}", group.num_layers, layer_kind_name(group.kind),
               geometry.num_kv_heads, geometry.k_head_dim);
    if (group.window > 0) {
      print_note(", window {}: {}", group.window,
                 group.grows() ? "every token, in the pages of the full layers (unified)"
                               : "pages of their own (not unified with those of the full layers)");
    }
    if (group.replicas > 1) print_note(", each head on {} ranks", group.replicas);
    print_note("\n");
  }
  print_note("  {} bytes a token, {:.2f} % less than native; {} bytes a sequence whatever its length\n",
             answer.cache.bytes_per_token(), saved_pct(options, answer), answer.cache.fixed_bytes_per_sequence());
}

}  // namespace

void print_plan(const PlanOptions& options, const PlanInputs& inputs, const PlanAnswer& answer) {
  print_note("{} ({}): {}: {}\n", inputs.model.path, inputs.model.shape.model_type, shape_verdict_name(answer.verdict),
             answer.reason);
  if (inputs.model.shape.native_dtype_assumed) {
    print_note("  the file names no type: native is taken for {}\n", dtype_name(inputs.model.shape.native_dtype));
  }
  print_note("{}, scales {}, pages of {} slots, layout {}, one of {} ranks\n", answer.format.id(),
             scale_kind_name(answer.format.scale()), options.page_size, layout_id(options), options.tensor_parallel);
  print_layers(options, answer);
  print_device(options, inputs.terms);
  const int64_t page_bytes = answer.cache.growing_page().total();
  print_pool(answer.capacity.prefill_pool ? "decode pool" : "pool", answer.capacity.pool, page_bytes);
  if (answer.capacity.prefill_pool) print_pool("prefill pool", *answer.capacity.prefill_pool, page_bytes);
  if (answer.capacity.offload_pages > 0) {
    print_note("offload tier: {} pages, {} slots more\n", answer.capacity.offload_pages, answer.capacity.offload_slots);
  }
  print_sequences(options, inputs.model.shape.max_positions, answer);
  if (answer.time.is_string()) {
    print_note("time: unmeasured\n");
    return;
  }
  for (const Json& row : answer.time) {
    print_note("time: {} us a layer ({}, batch {}, context {}, {})\n", row.at("us").get<double>(),
               row.at("kernel").get<std::string>(), row.at("batch").get<int64_t>(),
               row.at("context_len").get<int64_t>(), options.device_name);
  }
}

}  // namespace asymkv::app
