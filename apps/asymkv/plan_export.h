#pragma once

#include "plan_answer.h"

namespace asymkv::app {

// plan --export aiconfigurator: the fields of its KV cache estimate (estimate_kv_cache of aiconfigurator's
// sdk/memory.py), bytes of one rank. What is neither weights nor activations nor cache is its runtime overhead; times
// stay "unmeasured". `asymkv` carries what that tool has no word for: both sides' formats, apart.
Json aiconfigurator_json(const PlanOptions& options, const PlanInputs& inputs, const PlanAnswer& answer);

}  // namespace asymkv::app
