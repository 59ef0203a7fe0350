#include "kv_options.h"

#include <filesystem>

#include "asymkv/base/error.h"

namespace asymkv::app {

void add_kv_options(CLI::App& command, KvOptions& options) {
  command
      .add_option("--kv", options.kv,
                  "KV format: native k16v8 k8v16 k8v8 k8v8-prebias ki8v8 ki8v8-prebias, or KEY/VALUE (f16/e4m3)")
      ->capture_default_str();
  command
      .add_option("--scale", options.scale,
                  "scales of 8-bit sides: dynamic, unit, checkpoint, or a file made by calibrate")
      ->capture_default_str();
  command.add_option("--page-size", options.page_size, "tokens per page")
      ->check(CLI::Range(1, 256))
      ->capture_default_str();
}

void add_sampling_options(CLI::App& command, SamplingOptions& options) {
  command.add_option("--temperature", options.law.temperature, "0: greedy, the likeliest token")->capture_default_str();
  command.add_option("--top-p", options.law.top_p, "sample among the likeliest tokens that reach this probability")
      ->capture_default_str();
  command.add_option("--top-k", options.law.top_k, "sample among so many likeliest tokens; 0: all")
      ->capture_default_str();
  command.add_option("--seed", options.seed, "of the random draws")->capture_default_str();
}

void add_activations_option(CLI::App& command, int& activations) {
  command
      .add_option("--activations", activations,
                  "32: FP32 activations; 16: rounded to 16 bits in matrix products, faster")
      ->capture_default_str();
}

Activations parse_activations(int bits) {
  if (bits == 32) return Activations::kF32;
  if (bits == 16) return Activations::k16;
  throw_usage("--activations {}: give 32 or 16", bits);
}

ResolvedKv resolve_kv(const KvOptions& options, const LoadedModel& model) {
  const DType native = model.config().native_dtype;
  ResolvedKv resolved;
  resolved.page_size = options.page_size;
  if (options.scale == "dynamic") {
    resolved.format = parse_kv_format(options.kv, native, ScaleKind::kDynamic);
  } else {
    resolved.format = parse_kv_format(options.kv, native, ScaleKind::kFixed);
    if (options.scale == "unit") {
      resolved.scales = unit_scales(model.config().num_layers);
    } else if (options.scale == "checkpoint") {
      resolved.scales = checkpoint_scales(model.files);
    } else if (options.scale == "fixed" || !std::filesystem::exists(options.scale)) {
      throw_usage(
          "--scale {}: give dynamic, unit, checkpoint, or the path of a scales file (asymkv calibrate makes one)",
          options.scale);
    } else {
      resolved.scales =
          scales_from_json(read_json_file(options.scale), options.scale, model.config(), model.files.weights_sha256());
    }
  }
  const bool f32 = resolved.format.key.dtype == DType::kF32 || resolved.format.value.dtype == DType::kF32;
  resolved.native_dtype = f32 ? DType::kF32 : native;
  return resolved;
}

std::unique_ptr<KvCache> make_cache_for(const LoadedModel& model, const ResolvedKv& kv, int64_t num_tokens) {
  CacheRequest request;
  request.format = kv.format;
  request.page_size = kv.page_size;
  request.num_pages = (num_tokens + kv.page_size - 1) / kv.page_size;
  request.scales = kv.scales ? &*kv.scales : nullptr;
  return make_cache(model.decoder, request);
}

}  // namespace asymkv::app
