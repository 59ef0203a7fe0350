// asymkv bench engine: prefill and decode rates of a model on this machine, beside what its memory allows.

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <numeric>
#include <optional>

#include "asymkv/base/error.h"
#include "asymkv/base/file.h"
#include "asymkv/base/interrupt.h"
#include "asymkv/base/parallel.h"
#include "asymkv/base/progress.h"
#include "asymkv/runtime/backends.h"
#include "asymkv/tensor/ggml_quants.h"
#include "bench_support.h"
#include "byte_size.h"
#include "command.h"
#include "engine_workload.h"
#include "kv_options.h"
#include "llama_bench.h"
#include "memory_guard.h"
#include "option_values.h"
#include "output_file.h"
#include "run_record.h"

#if ASYMKV_CUDA_BUILT
#include "asymkv/kernels/cuda/kernel_bench.h"
#endif

namespace asymkv::app {
namespace {

constexpr int64_t kPrefillChunk = 512;  // tokens of one forward pass, as llama-bench's micro-batch
// Of a workload's passes on a GPU, and rows of the product whose rate is the ceiling, there and on a CPU.
constexpr int64_t kDevicePrefillTokens = 16384;
constexpr int64_t kDeviceMatrixRows = 8192;
constexpr int64_t kHostMatrixRows = 512;
constexpr double kDeviceMatrixSeconds = 3.0;  // of products for the rate that a GPU sustains

struct EngineBenchArgs {
  std::string model;
  std::string device = "cpu";
  std::optional<uint64_t> random_seed;
  std::vector<std::string> workloads;
  std::string scale = "dynamic";
  std::string pool;
  int64_t waves = 1;
  std::vector<std::string> kv = {"native", "k16v8", "k8v8"};
  std::vector<int64_t> prefill = {512};
  std::vector<int64_t> prefill_depth = {0};
  std::vector<int64_t> depth = {0, 4096};
  int64_t decode_tokens = 32;
  int64_t threads = 0;
  int reps = 5;
  int activations = 32;
  std::string llama_bench;
  std::string out;
  bool json = false;
};

// Tokens per second of the repetitions of one case.
struct Rates {
  std::vector<double> values;
  double median() const { return median_of(values); }
  double low() const { return *std::ranges::min_element(values); }
  double high() const { return *std::ranges::max_element(values); }
};

struct Case {
  std::string kv;
  bool decode = false;
  int64_t tokens = 0;   // of a prefill, or decoded ones
  int64_t depth = 0;    // cached before
  double floor_ms = 0;  // bytes that must be read, over the measured read bandwidth, for all tokens of a prefill or one
  Rates ours{};
  Rates llama{};
};

template <typename Body>
double seconds_of(const Body& body) {
  const RunClock clock;
  body();
  return clock.seconds();
}

// Bytes per second at which all threads together read memory that no cache holds: the best of some passes.
double read_bandwidth() {
  constexpr size_t kWords = 24 << 20;  // 192 MB
  constexpr int64_t kChunks = 96;
  const std::vector<uint64_t> memory(kWords, 1);
  std::vector<uint64_t> sums(kChunks);
  double best = 0;
  for (int pass = 0; pass < 5; ++pass) {
    const double seconds = seconds_of([&] {
      parallel_for(kChunks, [&](int64_t c, int) {
        const auto begin = memory.begin() + c * static_cast<int64_t>(kWords) / kChunks;
        const auto end = memory.begin() + (c + 1) * static_cast<int64_t>(kWords) / kChunks;
        sums[static_cast<size_t>(c)] = std::accumulate(begin, end, uint64_t{0});
      });
    });
    best = std::max(best, static_cast<double>(kWords * sizeof(uint64_t)) / seconds);
  }
  ASYMKV_CHECK(std::accumulate(sums.begin(), sums.end(), uint64_t{0}) == kWords, "a read pass lost words");
  return best;
}

// The bandwidth of the memory that the model's caches lie in.
double read_bandwidth(const LoadedModel& model) {
#if ASYMKV_CUDA_BUILT
  if (on_device(model.decoder.backends())) return cuda::read_bytes_per_s();
#endif
  static_cast<void>(model);
  return read_bandwidth();
}

// Bytes in memory of the matrices that every token reads: all but an embedding that is not the output matrix too.
int64_t matrix_bytes(const LoadedModel& model) {
  if (on_device(model.decoder.backends())) return model.decoder.placed_bytes().of_every_token;
  int64_t bytes = 0;
  for (const TensorInfo& tensor : model.files.weights->tensors()) {
    const bool lookup = tensor.name == "model.embed_tokens.weight" && !model.config().tie_word_embeddings;
    if (tensor.shape.size() < 2 || lookup) continue;
    const GgmlTypeTraits& traits = ggml_type_traits(parse_ggml_type(tensor.memory_type).value());
    bytes += tensor.num_elems() / traits.block_elems * traits.block_bytes;
  }
  return bytes;
}

// One KV format: a cache for the longest case and the passes over it.
class FormatBench {
 public:
  FormatBench(LoadedModel& model, const KvOptions& options, int64_t capacity)
      : model_(model), tokens_(model.config().vocab_size) {
    kv_ = resolve_kv(options, model);
    cache_ = make_cache_for(model, kv_, capacity);
  }

  const KvCache& cache() const { return *cache_; }
  double token_bytes() const { return app::token_bytes(cache_->layout(), model_.config()); }

  // Seconds of `count` tokens behind those that the sequence holds, in chunks, with the last token's logits.
  double prefill(SequencePages& sequence, int64_t count) {
    return seconds_of([&] {
      std::vector<float> hidden;
      for (int64_t done = 0; done < count; done += kPrefillChunk) {
        throw_if_interrupted();
        hidden = forward(sequence, std::min(kPrefillChunk, count - done), OwnReads::kFresh);
      }
      const auto width = static_cast<size_t>(model_.config().hidden_size);
      model_.decoder.logits(std::span(hidden).last(width));
    });
  }

  // Seconds of `count` single tokens, each with its logits.
  double decode(SequencePages& sequence, int64_t count) {
    return seconds_of([&] {
      for (int64_t i = 0; i < count; ++i) {
        throw_if_interrupted();
        model_.decoder.logits(forward(sequence, 1, OwnReads::kStored));
      }
    });
  }

  SequencePages new_sequence() { return SequencePages(*cache_); }

 private:
  std::vector<float> forward(SequencePages& sequence, int64_t count, OwnReads reads) {
    const std::vector<int32_t> tokens = tokens_.take(count);
    const ForwardChunk chunk = append_chunk(sequence, tokens, reads);
    return model_.decoder.last_hidden(std::span(&chunk, 1), kv_.native_dtype);
  }

  LoadedModel& model_;
  ResolvedKv kv_;
  std::unique_ptr<KvCache> cache_;
  DrawnTokens tokens_;
};

// By format, then by depth: the cache of a depth is filled once.
std::vector<Case> make_cases(const EngineBenchArgs& args) {
  std::vector<Case> cases;
  for (const std::string& kv : args.kv) {
    const auto first = static_cast<std::ptrdiff_t>(cases.size());
    for (const int64_t depth : args.prefill_depth) {
      for (const int64_t tokens : args.prefill) cases.push_back({.kv = kv, .tokens = tokens, .depth = depth});
    }
    for (const int64_t depth : args.depth) {
      cases.push_back({.kv = kv, .decode = true, .tokens = args.decode_tokens, .depth = depth});
    }
    std::ranges::stable_sort(cases.begin() + first, cases.end(), {}, &Case::depth);
  }
  return cases;
}

void set_floors(std::vector<Case>& cases, const std::string& kv, const FormatBench& bench, int64_t weights,
                double bandwidth) {
  for (Case& c : cases) {
    if (c.kv != kv) continue;
    // A prefill reads its weights once a chunk.
    const int64_t passes = c.decode ? 1 : (c.tokens + kPrefillChunk - 1) / kPrefillChunk;
    const double bytes = static_cast<double>(passes) *
                         (static_cast<double>(weights) + bench.token_bytes() * static_cast<double>(c.depth));
    c.floor_ms = bytes / bandwidth * 1e3;
  }
}

// One repetition of all our cases of one format.
void run_ours(std::vector<Case>& cases, const std::string& kv, FormatBench& bench) {
  SequencePages sequence = bench.new_sequence();
  for (Case& c : cases) {
    if (c.kv != kv) continue;
    if (sequence.num_tokens() > c.depth) sequence.truncate(c.depth);
    if (sequence.num_tokens() < c.depth) bench.prefill(sequence, c.depth - sequence.num_tokens());
    const double seconds = c.decode ? bench.decode(sequence, c.tokens) : bench.prefill(sequence, c.tokens);
    c.ours.values.push_back(static_cast<double>(c.tokens) / seconds);
  }
}

// llama.cpp's names for the two sides of a format.
std::pair<std::string, std::string> llama_types(const KvFormat& format) {
  const auto name = [](DType dtype) { return dtype_bytes(dtype) == 1 ? "q8_0" : dtype == DType::kF32 ? "f32" : "f16"; };
  return {name(format.key.dtype), name(format.value.dtype)};
}

void run_llama(std::vector<Case>& cases, const EngineBenchArgs& args, const std::string& kv, const KvFormat& format) {
  const auto [key, value] = llama_types(format);
  for (Case& c : cases) {
    if (c.kv != kv) continue;
    throw_if_interrupted();
    LlamaBenchCase bench{args.model, key, value, num_threads(), c.decode ? 0 : c.tokens, c.decode ? c.tokens : 0,
                         c.depth};
    c.llama.values.push_back(run_llama_bench(args.llama_bench, bench));
  }
}

double ms_per_token(const Rates& rates) {
  return 1e3 / rates.median();
}

// Milliseconds that the depth adds to a token, against the same format's decode at depth 0; null if that was not run.
Json added_ms(const std::vector<Case>& cases, const Case& c, Rates Case::*side) {
  if (!c.decode || c.depth == 0 || (c.*side).values.empty()) return nullptr;
  for (const Case& base : cases) {
    if (base.decode && base.depth == 0 && base.kv == c.kv) return ms_per_token(c.*side) - ms_per_token(base.*side);
  }
  return nullptr;
}

Json rates_json(const Rates& rates) {
  if (rates.values.empty()) return nullptr;
  return {{"median", rates.median()}, {"low", rates.low()}, {"high", rates.high()}, {"all", rates.values}};
}

Json rows_json(const std::vector<Case>& cases) {
  Json rows = Json::array();
  for (const Case& c : cases) {
    Json row = {{"kv", c.kv},
                {"test", c.decode ? "decode" : "prefill"},
                {"tokens", c.tokens},
                {"depth", c.depth},
                {"tokens_per_s", rates_json(c.ours)},
                {"ms_per_token", ms_per_token(c.ours)},
                {"added_ms", added_ms(cases, c, &Case::ours)},
                {"read_floor_ms", c.floor_ms},
                {"llama_tokens_per_s", rates_json(c.llama)},
                {"llama_added_ms", added_ms(cases, c, &Case::llama)},
                {"ratio", nullptr}};
    if (!c.llama.values.empty()) row["ratio"] = c.ours.median() / c.llama.median();
    rows.push_back(std::move(row));
  }
  return rows;
}

std::string optional_number(const Json& value, int digits) {
  return value.is_null() ? "-" : fmt::format("{:.{}f}", value.get<double>(), digits);
}

void print_table(const Json& report) {
  fmt::print("{}, {} threads, {}, memory reads at {:.1f} GB/s\n\n", report["model"].get<std::string>(),
             report["threads"].get<int64_t>(), report["kernels"].get<std::string>(),
             report["read_gb_per_s"].get<double>());
  if (report.contains("workloads")) {
    const Json& sustained = report["matrix_tflops_sustained"];
    fmt::print("products at {:.1f} TFLOP/s{}\n", report["matrix_tflops"].get<double>(),
               sustained.is_null() ? "" : fmt::format(", {:.1f} sustained", sustained.get<double>()));
    return print_workloads(report["workloads"]);
  }
  fmt::print("{:<14} {:<8} {:>6} {:>6} {:>9} {:>17} {:>9} {:>9} {:>9} {:>9} {:>6}\n", "kv", "test", "tokens", "depth",
             "tokens/s", "low to high", "added ms", "floor ms", "llama/s", "added ms", "ratio");
  for (const Json& row : report["rows"]) {
    const Json& rates = row["tokens_per_s"];
    const Json llama = row["llama_tokens_per_s"].is_null() ? Json() : row["llama_tokens_per_s"]["median"];
    fmt::print("{:<14} {:<8} {:>6} {:>6} {:>9.2f} {:>17} {:>9} {:>9.2f} {:>9} {:>9} {:>6}\n",
               row["kv"].get<std::string>(), row["test"].get<std::string>(), row["tokens"].get<int64_t>(),
               row["depth"].get<int64_t>(), rates["median"].get<double>(),
               fmt::format("{:.2f} to {:.2f}", rates["low"].get<double>(), rates["high"].get<double>()),
               optional_number(row["added_ms"], 2), row["read_floor_ms"].get<double>(), optional_number(llama, 2),
               optional_number(row["llama_added_ms"], 2), optional_number(row["ratio"], 2));
  }
}

void check_args(const EngineBenchArgs& args) {
  if (args.prefill.empty() && args.depth.empty())
    throw_usage("bench engine: give --prefill or --depth something to time");
  for (const int64_t tokens : args.prefill) {
    if (tokens <= 0) throw_usage("--prefill {}: give positive numbers of tokens", tokens);
  }
  const auto check_depths = [](const char* option, const std::vector<int64_t>& depths) {
    for (const int64_t depth : depths) {
      if (depth < 0) throw_usage("{} {}: give 0 or more cached tokens", option, depth);
    }
  };
  check_depths("--depth", args.depth);
  check_depths("--prefill-depth", args.prefill_depth);
  if (!args.out.empty()) check_output_file(args.out, "--out");
  if (!args.pool.empty() && args.workloads.empty()) throw_usage("--pool needs a --workload whose pages it bounds");
  if (!args.llama_bench.empty() && (!args.workloads.empty() || args.device != "cpu")) {
    throw_usage("--llama-bench runs beside single cases on the CPU: leave out --workload and --device");
  }
  if (!args.llama_bench.empty() && !args.model.ends_with(".gguf")) {
    throw_usage("--llama-bench needs a .gguf file as MODEL, found {}", args.model);
  }
}

// Tokens of the longest case; Error{kUsage} if the model has no positions for them.
int64_t largest_case(const std::vector<Case>& cases, const ModelConfig& config) {
  int64_t largest = 0;
  for (const Case& c : cases) largest = std::max(largest, c.depth + c.tokens);
  if (largest > config.max_position_embeddings) {
    throw_usage("{} tokens are more than the model's {} positions: give a smaller --depth or --prefill", largest,
                config.max_position_embeddings);
  }
  return largest;
}

KvOptions kv_options(const EngineBenchArgs& args, const std::string& kv) {
  KvOptions options;
  options.kv = kv;
  options.scale = args.scale;
  return options;
}

std::unique_ptr<LoadedModel> open(const EngineBenchArgs& args, Backends backends) {
  if (args.random_seed) return load_random_model(args.model, *args.random_seed, std::move(backends));
  return load_model(args.model, std::move(backends));
}

// Facts of the machine and the model that every report begins with.
Json report_head(const LoadedModel& model, double bandwidth, int64_t weights) {
  return {{"model", model.files.name()},
          {"threads", num_threads()},
          {"kernels", std::string(model.decoder.backends().model->name())},
          {"read_gb_per_s", bandwidth * 1e-9},
          {"matrix_bytes", weights}};
}

Json run_workloads(const EngineBenchArgs& args, const std::vector<Workload>& workloads, LoadedModel& model,
                   int64_t device_memory_before) {
  const bool gpu = on_device(model.decoder.backends());
  const double bandwidth = read_bandwidth(model);
  const int64_t weights = matrix_bytes(model);
  const MatrixRates matrix = measure_matrix_rates(
      *model.decoder.backends().model, gpu ? kDeviceMatrixRows : kHostMatrixRows, gpu ? kDeviceMatrixSeconds : 0.0);
  const auto sampler = gpu ? sample_device_memory() : nullptr;
  const WorkloadBench bench{model,
                            {bandwidth, matrix},
                            static_cast<double>(weights),
                            args.pool.empty() ? 0 : parse_byte_size(args.pool, "--pool"),
                            args.waves,
                            gpu ? kDevicePrefillTokens : kPrefillChunk,
                            sampler.get(),
                            device_memory_before,
                            model.decoder.placed_bytes().all};
  Json rows = Json::array();
  for (const Workload& workload : workloads) {
    model.decoder.reserve_positions(workload.total());  // throws beyond the model's
    for (const std::string& kv : args.kv) {
      rows.push_back(run_workload(bench, kv_options(args, kv), workload));
      print_note("{}: {} tokens in, {} out done\n", kv, workload.input, workload.output);
    }
  }
  Json report = report_head(model, bandwidth, weights);
  report["matrix_tflops"] = matrix.best * 1e-12;
  report["matrix_tflops_sustained"] = matrix.sustained > 0.0 ? Json(matrix.sustained * 1e-12) : Json();
  report["workloads"] = std::move(rows);
  return report;
}

Json run_cases(const EngineBenchArgs& args, LoadedModel& model, const RunClock& clock) {
  std::vector<Case> cases = make_cases(args);
  const int64_t capacity = largest_case(cases, model.config());
  const double bandwidth = read_bandwidth(model);
  const int64_t weights = matrix_bytes(model);
  Json records = Json::object();
  for (const std::string& kv : args.kv) {
    FormatBench bench(model, kv_options(args, kv), capacity);
    set_floors(cases, kv, bench, weights, bandwidth);
    for (int rep = 0; rep < args.reps; ++rep) {
      run_ours(cases, kv, bench);
      if (!args.llama_bench.empty()) run_llama(cases, args, kv, bench.cache().layout().format());
      print_note("{}: repetition {} of {}\n", kv, rep + 1, args.reps);
    }
    records[kv] = make_run_record(model, bench.cache(), {kv, args.scale}, clock);
  }
  Json report = report_head(model, bandwidth, weights);
  report["rows"] = rows_json(cases);
  report["records"] = std::move(records);
  return report;
}

int run(const EngineBenchArgs& args) {
  check_args(args);
  const std::vector<Workload> workloads = parse_workloads(args.workloads);
  // Before anything asks for the number of threads: it is fixed on first use.
  if (args.threads > 0) ::setenv("ASYMKV_NUM_THREADS", std::to_string(args.threads).c_str(), 1);
  const RunClock clock;
  Backends backends = select_backends(args.device, parse_activations(args.activations));
  const int64_t device_memory_before =
      on_device(backends) ? device_memory_use() - backends.model->workspace_bytes() : 0;
  const auto model = open(args, std::move(backends));
  const Json report =
      workloads.empty() ? run_cases(args, *model, clock) : run_workloads(args, workloads, *model, device_memory_before);
  if (!args.out.empty()) write_file_atomic(args.out, report.dump(1) + "\n");
  args.json ? print_json(report) : print_table(report);
  return 0;
}

}  // namespace

void add_bench_engine_command(CLI::App& bench, Action& action) {
  CLI::App* command =
      bench.add_subcommand("engine", "time prefill, decode and whole workloads of a model on this machine");
  const auto args = std::make_shared<EngineBenchArgs>();
  command
      ->add_option("MODEL", args->model,
                   "model folder (safetensors), .gguf file, or with --random-weights a config.json")
      ->required();
  add_device_option(*command, args->device);
  command->add_option("--random-weights", args->random_seed, "draw the weights of a config.json from this seed");
  add_list_option(*command, "--workload", args->workloads,
                  "instead of single cases: prompt tokens/generated tokens/sequences at once, e.g. 8192/128/32");
  command->add_option("--pool", args->pool, "bytes of a workload's pages, e.g. 8GiB: so many sequences run at once");
  command->add_option("--waves", args->waves, "times that a workload's sequences run from prompt to last token")
      ->check(CLI::Range(int64_t{1}, int64_t{1000}))
      ->capture_default_str();
  command->add_option("--scale", args->scale, "scales of 8-bit sides: dynamic, unit, checkpoint, or a scales file")
      ->capture_default_str();
  add_list_option(*command, "--kv", args->kv, "KV formats, e.g. native,k16v8");
  add_list_option(*command, "--prefill", args->prefill, "prompt lengths");
  add_list_option(*command, "--prefill-depth", args->prefill_depth, "cached tokens before a prefill");
  add_list_option(*command, "--depth", args->depth, "cached tokens before a decode");
  command->add_option("--decode-tokens", args->decode_tokens, "tokens of a decode")
      ->check(CLI::Range(int64_t{1}, int64_t{4096}))
      ->capture_default_str();
  command->add_option("--threads", args->threads, "threads; default: the cores this process may use")
      ->check(CLI::Range(int64_t{1}, int64_t{kMaxThreads}));
  command->add_option("--reps", args->reps, "repetitions, of which the median counts")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  add_activations_option(*command, args->activations);
  command->add_option("--llama-bench", args->llama_bench, "llama.cpp's llama-bench, run in turn on the same GGUF file");
  command->add_option("--out", args->out, "also write the JSON object to this file");
  command->add_flag("--json", args->json, "print the JSON object instead of the table");
  command->footer("Example: asymkv bench engine model.gguf --depth 0,4096 --reps 3 --out engine.json");
  command->callback([args, &action] { action = [args] { return run(*args); }; });
}

}  // namespace asymkv::app
