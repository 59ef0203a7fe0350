#pragma once

#include "asymkv/base/json.h"
#include "plan_options.h"

namespace asymkv::app {

// plan --verify: allocates --pages pages in the format of --kv, or one after another in those of all eleven arms, and
// compares each line; on the device the staging of --device-memory beside them. JSON: pages, ok, difference_bytes,
// formats [{format, key, value, scale, ok, difference_bytes, lines [{term, planned, found}], growth, device [{term,
// planned, found, tolerance, ok}]}].
Json verify_plan(const PlanOptions& options, const PlanInputs& inputs);
// The same for people, and on every difference a sentence with both numbers.
void print_verification(const Json& verification);

}  // namespace asymkv::app
