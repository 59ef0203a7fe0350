// asymkv generate: one completion, with the formats its cache really had.

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <optional>

#include "asymkv/base/error.h"
#include "asymkv/base/progress.h"
#include "asymkv/base/utf8.h"
#include "asymkv/engine/generate.h"
#include "asymkv/runtime/backends.h"
#include "command.h"
#include "kv_options.h"
#include "option_values.h"
#include "run_record.h"
#include "served_policy.h"

namespace asymkv::app {
namespace {

struct GenerateArguments {
  std::string model;
  std::optional<std::string> prompt;
  std::vector<int32_t> prompt_ids;
  KvOptions kv;
  ServedPolicy policy;
  int64_t max_tokens = 128;
  SamplingOptions sampling;
  bool ignore_eos = false;
  std::string device = "cpu";
  std::string path = "worker";
  int activations = 32;
  bool json = false;
};

Json answer_json(const Generation& generation, const std::vector<int32_t>& prompt, const std::string& text) {
  const auto completion = static_cast<int64_t>(generation.token_ids.size());
  return {{"text", text},
          {"token_ids", generation.token_ids},
          {"prompt_token_ids", prompt},
          {"finish_reason", finish_reason_name(generation.finish_reason)},
          {"usage", {{"prompt_tokens", prompt.size()}, {"completion_tokens", completion}}},
          {"tokens_per_s",
           {{"prefill", token_rate(static_cast<int64_t>(prompt.size()), generation.prefill_seconds)},
            {"decode", token_rate(completion - 1, generation.decode_seconds)}}}};
}

// Writes text as it becomes complete; nothing in JSON mode.
class Printer {
 public:
  Printer(const Tokenizer& tokenizer, bool quiet) : decoder_(tokenizer, true), quiet_(quiet) {}
  void token(int32_t id) { write(decoder_.push(id)); }
  void finish() {
    write(decoder_.flush());
    if (!quiet_) fmt::print("\n");
  }
  const std::string& text() const { return text_; }

 private:
  void write(const std::string& piece) {
    text_ += piece;
    if (quiet_) return;
    fmt::print("{}", piece);
    std::fflush(stdout);
  }
  StreamDecoder decoder_;
  bool quiet_;
  std::string text_;
};

int run(GenerateArguments& args) {
  if (!args.prompt && args.prompt_ids.empty()) throw_usage("give a --prompt TEXT, or token ids with --prompt-ids");
  if (args.prompt) require_utf8(*args.prompt, "--prompt");
  check_sampling_options(args.sampling);
  if (args.path != "worker" && args.path != "reference") {
    throw_usage("--path is \"{}\"; known: worker, reference", args.path);
  }
  args.policy.apply(args.kv);
  const RunClock clock;
  const auto model = load_model(args.model, select_backends(args.device, parse_activations(args.activations)));
  const ResolvedKv kv = resolve_kv(args.kv, *model);
  std::vector<int32_t> prompt = args.prompt_ids;
  if (args.prompt) prompt = model->tokenizer.encode(*args.prompt, {.add_special = true, .parse_special = true});
  GenerateOptions options;
  options.max_tokens = args.max_tokens;
  options.sampling = args.sampling;
  options.ignore_eos = args.ignore_eos;
  options.prompt_reads = args.path == "reference" ? OwnReads::kStored : OwnReads::kFresh;
  options.native_dtype = kv.native_dtype;
  const auto capacity =
      std::min(model->config().max_position_embeddings, static_cast<int64_t>(prompt.size()) + args.max_tokens);
  const auto cache = make_cache_for(*model, kv, capacity);
  args.policy.require(*model, *cache, args.path, capacity);
  SequencePages sequence(*cache);
  Printer printer(model->tokenizer, args.json);
  const Generation generation = generate(*model, sequence, prompt, options, [&](int32_t id) { printer.token(id); });
  printer.finish();
  if (args.json) {
    Json answer = answer_json(generation, prompt, printer.text());
    answer["record"] = make_run_record(*model, *cache, {args.kv.kv, args.kv.scale}, clock);
    print_json(answer);
    return 0;
  }
  print_note("[{} prompt tokens at {:.1f}/s, {} new at {:.1f}/s, keys {}, values {}, scales {}]\n", prompt.size(),
             token_rate(static_cast<int64_t>(prompt.size()), generation.prefill_seconds), generation.token_ids.size(),
             token_rate(static_cast<int64_t>(generation.token_ids.size()) - 1, generation.decode_seconds),
             kv.format.key.id(), kv.format.value.id(), cache->config().scale_source);
  return 0;
}

}  // namespace

void add_generate_command(CLI::App& root, Action& action) {
  auto args = std::make_shared<GenerateArguments>();
  CLI::App* command = root.add_subcommand("generate", "one completion of a prompt");
  command->add_option("MODEL", args->model, "model folder (safetensors) or .gguf file")->required();
  auto* prompt = command->add_option("--prompt", args->prompt, "text to complete");
  add_list_option(*command, "--prompt-ids", args->prompt_ids, "token ids to complete, instead of text")
      ->excludes(prompt);
  add_kv_options(*command, args->kv);
  args->policy.add_option(*command);
  command->add_option("--max-tokens", args->max_tokens, "most tokens to generate")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 20))
      ->capture_default_str();
  add_sampling_options(*command, args->sampling);
  command->add_flag("--ignore-eos", args->ignore_eos, "go on after an end-of-sequence token");
  command->add_option("--path", args->path, "worker: the prompt attends to fresh keys; reference: to stored bytes")
      ->capture_default_str();
  add_device_option(*command, args->device);
  add_activations_option(*command, args->activations);
  command->add_flag("--json", args->json, "one JSON object on stdout");
  command->footer(
      "Examples:\n"
      "  asymkv generate models/probe-robust --prompt \"The old farmer\" --kv k16v8 --max-tokens 60\n"
      "  asymkv generate models/probe-robust --prompt \"The old farmer\" --policy runs/robust/policy.json");
  command->callback([&action, args] { action = [args] { return run(*args); }; });
}

}  // namespace asymkv::app
