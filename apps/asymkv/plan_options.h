#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "asymkv/planner/capacity.h"
#include "plan_model.h"

namespace asymkv::app {

// The options of `asymkv plan` as given. Sizes are texts for parse_byte_size; an empty one was not given.
struct PlanOptions {
  std::string model;
  std::string kv = "native";
  std::string scale = "dynamic";
  int64_t page_size = 16;
  int64_t tensor_parallel = 1;
  std::string windows = "separate";
  std::string device = "cpu";
  std::string budget, device_memory, reserve = "0";
  std::string weights, activation_memory = "0", workspace = "0", graphs = "0", other = "0";
  int64_t staging_tokens = kStagingTokens;
  int64_t tokens = 0;
  int64_t sequences = 1;
  int64_t shared_prefix = 0;
  std::string draft;
  std::string offload = "0";
  std::string prefill_budget = "0";
  bool verify = false;
  int64_t pages = 64;  // of --verify
  bool sweep = false;
  std::vector<int64_t> contexts;
  std::string plot;
  std::string rows, device_name;
  std::string export_to;
  bool json = false;
};
void add_plan_options(CLI::App& command, PlanOptions& options);

// What the options mean for one model.
struct PlanInputs {
  PlannedModel model;
  std::optional<PlannedModel> draft;
  MemoryTerms terms;  // of --device-memory
  CapacityRequest request;
};
// Reads the models and every size. Throws Error{kUsage} naming option and value.
PlanInputs read_plan_inputs(const PlanOptions& options);

// Layout options of a format text for a model of that native type.
CachePlanOptions cache_options(const PlanOptions& options, const ModelShape& shape, const std::string& kv,
                               ScaleKind scale);
// The cache of one format, draft included.
CachePlan plan_of(const PlanOptions& options, const PlanInputs& inputs, const std::string& kv, ScaleKind scale);
ScaleKind scale_of(const PlanOptions& options);
KvMemory memory_of(const PlanOptions& options);

}  // namespace asymkv::app
