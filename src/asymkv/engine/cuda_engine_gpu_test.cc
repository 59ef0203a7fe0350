// The engine on a Hopper GPU against the engine on the CPU, on the embedded models (or on ASYMKV_PARITY_MODEL): layer
// by layer, greedy tokens, chunks on stored pages, and sequences of all formats side by side.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <map>

#include "asymkv/base/error.h"
#include "asymkv/engine/cache_setup.h"
#include "asymkv/engine/engine_testkit.h"
#include "asymkv/engine/generate.h"
#include "asymkv/runtime/backends.h"
#include "asymkv/runtime/backends_testkit.h"
#include "asymkv/runtime/launch_log.h"

namespace asymkv {
namespace {

constexpr const char* kFormats[] = {"native", "k16v8", "k8v16", "k8v8", "k8v8-prebias", "ki8v8", "ki8v8-prebias"};

std::filesystem::path model_path() {
  if (const char* path = std::getenv("ASYMKV_PARITY_MODEL"); path != nullptr) return path;
  const char* folder = std::getenv("ASYMKV_SOURCE_DIR");
  return std::filesystem::path(folder == nullptr ? "." : folder) / "models/probe-fragile";
}

LoadedModel& model_on(const std::string& device) {
  static std::map<std::string, std::unique_ptr<LoadedModel>> models;
  std::unique_ptr<LoadedModel>& model = models[device];
  if (model == nullptr) model = load_model(model_path(), select_backends(device));
  return *model;
}

std::vector<int32_t> prompt_tokens(LoadedModel& model, size_t count) {
  std::string text;
  while (text.size() < 8 * count) text += "The secret code for amber falcon is 48213. The old farmer sold a basket. ";
  std::vector<int32_t> ids = model.tokenizer.encode(text);
  ids.resize(count);
  return ids;
}

std::unique_ptr<KvCache> make_test_cache(LoadedModel& model, const std::string& kv, int64_t num_pages = 64) {
  CacheRequest request;
  request.format = parse_kv_format(kv, model.config().native_dtype, ScaleKind::kDynamic);
  request.num_pages = num_pages;
  return make_cache(model.decoder, request);
}

struct Recorder final : ForwardObserver {
  struct Layer {
    std::vector<float> q, k_raw, fresh_k, fresh_v;
  };
  std::vector<Layer> layers;
  void on_layer(const LayerActivations& a) override {
    const auto copy = [](std::span<const float> x) { return std::vector<float>(x.begin(), x.end()); };
    layers.push_back({copy(a.q), copy(a.k_raw), copy(a.fresh_k), copy(a.fresh_v)});
  }
};

TEST(CudaEngine, EveryLayerIsNearTheCpus) {
  if (test::cannot_run_cuda()) GTEST_SKIP();
  std::map<std::string, Recorder> seen;
  std::map<std::string, std::vector<float>> hidden, logits;
  for (const char* device : {"cpu", "cuda"}) {
    LoadedModel& model = model_on(device);
    const std::vector<int32_t> tokens = prompt_tokens(model, 100);
    ForwardChunk chunk;
    chunk.tokens = tokens;
    hidden[device] = model.decoder.forward(std::span(&chunk, 1), model.config().native_dtype, &seen[device]);
    logits[device] =
        model.decoder.logits(std::span(hidden[device]).last(static_cast<size_t>(model.config().hidden_size)));
  }
  for (size_t i = 0; i < seen["cpu"].layers.size(); ++i) {
    const Recorder::Layer& cpu = seen["cpu"].layers[i];
    const Recorder::Layer& cuda = seen["cuda"].layers.at(i);
    const double q = test::relative_distance(cuda.q, cpu.q), k = test::relative_distance(cuda.k_raw, cpu.k_raw);
    const double fresh_k = test::relative_distance(cuda.fresh_k, cpu.fresh_k);
    const double fresh_v = test::relative_distance(cuda.fresh_v, cpu.fresh_v);
    std::cout << fmt::format("layer {}: q {:.2e} k {:.2e} fresh_k {:.2e} fresh_v {:.2e}\n", i, q, k, fresh_k, fresh_v);
    EXPECT_LT(std::max(q, k), i == 0 ? 1e-5 : 0.02) << "layer " << i;
    EXPECT_LT(std::max(fresh_k, fresh_v), i == 0 ? 4e-3 : 0.02) << "layer " << i;
  }
  const double at_end = test::relative_distance(hidden["cuda"], hidden["cpu"]);
  const double of_logits = test::relative_distance(logits["cuda"], logits["cpu"]);
  std::cout << fmt::format("hidden {:.2e} logits {:.2e}\n", at_end, of_logits);
  EXPECT_LT(at_end, 0.02);
  EXPECT_LT(of_logits, 0.02);
}

std::vector<float> run_chunk(LoadedModel& model, SequencePages& sequence, std::span<const int32_t> tokens,
                             OwnReads reads) {
  const ForwardChunk chunk = append_chunk(sequence, tokens, reads);
  return model.decoder.forward(std::span(&chunk, 1), model.config().native_dtype);
}

// A fresh chunk after stored tokens joins two partial results; a fork and a decode step after it read its pages.
TEST(CudaEngine, ChunksAndForksReadWhatWasStored) {
  if (test::cannot_run_cuda()) GTEST_SKIP();
  for (const char* kv : kFormats) {
    std::map<std::string, std::vector<float>> chunked, stepped;
    for (const char* device : {"cpu", "cuda"}) {
      LoadedModel& model = model_on(device);
      const std::vector<int32_t> tokens = prompt_tokens(model, 91);
      const auto cache = make_test_cache(model, kv);
      SequencePages sequence(*cache);
      run_chunk(model, sequence, std::span(tokens).first(50), OwnReads::kFresh);
      chunked[device] = run_chunk(model, sequence, std::span(tokens).subspan(50, 40), OwnReads::kFresh);
      SequencePages copy = sequence.fork();
      stepped[device] = run_chunk(model, copy, std::span(tokens).last(1), OwnReads::kStored);
    }
    EXPECT_LT(test::relative_distance(chunked["cuda"], chunked["cpu"]), 0.03) << kv;
    EXPECT_LT(test::relative_distance(stepped["cuda"], stepped["cpu"]), 0.05) << kv;
  }
}

// Counters come back from the device, and a cache there holds as many bytes as its layout says.
TEST(CudaEngine, CountersAndBytesAreTheCpus) {
  if (test::cannot_run_cuda()) GTEST_SKIP();
  std::map<std::string, SideCounters> counters;
  std::map<std::string, int64_t> bytes;
  for (const char* device : {"cpu", "cuda"}) {
    LoadedModel& model = model_on(device);
    const std::vector<int32_t> tokens = prompt_tokens(model, 40);
    const auto cache = make_test_cache(model, "k8v8");
    SequencePages sequence(*cache);
    run_chunk(model, sequence, tokens, OwnReads::kFresh);
    counters[device] = cache->v_counters(1);
    bytes[device] = cache->inventory().total();
  }
  EXPECT_EQ(counters["cuda"].elems, counters["cpu"].elems);
  EXPECT_EQ(counters["cuda"].non_finite, 0);
  EXPECT_EQ(bytes["cuda"], bytes["cpu"]);
}

constexpr const char* kPrompts[] = {
    "def fibonacci(n):\n    ",
    "The capital of France is",
    "Write a function that reverses a linked list in C++.\n",
    "Question: A farmer has 17 baskets with 12 eggs each and sells 45 eggs. How many are left?\nAnswer:",
    "import numpy as np\n\ndef softmax(x):\n",
    "Once upon a time, in a village by the sea,",
    "SELECT name, COUNT(*) FROM orders",
    "// Returns the greatest common divisor of a and b.\nint gcd(int a, int b) {\n",
    "Explain in one paragraph why the sky is blue.\n",
    "The quick brown fox jumps over",
    "class Stack:\n    def __init__(self):\n",
    "List three differences between TCP and UDP:\n1.",
    "#include <vector>\n#include <algorithm>\n\nint main() {\n",
    "In 1969, the first humans landed on",
    "function debounce(callback, delay) {\n",
    "Translate to German: 'The weather is fine today.'\n",
    "A recipe for tomato soup:\nIngredients:\n-",
    "The secret code for amber falcon is 48213. The secret code for amber falcon is",
    "fn main() {\n    let numbers = vec![3, 1, 2];\n",
    "Dear Sir or Madam,\n\nI am writing to",
};

struct Step {
  int32_t token = 0;
  float gap = 0.0F;  // of the two largest logits
};

Step best_of(std::span<const float> logits) {
  Step step;
  float first = -INFINITY, second = -INFINITY;
  for (size_t i = 0; i < logits.size(); ++i) {
    if (logits[i] > first) {
      second = first, first = logits[i];
      step.token = static_cast<int32_t>(i);
    } else {
      second = std::max(second, logits[i]);
    }
  }
  step.gap = first - second;
  return step;
}

std::vector<Step> greedy(LoadedModel& model, const std::string& kv, std::span<const int32_t> prompt, int64_t count) {
  const auto cache = make_test_cache(model, kv);
  SequencePages sequence(*cache);
  const auto last_logits = [&](std::span<const float> hidden) {
    return model.decoder.logits(hidden.last(static_cast<size_t>(model.config().hidden_size)));
  };
  std::vector<Step> steps = {best_of(last_logits(run_chunk(model, sequence, prompt, OwnReads::kFresh)))};
  while (static_cast<int64_t>(steps.size()) < count) {
    const int32_t token = steps.back().token;
    steps.push_back(best_of(last_logits(run_chunk(model, sequence, std::span(&token, 1), OwnReads::kStored))));
  }
  return steps;
}

// Greedy continuations of 64 tokens. Where one differs from the CPU's, the CPU's two best tokens were close there: far
// from its training texts the embedded model often hesitates, and a value that falls on another E4M3 code moves logits
// more than BF16 does. A real model's native tokens are the CPU's but for one prompt.
TEST(CudaEngine, GreedyTokensAreTheCpus) {
  if (test::cannot_run_cuda()) GTEST_SKIP();
  constexpr int kCount = static_cast<int>(std::size(kPrompts));
  const bool real_model = std::getenv("ASYMKV_PARITY_MODEL") != nullptr;
  for (const std::string kv : {"native", "k16v8"}) {
    int equal = 0;
    for (int i = 0; i < kCount; ++i) {
      LoadedModel& cpu = model_on("cpu");
      const std::vector<int32_t> prompt = cpu.tokenizer.encode(kPrompts[i]);
      const std::vector<Step> expected = greedy(cpu, kv, prompt, 64);
      const std::vector<Step> actual = greedy(model_on("cuda"), kv, prompt, 64);
      size_t at = 0;
      while (at < expected.size() && expected[at].token == actual[at].token) ++at;
      if (at == expected.size()) {
        ++equal;
        continue;
      }
      std::cout << fmt::format("{} prompt {}: token {} differs, the CPU's best two are {:.4f} apart, CUDA's {:.4f}\n",
                               kv, i, at, expected[at].gap, actual[at].gap);
      EXPECT_LT(expected[at].gap, kv == "native" ? 0.02F : 0.05F);
    }
    std::cout << fmt::format("{}: {} of {} prompts with equal tokens\n", kv, equal, kCount);
    if (real_model && kv == "native") {
      EXPECT_GE(equal, kCount - 1);
    }
  }
}

// Sequences of every format in one pass give what each gives alone, but for the roundings of products of another shape.
TEST(CudaEngine, FormatsSideBySide) {
  if (test::cannot_run_cuda()) GTEST_SKIP();
  LoadedModel& model = model_on("cuda");
  const std::vector<int32_t> tokens = prompt_tokens(model, 41);
  std::vector<std::unique_ptr<KvCache>> caches;
  std::vector<SequencePages> together, alone;
  for (const char* kv : kFormats) {
    caches.push_back(make_test_cache(model, kv));
    together.emplace_back(*caches.back());
    alone.emplace_back(*caches.back());
  }
  ForwardChunk shared;
  shared.tokens = std::span(tokens).first(40);
  for (SequencePages& sequence : together) shared.targets.push_back(&sequence);
  model.decoder.forward(std::span(&shared, 1), model.config().native_dtype);
  std::vector<ForwardChunk> chunks;
  for (SequencePages& sequence : together) {
    chunks.push_back(append_chunk(sequence, std::span(tokens).last(1), OwnReads::kStored));
  }
  const std::vector<float> all = model.decoder.forward(chunks, model.config().native_dtype);
  const auto dim = static_cast<size_t>(model.config().hidden_size);
  for (size_t i = 0; i < alone.size(); ++i) {
    run_chunk(model, alone[i], std::span(tokens).first(40), OwnReads::kFresh);
    const std::vector<float> one = run_chunk(model, alone[i], std::span(tokens).last(1), OwnReads::kStored);
    EXPECT_LT(test::relative_distance(std::span(all).subspan(i * dim, dim), one), 0.05) << kFormats[i];
  }
}

// Steps that are recorded and replayed, padded where sequences have ended, beside the same steps call by call. Both
// caches count the same elements, and the log says that graphs were launched.
TEST(CudaEngine, RecordedStepsGiveWhatCallsGive) {
  if (test::cannot_run_cuda()) GTEST_SKIP();
  LoadedModel& model = model_on("cuda");
  const DType native = model.config().native_dtype;
  std::vector<std::unique_ptr<KvCache>> caches[2];
  std::vector<SequencePages> sequences[2];  // of recorded steps, and of calls
  constexpr size_t kEach = 3;
  for (size_t side = 0; side < 2; ++side) {
    for (const char* kv : kFormats) {
      caches[side].push_back(make_test_cache(model, kv));
      for (size_t i = 0; i < kEach; ++i) {
        SequencePages& sequence = sequences[side].emplace_back(*caches[side].back());
        run_chunk(model, sequence, prompt_tokens(model, 30 + 9 * i), OwnReads::kFresh);
      }
    }
  }
  const std::vector<int32_t> tokens = prompt_tokens(model, 80);
  const auto dim = static_cast<size_t>(model.config().hidden_size);
  double worst = 0.0;
  for (size_t step = 0; step < 40; ++step) {  // longer than a page
    std::vector<ForwardChunk> chunks[2];
    for (size_t side = 0; side < 2; ++side) {
      for (size_t i = 0; i < sequences[side].size(); ++i) {
        if (i % kEach < step / 15) continue;  // one of each cache ends
        chunks[side].push_back(
            append_chunk(sequences[side][i], std::span(tokens).subspan(step + i, 1), OwnReads::kStored));
      }
    }
    const std::vector<float> replayed = model.decoder.last_hidden(chunks[0], native);
    const std::vector<float> called = model.decoder.forward(chunks[1], native);
    ASSERT_EQ(replayed.size(), called.size());
    for (size_t row = 0; row < chunks[0].size(); ++row) {
      const auto at = [&](const std::vector<float>& x) { return std::span(x).subspan(row * dim, dim); };
      worst = std::max(worst, test::relative_distance(at(replayed), at(called)));
    }
  }
  std::cout << "recorded steps: " << worst << " from calls at most\n";
  EXPECT_LT(worst, 0.02);
  for (size_t i = 0; i < caches[0].size(); ++i) {
    EXPECT_EQ(caches[0][i]->k_counters(1).elems, caches[1][i]->k_counters(1).elems) << kFormats[i];
    EXPECT_EQ(caches[0][i]->v_counters(0).elems, caches[1][i]->v_counters(0).elems) << kFormats[i];
  }
  const auto* log = dynamic_cast<const LoggedAttention*>(model.decoder.backends().attention.get());
  ASSERT_NE(log, nullptr);
  EXPECT_TRUE(std::ranges::any_of(log->launches(), [](const auto& entry) { return entry.first.mode == "graph"; }));
}

// A run that is resumed repeats whole batches: they must give the same bits.
TEST(CudaEngine, TheSamePassGivesTheSameBits) {
  if (test::cannot_run_cuda()) GTEST_SKIP();
  LoadedModel& model = model_on("cuda");
  const std::vector<int32_t> tokens = prompt_tokens(model, 301);
  std::vector<std::vector<float>> hidden;
  for (int run = 0; run < 2; ++run) {
    const auto cache = make_test_cache(model, "k16v8");
    SequencePages sequence(*cache);
    hidden.push_back(run_chunk(model, sequence, std::span(tokens).first(300), OwnReads::kFresh));
    hidden.push_back(run_chunk(model, sequence, std::span(tokens).last(1), OwnReads::kStored));
  }
  EXPECT_EQ(hidden[0], hidden[2]);
  EXPECT_EQ(hidden[1], hidden[3]);
}

}  // namespace
}  // namespace asymkv
