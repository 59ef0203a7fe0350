#pragma once

#include <CLI/CLI.hpp>
#include <memory>
#include <optional>
#include <string>

#include "asymkv/engine/cache_setup.h"
#include "asymkv/engine/loaded_model.h"
#include "asymkv/engine/sampler.h"
#include "asymkv/ops/model_ops.h"

namespace asymkv::app {

// --kv, --scale and --page-size as given.
struct KvOptions {
  std::string kv = "native";
  std::string scale = "dynamic";
  int64_t page_size = 16;
};
void add_kv_options(CLI::App& command, KvOptions& options);

// --temperature, --top-p, --top-k and --seed.
void add_sampling_options(CLI::App& command, SamplingOptions& options);

// --activations 32 (default) or 16: what matrix products round activations to.
void add_activations_option(CLI::App& command, int& activations);
// Throws Error{kUsage} for another number.
Activations parse_activations(int bits);

// The same, resolved for a model: an exact format and, for fixed scales, the scales and their source.
struct ResolvedKv {
  KvFormat format;
  std::optional<ScaleSet> scales;
  int64_t page_size = 16;
  // What keys and values are rounded to before storage: f32 if the format stores f32, else the model's own type.
  DType native_dtype = DType::kBF16;
};
// Throws Error{kUsage} or Error{kBadInput} naming the option or the scales file.
ResolvedKv resolve_kv(const KvOptions& options, const LoadedModel& model);

std::unique_ptr<KvCache> make_cache_for(const LoadedModel& model, const ResolvedKv& kv, int64_t num_tokens);

}  // namespace asymkv::app
