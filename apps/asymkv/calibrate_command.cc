// asymkv calibrate: fixed scales per layer and side from a text, with the data's hash.

#include <fmt/format.h>

#include <cstdio>
#include <memory>

#include "asymkv/base/error.h"
#include "asymkv/base/file.h"
#include "asymkv/base/hash.h"
#include "asymkv/base/progress.h"
#include "asymkv/engine/scales.h"
#include "asymkv/gate/text_cases.h"
#include "asymkv/runtime/backends.h"
#include "command.h"
#include "option_values.h"
#include "output_file.h"
#include "run_record.h"
#include "side_documents.h"

namespace asymkv::app {
namespace {

struct CalibrateArguments {
  std::string model;
  std::string data;
  std::string scales;
  int64_t documents = 8;
  int64_t tokens = 512;
  std::string device = "cpu";
  bool json = false;
};

int run(const CalibrateArguments& args) {
  check_output_file(args.scales, "--out");
  const std::string text = read_utf8_text(args.data);
  const RunClock clock;
  const auto model = load_model(args.model, select_backends(args.device));
  const auto documents = cut_documents(*model, text, args.tokens, args.documents, args.data);
  const ScaleSet scales = calibrate_scales(*model, documents);
  const Json json = scales_to_json(scales, model->files.weights_sha256(), sha256_hex(text));
  write_file_atomic(args.scales, canonical_json(json) + "\n");
  for (size_t i = 0; i < scales.layers.size(); ++i) {
    const LayerScaleSet& layer = scales.layers[i];
    print_note("layer {:3}: keys {:.6g}  keys without bias {}  values {:.6g}\n", i, *layer.key,
               layer.key_prebias ? fmt::format("{:.6g}", *layer.key_prebias) : "-", *layer.value);
  }
  print_note("{} documents of up to {} tokens; scales written to {}\n", documents.size(), args.tokens, args.scales);
  if (args.json) {
    print_json({{"scales", args.scales},
                {"source", scales.source},
                {"layers", json.at("layers")},
                {"record", make_model_record(*model, clock)}});
  }
  return 0;
}

}  // namespace

void add_calibrate_command(CLI::App& root, Action& action) {
  auto args = std::make_shared<CalibrateArguments>();
  CLI::App* command = root.add_subcommand("calibrate", "fixed scales per layer and side from a text");
  command->add_option("MODEL", args->model, "model folder (safetensors) or .gguf file")->required();
  command->add_option("--data", args->data, "UTF-8 text the model is typically used on")->required();
  command->add_option("--out", args->scales, "scales file to write")->required();
  command->add_option("--documents", args->documents, "most documents to read")
      ->check(CLI::Range(1, 10000))
      ->capture_default_str();
  command->add_option("--tokens", args->tokens, "tokens of each document")
      ->check(CLI::Range(8, 1 << 20))
      ->capture_default_str();
  add_device_option(*command, args->device);
  command->add_flag("--json", args->json, "one JSON object on stdout");
  command->footer("Example:\n  asymkv calibrate models/probe-robust --data README.md --out scales.json");
  command->callback([&action, args] { action = [args] { return run(*args); }; });
}

}  // namespace asymkv::app
