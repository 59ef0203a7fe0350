// asymkv probe: how fragile a model's keys are, layer by layer. Admits nothing by itself.

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <memory>

#include "asymkv/base/error.h"
#include "asymkv/gate/text_cases.h"
#include "asymkv/runtime/backends.h"
#include "command.h"
#include "option_values.h"
#include "probe_runner.h"
#include "run_record.h"
#include "side_documents.h"

namespace asymkv::app {
namespace {

struct ProbeArguments {
  std::string model;
  std::string data;
  int64_t tokens = 1024;
  int64_t documents = 2;
  std::string device = "cpu";
  bool json = false;
};

// Built-in text holds sentences to find: so many tokens have room for them where each byte is a token.
constexpr int64_t kMinBuiltInTokens = 512;

// `text`: of --data.
std::vector<std::vector<int32_t>> probe_documents(const LoadedModel& model, const ProbeArguments& args,
                                                  const std::string& text) {
  if (args.data.empty()) {
    Protocol texts = builtin_protocol("quick");
    texts.math.reset();
    texts.loss.clear();
    for (RetrievalPanel& panel : texts.retrieval) panel.length = args.tokens;
    return make_side_documents(model, texts, {}, 0);
  }
  return cut_documents(model, text, args.tokens, args.documents, args.data);
}

void print_human(const ProbeResult& result) {
  fmt::print("layer  |bias|    max|K|   max|V|   K noise  worst    K8 error  V8 error  row KL\n");
  for (const LayerProbe& layer : result.layers) {
    fmt::print("{:5}  {:8.1f}  {:7.1f}  {:7.1f}  {:7.3f}  {:7.3f}  {:7.2f}%  {:7.2f}%  {:.2e}\n", layer.layer_idx,
               layer.k_bias_norm, layer.k_max, layer.v_max, layer.logit_noise, layer.logit_noise_max,
               100.0 * layer.k8_output_error, 100.0 * layer.v8_output_error, layer.row_kl);
  }
  fmt::print(
      "keys look {}: logit noise with E4M3 keys {:.3g} in the mean (robust up to {}, fragile from {}), {:.3g} in the "
      "worst layer (fragile from {})\n",
      fragility_name(result.verdict), result.mean_logit_noise, result.thresholds.robust_noise,
      result.thresholds.fragile_noise, result.worst_logit_noise(), result.thresholds.layer_limit());
  fmt::print("a probe admits nothing by itself: run asymkv admit\n");
}

int run(const ProbeArguments& args) {
  if (args.data.empty() && args.tokens < kMinBuiltInTokens) {
    throw_usage("--tokens {}: the built-in text needs {} or more; give a text of your own with --data", args.tokens,
                kMinBuiltInTokens);
  }
  const std::string text = args.data.empty() ? std::string() : read_utf8_text(args.data);
  const RunClock clock;
  const auto model = load_model(args.model, select_backends(args.device));
  const ProbeResult result = run_probe(*model, probe_documents(*model, args, text));
  if (args.json) {
    Json answer = probe_to_json(result);
    answer["model"] = args.model;
    answer["record"] = make_model_record(*model, clock);
    print_json(answer);
  } else {
    print_human(result);
  }
  return 0;
}

}  // namespace

void add_probe_command(CLI::App& root, Action& action) {
  auto args = std::make_shared<ProbeArguments>();
  CLI::App* command = root.add_subcommand("probe", "how fragile a model's keys are, layer by layer");
  command->add_option("MODEL", args->model, "model folder (safetensors) or .gguf file")->required();
  command->add_option("--data", args->data, "UTF-8 text to probe with; default: built-in text");
  command
      ->add_option("--tokens", args->tokens,
                   fmt::format("tokens of a document; {} or more of the built-in text", kMinBuiltInTokens))
      ->check(CLI::Range(128, 1 << 20))
      ->capture_default_str();
  command->add_option("--documents", args->documents, "most documents of --data")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  add_device_option(*command, args->device);
  command->add_flag("--json", args->json, "one JSON object on stdout");
  command->footer("Example:\n  asymkv probe models/probe-fragile");
  command->callback([&action, args] { action = [args] { return run(*args); }; });
}

}  // namespace asymkv::app
