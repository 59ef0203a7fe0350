// asymkv admit: probe, panels, certificate, policy and report of one model.

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <memory>

#include "admission.h"
#include "asymkv/base/error.h"
#include "asymkv/base/file.h"
#include "asymkv/base/progress.h"
#include "asymkv/gate/certificate.h"
#include "asymkv/gate/run_files.h"
#include "asymkv/runtime/backends.h"
#include "command.h"
#include "kv_options.h"
#include "option_values.h"
#include "run_record.h"

namespace asymkv::app {
namespace {

struct AdmitArguments {
  AdmissionRequest request;
  std::string protocol = "builtin";
  std::string arms;
  std::string path;
  std::string prefill;
  std::string mode = "knee";
  std::string required_tier;
  std::string shard;
  std::string device = "cpu";
  int activations = 32;
  bool json = false;
};

void print_shard(const AdmitArguments& args, double seconds) {
  if (args.json) {
    print_json({{"shard", args.shard}, {"folder", args.request.folder.string()}, {"seconds", seconds}});
  } else {
    fmt::print("shard {} is finished: merge all of them with asymkv gate merge OUT DIR...\n", args.shard);
  }
}

int run(const AdmitArguments& args) {
  AdmissionRequest request = args.request;
  request.protocol = load_protocol(args.protocol);
  if (!args.path.empty()) request.protocol.path = parse_run_path(args.path);
  if (!args.prefill.empty()) request.protocol.prefill = parse_prefill(args.prefill);
  if (!args.arms.empty()) request.arms = parse_arms(args.arms);
  request.mode = parse_policy_mode(args.mode);
  std::optional<Tier> required;
  if (!args.required_tier.empty()) required = parse_tier(args.required_tier);
  if (!args.shard.empty()) request.shard = parse_shard(args.shard);
  if (required && !request.shard.is_whole()) {
    throw_usage("--require: shard {} has no verdict; ask gate merge", args.shard);
  }
  request.backends = select_backends(args.device, parse_activations(args.activations));
  const RunClock clock;
  const std::optional<AdmissionResult> result = run_admission(request);
  if (!result) {
    print_shard(args, clock.seconds());
    return 0;
  }
  if (args.json) {
    print_json(result_to_json(*result));
  } else {
    fmt::print("{}", cost_lines(result->cost));
    print_result(*result);
  }
  return require_tier(*result, required);
}

void add_file_options(CLI::App& command, AdmissionRequest& request) {
  command.add_option("--math-questions", request.files.math_questions,
                     "GSM8K test.jsonl (quick, three, worker4, reference7)");
  command.add_option("--math-examples", request.files.math_few_shot, "GSM8K train.jsonl, for the few-shot prompt");
  command.add_option("--loss-text", request.files.loss_texts,
                     "UTF-8 text for the loss panel; may be given several times");
  command.add_option("--filler", request.files.filler,
                     "UTF-8 text around the retrieval needles, if the protocol asks for one");
  command.add_option("--scales", request.scales_file,
                     "fixed scales for the F arms (asymkv calibrate); default: calibrated here");
}

}  // namespace

void add_admit_command(CLI::App& root, Action& action) {
  auto args = std::make_shared<AdmitArguments>();
  CLI::App* command =
      root.add_subcommand("admit", "decide which KV formats may serve a model: probe, panels, certificate, policy");
  command->add_option("MODEL", args->request.model, "model folder (safetensors) or .gguf file")->required();
  command
      ->add_option(
          "--protocol", args->protocol,
          "builtin, worker4-embedded, reference7-embedded (embedded models), quick (any model), three, worker4, "
          "reference7 (any model, full panels), or a JSON file")
      ->capture_default_str();
  command->add_option("--arms", args->arms,
                      "N,AF,AD,RF,RD,SF,SD,PF,PD,ID,JD or fewer, and the controls NR, QD; default: the protocol's");
  command->add_option("--out", args->request.folder, "folder of the run; default: asymkv-admit/MODEL");
  command->add_option("--path", args->path, "worker or reference; default: the protocol's");
  command->add_option("--prefill", args->prefill, "shared or per-arm; default: the protocol's");
  command->add_option("--policy-mode", args->mode, "knee or certified")->capture_default_str();
  command->add_option("--require", args->required_tier, "exit 1 unless this tier was reached: K16/V8 or K8/V8");
  command->add_option(
      "--shard", args->shard,
      "i/n, for example 2/7: run every n-th unit of work from the i-th on into --out; gate merge puts the "
      "n folders together");
  command->add_flag("--resume", args->request.resume, "go on with the run in --out");
  command->add_flag("--measure-cost", args->request.measure_cost,
                    "afterwards run native alone, in batches of several sizes, and say what all arms cost beside it");
  add_file_options(*command, args->request);
  add_device_option(*command, args->device);
  add_activations_option(*command, args->activations);
  command->add_flag("--json", args->json, "one JSON object on stdout");
  command->footer(
      "Examples:\n"
      "  asymkv admit models/probe-fragile --out run-fragile\n"
      "  asymkv admit qwen2.5-coder-0.5b.gguf --protocol quick --math-questions test.jsonl --math-examples train.jsonl "
      "\\\n"
      "      --loss-text wiki.test.tokens --out run-qwen");
  command->callback([&action, args] { action = [args] { return run(*args); }; });
}

}  // namespace asymkv::app
