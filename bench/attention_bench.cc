// Times prefill and decode of the host attention kernels and prints one JSON line a shape. Every result is
// compared with the oracle: the first rows of a prefill, all of a decode. Processor time is the smallest of the
// repeats: other load on the machine hardly moves it. One thread: ASYMKV_NUM_THREADS=1.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <ctime>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "asymkv/base/error.h"
#include "asymkv/base/parallel.h"
#include "asymkv/kernels/backends.h"
#include "asymkv/kv/cache.h"

namespace asymkv {
namespace {

struct Shape {
  int64_t num_q_heads;
  int64_t num_kv_heads;
  int64_t head_dim;
};

// Cheap numbers in [-1, 1): what they are does not change the time.
std::vector<float> make_data(int64_t elems, uint64_t seed) {
  std::vector<float> data;
  for (int64_t i = 0; i < elems; ++i) {
    seed = seed * 6364136223846793005ULL + 1442695040888963407ULL;
    data.push_back(static_cast<float>(static_cast<double>(seed >> 33) * 0x1p-30 - 1.0));
  }
  return data;
}

// Of several calls.
struct Seconds {
  double median = 0.0;         // elapsed
  double least_process = 0.0;  // processor time, all threads
};

double process_seconds() {
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

template <typename Body>
Seconds time_calls(int repeats, const Body& body) {
  std::vector<double> elapsed;
  std::vector<double> process;
  for (int i = 0; i < repeats; ++i) {
    const auto start = std::chrono::steady_clock::now();
    const double process_start = process_seconds();
    body();
    process.push_back(process_seconds() - process_start);
    elapsed.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  std::ranges::nth_element(elapsed, elapsed.begin() + repeats / 2);
  return {elapsed[static_cast<size_t>(repeats / 2)], *std::ranges::min_element(process)};
}

AttendParams params_of(const Shape& shape) {
  AttendParams params;
  params.num_q_heads = shape.num_q_heads;
  params.num_kv_heads = shape.num_kv_heads;
  params.k_head_dim = params.v_head_dim = shape.head_dim;
  params.softmax_scale = 1.0F / std::sqrt(static_cast<float>(shape.head_dim));
  return params;
}

void check_equal(std::span<const float> actual, std::span<const float> expected) {
  for (size_t i = 0; i < expected.size(); ++i) {
    ASYMKV_CHECK(std::fabs(actual[i] - expected[i]) <= 1e-4F, "channel {} is {} where the oracle has {}", i, actual[i],
                 expected[i]);
  }
}

void bench_prefill(const AttentionBackend& backend, const Shape& shape, int64_t num_tokens, int repeats) {
  const std::vector<float> q = make_data(num_tokens * shape.num_q_heads * shape.head_dim, 1);
  const std::vector<float> k = make_data(num_tokens * shape.num_kv_heads * shape.head_dim, 2);
  const std::vector<float> v = make_data(num_tokens * shape.num_kv_heads * shape.head_dim, 3);
  std::vector<float> out(q.size());
  AttendSequence sequence;
  sequence.num_queries = sequence.num_fresh = num_tokens;
  sequence.fresh_k = k.data();
  sequence.fresh_v = v.data();
  AttendParams params = params_of(shape);
  params.q = q.data();
  params.out = out.data();
  params.sequences = std::span(&sequence, 1);
  const Seconds seconds = time_calls(repeats, [&] { backend.attend(params); });
  // Causal rows depend on earlier keys alone, so the oracle needs only the first ones.
  sequence.num_queries = sequence.num_fresh = std::min<int64_t>(num_tokens, 64);
  std::vector<float> expected(static_cast<size_t>(sequence.num_queries * shape.num_q_heads * shape.head_dim));
  params.out = expected.data();
  make_ref_attention()->attend(params);
  check_equal(out, expected);
  // Two products of 2 x head_dim operations for each visible (query, key) pair.
  const auto pairs = static_cast<double>(num_tokens) * static_cast<double>(num_tokens + 1) / 2;
  const double operations = 4.0 * pairs * static_cast<double>(shape.num_q_heads * shape.head_dim);
  fmt::print(
      R"({{"bench":"prefill","kernel":"{}","threads":{},"heads":"{}/{}x{}","tokens":{},"ms":{:.2f},"gflops":{:.1f},)"
      R"("process_ms":{:.2f}}})"
      "\n",
      backend.name(), num_threads(), shape.num_q_heads, shape.num_kv_heads, shape.head_dim, num_tokens,
      seconds.median * 1e3, operations / seconds.median * 1e-9, seconds.least_process * 1e3);
}

// One stored sequence in one format, several layers of it as a model has them, and queries at its end against it. Times
// are of all layers.
class StoredBench {
 public:
  StoredBench(const AttentionBackend& backend, const Shape& shape, int64_t num_tokens, int64_t num_layers,
              const std::string& format)
      : backend_(backend),
        shape_(shape),
        num_tokens_(num_tokens),
        num_layers_(num_layers),
        rope_(rope_frequencies(1e6, shape.head_dim), num_tokens),
        bias_(static_cast<size_t>(shape.num_kv_heads * shape.head_dim), 60.0F),
        cache_(layout_of(format), config_of(format)),
        pages_(cache_) {
    write();
  }

  void run(int64_t num_queries, int repeats) {
    const std::vector<float> q = make_data(num_queries * shape_.num_q_heads * shape_.head_dim, 4);
    std::vector<float> out(q.size());
    AttendSequence sequence;
    sequence.num_queries = num_queries;
    sequence.query_pos = num_tokens_ - num_queries;
    sequence.pages = pages_.pages();
    sequence.stored_len = num_tokens_;
    AttendParams params = params_of(shape_);
    params.softmax_scale *= 0.01F;  // keeps the logits of biased keys within reach of the oracle's tolerance
    params.q = q.data();
    params.out = out.data();
    params.rope = &rope_;
    params.sequences = std::span(&sequence, 1);
    const auto attend_all = [&] {
      for (int64_t layer = 0; layer < num_layers_; ++layer) {
        sequence.cache = cache_.layer(layer);
        backend_.attend(params);
      }
    };
    const Seconds seconds = time_calls(repeats, attend_all);
    if (num_queries == 1) {
      std::vector<float> expected(out.size());
      params.out = expected.data();
      make_ref_attention()->attend(params);
      check_equal(out, expected);
    }
    const auto bytes = static_cast<double>(cache_.inventory().total());
    fmt::print(
        R"({{"bench":"stored","kernel":"{}","threads":{},"heads":"{}/{}x{}","tokens":{},"queries":{},"layers":{},)"
        R"("format":"{}","ms":{:.3f},"gb_per_s":{:.2f},"process_ms":{:.3f}}})"
        "\n",
        backend_.name(), num_threads(), shape_.num_q_heads, shape_.num_kv_heads, shape_.head_dim, num_tokens_,
        num_queries, num_layers_, cache_.layout().format().id(), seconds.median * 1e3, bytes / seconds.median * 1e-9,
        seconds.least_process * 1e3);
  }

 private:
  KvLayout layout_of(const std::string& format) const {
    return {{shape_.num_kv_heads, shape_.head_dim, shape_.head_dim, 16},
            parse_kv_format(format, DType::kBF16, ScaleKind::kDynamic)};
  }
  KvCacheConfig config_of(const std::string& format) const {
    const KvLayout layout = layout_of(format);
    KvCacheConfig config;
    config.num_layers = num_layers_;
    config.num_pages = layout.pages_for(num_tokens_);
    config.scale_source = "dynamic";
    if (layout.format().key.prebias) {
      config.transforms.assign(static_cast<size_t>(num_layers_),
                               split_key_vector(bias_, rope_.frequencies(), shape_.num_kv_heads));
    }
    return config;
  }

  void write() {
    const std::vector<float> k = make_data(num_tokens_ * shape_.num_kv_heads * shape_.head_dim, 5);
    const std::vector<float> v = make_data(num_tokens_ * shape_.num_kv_heads * shape_.head_dim, 6);
    std::vector<int32_t> positions(static_cast<size_t>(num_tokens_));
    std::iota(positions.begin(), positions.end(), 0);
    const std::vector<int64_t> slots = pages_.append(num_tokens_);
    WriteKvParams params;
    params.num_tokens = num_tokens_;
    params.k = k.data();
    params.v = v.data();
    params.k_bias = bias_.data();
    params.positions = positions;
    params.rope = &rope_;
    params.geometry = cache_.layout().geometry();
    for (int64_t layer = 0; layer < num_layers_; ++layer) {
      const WriteTarget target{cache_.layer(layer), slots};
      params.targets = std::span(&target, 1);
      backend_.write_kv(params);
    }
  }

  const AttentionBackend& backend_;
  Shape shape_;
  int64_t num_tokens_;
  int64_t num_layers_;
  RopeTable rope_;
  std::vector<float> bias_;
  KvCache cache_;
  SequencePages pages_;
};

struct Options {
  std::string kernel;
  std::string heads;
  std::string format;
  int64_t tokens = 4096;
  int64_t layers = 24;
  int64_t chunk = 512;
  int repeats = 5;
};

void bench_shape(const AttentionBackend& backend, const Shape& shape, const Options& options) {
  if (!fmt::format("{}/{}x{}", shape.num_q_heads, shape.num_kv_heads, shape.head_dim).starts_with(options.heads))
    return;
  if (options.format.empty()) bench_prefill(backend, shape, options.tokens, options.repeats);
  for (const std::string format : {"native", "k16v8", "k8v8", "k8v8-prebias", "ki8v8-prebias"}) {
    if (!options.format.empty() && format != options.format) continue;
    StoredBench bench(backend, shape, options.tokens, options.layers, format);
    bench.run(1, 4 * options.repeats);
    if (options.chunk > 1) bench.run(std::min(options.chunk, options.tokens), options.repeats);
  }
}

int run(int argc, char** argv) {
  CLI::App app("Times the host attention kernels");
  Options options;
  app.add_option("--kernel", options.kernel, "cpu-avx2, cpu-sse4, ...; the best of this machine if left out");
  app.add_option("--heads", options.heads, "only shapes that start so, e.g. 14/2x64");
  app.add_option("--format", options.format, "only this KV format, e.g. k16v8, and no prefill of fresh tokens");
  app.add_option("--tokens", options.tokens, "tokens of a prefill, stored tokens")->check(CLI::PositiveNumber);
  app.add_option("--layers", options.layers, "layers of the stored cache")->check(CLI::PositiveNumber);
  app.add_option("--chunk", options.chunk, "queries at the end of the stored tokens; 1: decode alone");
  app.add_option("--repeats", options.repeats, "calls")->check(CLI::PositiveNumber);
  CLI11_PARSE(app, argc, argv);
  try {
    const std::unique_ptr<AttentionBackend> backend = make_cpu_attention(options.kernel);
    const Shape shapes[] = {{9, 3, 64}, {14, 2, 64}, {12, 2, 128}};
    for (const Shape& shape : shapes) bench_shape(*backend, shape, options);
  } catch (const Error& error) {
    fmt::print(stderr, "{}\n", error.what());
    return exit_code(error.code());
  }
  return 0;
}

}  // namespace
}  // namespace asymkv

int main(int argc, char** argv) {
  return asymkv::run(argc, argv);
}
