// asymkv plan: how many tokens fit into a budget, in exact bytes, and whether a real allocation agrees.

#include <fmt/format.h>

#include <memory>

#include "asymkv/base/error.h"
#include "asymkv/base/progress.h"
#include "asymkv/model/model_files.h"
#include "byte_size.h"
#include "command.h"
#include "plan_answer.h"
#include "plan_export.h"
#include "plan_options.h"
#include "plan_sweep.h"
#include "plan_verify.h"

namespace asymkv::app {
namespace {

int refuse(const PlanOptions& options, const PlanInputs& inputs) {
  const Json json = refused_plan_json(options, inputs);
  if (options.json) {
    print_json(json);
  } else if (const Json& native = json.at("native_bytes_per_token"); native.is_number()) {
    print_note("the model's own type takes {} bytes a token\n", native.get<int64_t>());
  }
  print_note("asymkv: {}: {}\n", inputs.model.path, inputs.model.shape.reason);
  return exit_code(ErrorCode::kUnsupported);
}

Json sweep(const PlanOptions& options, const PlanInputs& inputs) {
  Json json = sweep_plan(options, inputs);
  if (!options.json && options.export_to.empty()) print_sweep(json);
  if (options.plot.empty()) return json;
  const std::string title = fmt::format("{}: caches in {} a rank", model_name(options.model),
                                        gib_text(inputs.request.budget_bytes - inputs.request.reserve_bytes));
  plot_sweep(json, title, options.plot);
  print_note("wrote {}\n", options.plot);
  return json;
}

// What --budget or --device-memory asks for; the fields of docs/cli.md.
Json answer_capacity(const PlanOptions& options, const PlanInputs& inputs) {
  const PlanAnswer answer = make_plan_answer(options, inputs);
  if (!options.export_to.empty()) return aiconfigurator_json(options, inputs, answer);
  if (!options.json) print_plan(options, inputs, answer);
  Json json = plan_json(options, inputs, answer);
  if (options.sweep || !options.plot.empty()) json["sweep"] = sweep(options, inputs);
  return json;
}

int run(const PlanOptions& options) {
  const PlanInputs inputs = read_plan_inputs(options);
  if (inputs.model.shape.verdict == ShapeVerdict::kRefuse) return refuse(options, inputs);
  const bool has_budget = !options.budget.empty() || !options.device_memory.empty();
  const bool prints_json = options.json || !options.export_to.empty();
  Json json = has_budget && options.kv != "all" ? answer_capacity(options, inputs) : Json::object();
  bool ok = true;
  if (options.verify) {
    json["verify"] = verify_plan(options, inputs);
    ok = json["verify"].at("ok").get<bool>();
    if (!prints_json) print_verification(json["verify"]);
  }
  if (prints_json) print_json(json);
  if (!ok) print_note("asymkv: the plan and the allocation differ\n");
  return ok ? 0 : 1;
}

}  // namespace

void add_plan_command(CLI::App& root, Action& action) {
  auto options = std::make_shared<PlanOptions>();
  CLI::App* command = root.add_subcommand("plan", "how many tokens fit, in exact bytes");
  add_plan_options(*command, *options);
  command->footer(
      "Example:\n"
      "  asymkv plan models/probe-robust --budget 1GiB --kv k16v8 --tokens 8192\n"
      "  asymkv plan models/probe-fragile --kv all --verify --pages 16\n"
      "  asymkv plan models/probe-robust --budget 1GiB --sweep");
  command->callback([&action, options] { action = [options] { return run(*options); }; });
}

}  // namespace asymkv::app
