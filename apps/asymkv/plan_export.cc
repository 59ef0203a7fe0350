#include "plan_export.h"

#include "asymkv/base/error.h"
#include "byte_size.h"

namespace asymkv::app {

Json aiconfigurator_json(const PlanOptions& options, const PlanInputs& inputs, const PlanAnswer& answer) {
  const MemoryTerms& terms = inputs.terms;
  const PoolPlan& pool = answer.capacity.pool;
  if (answer.cache.bytes_per_token() == 0) {
    throw_unsupported("{}: every layer keeps a window only, so no number of bytes a token says what fits; use --tokens",
                      inputs.model.path);
  }
  const int64_t device = options.device_memory.empty() ? 0 : parse_byte_size(options.device_memory, "--device-memory");
  return {{"total_gpu_capacity_bytes", device > 0 ? Json(device) : Json()},
          {"total_kv_size_bytes", pool.pool_bytes()},
          {"kv_size_per_token_bytes", answer.cache.bytes_per_token()},
          {"total_kv_size_tokens", pool.num_slots},
          {"memory_breakdown",
           {{"weights_bytes", terms.weights},
            {"activations_bytes", terms.activations},
            {"runtime_overhead_bytes", terms.staging + terms.workspace + terms.graph_capture + terms.other},
            // One rank talks to nobody; what several need is not known here.
            {"comm_overhead_bytes", options.tensor_parallel == 1 ? Json(0) : Json()}}},
          {"tolerance_adjusted", nullptr},
          {"source", "asymkv plan, capacity only"},
          {"tp_size", options.tensor_parallel},
          {"time", "unmeasured"},
          {"asymkv",
           {{"key", answer.format.key.id()},
            {"value", answer.format.value.id()},
            {"scale", scale_kind_name(answer.format.scale())},
            {"page_size", options.page_size},
            {"verdict", shape_verdict_name(answer.verdict)},
            {"fixed_bytes_per_sequence", answer.cache.fixed_bytes_per_sequence()}}}};
}

}  // namespace asymkv::app
