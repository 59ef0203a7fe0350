#pragma once

#include "asymkv/base/json.h"
#include "plan_options.h"

namespace asymkv::app {

// Everything that one plan says, computed once and shown as JSON or as a table.
struct PlanAnswer {
  KvFormat format;
  CachePlan cache;          // of --kv, draft included
  CachePlan native;         // the same in the model's own type
  CapacityAnswer capacity;  // of `cache`
  ShapeVerdict verdict = ShapeVerdict::kRefuse;
  std::string reason;
  Json time;  // "unmeasured", or the rows measured with exactly this
};
PlanAnswer make_plan_answer(const PlanOptions& options, const PlanInputs& inputs);

// docs/cli.md lists the fields.
Json plan_json(const PlanOptions& options, const PlanInputs& inputs, const PlanAnswer& answer);
void print_plan(const PlanOptions& options, const PlanInputs& inputs, const PlanAnswer& answer);

// Of a model that cannot be planned: verdict, reason and, where they are known, native bytes.
Json refused_plan_json(const PlanOptions& options, const PlanInputs& inputs);

}  // namespace asymkv::app
