#include "plan_options.h"

#include "asymkv/base/error.h"
#include "byte_size.h"
#include "option_values.h"
#include "plan_sweep.h"

namespace asymkv::app {
namespace {

constexpr int64_t kMaxRanks = 65536;

void add_cache_options(CLI::App& command, PlanOptions& options) {
  command
      .add_option("--kv", options.kv,
                  "KV format: native k16v8 k8v16 k8v8 k8v8-prebias ki8v8 ki8v8-prebias, or KEY/VALUE (f16/e4m3); "
                  "with --verify also all")
      ->capture_default_str();
  command.add_option("--scale", options.scale, "scales of 8-bit sides: fixed or dynamic")
      ->check(CLI::IsMember({"fixed", "dynamic"}))
      ->capture_default_str();
  command.add_option("--page-size", options.page_size, "tokens per page")
      ->check(CLI::Range(int64_t{1}, kMaxPlannedPageSize))
      ->capture_default_str();
  command.add_option("--tp", options.tensor_parallel, "ranks that share the heads; all bytes are those of one rank")
      ->check(CLI::Range(int64_t{1}, kMaxRanks))
      ->capture_default_str();
  command
      .add_option(
          "--windows", options.windows,
          "layers with a window: separate (pages of their own, reused) or unified (every token, as this engine)")
      ->check(CLI::IsMember({"separate", "unified"}))
      ->capture_default_str();
  command
      .add_option("--device", options.device,
                  "whose page layout, and where --verify allocates: cpu (plain-1) or cuda (tiled-1)")
      ->check(CLI::IsMember({"cpu", "cuda"}))
      ->capture_default_str();
  command.add_option("--draft", options.draft, "config.json, folder or .gguf of a draft model on the same pages");
}

void add_budget_options(CLI::App& command, PlanOptions& options) {
  command.add_option("--budget", options.budget, "bytes for caches on one rank: 40GiB, 24GB, 1048576");
  command.add_option("--device-memory", options.device_memory,
                     "memory of one rank's device: the budget is what weights, activations, staging, workspace, graphs "
                     "and other leave");
  command.add_option("--weights", options.weights, "bytes of weights; default: as the model's files store them");
  command.add_option("--activation-memory", options.activation_memory, "bytes of activations")->capture_default_str();
  command.add_option("--staging-tokens", options.staging_tokens, "tokens of one native layer that a prefill stages")
      ->check(CLI::Range(int64_t{0}, kMaxPlannedTokens))
      ->capture_default_str();
  command.add_option("--workspace", options.workspace, "bytes of kernel workspace")->capture_default_str();
  command.add_option("--graphs", options.graphs, "bytes of captured graphs")->capture_default_str();
  command.add_option("--other", options.other, "bytes of anything else")->capture_default_str();
  command.add_option("--reserve", options.reserve, "bytes of the budget held back")->capture_default_str();
  command.add_option("--offload", options.offload, "bytes of a second tier for pages that leave the pool")
      ->capture_default_str();
  command
      .add_option("--prefill-budget", options.prefill_budget,
                  "bytes of a prefill pool of its own; --budget is the decode pool's")
      ->capture_default_str();
}

void add_question_options(CLI::App& command, PlanOptions& options) {
  command.add_option("--tokens", options.tokens, "also: the bytes of one sequence, and how many fit at once")
      ->check(CLI::Range(int64_t{1}, kMaxPlannedTokens));
  command.add_option("--sequences", options.sequences, "sequences whose windows and states are set aside before pages")
      ->check(CLI::Range(int64_t{0}, kMaxPlannedTokens))
      ->capture_default_str();
  command
      .add_option("--shared-prefix", options.shared_prefix, "first tokens that all sequences share, whole pages once")
      ->check(CLI::Range(int64_t{0}, kMaxPlannedTokens))
      ->capture_default_str();
  command.add_flag("--verify", options.verify,
                   "allocate such a cache for real and compare line by line; exit 1 if they differ");
  command.add_option("--pages", options.pages, "pages that --verify allocates")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 20))
      ->capture_default_str();
}

void add_answer_options(CLI::App& command, PlanOptions& options) {
  command.add_flag("--sweep", options.sweep, "sequences that fit at once, by length and format");
  add_list_option(command, "--contexts", options.contexts,
                  "lengths of the sweep; default: powers of two from 1,024 on");
  command.add_option("--plot", options.plot, "draw the sweep into FILE.svg or FILE.png");
  command.add_option("--rows", options.rows, "a bench kernel answer: its rows of exactly this plan are the times");
  command.add_option("--device-name", options.device_name, "device that --rows must have been measured on");
  command.add_option("--export", options.export_to, "aiconfigurator: print the figures in that tool's terms, as JSON")
      ->check(CLI::IsMember({"aiconfigurator"}));
  command.add_flag("--json", options.json, "one JSON object on stdout");
}

int64_t size_of(const std::string& text, std::string_view option) {
  return parse_byte_size(text, option);
}

PlannedModel read_draft(const std::string& path) {
  PlannedModel draft = read_planned_model(path);
  if (draft.shape.verdict == ShapeVerdict::kRefuse) throw_unsupported("--draft {}: {}", path, draft.shape.reason);
  return draft;
}

// As the files store them, model and draft, unless given.
int64_t weight_bytes(const PlanOptions& options, const PlanInputs& inputs) {
  if (!options.weights.empty()) return size_of(options.weights, "--weights");
  if (options.tensor_parallel > 1) throw_usage("--device-memory with --tp needs --weights BYTES: those of one rank");
  int64_t bytes = 0;
  for (const PlannedModel* model : {&inputs.model, inputs.draft ? &*inputs.draft : nullptr}) {
    if (model == nullptr) continue;
    if (!model->weight_bytes) throw_usage("--device-memory needs --weights BYTES: {} holds no weights", model->path);
    bytes += *model->weight_bytes;
  }
  return bytes;
}

MemoryTerms memory_terms(const PlanOptions& options, const PlanInputs& inputs) {
  const ModelShape& shape = inputs.model.shape;
  MemoryTerms terms;
  terms.weights = weight_bytes(options, inputs);
  terms.activations = size_of(options.activation_memory, "--activation-memory");
  terms.staging =
      staging_bytes(shape, cache_options(options, shape, "native", ScaleKind::kDynamic), options.staging_tokens);
  terms.workspace = size_of(options.workspace, "--workspace");
  terms.graph_capture = size_of(options.graphs, "--graphs");
  terms.other = size_of(options.other, "--other");
  return terms;
}

// An option that nothing reads is a mistake of the caller's.
void check_companions(const PlanOptions& options) {
  const PlanOptions unset;
  const auto refuse = [](bool lonely, std::string_view option, std::string_view companion) {
    if (lonely) throw_usage("{} says nothing without {}", option, companion);
  };
  if (options.device_memory.empty()) {
    refuse(options.weights != unset.weights, "--weights", "--device-memory");
    refuse(options.activation_memory != unset.activation_memory, "--activation-memory", "--device-memory");
    refuse(options.workspace != unset.workspace, "--workspace", "--device-memory");
    refuse(options.graphs != unset.graphs, "--graphs", "--device-memory");
    refuse(options.other != unset.other, "--other", "--device-memory");
    refuse(options.staging_tokens != unset.staging_tokens, "--staging-tokens", "--device-memory");
  }
  const bool sweeps = options.sweep || !options.plot.empty();
  refuse(options.tokens == 0 && !sweeps && options.shared_prefix != 0, "--shared-prefix", "--tokens or --sweep");
  refuse(!sweeps && !options.contexts.empty(), "--contexts", "--sweep or --plot");
  refuse(!options.verify && options.pages != unset.pages, "--pages", "--verify");
  const bool asks_more = sweeps || options.verify || options.tokens != 0;
  if (!options.export_to.empty() && asks_more) {
    throw_usage("--export prints that tool's figures alone: leave out --sweep, --plot, --verify and --tokens");
  }
}

void check_budget_options(const PlanOptions& options) {
  if (!options.budget.empty() && !options.device_memory.empty()) {
    throw_usage("give --budget or --device-memory, not both");
  }
  const bool has_budget = !options.budget.empty() || !options.device_memory.empty();
  const bool asks_for_capacity = options.sweep || !options.plot.empty() || !options.export_to.empty();
  if (!has_budget && (!options.verify || asks_for_capacity)) {
    throw_usage("give --budget BYTES (say 40GiB) or --device-memory BYTES");
  }
  check_companions(options);
  if (options.kv == "all" && (!options.verify || asks_for_capacity)) throw_usage("--kv all goes with --verify alone");
  if (options.rows.empty() != options.device_name.empty()) throw_usage("--rows and --device-name go together");
  if (!options.plot.empty()) check_plot_file(options.plot);
}

}  // namespace

void add_plan_options(CLI::App& command, PlanOptions& options) {
  command.add_option("MODEL", options.model, "a config.json, a model folder or a .gguf file")->required();
  add_cache_options(command, options);
  add_budget_options(command, options);
  add_question_options(command, options);
  add_answer_options(command, options);
}

ScaleKind scale_of(const PlanOptions& options) {
  return options.scale == "fixed" ? ScaleKind::kFixed : ScaleKind::kDynamic;
}

KvMemory memory_of(const PlanOptions& options) {
  return options.device == "cuda" ? KvMemory::kDevice : KvMemory::kHost;
}

CachePlanOptions cache_options(const PlanOptions& options, const ModelShape& shape, const std::string& kv,
                               ScaleKind scale) {
  CachePlanOptions cache;
  cache.format = parse_kv_format(kv, shape.native_dtype, scale);
  cache.page_size = options.page_size;
  cache.tensor_parallel = options.tensor_parallel;
  cache.windows = options.windows == "unified" ? WindowPages::kUnified : WindowPages::kSeparate;
  cache.memory = memory_of(options);
  return cache;
}

CachePlan plan_of(const PlanOptions& options, const PlanInputs& inputs, const std::string& kv, ScaleKind scale) {
  const auto plan_model = [&](const PlannedModel& model) {
    const CachePlanOptions cache = cache_options(options, model.shape, kv, scale);
    try {
      return plan_cache(model.shape, cache);
    } catch (const Error& e) {
      throw Error(e.code(), fmt::format("{} with --tp {}: {}", model.path, options.tensor_parallel, e.what()));
    }
  };
  CachePlan plan = plan_model(inputs.model);
  if (inputs.draft) plan.add_draft(plan_model(*inputs.draft));
  return plan;
}

PlanInputs read_plan_inputs(const PlanOptions& options) {
  check_budget_options(options);
  PlanInputs inputs;
  inputs.model = read_planned_model(options.model);
  if (!options.draft.empty()) inputs.draft = read_draft(options.draft);
  CapacityRequest& request = inputs.request;
  if (!options.budget.empty()) request.budget_bytes = size_of(options.budget, "--budget");
  if (!options.device_memory.empty() && inputs.model.shape.verdict != ShapeVerdict::kRefuse) {
    inputs.terms = memory_terms(options, inputs);
    request.budget_bytes = budget_of_device(size_of(options.device_memory, "--device-memory"), inputs.terms);
  }
  request.reserve_bytes = size_of(options.reserve, "--reserve");
  request.num_sequences = options.sequences;
  request.tokens = options.tokens;
  request.shared_prefix_tokens = options.shared_prefix;
  request.offload_bytes = size_of(options.offload, "--offload");
  request.prefill_budget_bytes = size_of(options.prefill_budget, "--prefill-budget");
  return inputs;
}

}  // namespace asymkv::app
