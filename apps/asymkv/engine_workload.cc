#include "engine_workload.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <optional>

#include "asymkv/base/error.h"
#include "asymkv/base/interrupt.h"
#include "asymkv/base/number.h"
#include "bench_support.h"

namespace asymkv::app {
namespace {

struct Times {
  double prefill = 0.0;       // seconds of all prompts
  std::vector<double> steps;  // seconds of each decode step
  double total = 0.0;         // seconds of all waves
  int64_t requests = 0;
};

int64_t prompts_of_a_pass(const WorkloadBench& bench, const Workload& workload) {
  return std::max<int64_t>(1, bench.prefill_tokens / workload.input);
}

// Sequences side by side in one cache.
class Wave {
 public:
  Wave(const WorkloadBench& bench, KvCache& cache, DType native_dtype)
      : bench_(bench), cache_(cache), native_dtype_(native_dtype), tokens_(bench.model.config().vocab_size) {}

  // Prompts of `workload`, several a pass, then its further tokens.
  void run(const Workload& workload, Times& times) {
    const RunClock clock;
    sequences_.clear();
    for (int64_t i = 0; i < workload.running; ++i) sequences_.emplace_back(cache_);
    next_.assign(sequences_.size(), 0);
    const int64_t together = prompts_of_a_pass(bench_, workload);
    for (int64_t first = 0; first < workload.running; first += together) {
      prefill(first, std::min(together, workload.running - first), workload.input);
    }
    times.prefill += clock.seconds();
    for (int64_t i = 1; i < workload.output; ++i) times.steps.push_back(step());
    times.total += clock.seconds();
    times.requests += workload.running;
  }

 private:
  // Whole prompts, or one in parts.
  void prefill(int64_t first, int64_t count, int64_t input) {
    std::vector<std::vector<int32_t>> prompts;
    for (int64_t i = 0; i < count; ++i) prompts.push_back(tokens_.take(input));
    for (int64_t done = 0; done < input; done += bench_.prefill_tokens) {
      const auto part = static_cast<size_t>(std::min(bench_.prefill_tokens, input - done));
      std::vector<ForwardChunk> chunks;
      for (int64_t i = 0; i < count; ++i) {
        const std::span<const int32_t> prompt = prompts[static_cast<size_t>(i)];
        chunks.push_back(append_chunk(sequences_[static_cast<size_t>(first + i)],
                                      prompt.subspan(static_cast<size_t>(done), part), OwnReads::kFresh));
      }
      pass(chunks, static_cast<size_t>(first));
    }
  }

  double step() {
    const RunClock clock;
    std::vector<ForwardChunk> chunks;
    for (size_t i = 0; i < sequences_.size(); ++i) {
      chunks.push_back(append_chunk(sequences_[i], std::span(&next_[i], 1), OwnReads::kStored));
    }
    pass(chunks, 0);
    return clock.seconds();
  }

  void pass(std::span<const ForwardChunk> chunks, size_t first) {
    throw_if_interrupted();
    const auto tokens = bench_.model.decoder.greedy_step(chunks, native_dtype_);
    for (size_t i = 0; i < tokens.size(); ++i) {
      if (!tokens[i]) throw_error(ErrorCode::kInternal, "a logit is not finite");
      next_[first + i] = *tokens[i];
    }
  }

  const WorkloadBench& bench_;
  KvCache& cache_;
  DType native_dtype_;
  DrawnTokens tokens_;
  std::vector<SequencePages> sequences_;
  std::vector<int32_t> next_;  // the token that each sequence gets next
};

// What the machine's rates allow: a prompt's products at the matrix rate, a step's bytes at the read bandwidth.
struct Ceiling {
  double prefill_seconds = 0.0;  // of one prompt
  double step_seconds = 0.0;     // of the mean step
  double requests_per_s = 0.0;
};

Ceiling ceiling_of(const WorkloadBench& bench, const Workload& workload, double bytes_per_token) {
  const ModelConfig& config = bench.model.config();
  const auto input = static_cast<double>(workload.input), running = static_cast<double>(workload.running);
  double weights = 0.0;  // elements that every token meets
  for (const RequiredTensor& tensor : required_tensors(config)) {
    if (tensor.shape.size() == 2 && tensor.name.starts_with("model.layers.")) {
      weights += static_cast<double>(tensor.shape[0] * tensor.shape[1]);
    }
  }
  // Scores and sums of the causal half; the output matrix meets the last token only.
  const auto q_dim = static_cast<double>(config.num_q_heads * config.head_dim);
  const double attention = 2.0 * input * input * q_dim * static_cast<double>(config.num_layers);
  const auto logits = static_cast<double>(config.vocab_size * config.hidden_size);
  Ceiling ceiling;
  ceiling.prefill_seconds = (2.0 * (weights * input + logits) + attention) / bench.rates.matrix.best;
  const double mean_context = input + static_cast<double>(workload.output) / 2.0;
  ceiling.step_seconds = (bench.matrix_bytes + running * mean_context * bytes_per_token) / bench.rates.read_bytes_per_s;
  const double steps = static_cast<double>(workload.output - 1) * ceiling.step_seconds;
  ceiling.requests_per_s = running / (running * ceiling.prefill_seconds + steps);
  return ceiling;
}

Json row_json(const WorkloadBench& bench, const Workload& workload, const Times& times, const Ceiling& ceiling) {
  const auto requests = static_cast<double>(times.requests), input = static_cast<double>(workload.input);
  const double rate = requests / times.total, prefill_rate = requests * input / times.prefill;
  const MatrixRates& matrix = bench.rates.matrix;
  const double share = prefill_rate * ceiling.prefill_seconds / input;
  Json step = nullptr;
  if (!times.steps.empty()) {
    step = {{"median", median_of(times.steps) * 1e3},
            {"low", *std::ranges::min_element(times.steps) * 1e3},
            {"high", *std::ranges::max_element(times.steps) * 1e3}};
  }
  return {{"input", workload.input},
          {"output", workload.output},
          {"running", workload.running},
          {"requests", times.requests},
          {"seconds", times.total},
          {"requests_per_s", rate},
          {"prefill_tokens_per_s", prefill_rate},
          {"step_ms", std::move(step)},
          {"ceiling",
           {{"requests_per_s", ceiling.requests_per_s},
            {"prefill_tokens_per_s", input / ceiling.prefill_seconds},
            {"step_ms", ceiling.step_seconds * 1e3}}},
          {"share", rate / ceiling.requests_per_s},
          {"prefill_share", share},
          {"prefill_share_sustained", matrix.sustained > 0.0 ? Json(share * matrix.best / matrix.sustained) : Json()},
          {"step_ratio", times.steps.empty() ? Json() : Json(median_of(times.steps) / ceiling.step_seconds)}};
}

// What a workload is planned to take on a GPU, beside the largest amount that was in use.
Json memory_json(const WorkloadBench& bench, const Workload& workload, const KvCache& cache) {
  if (bench.device_memory == nullptr) return nullptr;
  const Decoder& decoder = bench.model.decoder;
  const int64_t together = std::min(prompts_of_a_pass(bench, workload), workload.running);
  const int64_t pass_rows = together * std::min(workload.input, bench.prefill_tokens);
  const int64_t pages = cache.inventory().total();
  const int64_t activations =
      std::max(decoder.pass_bytes(pass_rows, together), decoder.pass_bytes(workload.running, workload.running));
  const int64_t workspace = decoder.backends().model->workspace_bytes();
  const int64_t steps = decoder.step_bytes();
  const int64_t planned = bench.placed_bytes + pages + activations + workspace;
  const MemorySampler::Peak peak = bench.device_memory->peak();
  return {{"planned",
           {{"weights", bench.placed_bytes},
            {"pages", pages},
            {"activations", activations},
            {"workspace", workspace},
            {"total", planned}}},
          {"recorded_steps", steps},
          {"before", bench.device_memory_before},
          {"peak", peak.bytes},
          {"beyond_plan", peak.bytes - bench.device_memory_before - planned - steps},
          {"samples", peak.samples},
          {"interval_ms", bench.device_memory->interval().count()}};
}

int64_t parse_count(std::string_view text, std::string_view whole) {
  const std::optional<int64_t> value = parse_number<int64_t>(text);
  if (!value || *value <= 0 || *value > 1'000'000'000) {
    throw_usage("--workload {}: give prompt tokens, generated tokens and sequences at once, e.g. 8192/128/32", whole);
  }
  return *value;
}

}  // namespace

std::vector<Workload> parse_workloads(const std::vector<std::string>& texts) {
  std::vector<Workload> workloads;
  for (const std::string& text : texts) {
    const size_t first = text.find('/'), last = text.rfind('/');
    const std::string_view view = text;
    if (first == last) parse_count("", view);
    workloads.push_back({parse_count(view.substr(0, first), view),
                         parse_count(view.substr(first + 1, last - first - 1), view),
                         parse_count(view.substr(last + 1), view)});
  }
  return workloads;
}

MatrixRates measure_matrix_rates(const ModelBackend& backend, int64_t n, double seconds) {
  WeightMatrix matrix(n);
  uint64_t state = 1;
  std::vector<float> values(static_cast<size_t>(n * n));
  for (float& value : values) {
    state = state * 6364136223846793005ULL + 1442695040888963407ULL;
    value = static_cast<float>(static_cast<int32_t>(state >> 32)) * 0x1p-31F;
  }
  const std::span<std::byte> memory = matrix.append(GgmlType::kBF16, n);
  auto* const bits = reinterpret_cast<uint16_t*>(memory.data());  // cache-line aligned
  std::ranges::transform(values, bits, f32_to_bf16);
  backend.place(matrix, false);
  const FloatArray x = place_values(backend, values);
  const FloatArray ones = place_values(backend, std::vector<float>(static_cast<size_t>(n), 1.0F));
  const FloatArray operand = backend.allocate(n * n), y = backend.allocate(n * n);
  backend.rms_norm({n, n, 0.0F, x.data(), ones.data(), operand.data(), true});
  constexpr int64_t kProducts = 8;  // of a pass
  const auto rate_of_a_pass = [&] {
    float sink = 0.0F;
    const RunClock clock;
    for (int64_t i = 0; i < kProducts; ++i) {
      backend.linear({n, operand.data(), &matrix, nullptr, y.data(), false, true, true});
    }
    backend.download(y.data(), std::span(&sink, 1));  // waits for the products
    return 2.0 * static_cast<double>(kProducts * n * n * n) / clock.seconds();
  };
  rate_of_a_pass();  // and for what was under way before
  MatrixRates rates;
  for (int pass = 0; pass < 3; ++pass) rates.best = std::max(rates.best, rate_of_a_pass());
  std::vector<double> late;
  for (const RunClock all; all.seconds() < seconds;) {
    const double rate = rate_of_a_pass();
    if (all.seconds() > seconds * 2.0 / 3.0) late.push_back(rate);
  }
  if (!late.empty()) rates.sustained = median_of(late);
  return rates;
}

int64_t fitting_sequences(const WorkloadBench& bench, const KvLayout& layout, const Workload& workload) {
  if (bench.pool_bytes == 0) return workload.running;
  const int64_t page_bytes = layout.page_bytes().total() * bench.model.config().num_layers;
  const int64_t fitting = bench.pool_bytes / page_bytes / layout.pages_for(workload.total());
  if (fitting == 0) {
    throw_usage("a pool of {} bytes holds no sequence of {} tokens", bench.pool_bytes, workload.total());
  }
  return std::min(fitting, workload.running);
}

Json run_workload(const WorkloadBench& bench, const KvOptions& kv, const Workload& workload) {
  const RunClock clock;
  const ResolvedKv resolved = resolve_kv(kv, bench.model);
  const KvLayout layout(bench.model.decoder.kv_geometry(resolved.page_size), resolved.format);
  Workload fitted = workload;
  fitted.running = fitting_sequences(bench, layout, workload);
  const int64_t slots = layout.pages_for(workload.total()) * resolved.page_size;
  if (bench.device_memory != nullptr) {
    bench.model.decoder.backends().model->release_unused();
    bench.device_memory->restart();
  }
  const auto cache = make_cache_for(bench.model, resolved, fitted.running * slots);
  Wave wave(bench, *cache, resolved.native_dtype);
  // Kernels and their tables are made on the first pass of a shape.
  Times ignored;
  wave.run({workload.input, std::min<int64_t>(workload.output, 3),
            std::min(fitted.running, prompts_of_a_pass(bench, workload))},
           ignored);
  Times times;
  for (int64_t i = 0; i < bench.waves; ++i) wave.run(fitted, times);
  Json row = {{"kv", kv.kv}, {"scale", kv.scale}};
  row.update(row_json(bench, fitted, times, ceiling_of(bench, fitted, token_bytes(layout, bench.model.config()))));
  row["pool_bytes"] = cache->inventory().total();
  row["device_memory"] = memory_json(bench, fitted, *cache);
  row["record"] = make_run_record(bench.model, *cache, {kv.kv, kv.scale}, clock);
  return row;
}

void print_workloads(const Json& rows) {
  fmt::print("{:<14} {:>6} {:>6} {:>7} {:>10} {:>9} {:>6} {:>11} {:>6} {:>8} {:>9} {:>6}\n", "kv", "input", "output",
             "running", "requests/s", "ceiling", "share", "prefill t/s", "share", "step ms", "floor ms", "ratio");
  for (const Json& row : rows) {
    const Json& ceiling = row["ceiling"];
    const bool steps = !row["step_ms"].is_null();
    fmt::print("{:<14} {:>6} {:>6} {:>7} {:>10.3f} {:>9.3f} {:>6.2f} {:>11.0f} {:>6.2f} {:>8.2f} {:>9.2f} {:>6.2f}\n",
               row["kv"].get<std::string>(), row["input"].get<int64_t>(), row["output"].get<int64_t>(),
               row["running"].get<int64_t>(), row["requests_per_s"].get<double>(),
               ceiling["requests_per_s"].get<double>(), row["share"].get<double>(),
               row["prefill_tokens_per_s"].get<double>(), row["prefill_share"].get<double>(),
               steps ? row["step_ms"]["median"].get<double>() : 0.0, ceiling["step_ms"].get<double>(),
               steps ? row["step_ratio"].get<double>() : 0.0);
  }
  for (const Json& row : rows) {
    const Json& memory = row["device_memory"];
    if (memory.is_null()) continue;
    const auto gib = [](const Json& bytes) { return static_cast<double>(bytes.get<int64_t>()) * 0x1p-30; };
    const Json& planned = memory["planned"];
    fmt::print(
        "{} {}/{}: GPU memory {:.2f} GiB before the model, then planned {:.2f} (weights {:.2f}, pages {:.2f}, "
        "activations {:.2f}, workspace {:.2f}), {:+.2f} beyond\n",
        row["kv"].get<std::string>(), row["input"].get<int64_t>(), row["output"].get<int64_t>(), gib(memory["before"]),
        gib(planned["total"]), gib(planned["weights"]), gib(planned["pages"]), gib(planned["activations"]),
        gib(planned["workspace"]), gib(memory["beyond_plan"]));
  }
}

}  // namespace asymkv::app
