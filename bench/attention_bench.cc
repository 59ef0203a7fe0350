// Times prefill and decode of the host attention kernels and prints one JSON line a shape. Every result is
// compared with the oracle: the first rows of a prefill, all of a decode.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
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

// Median seconds of `repeats` calls.
template <typename Body>
double median_seconds(int repeats, const Body& body) {
  std::vector<double> seconds;
  for (int i = 0; i < repeats; ++i) {
    const auto start = std::chrono::steady_clock::now();
    body();
    seconds.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  std::ranges::nth_element(seconds, seconds.begin() + repeats / 2);
  return seconds[static_cast<size_t>(repeats / 2)];
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
  const double seconds = median_seconds(repeats, [&] { backend.attend(params); });
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
      R"({{"bench":"prefill","kernel":"{}","threads":{},"heads":"{}/{}x{}","tokens":{},"ms":{:.2f},"gflops":{:.1f}}})"
      "\n",
      backend.name(), num_threads(), shape.num_q_heads, shape.num_kv_heads, shape.head_dim, num_tokens, seconds * 1e3,
      operations / seconds * 1e-9);
}

// One stored sequence in one format, and one query against it.
class DecodeBench {
 public:
  DecodeBench(const AttentionBackend& backend, const Shape& shape, int64_t num_tokens, const std::string& format)
      : backend_(backend),
        shape_(shape),
        num_tokens_(num_tokens),
        rope_(rope_frequencies(1e6, shape.head_dim), num_tokens),
        bias_(static_cast<size_t>(shape.num_kv_heads * shape.head_dim), 60.0F),
        cache_(layout_of(format), config_of(format)),
        pages_(cache_) {}

  void run(int repeats) {
    const double write_seconds = write();
    const std::vector<float> q = make_data(shape_.num_q_heads * shape_.head_dim, 4);
    std::vector<float> out(q.size());
    AttendSequence sequence;
    sequence.num_queries = 1;
    sequence.query_pos = num_tokens_ - 1;
    sequence.cache = cache_.layer(0);
    sequence.pages = pages_.pages();
    sequence.stored_len = num_tokens_;
    AttendParams params = params_of(shape_);
    params.softmax_scale *= 0.01F;  // keeps the logits of biased keys within reach of the oracle's tolerance
    params.q = q.data();
    params.out = out.data();
    params.rope = &rope_;
    params.sequences = std::span(&sequence, 1);
    const double seconds = median_seconds(repeats, [&] { backend_.attend(params); });
    std::vector<float> expected(out.size());
    params.out = expected.data();
    make_ref_attention()->attend(params);
    check_equal(out, expected);
    const auto bytes = static_cast<double>(cache_.inventory().total());
    fmt::print(
        R"({{"bench":"decode","kernel":"{}","threads":{},"heads":"{}/{}x{}","tokens":{},"format":"{}","ms":{:.3f},)"
        R"("gb_per_s":{:.2f},"write_ms":{:.2f}}})"
        "\n",
        backend_.name(), num_threads(), shape_.num_q_heads, shape_.num_kv_heads, shape_.head_dim, num_tokens_,
        cache_.layout().format().id(), seconds * 1e3, bytes / seconds * 1e-9, write_seconds * 1e3);
  }

 private:
  KvLayout layout_of(const std::string& format) const {
    return {{shape_.num_kv_heads, shape_.head_dim, shape_.head_dim, 16},
            parse_kv_format(format, DType::kBF16, ScaleKind::kDynamic)};
  }
  KvCacheConfig config_of(const std::string& format) const {
    const KvLayout layout = layout_of(format);
    KvCacheConfig config;
    config.num_layers = 1;
    config.num_pages = layout.pages_for(num_tokens_);
    config.scale_source = "dynamic";
    if (layout.format().key.prebias) {
      config.transforms = {split_key_vector(bias_, rope_.frequencies(), shape_.num_kv_heads)};
    }
    return config;
  }

  // Fills the cache; seconds of the write.
  double write() {
    const std::vector<float> k = make_data(num_tokens_ * shape_.num_kv_heads * shape_.head_dim, 5);
    const std::vector<float> v = make_data(num_tokens_ * shape_.num_kv_heads * shape_.head_dim, 6);
    std::vector<int32_t> positions(static_cast<size_t>(num_tokens_));
    std::iota(positions.begin(), positions.end(), 0);
    const std::vector<int64_t> slots = pages_.append(num_tokens_);
    const WriteTarget target{cache_.layer(0), slots};
    WriteKvParams params;
    params.num_tokens = num_tokens_;
    params.k = k.data();
    params.v = v.data();
    params.k_bias = bias_.data();
    params.positions = positions;
    params.rope = &rope_;
    params.geometry = cache_.layout().geometry();
    params.targets = std::span(&target, 1);
    return median_seconds(1, [&] { backend_.write_kv(params); });
  }

  const AttentionBackend& backend_;
  Shape shape_;
  int64_t num_tokens_;
  RopeTable rope_;
  std::vector<float> bias_;
  KvCache cache_;
  SequencePages pages_;
};

int run(int argc, char** argv) {
  CLI::App app("Times the host attention kernels");
  std::string kernel;
  int64_t tokens = 8192;
  int repeats = 5;
  app.add_option("--kernel", kernel, "cpu-avx2, cpu-sse4, ...; the best of this machine if left out");
  app.add_option("--tokens", tokens, "tokens of a prefill, stored tokens of a decode")->check(CLI::PositiveNumber);
  app.add_option("--repeats", repeats, "calls, of which the median is reported")->check(CLI::PositiveNumber);
  CLI11_PARSE(app, argc, argv);
  try {
    const std::unique_ptr<AttentionBackend> backend = make_cpu_attention(kernel);
    const Shape shapes[] = {{4, 2, 64}, {14, 2, 64}, {12, 2, 128}};
    for (const Shape& shape : shapes) bench_prefill(*backend, shape, tokens, repeats);
    for (const Shape& shape : shapes) {
      for (const char* format : {"native", "k16v8", "k8v8", "k8v8-prebias", "ki8v8-prebias"}) {
        DecodeBench(*backend, shape, tokens, format).run(4 * repeats);
      }
    }
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
