#include "parity_checks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <iostream>

#include "asymkv/base/error.h"
#include "asymkv/engine/cache_setup.h"
#include "asymkv/engine/sampler.h"
#include "asymkv/runtime/backends.h"

namespace asymkv::parity {
namespace {

constexpr double kExcusedMargin = 0.01;
constexpr double kLogitTolerance = 1e-3;  // of the largest |logit|
constexpr size_t kNumPrompts = 20;
constexpr size_t kNumTokens = 64;
constexpr int64_t kPageSize = 16;
constexpr size_t kRowsPerBlock = 64;  // rows of logits in memory at once

std::unique_ptr<KvCache> cache_for(const ParityModel& model, const KvFormat& format, int64_t num_tokens) {
  CacheRequest request;
  request.format = format;
  request.page_size = kPageSize;
  request.num_pages = (num_tokens + kPageSize - 1) / kPageSize;
  return make_cache(model.decoder, request);
}

KvFormat format_of_arm(const std::string& arm, DType native) {
  const std::string alias = arm == "N" ? "native" : arm == "AD" ? "k16v8" : arm == "SD" ? "k8v8" : "ki8v8-prebias";
  ASYMKV_CHECK(alias != "ki8v8-prebias" || arm == "JD", "no format for arm {}", arm);
  return parse_kv_format(alias, native, ScaleKind::kDynamic);
}

double largest_error(std::span<const float> logits, const Json& golden) {
  double error = 0.0;
  for (size_t i = 0; i < golden["ids"].size(); ++i) {
    const double expected = golden["values"][i];
    error = std::max(error, std::fabs(static_cast<double>(logits[golden["ids"][i].get<size_t>()]) - expected));
  }
  return error / golden["max_abs"].get<double>();
}

// One prompt that decodes beside the others.
struct Stream {
  std::unique_ptr<KvCache> cache;
  std::unique_ptr<SequencePages> sequence;
  std::vector<int32_t> prompt;
  std::vector<int32_t> expected;
  std::vector<int32_t> tokens;  // chosen by the engine
};

Stream start_stream(ParityModel& model, const Json& golden, GreedyReport& report) {
  Stream stream;
  stream.prompt = golden["prompt"].get<std::vector<int32_t>>();
  stream.expected = golden["tokens"].get<std::vector<int32_t>>();
  const KvFormat format = parse_kv_format("f32/f32", DType::kF32, ScaleKind::kDynamic);
  stream.cache = cache_for(model, format, static_cast<int64_t>(stream.prompt.size() + stream.expected.size()));
  stream.sequence = std::make_unique<SequencePages>(*stream.cache);
  ForwardChunk chunk;
  chunk.tokens = stream.prompt;
  chunk.targets = {stream.sequence.get()};
  const std::vector<float> hidden = model.decoder.forward(std::span(&chunk, 1), DType::kF32);
  const auto width = static_cast<size_t>(model.decoder.config().hidden_size);
  const std::vector<float> logits = model.decoder.logits(std::span(hidden).last(width));
  report.largest_logit_error = std::max(report.largest_logit_error, largest_error(logits, golden["logits"]));
  stream.tokens.push_back(argmax(logits));
  return stream;
}

// Compares the newest token; returns whether the stream goes on.
bool accept(const Stream& stream, size_t prompt, const Json& golden, GreedyReport& report) {
  const size_t step = stream.tokens.size() - 1;
  if (stream.tokens[step] != stream.expected[step]) {
    report.divergences.push_back({prompt, step, stream.expected[step], stream.tokens[step], golden["margins"][step]});
    return false;
  }
  ++report.num_tokens;
  return stream.tokens.size() < stream.expected.size();
}

// One more token for every running stream, in one forward pass.
void step_streams(ParityModel& model, std::span<Stream> streams, std::span<const size_t> running) {
  std::vector<ForwardChunk> chunks;
  for (const size_t i : running) {
    ForwardChunk chunk;
    chunk.tokens = std::span(streams[i].tokens).last(1);
    chunk.start_pos = streams[i].sequence->num_tokens();
    chunk.targets = {streams[i].sequence.get()};
    chunk.context = streams[i].sequence.get();
    chunk.own_reads = OwnReads::kStored;
    chunks.push_back(chunk);
  }
  const std::vector<float> logits = model.decoder.logits(model.decoder.forward(chunks, DType::kF32));
  const auto vocab = static_cast<size_t>(model.decoder.config().vocab_size);
  for (size_t row = 0; row < running.size(); ++row) {
    streams[running[row]].tokens.push_back(argmax(std::span(logits).subspan(row * vocab, vocab)));
  }
}

double token_loss(std::span<const float> logits, int32_t target) {
  const auto largest = static_cast<double>(*std::ranges::max_element(logits));
  double sum = 0.0;
  for (const float logit : logits) sum += std::exp(static_cast<double>(logit) - largest);
  return largest + std::log(sum) - static_cast<double>(logits[static_cast<size_t>(target)]);
}

std::vector<double> document_losses(ParityModel& model, std::span<const int32_t> tokens, const std::string& arm,
                                    OwnReads own_reads) {
  const DType native = model.decoder.config().native_dtype;
  const auto cache = cache_for(model, format_of_arm(arm, native), static_cast<int64_t>(tokens.size()));
  SequencePages sequence(*cache);
  ForwardChunk chunk;
  chunk.tokens = tokens;
  chunk.targets = {&sequence};
  chunk.context = &sequence;
  chunk.own_reads = own_reads;
  const std::vector<float> hidden = model.decoder.forward(std::span(&chunk, 1), native);
  const auto width = static_cast<size_t>(model.decoder.config().hidden_size);
  const auto vocab = static_cast<size_t>(model.decoder.config().vocab_size);
  std::vector<double> losses;
  for (size_t begin = 0; begin + 1 < tokens.size(); begin += kRowsPerBlock) {
    const size_t rows = std::min(kRowsPerBlock, tokens.size() - 1 - begin);
    const std::vector<float> logits = model.decoder.logits(std::span(hidden).subspan(begin * width, rows * width));
    for (size_t row = 0; row < rows; ++row) {
      losses.push_back(token_loss(std::span(logits).subspan(row * vocab, vocab), tokens[begin + row + 1]));
    }
  }
  return losses;
}

bool within_limits(const LossDistance& distance, const Json& arm) {
  return std::fabs(distance.mean) <= arm["mean_limit"].get<double>() &&
         distance.token_rms <= arm["token_rms_limit"].get<double>();
}

}  // namespace

std::unique_ptr<ParityModel> open_parity_model(const std::filesystem::path& path) {
  ModelFiles files = open_model(path);
  Decoder decoder(files.config, *files.weights, select_backends("cpu"));
  return std::make_unique<ParityModel>(ParityModel{std::move(files), std::move(decoder)});
}

std::filesystem::path source_path(const std::string& below) {
  const char* source = std::getenv("ASYMKV_SOURCE_DIR");
  return std::filesystem::path(source == nullptr ? "." : source) / below;
}

std::filesystem::path golden_path(const std::string& file) {
  return source_path("tests/golden/parity") / file;
}

std::optional<std::filesystem::path> fetched_model(const std::string& file) {
  const char* folder = std::getenv("ASYMKV_MODEL_DIR");
  const char* home = std::getenv("HOME");
  const std::filesystem::path path =
      (folder != nullptr ? std::filesystem::path(folder)
                         : std::filesystem::path(home == nullptr ? "" : home) / ".cache/asymkv/models") /
      file;
  return std::filesystem::exists(path) ? std::optional(path) : std::nullopt;
}

GreedyReport run_greedy(ParityModel& model, const Json& golden) {
  GreedyReport report;
  std::vector<Stream> streams;
  std::vector<size_t> running;
  for (const Json& prompt : golden["prompts"]) {
    streams.push_back(start_stream(model, prompt, report));
    if (accept(streams.back(), report.num_prompts, prompt, report)) running.push_back(report.num_prompts);
    ++report.num_prompts;
  }
  while (!running.empty()) {
    step_streams(model, streams, running);
    std::erase_if(running, [&](size_t i) { return !accept(streams[i], i, golden["prompts"][i], report); });
  }
  return report;
}

void expect_greedy_equal(ParityModel& model, const std::string& golden_file) {
  const Json golden = read_json_file(golden_path(golden_file));
  ASSERT_EQ(golden["prompts"].size(), kNumPrompts);
  for (const Json& prompt : golden["prompts"]) ASSERT_EQ(prompt["tokens"].size(), kNumTokens);
  const GreedyReport report = run_greedy(model, golden);
  EXPECT_EQ(report.num_prompts, kNumPrompts);
  for (const Divergence& d : report.divergences) {
    const std::string where = fmt::format("prompt {} step {}: token {} where transformers chose {}, margin {:.4f}",
                                          d.prompt, d.step, d.actual, d.expected, d.margin);
    EXPECT_LT(d.margin, kExcusedMargin) << where;
    std::cout << "excused: " << where << "\n";
  }
  EXPECT_LE(report.largest_logit_error, kLogitTolerance);
  std::cout << fmt::format("{}: {} prompts, {} equal tokens, {} excused; logits within {:.1e} of the largest\n",
                           golden_file, report.num_prompts, report.num_tokens, report.divergences.size(),
                           report.largest_logit_error);
}

LossDistance loss_distance(ParityModel& model, const Json& document, const std::string& arm, OwnReads own_reads) {
  const auto tokens = document["tokens"].get<std::vector<int32_t>>();
  const Json& golden = document["arms"][arm];
  const std::vector<double> losses = document_losses(model, tokens, arm, own_reads);
  const auto expected = golden["tokens"].get<std::vector<double>>();
  ASYMKV_CHECK(losses.size() == expected.size(), "{} losses, golden has {}", losses.size(), expected.size());
  LossDistance distance;
  double sum = 0.0;
  double squares = 0.0;
  for (size_t i = 0; i < losses.size(); ++i) {
    sum += losses[i];
    squares += (losses[i] - expected[i]) * (losses[i] - expected[i]);
  }
  const auto count = static_cast<double>(losses.size());
  distance.mean = sum / count - golden["mean"].get<double>();
  distance.token_rms = std::sqrt(squares / count);
  return distance;
}

void expect_losses_equal(ParityModel& model, const std::string& golden_file) {
  const Json golden = read_json_file(golden_path(golden_file));
  ASSERT_GE(golden["documents"].size(), 2U);
  ASSERT_EQ(golden["native"], dtype_name(model.decoder.config().native_dtype));
  for (size_t i = 0; i < golden["documents"].size(); ++i) {
    for (const auto& [name, arm] : golden["documents"][i]["arms"].items()) {
      const LossDistance d = loss_distance(model, golden["documents"][i], name, OwnReads::kStored);
      const std::string line =
          fmt::format("{} document {} {}: mean {:.5f} {:+.1e} (limit {:.1e}), tokens rms {:.1e} (limit {:.1e})",
                      golden_file, i, name, arm["mean"].get<double>(), d.mean, arm["mean_limit"].get<double>(),
                      d.token_rms, arm["token_rms_limit"].get<double>());
      EXPECT_TRUE(within_limits(d, arm)) << line;
      std::cout << line << "\n";
    }
  }
}

void expect_silent_16_bit_reads_noticed(ParityModel& model, const std::string& golden_file,
                                        std::span<const std::string> arms) {
  const Json golden = read_json_file(golden_path(golden_file));
  for (const Json& document : golden["documents"]) {
    for (const std::string& arm : arms) {
      const LossDistance d = loss_distance(model, document, arm, OwnReads::kFresh);
      EXPECT_FALSE(within_limits(d, document["arms"][arm]))
          << arm << ": reading 16-bit values moved the mean by " << d.mean << " and tokens by " << d.token_rms;
    }
  }
}

}  // namespace asymkv::parity
