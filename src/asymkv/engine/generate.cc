#include "asymkv/engine/generate.h"

#include <algorithm>
#include <chrono>

#include "asymkv/base/error.h"
#include "asymkv/base/interrupt.h"

namespace asymkv {
namespace {

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

std::string_view finish_reason_name(FinishReason reason) {
  return reason == FinishReason::kStop ? "stop" : "length";
}

int32_t next_token(LoadedModel& model, const ForwardChunk& chunk, Sampler& sampler, DType native_dtype) {
  const std::span<const ForwardChunk> chunks(&chunk, 1);
  const double uniform = sampler.next_uniform();
  const std::optional<int32_t> token =
      model.decoder.drawn_step(chunks, sampler.law(), std::span(&uniform, 1), native_dtype).front();
  if (!token) {
    throw_bad_input(
        "a logit after {} tokens is nan or infinite: the model's weights are damaged, or it cannot run with this KV "
        "format",
        chunk.start_pos + std::ssize(chunk.tokens));
  }
  return *token;
}

Generation generate(LoadedModel& model, SequencePages& sequence, std::span<const int32_t> prompt,
                    const GenerateOptions& options, const std::function<void(int32_t)>& on_token) {
  if (prompt.empty()) throw_usage("the prompt is empty: give at least one token");
  const int64_t limit = model.config().max_position_embeddings;
  const auto prompt_len = static_cast<int64_t>(prompt.size());
  if (prompt_len >= limit) {
    throw_usage("the prompt has {} tokens, the model {} positions: shorten it", prompt_len, limit);
  }
  const int64_t max_tokens = std::min(options.max_tokens, limit - prompt_len);
  model.decoder.reserve_positions(prompt_len + max_tokens);  // whole: a longrope model decides here
  Sampler sampler(options.sampling);
  Generation result;
  const auto start = std::chrono::steady_clock::now();
  ForwardChunk chunk;
  chunk.tokens = prompt;
  chunk.targets = {&sequence};
  chunk.context = &sequence;
  chunk.own_reads = options.prompt_reads;
  int32_t token = next_token(model, chunk, sampler, options.native_dtype);
  result.prefill_seconds = seconds_since(start);
  const auto decode_start = std::chrono::steady_clock::now();
  for (int64_t i = 0; i < max_tokens; ++i) {
    throw_if_interrupted();
    if (i > 0) {
      token = next_token(model, append_chunk(sequence, std::span(&token, 1), OwnReads::kStored), sampler,
                         options.native_dtype);
    }
    result.token_ids.push_back(token);
    if (on_token) on_token(token);
    if (!options.ignore_eos && model.is_end(token)) {
      result.finish_reason = FinishReason::kStop;
      break;
    }
  }
  result.decode_seconds = seconds_since(decode_start);
  return result;
}

namespace {

// A slot that decodes, and its text so far.
struct RunningSlot {
  DecodeSlot* slot;
  StreamDecoder decoder;
  std::string text;
};

// Whether the text contains a stop string that ends behind `old_size`; what stands before was looked at already.
bool contains_stop(const std::string& text, size_t old_size, std::span<const std::string> stop) {
  return std::ranges::any_of(stop, [&](const std::string& s) {
    return text.find(s, old_size + 1 < s.size() ? 0 : old_size + 1 - s.size()) != std::string::npos;
  });
}

// Takes one chosen token into a slot; returns whether the slot goes on.
bool accept_token(const LoadedModel& model, RunningSlot& running, int32_t token, const DecodeLimits& limits) {
  DecodeSlot& slot = *running.slot;
  if (model.is_end(token)) {
    slot.finish_reason = FinishReason::kStop;
    slot.ended_by_token = true;
    return false;
  }
  slot.token_ids.push_back(token);
  if (!limits.stop.empty()) {
    const size_t old_size = running.text.size();
    running.text += running.decoder.push(token);
    if (contains_stop(running.text, old_size, limits.stop)) {
      slot.finish_reason = FinishReason::kStop;
      return false;
    }
  }
  slot.finish_reason = FinishReason::kLength;
  const bool room = slot.sequence->num_tokens() + 1 < model.config().max_position_embeddings;
  return room && static_cast<int64_t>(slot.token_ids.size()) < limits.max_tokens;
}

// Rows of one cache follow each other, so that device kernels take them as they lie. Caches keep the order in which
// they occur.
void group_by_cache(std::vector<RunningSlot>& running) {
  std::vector<const KvCache*> caches;
  for (const RunningSlot& item : running) {
    const KvCache* cache = &item.slot->sequence->cache();
    if (std::ranges::find(caches, cache) == caches.end()) caches.push_back(cache);
  }
  std::ranges::stable_sort(running, {}, [&](const RunningSlot& item) {
    return std::ranges::find(caches, &item.slot->sequence->cache()) - caches.begin();
  });
}

}  // namespace

void decode_greedy(LoadedModel& model, std::span<DecodeSlot> slots, const DecodeLimits& limits) {
  std::vector<RunningSlot> running;
  for (DecodeSlot& slot : slots) {
    slot.token_ids.clear();
    RunningSlot started{&slot, StreamDecoder(model.tokenizer, true), {}};
    if (accept_token(model, started, slot.next, limits)) running.push_back(std::move(started));
  }
  group_by_cache(running);
  while (!running.empty()) {
    throw_if_interrupted();
    std::vector<ForwardChunk> chunks;
    for (const RunningSlot& item : running) {
      const std::span<const int32_t> newest = std::span(item.slot->token_ids).last(1);
      chunks.push_back(append_chunk(*item.slot->sequence, newest, OwnReads::kStored));
    }
    const auto tokens = model.decoder.greedy_step(chunks, limits.native_dtype);
    std::vector<RunningSlot> still_running;
    for (size_t i = 0; i < running.size(); ++i) {
      if (!tokens[i]) running[i].slot->failure = "non-finite logits";
      if (tokens[i] && accept_token(model, running[i], *tokens[i], limits)) {
        still_running.push_back(std::move(running[i]));
      }
    }
    running = std::move(still_running);
  }
}

}  // namespace asymkv
