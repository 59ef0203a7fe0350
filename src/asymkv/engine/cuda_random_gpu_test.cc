// Drawn models of head dim 128 on a Hopper GPU against the CPU, with products in FP32 and in BF16: long prompts
// (cuDNN's attention, where the build has it) beside short ones, and decode steps.

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <iostream>

#include "asymkv/base/error.h"
#include "asymkv/engine/cache_setup.h"
#include "asymkv/engine/loaded_model.h"
#include "asymkv/runtime/backends.h"
#include "asymkv/runtime/backends_testkit.h"

namespace asymkv {
namespace {

std::filesystem::path write_config(const std::string& model_type) {
  const std::filesystem::path folder = std::filesystem::path(testing::TempDir()) / ("cuda_random_" + model_type);
  std::filesystem::create_directories(folder);
  const Json config = {{"model_type", model_type},
                       {"hidden_size", 512},
                       {"intermediate_size", 1536},
                       {"num_hidden_layers", 3},
                       {"num_attention_heads", 8},
                       {"num_key_value_heads", 2},
                       {"head_dim", 128},
                       {"vocab_size", 1000},
                       {"max_position_embeddings", 4096},
                       {"rope_theta", 1e6},
                       {"rms_norm_eps", 1e-6},
                       {"hidden_act", "silu"},
                       {"tie_word_embeddings", false},
                       {"use_sliding_window", false},
                       {"attention_bias", false},
                       {"torch_dtype", "bfloat16"}};
  std::ofstream(folder / "config.json") << config.dump();
  return folder;
}

std::vector<int32_t> tokens_from(size_t seed, size_t count) {
  std::vector<int32_t> tokens;
  for (size_t i = 0; i < count; ++i) tokens.push_back(static_cast<int32_t>((seed + 37 * i * i + 11 * i) % 1000));
  return tokens;
}

struct Seen {
  std::vector<float> prompts, step;                   // hidden states
  std::vector<std::optional<int32_t>> tokens, again;  // after the step: greedy_step's, and those of its hidden states
};

// Prompts of 600, 40 and 300 tokens in one pass, then one token each.
Seen run(LoadedModel& model, const std::string& kv) {
  CacheRequest request;
  request.format = parse_kv_format(kv, DType::kBF16, ScaleKind::kDynamic);
  request.num_pages = 128;
  const auto cache = make_cache(model.decoder, request);
  std::vector<SequencePages> sequences, copies;
  std::vector<std::vector<int32_t>> prompts = {tokens_from(1, 600), tokens_from(2, 40), tokens_from(3, 300)};
  std::vector<ForwardChunk> chunks;
  for (size_t i = 0; i < prompts.size(); ++i) sequences.emplace_back(*cache);
  for (size_t i = 0; i < prompts.size(); ++i) {
    chunks.push_back(append_chunk(sequences[i], prompts[i], OwnReads::kFresh));
  }
  Seen seen;
  seen.prompts = model.decoder.forward(chunks, DType::kBF16);
  const std::vector<int32_t> next = {5, 6, 7};
  for (SequencePages& sequence : sequences) copies.push_back(sequence.fork());
  const auto step_of = [&](std::vector<SequencePages>& of) {
    chunks.clear();
    for (size_t i = 0; i < of.size(); ++i) {
      chunks.push_back(append_chunk(of[i], std::span(next).subspan(i, 1), OwnReads::kStored));
    }
  };
  step_of(sequences);
  seen.step = model.decoder.forward(chunks, DType::kBF16);
  seen.again = model.decoder.greedy_tokens(seen.step);
  step_of(copies);
  seen.tokens = model.decoder.greedy_step(chunks, DType::kBF16);
  return seen;
}

double relative_distance(std::span<const float> a, std::span<const float> b) {
  double delta = 0.0, norm = 0.0;
  for (size_t i = 0; i < b.size(); ++i) {
    delta += std::pow(static_cast<double>(a[i]) - static_cast<double>(b[i]), 2);
    norm += std::pow(static_cast<double>(b[i]), 2);
  }
  return a.size() == b.size() ? std::sqrt(delta / norm) : std::nan("");
}

TEST(CudaRandomModel, LongPromptsAndStepsAreNearTheCpus) {
  if (test::cannot_run_cuda()) GTEST_SKIP();
  for (const std::string family : {"qwen3", "qwen2"}) {
    const std::filesystem::path folder = write_config(family);
    const auto cpu = load_random_model(folder, 1, select_backends("cpu"));
    for (const Activations activations : {Activations::kF32, Activations::k16}) {
      const auto cuda = load_random_model(folder, 1, select_backends("cuda", activations));
      for (const std::string kv : {"native", "k16v8", "ki8v8-prebias"}) {
        if (kv == "ki8v8-prebias" && !has_removable_key_vector(cpu->decoder)) continue;
        const Seen expected = run(*cpu, kv), actual = run(*cuda, kv);
        const double prompts = relative_distance(actual.prompts, expected.prompts);
        const double step = relative_distance(actual.step, expected.step);
        std::cout << fmt::format("{} {} {}: prompts {:.2e} step {:.2e}\n", family,
                                 cuda->decoder.backends().model->name(), kv, prompts, step);
        // The GPU rounds keys to BF16 before it adds their bias, the CPU after: with biases of some hundreds that
        // shows.
        EXPECT_LT(prompts, family == "qwen3" ? 0.02 : 0.1) << family << kv;
        EXPECT_LT(step, family == "qwen3" ? 0.04 : 0.1) << family << kv;
        EXPECT_EQ(actual.tokens, actual.again) << family << kv;
      }
    }
  }
}

}  // namespace
}  // namespace asymkv
